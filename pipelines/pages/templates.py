"""Templates of the bodies of pages, and figures as people read them."""

from __future__ import annotations

import math
from pathlib import Path

import jinja2

from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.pages.axes import MINUS, whole

NOTHING = "\N{EN DASH}"


def template(path: Path) -> jinja2.Template:
    """A template, with the filters below; it may include those of its folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        whole=whole, decimal=decimal, percent=percent, signed=signed, several=number_of
    )
    return environment.get_template(path.name)


def decimal(value: float) -> str:
    """Three digits, or all before the point."""
    if math.isnan(value):
        return NOTHING
    return whole(value) if abs(value) >= 100 else f"{value:,.3g}".replace("-", MINUS)


def percent(value: float) -> str:
    """A share as per cent."""
    return NOTHING if math.isnan(value) else f"{100 * value:,.1f}%"


def signed(value: float) -> str:
    """A change as per cent, with its sign."""
    return f"{100 * value:+,.1f}%".replace("-", MINUS)

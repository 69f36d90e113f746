"""The colours of all pages by name, for light and for dark schemes.

Pages have them as CSS variables of these names, so that charts follow the reader's scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Colour(NamedTuple):
    """One colour."""

    light: str
    dark: str


# Blue and orange are Okabe and Ito's, and the colours of series near to theirs.
COLOURS: Mapping[str, Colour] = {
    "ink": Colour("#1c2329", "#e8ebed"),
    "muted": Colour("#5b6670", "#a3afb9"),
    "rule": Colour("#d9dee2", "#3a434b"),
    "page": Colour("#ffffff", "#14181b"),
    "card": Colour("#f5f7f8", "#1d2327"),
    "notice": Colour("#fdf3ea", "#2b221a"),
    "released": Colour("#0072b2", "#56b4e9"),
    "revised": Colour("#00805e", "#3ecfa4"),
    "error": Colour("#b34700", "#f0964b"),
    "series0": Colour("#0072b2", "#56b4e9"),
    "series1": Colour("#c25100", "#f0964b"),
    "series2": Colour("#00805e", "#3ecfa4"),
    "series3": Colour("#a3448a", "#e08ac6"),
    "series4": Colour("#7a6a00", "#d9c54a"),
    "series5": Colour("#444c9c", "#9aa3f0"),
    "series6": Colour("#8b4a2b", "#d59a7b"),
    "series7": Colour("#2f7d8c", "#6fcbd9"),
}

FIGURES = ("released", "error", "revised")
"""Colours of the figures of a query, such as p50 and p90, over and over."""
SERIES = tuple(name for name in COLOURS if name.startswith("series"))
"""Colours of mechanisms that are compared, in order, where shapes tell them apart as well, and of
queries that share a budget, from the bottom of the stack on."""
OTHERS = "muted"
"""Colour of all queries that have none to themselves."""


def variables() -> str:
    """The palette in CSS."""
    light, dark = (
        "".join(f"  --{name}: {colour[scheme]};\n" for name, colour in COLOURS.items())
        for scheme in (0, 1)
    )
    return f":root {{\n{light}}}\n@media (prefers-color-scheme: dark) {{\n:root {{\n{dark}}}\n}}\n"

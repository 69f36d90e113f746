"""The defaults that pages name are those of the code."""

import inspect
import re
from pathlib import Path

import pytest

from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.infinite.gated import Gated
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.per_record.base_sum import framework_sum
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT
from streamveil.pipelines.options import evaluate_options

DOCS = Path(__file__).parent.parent / "docs"


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def rows(text):
    """Rows of tables, as cells."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_default_mechanisms():
    assert f"`{DEFAULT}` is the default" in text_of("explanation/adaptive.md")
    assert f"`{INFINITE_DEFAULT}` is the default" in text_of("explanation/lifetime-budgets.md")


def test_defaults_of_evaluate():
    page = text_of("reference/evaluate.md")
    for words in (
        f"default `{','.join(evaluate_options.DEFAULT_MECHANISMS)}`",
        f"values of ε (default {evaluate_options.DEFAULT_EPSILON})",
        f"w in slots (default {evaluate_options.DEFAULT_WINDOW})",
        f"default {evaluate_options.DEFAULT_USERS:,} and {evaluate_options.DEFAULT_SLOTS:,}",
        f"its noise, default {evaluate_options.DEFAULT_SEEDS}",
    ):
        assert words in page


@pytest.mark.parametrize(
    ("page", "heading", "mechanism", "column"),
    [
        ("explanation/adaptive.md", "| option | default |", Adaptive, 1),
        ("explanation/local.md", "| option | default |", Rotation, 1),
        ("explanation/lifetime-mechanisms.md", "| option | | default |", Gated, 2),
    ],
)
def test_defaults_of_mechanisms(page, heading, mechanism, column):
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(mechanism).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    table = text_of(page).split(heading)[1].split("\n\n")[0]
    checked = 0
    for cells in rows(table)[1:]:
        name, stated = cells[0].strip("`"), cells[column].strip("`")
        assert name in defaults
        real = defaults[name]
        if isinstance(real, bool):
            assert stated == str(real).lower()
        elif re.fullmatch(r"-?[\d.]+", stated):
            assert float(stated) == real
        elif isinstance(real, str):
            assert stated == real
        else:
            assert not real, f"{name} is {real!r} unless given"  # computed, or none
        checked += 1
    assert checked >= 4


def test_the_share_of_the_framework():
    rho = inspect.signature(framework_sum).parameters["rho"].default
    assert rho == 0.25
    assert f"a quarter of the budget (`rho`, {rho})" in text_of("explanation/per-record.md")

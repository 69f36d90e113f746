"""The defaults that pages name are those of the code."""

import inspect
import re
from pathlib import Path

import pytest

from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.infinite.gated import Gated
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.per_record.base_sum import framework_sum
from streamveil.mechanisms.registry import DEFAULT, DEFAULTS, INFINITE_DEFAULT, LOCAL_DEFAULT
from streamveil.pipelines.commands import COMMANDS
from streamveil.pipelines.evaluation import options as evaluation

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


def named_defaults():
    """(command, option, default) of the page of the command line."""
    parts = re.split(r"^## streamveil ", text_of("command-line.md"), flags=re.MULTILINE)[1:]
    for part in parts:
        command = part.split()[0]
        for cells in rows(part):
            names = re.findall(r"`--(\w+)", cells[0])
            found = re.search(r"\bdefault (?:`([^`]+)`|(\d+(?:[.]\d+)?|UTC))", cells[1])
            if len(names) == 1 and found and not names[0].endswith("_column"):
                yield command, names[0], found[1] or found[2]


@pytest.mark.parametrize(("command", "name", "default"), named_defaults())
def test_defaults_of_options(command, name, default):
    actions = {a.option_strings[-1][2:]: a for a in COMMANDS[command].strict()._actions}
    action = actions[name]
    if action.default is None:  # the help says what is taken then
        assert f"(default {default})" in action.help
    else:
        assert str(action.default) == default


def test_some_defaults_are_named():
    assert {("demo", "mechanism", DEFAULT), ("release", "shards", "1")} <= set(named_defaults())


def test_default_mechanisms():
    page = text_of("command-line.md")
    release, collect, per_record = (
        next(c[1] for c in rows(part) if c[0].startswith("`--mechanism"))
        for part in re.split(r"^## streamveil ", page, flags=re.MULTILINE)[1:4]
    )
    assert re.findall(r"`([\w+]+)` \(default\)", release) == [DEFAULT, INFINITE_DEFAULT]
    assert re.findall(r"`([\w+]+)` \(default\)", collect) == [LOCAL_DEFAULT]
    assert set(re.findall(r"`([\w+]+)` \(default\)", per_record)) == {DEFAULTS["count"]}
    assert f"`{DEFAULT}` is the default" in text_of("adaptive.md")
    assert f"`{INFINITE_DEFAULT}` is the default" in text_of("infinite.md")


def test_defaults_of_evaluate():
    page = text_of("evaluation.md")
    for words in (
        f"default `{','.join(evaluation.DEFAULT_MECHANISMS)}`",
        f"values of E (default {evaluation.DEFAULT_EPSILON})",
        f"w in slots (default {evaluation.DEFAULT_WINDOW})",
        f"default {evaluation.DEFAULT_USERS:,} and {evaluation.DEFAULT_SLOTS:,}",
        f"its noise, default {evaluation.DEFAULT_SEEDS}",
    ):
        assert words in page


@pytest.mark.parametrize(
    ("page", "heading", "mechanism", "column"),
    [
        ("adaptive.md", "| option | default |", Adaptive, 1),
        ("local.md", "| option | default |", Rotation, 1),
        ("infinite.md", "| option | | default |", Gated, 2),
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
        name, told = cells[0].strip("`"), cells[column].strip("`")
        assert name in defaults
        real = defaults[name]
        if isinstance(real, bool):
            assert told == str(real).lower()
        elif re.fullmatch(r"-?[\d.]+", told):
            assert float(told) == real
        elif isinstance(real, str):
            assert told == real
        else:
            assert not real, f"{name} is {real!r} unless told"  # computed, or none
        checked += 1
    assert checked >= 4


def test_the_share_of_the_framework():
    rho = inspect.signature(framework_sum).parameters["rho"].default
    assert rho == 0.25
    assert f"a quarter of the budget (`rho`, {rho})" in text_of("per-record.md")

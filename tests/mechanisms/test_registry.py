"""The one registry: every entry can be made and is listed, and every family has one default."""

from collections import Counter
from pathlib import Path

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.registry import (
    CHANGING,
    INFINITE,
    INFINITE_MECHANISMS,
    LOCAL,
    LOCAL_MECHANISMS,
    MECHANISMS,
    PER_RECORD,
    REGISTRY,
    WINDOWS,
    parse,
)

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {
    WINDOWS: "explanation/mechanisms.md",
    CHANGING: "explanation/mechanisms.md",
    INFINITE: "explanation/lifetime-mechanisms.md",
    LOCAL: "explanation/local.md",
    PER_RECORD: "explanation/per-record.md",
}


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: f"{spec.family} {spec.name}")
def test_every_mechanism_is_there_and_has_a_line_in_the_pages(spec):
    assert callable(spec.factory)
    assert all(isinstance(default, (bool, float, int, str)) for default in spec.options.values())
    assert f"`{spec.name}`" in (DOCS / PAGES[spec.family]).read_text(encoding="utf-8")


def test_one_default_that_is_advised():
    defaults = Counter((s.family, s.statistic) for s in REGISTRY if s.default and not s.compared)
    assert defaults == dict.fromkeys({(s.family, s.statistic) for s in REGISTRY}, 1)


def test_names_are_unique():
    names = [(spec.family, spec.statistic, spec.name) for spec in REGISTRY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "known", "command"),
    [
        ("gated", MECHANISMS, r"\(streamveil release --guarantee=infinite\)"),
        ("rotation:gate=0.1", MECHANISMS, r"\(streamveil collect\)"),
        ("dpbd", MECHANISMS, r"\(streamveil release --requirement_changes\)"),
        ("lbu", INFINITE_MECHANISMS, r"\(streamveil release\) or .* \(streamveil collect\)"),
        ("hat", LOCAL_MECHANISMS, r"\(streamveil per-record\)"),
    ],
)
def test_a_name_of_another_family_is_answered_with_its_command(name, known, command):
    with pytest.raises(ConfigurationError, match=rf"is for .*{command}: here choose one of "):
        parse(name, known)


def test_an_unknown_name():
    with pytest.raises(ConfigurationError, match=r"'pda' is unknown: choose one of adaptive, pba"):
        parse("pda")

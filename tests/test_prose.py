"""The check of the prose finds what it should, and leaves ordinary English alone."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "prose.py"


@pytest.fixture(scope="module")
def prose():
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("prose", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    yield module
    del sys.modules["prose"]


def of_page(prose, text, file="docs/how-to/page.md"):
    return [str(one) for one in prose.findings_of(prose.of_page(text, file))]


def test_a_phrase_of_the_dialect_is_found_where_it_is(prose):
    text = "# Page\n\nThe first line, and\nsomebody in the second.\n\n- an epsilon\n"
    first, second = of_page(prose, text)
    assert first.startswith("docs/how-to/page.md:4: 'somebody': write name who it is")
    assert second.startswith("docs/how-to/page.md:6: 'epsilon': write ε in prose")


@pytest.mark.parametrize(
    "text",
    [
        "Call `somebody()` or [read on](somebody.md).",
        "```sh\necho somebody: nobody\n```",
        "Two releases cannot be distinguished, as Figures 2 and 3 show.",
        "The query set, its high-water mark and user-level privacy.",
    ],
)
def test_code_and_ordinary_english_pass(prose, text):
    assert of_page(prose, text) == []


def test_colons_are_counted_where_they_stand_for_a_conjunction(prose):
    assert "3 colons in 6 words, at most 7 in 1,000" in of_page(prose, "a: b. c: d. e: f.")[0]


def test_colons_before_lists_in_times_and_in_code_do_not_count(prose):
    text = (
        "The parts are:\n\n- one at 12:30\n- `a: b`\n\n| a: b | c: d |\n|---|---|\n\nSo:\n\nAs:\n"
    )
    assert of_page(prose, text) == []


def test_long_paragraphs_and_pages_are_found_except_in_records(prose):
    long = "word " * 111
    assert "111 words in a paragraph, at most 110" in of_page(prose, long)[0]
    assert of_page(prose, long, "docs/decisions/0001-page.md") == []
    page = "\n\n".join(["word " * 100] * 26)
    assert "2600 words, at most 2500" in of_page(prose, page)[0]
    assert of_page(prose, page, "docs/evidence/page.md") == []


def test_docstrings_are_read_by_paragraph_and_argument(prose):
    source = '''def shown(a, b):
    """One line.

    A paragraph of
    two lines:

        >>> shown(1, 2)
        somebody: told

    Args:
        a: the first.
        b: the second,
            and more.

    Returns:
        A number.
    """

def hidden():
    """Somebody."""
'''
    found = [*prose.of_docstrings(source, "module.py", ["shown"])]
    assert [(one.line, one.text) for one in found] == [
        (2, "One line."),
        (4, "A paragraph of\ntwo lines:"),
        (11, "the first."),
        (12, "the second,\nand more."),
        (16, "A number."),
    ]


def test_public_names_are_found_where_they_are_defined(prose):
    names = {name for some in prose.public_names().values() for name in some}
    assert {"release", "count", "Registry", "PrivateQueries", "read_requirements"} <= names


def test_help_is_read_with_its_place(prose):
    found = [*prose.of_help()]
    assert len(found) > 100
    assert sum(one.file.endswith(".py") for one in found) > len(found) / 2


def test_samples_repeat_with_their_seed(prose, capsys):
    assert prose.main(["--sample=5", "--seed=3"]) == 0
    first = capsys.readouterr().out
    assert prose.main(["--sample=5", "--seed=3"]) == 0
    assert capsys.readouterr().out == first
    assert len(json.loads(first)) == 5

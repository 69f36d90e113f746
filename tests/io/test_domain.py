"""Domains, keys and budgets in files: text as it is written, and a header is no bin."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import read_domain
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.options.budget_functions import lookup_of


def test_booleans_of_a_json_list_are_those_of_events(tmp_path):
    path = tmp_path / "d.json"
    path.write_text("[true, false, 1.0]")
    assert read_domain(str(path)).values == ("true", "false", "1")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv", "value\n01234\n1234\ntrue\n1.0\n"),
        ("d.csv", "about,value\nx,01234\nx,1234\nx,true\nx,1.0\n"),
        ("d.csv", "01234\n1234\ntrue\n1.0\n"),
        ("d.txt", "01234\n1234\ntrue\n1.0\n"),
        ("d.json", '["01234", "1234", "true", "1.0"]'),
    ],
)
def test_values_are_text_as_written(tmp_path, name, content):
    """`01234` became 1234, and `true` a boolean."""
    path = tmp_path / name
    path.write_text(content)
    assert read_domain(str(path)).values == ("01234", "1234", "true", "1.0")


@pytest.mark.parametrize("name", ["d.csv", "d.txt"])
def test_blanks_of_a_line_are_part_of_a_value(tmp_path, name):
    """`A` had no event where events had ` A`, which went to `other` without a warning."""
    path = tmp_path / name
    path.write_bytes(b" A\r\nB \nC\t\n  \n\nD")
    assert read_domain(str(path)).values == (" A", "B ", "C\t", "D")


def test_a_header_with_blanks_is_refused(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text(" value \nA\n")
    with pytest.raises(ConfigurationError, match="first line is 'value', which is the name"):
        read_domain(str(path))


def test_categories_of_budgets_are_text_as_written(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("category,epsilon\n01234,0.5\n1234,1\ntrue,2e0\n")
    assert lookup_of(str(path), None, None).table == {"01234": 0.5, "1234": 1.0, "true": 2.0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x,abc", "line 3: epsilon 'abc' is not a number"),
        ("x,-1", "line 3: epsilon '-1' is not a number above 0"),
        ("x,", "line 3: epsilon None is missing"),
        (",1", "line 3: category None is missing"),
        ("y,2", "'y' is listed twice"),
        ("x,1,2", "line 3 cannot be parsed"),
    ],
)
def test_a_bad_row_of_budgets_is_named(tmp_path, line, words):
    path = tmp_path / "b.csv"
    path.write_text(f"category,epsilon\ny,1\n{line}\n")
    with pytest.raises(ConfigurationError, match=words):
        lookup_of(str(path), None, None)


def test_a_column_of_a_table_may_be_named_as_that_of_the_events(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("place,about\nA,x\nB,y\n")
    assert read_domain(str(path), "place").values == ("A", "B")
    pq.write_table(pa.table({"place": [7, 8]}), tmp_path / "d.parquet")
    assert read_domain(str(tmp_path / "d.parquet"), "place").values == ("7", "8")
    with pytest.raises(ConfigurationError, match="no column 'value' and no column 'town'"):
        read_domain(str(tmp_path / "d.parquet"), "town")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.txt", "place\nA\nB\n", "'place', which is the name of a column"),
        ("d.txt", "Place\nA\nB\n", "'Place', which is the name of a column"),
        ("d.csv", "Value\nA\nB\n", "'Value', which is the name of a column"),
        ("d.txt", "code\n10\n20\n", "'code', and all others are numbers"),
        ("d.csv", "code\n1.5\n", "'code', and all others are numbers"),
    ],
)
def test_a_header_does_not_become_a_bin(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=words) as error:
        read_domain(str(path), "place")
    assert "take it out" in str(error.value)
    assert "JSON list" in str(error.value)


def test_the_remedy_for_a_bin_that_looks_like_a_header(tmp_path):
    path = tmp_path / "d.json"
    path.write_text('["place", "A"]')
    assert read_domain(str(path), "place").values == ("place", "A")


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("[1, 2]", ("1", "2")),
        ("[1.0, 2.50, 1e3]", ("1", "2.5", "1000")),
        ("[12345678901234567890, 9007199254740993]", ("12345678901234567890", "9007199254740993")),
    ],
)
def test_numbers_of_a_json_list(tmp_path, content, values):
    path = tmp_path / "d.json"
    path.write_text(content)
    assert read_domain(str(path)).values == values


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 1.0]", "'1' twice"),
        ('["A", ["B"]]', "neither text nor a number"),
        ('["\\ud800"]', "neither text nor a number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_a_json_list_cannot_hold(tmp_path, content, words):
    path = tmp_path / "d.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        read_domain(str(path))


@pytest.mark.parametrize("values", [[1.0, 2.0], [True, False]])
def test_a_column_of_another_type_is_refused(tmp_path, values):
    pq.write_table(pa.table({"value": values}), tmp_path / "d.parquet")
    with pytest.raises(ConfigurationError, match="write it as text or an integer"):
        read_domain(str(tmp_path / "d.parquet"))


# ---- lists and files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["/home,/cart", "a.csv,b.csv", "s3://a,gs://b", "a/b, c/d.json", "C:,D:", "x,y.parquet"]
)
def test_text_with_a_comma_is_a_list(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    values = tuple(value.strip() for value in text.split(","))
    assert read_domain(text) == Categories(values)
    for value in values:  # also where there are such files
        if "/" not in value:
            (tmp_path / value).write_text("wrong\n")
    assert read_domain(text) == Categories(values)


def test_a_file_is_named_by_its_prefix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.txt", "plain"):
        (tmp_path / name).write_text("x\ny\n")
        for text in (f"file:{name}", f"file:{tmp_path}/{name}"):
            assert read_domain(text) == Categories(("x", "y"))
    assert read_domain("plain") == Categories(("x", "y"))
    for text in ("file:none", "/no/such", "none.csv"):
        with pytest.raises(ConfigurationError, match="does not exist: check its name; values are"):
            read_domain(text)

"""Values as bins: every value falls in its one bin or is refused with a reason."""

import decimal
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.encode.event_mapper import (
    NOT_A_NUMBER,
    NULL_VALUE,
    OUTSIDE_DOMAIN,
    REASON_OF_CODE,
    DomainMap,
)
from streamveil.mechanisms import Categories, ConfigurationError, Edges, Grid, WithNull, WithOther

PROPERTY = settings(max_examples=120)
NUMBERS = [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 3)]


def bins_of(domain, *arrays):
    """Bin or reason of each row."""
    columns = ("x", "y")[: len(arrays)]
    bins = DomainMap(domain, columns).bins(
        [pa.array(a) if isinstance(a, list) else a for a in arrays]
    )
    assert bins.dtype == np.int64
    return [REASON_OF_CODE[b] if b < 0 else b for b in bins.tolist()]


# ---- categories -----------------------------------------------------------------------------


def test_categories_match_text_exactly():
    domain = Categories(("a", "b", "A ", "é"))
    values = ["b", "a", "A", "A ", " a", "é", "e\u0301", "", None, "ab"]
    out = OUTSIDE_DOMAIN
    expected = [1, 0, out, 2, out, 3, out, NULL_VALUE, NULL_VALUE, out]
    array = pa.array(values)
    for form in (array, array.cast(pa.large_string()), array.dictionary_encode()):
        assert bins_of(domain, form) == expected


def test_booleans_are_true_and_false_in_letters_of_any_case():
    domain = Categories(("true", "FALSE", "a"))
    expected = [0, 1, NULL_VALUE]
    assert bins_of(domain, pa.array([True, False, None])) == expected
    texts = pa.array(["True", "false", "TRUE", "FaLsE", "a", "A", "truer"])
    for form in (texts, texts.dictionary_encode()):
        out = OUTSIDE_DOMAIN
        assert bins_of(domain, form) == [0, 1, 0, 1, 2, out, out]
    # What is listed as it is written is what it is.
    both = Categories(("true", "True"))
    assert bins_of(both, ["True", "true", "TRUE"]) == [1, 0, 0]


def test_categories_match_whole_numbers_by_their_decimal_text():
    domain = Categories(("1", "-2", "03"))
    for array in (
        pa.array([1, -2, 3, None], pa.int16()),
        pa.array([1, -2, 3, None]).dictionary_encode(),
    ):
        assert bins_of(domain, array) == [0, 1, OUTSIDE_DOMAIN, NULL_VALUE]


# Arrow allows nulls among the values of a dictionary: the row is as null as any other.
def test_null_inside_a_dictionary_is_a_null_value():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert bins_of(Categories(("a",)), array) == [0, NULL_VALUE, NULL_VALUE]


@pytest.mark.parametrize(
    "array",
    [pa.array([1.0]), pa.array([b"a"]), pa.array([1], pa.date32())],
    ids=lambda array: str(array.type),
)
def test_categories_refuse_a_column_of_another_type_by_name(array):
    with pytest.raises(ConfigurationError, match=re.escape(f"'x' holds {array.type}")):
        bins_of(Categories(("a",)), array)


def test_column_of_nulls_only():
    assert bins_of(Categories(("a",)), pa.nulls(2)) == [NULL_VALUE] * 2
    assert bins_of(Edges((0, 1)), pa.nulls(2)) == [NULL_VALUE] * 2
    assert bins_of(Grid(0, 0, 1, 1, 2, 2), pa.nulls(2), pa.nulls(2)) == [NULL_VALUE] * 2


def test_null_values_are_a_bin_if_it_has_a_name():
    """Missing, or empty text: the same in every type."""
    texts = ["a", "", None, "x"]
    for named, expected in (
        (WithNull(Categories(("a",)), "none"), [0, 1, 1, OUTSIDE_DOMAIN]),
        (WithNull(WithOther(Categories(("a",)), "rest"), "none"), [0, 2, 2, 1]),
        (WithOther(Categories(("a",)), "rest"), [0, NULL_VALUE, NULL_VALUE, 1]),
    ):
        array = pa.array(texts)
        for form in (array, array.cast(pa.large_string()), array.dictionary_encode()):
            assert bins_of(named, form) == expected
    edges = WithNull(WithOther(Edges((0, 1)), "rest"), "none")
    assert bins_of(edges, ["0.5", "", None, "7", "seven"]) == [0, 2, 2, 1, NOT_A_NUMBER]
    assert bins_of(edges, pa.array([0.5, None, np.nan])) == [0, 2, NOT_A_NUMBER]
    grid = WithNull(Grid(0, 0, 1, 1, 1, 1), "none")
    assert bins_of(grid, [0.5, None, 0.5], [0.5, 0.5, None]) == [0, 1, 1]
    assert grid.labels == ("r0c0", "none")
    with pytest.raises(ConfigurationError, match="--null"):
        WithNull(Categories(("a",)), "a")


# ---- edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_a_bin_holds_its_lower_edge_only(kind):
    values = [-1, 0, 4, 5, 9, 10, 11, None]
    array = pa.array(
        [None if v is None else decimal.Decimal(v) for v in values], pa.decimal128(9, 3)
    )
    out = OUTSIDE_DOMAIN
    expected = [out, 0, 0, 1, 1, out, out, NULL_VALUE]
    assert bins_of(Edges((0, 5, 10)), array.cast(kind)) == expected
    assert bins_of(Edges((0, 5, 10)), array.cast(kind).dictionary_encode()) == expected


def test_floats_next_to_the_edges_and_special_ones():
    domain = Edges((0.0, 0.1, 1.0))
    below = [math.nextafter(e, -math.inf) for e in (0.0, 0.1, 1.0)]
    assert bins_of(domain, below) == [OUTSIDE_DOMAIN, 0, 1]
    assert bins_of(domain, [-0.0, 0.1, 1.0, math.inf, -math.inf, math.nan, None]) == [
        0,
        1,
        OUTSIDE_DOMAIN,
        OUTSIDE_DOMAIN,
        OUTSIDE_DOMAIN,
        NOT_A_NUMBER,
        NULL_VALUE,
    ]


@PROPERTY
@given(
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=8, unique=True).map(sorted),
    st.lists(st.none() | st.floats()),
    st.data(),
)
def test_edges_equal_a_scan(edges, values, data):
    values = values + data.draw(st.lists(st.sampled_from(edges)))

    def bin_of(value):
        if value is None:
            return NULL_VALUE
        if math.isnan(value):
            return NOT_A_NUMBER
        holding = [j for j in range(len(edges) - 1) if edges[j] <= value < edges[j + 1]]
        return holding[0] if holding else OUTSIDE_DOMAIN

    array = pa.array(values, pa.float64())
    assert bins_of(Edges(tuple(edges)), array) == [bin_of(v) for v in values]


def test_numbers_written_as_text():
    good = ["0", " 5 ", "+5.", ".5", "4.999", "5e0", "50E-1", "-0", "\t7\n"]
    bad = [
        " ",
        "five",
        "0x5",
        "1,5",
        "5 5",
        "inf",
        "nan",
        "NaN",
        "-",
        ".",
        "1e",
        "5\0",
        "\u0665",
    ]
    far = ["-1", "10", "1e400", "-1e400", "1e-400"]
    array = pa.array([*good, *bad, *far, "", None])
    expected = (
        [0, 1, 1, 0, 0, 1, 1, 0, 1]
        + [NOT_A_NUMBER] * len(bad)
        + [OUTSIDE_DOMAIN] * 4
        + [0, NULL_VALUE, NULL_VALUE]
    )
    for form in (array, array.cast(pa.large_string()), array.dictionary_encode()):
        assert bins_of(Edges((0, 5, 10)), form) == expected


# Text is refused or read, row by row; it never stops the pipeline.
@PROPERTY
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text("0123456789.eE+- ")))
def test_any_text_is_a_bin_or_a_reason(texts):
    bins_of(Edges((0, 5, 10)), pa.array(texts, pa.string()))


# ---- grid -----------------------------------------------------------------------------------


def test_cells_are_counted_from_the_south_west_and_hold_their_west_and_south():
    grid = Grid(0, 0, 4, 2, columns=4, rows=2)
    longitudes = [0, 0.99, 1, 3.99, 0, 3, 4, 0, -0.1, 0]
    latitudes = [0, 0.99, 0, 0, 1, 1.99, 1, 2, 0, -0.1]
    out = OUTSIDE_DOMAIN
    expected = [0, 0, 1, 3, 4, 7, out, out, out, out]
    assert bins_of(grid, [float(x) for x in longitudes], [float(y) for y in latitudes]) == expected


def test_grid_labels_name_the_cells():
    grid = Grid(0, 0, 4, 2, columns=4, rows=2)
    assert grid.labels[bins_of(grid, [3.5], [1.5])[0]] == "r1c3"


# The division may round a value just below the far edge up to it.
@PROPERTY
@given(
    st.floats(-180, 179),
    st.floats(1e-6, 1),
    st.integers(1, 1000),
    st.integers(1, 1000),
)
def test_points_next_to_the_far_edges_stay_in_the_last_cells(west, width, columns, rows):
    east = min(west + width, 180.0)
    grid = Grid(west, -90, east, 90, columns, rows)
    x = [west, math.nextafter(east, west), east]
    y = [-90.0, math.nextafter(90, 0), 0.0]
    assert bins_of(grid, x, y) == [0, columns * rows - 1, OUTSIDE_DOMAIN]


def test_grid_reasons_null_before_nan_before_outside():
    grid = Grid(0, 0, 1, 1, 1, 1)
    x = [0.5, None, math.nan, None, 9.0, math.inf]
    y = [math.nan, 0.5, None, math.nan, math.nan, 0.5]
    assert bins_of(grid, x, y) == [
        NOT_A_NUMBER,
        NULL_VALUE,
        NULL_VALUE,
        NULL_VALUE,
        NOT_A_NUMBER,
        OUTSIDE_DOMAIN,
    ]


def test_grid_reads_text_and_whole_numbers():
    grid = Grid(-10, -10, 10, 10, 2, 2)
    assert bins_of(grid, ["-5", "5.5", "x"], [5, -5, 0]) == [2, 1, NOT_A_NUMBER]


# ---- what cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [pa.array([b"1"]), pa.array([1], pa.timestamp("s")), pa.array([[1]])],
    ids=lambda array: str(array.type),
)
def test_numbers_of_a_wrong_type_are_refused_by_the_columns_name(array):
    with pytest.raises(ConfigurationError, match="column 'x' holds"):
        bins_of(Edges((0, 1)), array)
    with pytest.raises(ConfigurationError, match="column 'y' holds"):
        bins_of(Grid(0, 0, 1, 1, 1, 1), [0.5], array)


@pytest.mark.parametrize(
    ("domain", "columns", "message"),
    [
        (Categories(("a",)), ("x", "y"), r"one column are counted \(given: x, y\)"),
        (Edges((0, 1)), ("x", "y"), r"one column are counted \(given: x, y\)"),
        (Grid(0, 0, 1, 1, 1, 1), ("x",), r"a grid reads two columns \(given: x\)"),
        (Grid(0, 0, 1, 1, 1, 1), ("x", "y", "z"), r"two columns \(given: x, y, z\)"),
        (Categories(("a",)), (), r"one column are counted \(given: none\)"),
    ],
)
def test_a_domain_says_how_many_columns_it_reads(domain, columns, message):
    with pytest.raises(ConfigurationError, match=message):
        DomainMap(domain, columns)


def test_no_rows():
    assert bins_of(Categories(("a",)), pa.array([], pa.string())) == []
    assert bins_of(Edges((0, 1)), pa.array([], pa.float64())) == []
    assert bins_of(Grid(0, 0, 1, 1, 1, 1), pa.array([], "double"), pa.array([], "string")) == []

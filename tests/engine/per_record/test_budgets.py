"""Budget functions over columns: what they give, and what is refused when they are stated."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.per_record import Bounds, Inverse, Logarithmic, Lookup, SquareRoot
from streamveil.mechanisms.per_record.budget_functions import Divided, divided
from streamveil.transforms import CategoryBudget, ColumnsBudget, ValueBudget

GRID = {"amount": [1.0, 2.0, 3.0, 4.0]}


def columns(function, low=0.5, high=2.0, **grid):
    return ColumnsBudget(tuple(grid or GRID), function, low, high, grid or GRID)


def rows(**arrays):
    return pa.RecordBatch.from_pydict(arrays)


@pytest.mark.parametrize("function", [Inverse, SquareRoot, Logarithmic])
@pytest.mark.parametrize("type_", [pa.float64(), pa.int32(), pa.string(), pa.decimal128(25, 2)])
def test_values(function, type_):
    budget = ValueBudget("v", function(2.0, 100.0, 50.0))
    column = pa.array([1, 4, None, 100, 101, -1]).cast(type_)
    found = budget.budgets(rows(v=column))
    expected = {Inverse: [2, 0.5], SquareRoot: [2, 1], Logarithmic: [50, 2 / np.log(4) ** 4]}
    np.testing.assert_allclose(found[:2], expected[function], rtol=1e-12)
    assert np.isnan(found[[2, 4, 5]]).all()
    assert found[3] == budget.bounds.epsilon_min


def test_values_that_are_none():
    budget = ValueBudget("v", Inverse(2.0, 100.0, 50.0))
    assert np.isnan(budget.budgets(rows(v=["x", "", "nan", "0x1", None]))).all()
    assert np.isnan(budget.budgets(rows(v=pa.nulls(2)))).all()
    broken = pa.array([b"\xff1", b"2", b"4"]).view(pa.string())  # not UTF-8
    np.testing.assert_array_equal(budget.budgets(rows(v=broken)), [np.nan, 1, 0.5])
    encoded = budget.budgets(rows(v=broken.dictionary_encode()))
    np.testing.assert_array_equal(encoded, [np.nan, 1, 0.5])
    with pytest.raises(ConfigurationError, match="'v' holds binary, which is not a number"):
        budget.budgets(rows(v=[b"1"]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "c", None, "b", ""]),
        pa.array(["a", "c", None, "b", ""], pa.large_string()),
        pa.array(["a", "c", None, "b", ""]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(
            pa.array([0, 2, 3, 1, 2], pa.uint8()), pa.array(["a", "b", "c", None])
        ),
    ],
)
def test_categories(column):
    table = {"a": 1.0, "b": 0.25}
    np.testing.assert_array_equal(
        CategoryBudget("k", Lookup(table)).budgets(rows(k=column)),
        [1.0, np.nan, np.nan, 0.25, np.nan],
    )
    budget = CategoryBudget("k", Lookup(table, default=2.0))
    np.testing.assert_array_equal(budget.budgets(rows(k=column)), [1.0, 2.0, np.nan, 0.25, 2.0])
    assert budget.bounds == Bounds(0.25, 2.0)


def test_categories_that_are_whole_numbers():
    budget = CategoryBudget("k", Lookup({"7": 1.0}))
    found = budget.budgets(rows(k=pa.array([7, 8, None], pa.int16())))
    np.testing.assert_array_equal(found, [1.0, np.nan, np.nan])


@pytest.mark.parametrize("table", [{}, {"a": 0.0}, {"a": 1.0, "b": float("nan")}, {"a": 5000.0}])
def test_tables_that_cannot_be(table):
    with pytest.raises(ConfigurationError):
        Lookup(table)


@pytest.mark.parametrize(
    "give",
    [
        lambda v, k: pa.array([1.0, None, 2.0, 0.5]),
        lambda v, k: np.array([1.0, np.nan, 2.0, 0.5]),
        lambda v, k: pa.chunked_array([[1.0], [None, 2.0], [0.5]]),
    ],
)
def test_functions_may_give_arrow_or_numpy(give):
    def function(v, k):
        return give(v, k) if len(v) == 4 else np.ones(len(v))

    budget = columns(function, v=[1.0], k=["x"])
    found = budget.budgets(rows(v=[1, 2, 3, 4], k=["a"] * 4, other=[0] * 4))
    np.testing.assert_array_equal(found, [1.0, np.nan, 2.0, 0.5])


def test_a_row_on_which_a_function_fails_takes_no_other_with_it():
    calls = Counter()

    def function(amount):
        calls[len(amount)] += 1
        amounts = amount.to_numpy(zero_copy_only=False)
        if (amounts < 0).any():
            raise KeyboardInterrupt if (amounts == -99).any() else RuntimeError(amounts)
        if (amounts == 0).any():
            return np.ones(3)  # too few or too many
        return 1 / amounts + 1

    budget = columns(function)
    amounts = np.arange(1.0, 1001.0)
    expected = 1 / amounts + 1
    for bad in ([], [0], [999], [17, 18, 500], list(range(3, 1000))):
        given, wanted = amounts.copy(), expected.copy()
        given[bad] = np.resize([-1.0, 0.0], len(bad))
        wanted[bad] = np.nan
        calls.clear()
        np.testing.assert_array_equal(budget.budgets(rows(amount=given)), wanted)
        assert sum(calls.values()) <= 1 + 22 * len(bad)
    encoded = pa.array([3.0, -1.0, 3.0]).dictionary_encode()
    found = budget.budgets(rows(amount=encoded))
    np.testing.assert_array_equal(found, [1 / 3 + 1, np.nan, 1 / 3 + 1])
    with pytest.raises(KeyboardInterrupt):  # not an error of a row
        budget.budgets(rows(amount=[-99.0]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: np.ones(3), r"fails on the grid.*shape \(3,\)"),
        (lambda v: 1.0, "fails on the grid"),
        (lambda v: v.missing, "fails on the grid: AttributeError"),
        (lambda v: ["x"] * len(v), "fails on the grid"),
        (lambda v: np.full(len(v), np.inf), r"gives inf for the row {'amount': 1.0}"),
        (lambda v: np.full(len(v), np.nan), "gives nan"),
        (lambda v: v.to_numpy() - 0.9, "gives 0.09.* which is not from 0.5 to 2.0"),
        (lambda v: v.to_numpy() / v.to_numpy().max() + 0.5, "if that is alone"),
        (lambda v: np.linspace(0.5, 2.0, len(v)), "if that is alone"),
    ],
)
def test_functions_are_tried_on_the_grid(function, message):
    with pytest.raises(ConfigurationError, match=message):
        columns(function)


def test_a_grid_has_rows_and_all_columns():
    with pytest.raises(ConfigurationError, match="no column 'b'"):
        ColumnsBudget(("a", "b"), len, 0.5, 1.0, {"a": [1]})
    with pytest.raises(ConfigurationError, match="grid of the budget function is empty"):
        ColumnsBudget(("a",), len, 0.5, 1.0, {"a": []})


def test_a_function_of_values_is_tried_as_well():
    class Liar:
        bounds = Bounds(0.5, 2.0, 10.0)

        def __call__(self, values):
            return np.where(values < 3, 1.0, 0.4)

    with pytest.raises(ConfigurationError, match=r"gives .*0.4.* for the value .*3\."):
        ValueBudget("v", Liar())


def test_the_text_of_a_budget_is_the_same_everywhere():
    assert repr(columns(lambda v: np.ones(len(v)))) == repr(columns(lambda v: np.ones(len(v))))
    assert " at 0x" not in repr(columns(np.vectorize(lambda v: 1.0)))


def test_shares_of_a_budget_never_exceed_it():
    from fractions import Fraction

    budgets = np.random.default_rng(0).uniform(1e-6, 100.0, 1000)
    for m in (2, 3, 7, 10):
        shares = divided(budgets, m)
        assert all(
            Fraction(s) * m <= Fraction(b)
            for s, b in zip(shares.tolist(), budgets.tolist(), strict=True)
        )
    shared = Divided(Inverse(2.0, 100.0, 50.0), 3)
    assert shared.bounds.epsilon_min == shared(np.array([100.0]))[0]

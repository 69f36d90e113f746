"""Optimal budget selection against golden cases, the paper's example and brute force."""

import math
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import optimal_budget_selection
from streamveil.mechanisms.wevent.obs import _errors, keep_probability

PROPERTY = settings(max_examples=150)

# Budgets of every size that a requirement allows, and 0.
BUDGETS = st.one_of(
    st.just(0.0),
    st.sampled_from([0.1, 0.4, 0.8, 299.0, 301.0, 4096.0]),
    st.builds(lambda exponent: 2.0**exponent, st.floats(-40, 12)),
)


def exact_keep(budget: float, threshold: float) -> Decimal:
    """(exp(e) - 1) / (exp(th) - 1), to many digits."""
    with localcontext() as context:
        context.prec = 80
        return (Decimal(budget).exp() - 1) / (Decimal(threshold).exp() - 1)


def exact_error(threshold: float, users: Counter) -> float:
    """err(th) by its definition, user group by user group."""
    with localcontext() as context:
        context.prec = 80
        variance, bias = Decimal(0), Decimal(0)
        for budget, size in users.items():
            if budget < threshold:
                p = exact_keep(budget, threshold)
                variance += size * p * (1 - p)
                bias += size * (1 - p)
        return float(variance + bias**2 + 2 / Decimal(threshold) ** 2)


def tolerance(error: float, users: Counter) -> float:
    """Rounding of the prefix sums: some 1e-16 of the users, before and after the square."""
    n = sum(users.values())
    return 1e-9 * error + 1e-14 * n + 1e-20 * n**2


# The threshold and the error are those of the reference cases, to the tolerance they state.
def test_golden(golden):
    data = golden("obs")
    assert len(data["cases"]) >= 100
    for case in data["cases"]:
        threshold, error = optimal_budget_selection(case["eps"])
        assert threshold == case["eps_opt"]
        assert error == pytest.approx(case["err_min"], rel=data["rel_tol"])


# The paper's example 2: 15.31 at the optimum of 0.4, and 27.73 at 0.8, where the paper prints
# another number.
def test_example_2(golden):
    example = golden("examples")["example2"]
    users = Counter(example["eps"])
    for threshold, error in example["err"].items():
        assert exact_error(float(threshold), users) == pytest.approx(error, rel=1e-12)
    errors = _errors(np.array(sorted(users)), np.array([users[e] for e in sorted(users)], float))
    assert errors == pytest.approx(list(example["err"].values()), rel=1e-12)
    assert errors[2] == pytest.approx(27.73, abs=0.005)
    threshold, error = optimal_budget_selection(example["eps"])
    assert threshold == example["eps_opt"]
    assert error == pytest.approx(15.31, abs=0.005)


# Sizes say the same as repeating a budget, and the order of the budgets says nothing.
@PROPERTY
@given(st.lists(st.tuples(BUDGETS, st.integers(0, 40)), min_size=1, max_size=8), st.randoms())
def test_sizes_equal_repeated_budgets(groups, random):
    repeated = [budget for budget, size in groups for _ in range(size)]
    expected = optimal_budget_selection(repeated)
    random.shuffle(groups)
    found = optimal_budget_selection([b for b, _ in groups], [n for _, n in groups])
    assert found == pytest.approx(expected, rel=1e-12)


# The result is the minimum over all candidates, as brute force in 80 digits finds it.
@PROPERTY
@given(
    st.dictionaries(
        BUDGETS, st.one_of(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=10
    )
)
def test_brute_force(table):
    users = Counter(table)
    threshold, error = optimal_budget_selection(list(table), list(table.values()))
    candidates = [budget for budget, size in table.items() if budget > 0 and size > 0]
    if not candidates:
        assert (threshold, error) == (0.0, math.inf)
        return
    errors = {candidate: exact_error(candidate, users) for candidate in candidates}
    assert threshold in errors
    assert error == pytest.approx(errors[threshold], rel=0, abs=tolerance(error, users))
    assert errors[threshold] <= min(errors.values()) + 2 * tolerance(error, users)


# Users with budget 0 are in the bias, once each, and are never a candidate.
def test_budget_0_counts_in_the_bias_only():
    threshold, error = optimal_budget_selection([0.0, 2.0], [7, 3])
    assert threshold == 2.0
    assert error == pytest.approx(7**2 + 2 / 4)


# A class without users is neither a candidate nor an error.
def test_empty_class_counts_nothing():
    with_empty = optimal_budget_selection([0.5, 1.0, 3.0, 8.0], [10, 0, 4, 0])
    assert with_empty == optimal_budget_selection([0.5, 3.0], [10, 4])


@pytest.mark.parametrize(
    ("budgets", "sizes"), [([], None), ([0.0, 0.0], None), ([0.0, 1.0], [5, 0])]
)
def test_no_candidate(budgets, sizes):
    assert optimal_budget_selection(budgets, sizes) == (0.0, math.inf)


# Budgets up to the largest allowed neither overflow nor warn.
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "budgets",
    [[4096.0], [1e-12, 4096.0], [299.999, 300.0, 300.001], [350.0, 710.0, 4096.0], [0.0, 4096.0]],
)
def test_huge_budgets(budgets):
    users = Counter(budgets)
    threshold, error = optimal_budget_selection(budgets)
    errors = {candidate: exact_error(candidate, users) for candidate in budgets if candidate > 0}
    assert threshold == min(errors, key=errors.get)
    assert error == pytest.approx(errors[threshold], rel=1e-9)


@pytest.mark.parametrize(
    ("budgets", "sizes", "message"),
    [
        ([-0.1, 1.0], None, "negative"),
        ([math.nan], None, "finite"),
        ([math.inf, 1.0], None, "finite"),
        ([1.0, 2.0], [1, -1], "sizes"),
        ([1.0, 2.0], [1], "2 budgets but 1 sizes"),
    ],
)
def test_bad_input_is_refused(budgets, sizes, message):
    with pytest.raises(ValueError, match=message):
        optimal_budget_selection(budgets, sizes)


# At and above the threshold everybody is kept, exactly; nobody without budget ever is.
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("threshold", [2.0**-40, 1e-6, 0.5, 1.0, 300.0, 4096.0])
def test_keep_probability_at_the_ends(threshold):
    keep = keep_probability([0.0, threshold, 2 * threshold, 4096.0], threshold)
    assert keep.tolist() == [0.0, 1.0, 1.0, 1.0]


# Below the threshold no digit is lost at either end of the range.
@PROPERTY
@given(st.integers(1, 2**52), st.integers(1, 2**52), st.integers(0, 40), st.integers(0, 40))
def test_keep_probability_is_accurate(a, b, a_shift, b_shift):
    low, high = sorted([max(a >> a_shift, 1), max(b >> b_shift, 1)])
    budget, threshold = math.ldexp(low, -40), math.ldexp(high, -40)
    found = float(keep_probability([budget], threshold)[0])
    exact = float(exact_keep(budget, threshold))
    assert 0 <= found <= 1
    # Below 1e-300 floats run out of digits; thresholds of 64 bits are 0 there.
    assert found == pytest.approx(exact, rel=2.0**-48, abs=1e-300)


# More budget is never kept less often.
def test_keep_probability_rises():
    keep = keep_probability(np.geomspace(1e-9, 100, 2000), 50.0)
    assert (np.diff(keep) >= 0).all()

"""Optimal population selection, against the paper's examples and Algorithm 1 word for word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.local.algorithms.population_selection import optimal_population_selection
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.server.expected_error import report_variances, total_variance

EXAMPLE_2 = (
    [3, 5, 9, 8, 9, 5, 6, 5, 8, 9],
    [0.1, 0.4, 0.4, 0.1, 0.4, 0.4, 0.8, 0.8, 0.8, 0.4],
)

# Users of Example 4 by budget (rows: 0.2, 0.4, 0.6, 0.8) and window (columns: 1 to 4).
TABLE_3A = np.array(
    [[29, 59, 92, 56], [98, 176, 273, 207], [62, 124, 188, 114], [64, 115, 202, 141]]
)


def error_at(size, sizes, budgets, symbols, counts=None):
    """V when `size` users are asked."""
    shares = np.maximum(-(-size // np.array(sizes)), 1)
    people = np.ones(len(sizes)) if counts is None else counts
    return total_variance(report_variances(np.array(budgets) / shares, symbols), people, size)


# The choice is right in print; the errors are not (1.121, 0.596, 0.988, 0.721, 1.124).
def test_example_2():
    sizes, budgets = EXAMPLE_2
    chosen = optimal_population_selection(sizes, budgets, 2)
    assert chosen.sample == 5
    assert chosen.shares.tolist() == [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    errors = [error_at(z, sizes, budgets, 2) for z in (3, 5, 6, 8, 9)]
    np.testing.assert_allclose(errors, [2.5941, 1.5157, 1.6681, 1.6131, 2.1152], atol=5e-5)
    assert chosen.error == min(errors)


# The budgets printed for a sample of 6 are right.
def test_example_2_budgets_at_6():
    sizes, budgets = EXAMPLE_2
    shares = np.maximum(-(-6 // np.array(sizes)), 1)
    printed = [0.05, 0.2, 0.4, 0.1, 0.4, 0.2, 0.8, 0.4, 0.8, 0.4]
    np.testing.assert_allclose(np.array(budgets) / shares, printed)


# Right in print to the last digit but one: 0.042, 0.035, 0.0329, 0.0349, and Table III(b).
def test_example_4():
    budgets, windows = np.repeat([0.2, 0.4, 0.6, 0.8], 4), np.tile([1, 2, 3, 4], 4)
    sizes, counts = 2000 // (2 * windows), TABLE_3A.ravel()
    assert sorted(set(sizes.tolist())) == [250, 333, 500, 1000]
    errors = [error_at(z, sizes, budgets, 5, counts) / 5 for z in (1000, 500, 333, 250)]
    np.testing.assert_allclose(errors, [0.0421, 0.0351, 0.0328, 0.0348], atol=5e-5)
    chosen = optimal_population_selection(sizes, budgets, 5, counts)
    assert chosen.sample == 333
    assert chosen.shares.tolist() == [1, 1, 1, 2] * 4
    new = {}
    for budget, count in zip((budgets / chosen.shares).round(9).tolist(), counts, strict=True):
        new[budget] = new.get(budget, 0) + int(count)
    # Column sums of Table III(b) by row.
    assert new == {0.1: 56, 0.2: 387, 0.3: 114, 0.4: 688, 0.6: 374, 0.8: 381}
    # g is printed as 0.1305, 0.3645, 0.244, 0.261.
    np.testing.assert_allclose(TABLE_3A.sum(axis=1) / 2000, [0.118, 0.377, 0.244, 0.261])


def algorithm_1(sizes, budgets, symbols):
    """Algorithm 1 line by line, one entry for each user."""
    best = (float("inf"), None, None)
    for z in sorted(set(sizes)):
        divided = [e / -(-z // s) if s < z else e for s, e in zip(sizes, budgets, strict=True)]
        distinct = sorted(set(divided))
        shares = [divided.count(e) / len(divided) for e in distinct]
        n, precision = len(sizes), 0.0
        for e, g in zip(distinct, shares, strict=True):
            p, q = np.exp(e) / (np.exp(e) + symbols - 1), 1 / (np.exp(e) + symbols - 1)
            lam, mu = q * (1 - q) / (g * (p - q) ** 2), (1 - p - q) / (g * (p - q))
            precision += z / (symbols * lam + mu)
        error = (n - z) / (z * (n - 1)) + 1 / precision
        if error < best[0] * (1 - 1e-12):
            best = (error, z, divided)
    return best


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([0.1, 0.5, 1.0, 3.0])), min_size=2, max_size=9
    ),
    st.integers(2, 6),
)
def test_algorithm_1(users, symbols):
    windows, budgets = [w for w, _ in users], [e for _, e in users]
    sizes = [max(len(users) // w, 1) for w in windows]
    error, size, divided = algorithm_1(sizes, budgets, symbols)
    chosen = optimal_population_selection(sizes, budgets, symbols)
    assert chosen.error == pytest.approx(error)
    if chosen.sample == size:  # else a tie to the last digit
        np.testing.assert_allclose(np.array(budgets) / chosen.shares, divided)


# Users of one class together are as good as each by himself.
def test_counts_are_users():
    sizes, budgets, counts = [3, 5, 9], [0.5, 1.0, 2.0], [4, 1, 3]
    whole = optimal_population_selection(sizes, budgets, 3, counts)
    each = optimal_population_selection(np.repeat(sizes, counts), np.repeat(budgets, counts), 3)
    assert (whole.sample, whole.error) == (each.sample, pytest.approx(each.error))


def test_nobody_to_ask_is_refused():
    with pytest.raises(ValueError, match="windows are longer than n / 2"):
        optimal_population_selection([0, 3], [1.0, 1.0], 2)


# Equation 2 has the figures of the oracles.
@pytest.mark.parametrize("kind", ["grr", "oue"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("symbols", [2, 50])
def test_variances_are_the_oracles(kind, epsilon, symbols):
    oracle = Oracle.of(kind, int(epsilon * 2**40), symbols)
    wanted = symbols * oracle.variance(1 / symbols)
    assert report_variances(oracle.epsilon, symbols, kind) == pytest.approx(wanted, rel=1e-6)

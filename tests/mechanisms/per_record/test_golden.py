"""The golden cases of per-record privacy, through the names of the contract.

Domains, nodes and choices are exact; floats agree to 1e-12.
"""

import numpy as np
import pytest

from streamveil.mechanisms.per_record import (
    Inverse,
    domain_index,
    gap_select,
    hat_weights,
    partition,
    select_domain,
    thresholds,
)

CLOSE = {"rel": 1e-12, "abs": 0.0}


@pytest.fixture(scope="module")
def cases(golden):
    def of(kind):
        found = [case for case in golden("per_record")["cases"] if case["kind"] == kind]
        assert found
        return found

    return of


def floats(values):
    return np.array([np.nan if value is None else float(value) for value in values])


def inverse(case):
    budgets = Inverse(case["alpha"], case["U"], case["eps_hat"])
    return budgets, partition(case["alpha"] / case["U"], case["eps_hat"])


def test_partition(cases):
    for case in cases("partition"):
        low = partition(case["eps_check"], case["eps_hat"])
        assert low.tolist() == case["expect"]["low"]
        budgets, index = zip(*case["expect"]["index"], strict=True)
        assert domain_index(floats(budgets), low).tolist() == list(index)


def test_inverse_budgets(cases):
    for case in cases("value_index_inverse"):
        budgets, low = inverse(case)
        assert len(low) == case["expect"]["K"]
        values, epsilons, index = zip(*case["expect"]["value_E_index"], strict=True)
        assert budgets(floats(values)) == pytest.approx(floats(epsilons), nan_ok=True, **CLOSE)
        assert domain_index(budgets(floats(values)), low).tolist() == list(index)


def test_count(cases):
    for case in cases("count"):
        given, expected = case["input"], case["expect"]
        budgets, low = inverse(case)
        index = domain_index(budgets(floats(given["records"])), low)
        counts = np.bincount(index, minlength=len(low) + 1)[1:]
        assert counts.tolist() == expected["counts"]
        noisy = counts + floats(given["noise"])
        limits = thresholds(low, given["beta"])
        assert limits == pytest.approx(expected["thresholds"], **CLOSE)
        chosen = select_domain(noisy, limits)
        assert chosen == expected["ell"]
        assert low[chosen - 1] == pytest.approx(expected["eps_tau"], **CLOSE)
        assert noisy[chosen - 1 :].sum() == pytest.approx(expected["released"], rel=1e-12)


def test_select(cases):
    for case in cases("select"):
        chosen = select_domain(floats(case["noisy"]), floats(case["thresholds"]))
        assert chosen == case["expect"]["ell"]
        assert sum(case["noisy"][chosen - 1 :]) == case["expect"]["released"]


def test_hat_weights(cases):
    for case in cases("hat_weights"):
        budgets, *expected = zip(*case["expect"]["E_leftnode0based_wleft_wright"], strict=True)
        left, *weights = hat_weights(floats(budgets), floats(case["nodes"]))
        # The last node has no right one: all of its weight is the right one of the node before.
        assert left.tolist() == list(expected[0])
        for found, wanted in zip(weights, expected[1:], strict=True):
            assert found == pytest.approx(wanted, rel=1e-12)


def test_gap_select(cases):
    for case in cases("gap_select"):
        noisy = floats(case["noisy"])
        chosen = gap_select(
            noisy, floats(case["nodes"]), case["b"], case["b0"], case["s"], case["bfar"]
        )
        assert chosen == case["expect"]["node0based"]
        assert noisy[chosen:].sum() == pytest.approx(case["expect"]["released"], rel=1e-12)

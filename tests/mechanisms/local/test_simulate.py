"""Whole streams with their devices: the contract of `simulate_local`, bias and errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import LOCAL_MECHANISMS, ConfigurationError, Requirement, simulate_local
from streamveil.mechanisms.core.budgets import to_units
from tests.mechanisms.local.populations import check_windows

KEY = bytes(range(32))
FEW = [(2, 1.0)] * 30 + [(4, 2.0)] * 20


def values_of(slots, users, bins, seed=0):
    return np.random.default_rng(seed).integers(0, bins, (slots, users))


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_contract(name):
    values = values_of(9, 50, 3)
    done = simulate_local(name, values, 3, FEW, KEY)
    assert done.released.shape == done.stderr.shape == (9, 3)
    assert done.released.dtype == np.float64
    assert done.status.shape == (9,)
    assert done.spent.shape == (9, 50)
    assert done.spent.any()
    check_windows(to_units(done.spent), done.users)
    again = simulate_local(name, values, 3, [Requirement(*r) for r in FEW], KEY)
    np.testing.assert_array_equal(done.released, again.released)
    np.testing.assert_array_equal(done.spent, again.spent)
    other = simulate_local(name, values, 3, FEW, bytes(32))
    assert (done.released != other.released).any()


@settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(LOCAL_MECHANISMS)),
    requirements=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([0.2, 1.0, 3.0])), min_size=8, max_size=60
    ),
    bins=st.integers(2, 12),
    slots=st.integers(0, 12),
    seed=st.integers(0, 9),
)
def test_no_window_overspends(name, requirements, bins, slots, seed):
    values = values_of(slots, len(requirements), bins, seed)
    done = simulate_local(name, values, bins, requirements, KEY)
    assert done.spent.shape == values.shape
    check_windows(to_units(done.spent), done.users)


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_projection(name):
    done = simulate_local(name, values_of(6, 50, 4), 4, FEW, KEY, project=True)
    published = done.released[done.status == "published"]
    assert (published >= 0).all()
    np.testing.assert_allclose(published.sum(axis=1), 1)


GOOD = {
    "name": "plpa",
    "values": np.zeros((2, 50), int),
    "bins": 2,
    "requirements": FEW,
    "key": KEY,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "plpz"}, "unknown: choose one of"),
        ({"name": "plpa:projekt=true"}, "has no option 'projekt'; its options: project"),
        ({"project": 3}, "give true or false"),
        (
            {"name": "rotation:cycle=24", "cycle": 7},
            r"'rotation:cycle=24:cycle=7': option 'cycle' is given twice: leave one out",
        ),
        ({"name": "rotation", "cycle": 1}, r"^mechanism 'rotation:cycle=1': cycle is 1, give"),
        ({"values": np.zeros((2, 49), int)}, r"shape \(2, 49\); give \(slots, 50 users\)"),
        ({"values": np.zeros(50, int)}, "give .slots, 50 users"),
        ({"values": np.zeros((2, 50))}, "whole numbers"),
        ({"values": np.full((2, 50), 2)}, "give bins from 0 to 1"),
        ({"values": np.full((2, 50), -1)}, "give bins from 0 to 1"),
        ({"bins": 1}, "2 or more"),
        ({"bins": 2.5}, "2 or more"),
        ({"requirements": [(2, 0.0)] * 50}, "epsilon 0.0"),
        ({"requirements": [(0, 1.0)] * 50}, "window 0"),
        ({"requirements": [3] * 50}, "neither a Requirement nor"),
        ({"requirements": [(26, 1.0)] * 50}, "longer than half of the 50 users"),
        ({"requirements": [(2, 1e-12)] * 50}, "ask for more epsilon"),
        ({"requirements": [], "values": np.zeros((2, 0), int)}, "there are no users"),
        ({"key": "k" * 32}, "the key is a str: give 32 bytes"),
        ({"key": bytes(31)}, "a noise key has 31 bytes: give 32"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    arguments = {**GOOD, **wrong}
    options = {k: v for k, v in arguments.items() if k not in GOOD}
    with pytest.raises(ValueError, match=message) as refused:
        simulate_local(*(arguments[k] for k in GOOD), **options)
    if len(arguments["key"]) == 32:
        assert isinstance(refused.value, ConfigurationError)


# The largest and the smallest budgets that a requirement can have still make numbers.
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
@pytest.mark.parametrize("epsilon", [2.0**12, 2.0**-37])
def test_extreme_budgets(name, epsilon):
    values = values_of(4, 50, 3)
    done = simulate_local(name, values, 3, [(2, epsilon)] * 25 + [(3, epsilon)] * 25, KEY)
    assert np.isfinite(done.released).all()
    check_windows(to_units(done.spent), done.users)
    if epsilon > 1 and name in ("plbu", "lbu"):
        truth = [np.bincount(row, minlength=3) / 50 for row in values]
        np.testing.assert_allclose(done.released, truth, atol=1e-9)


# PLBU and LBU are unbiased: flakiness 1e-6, by their own standard errors.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lbu", "plbu"])
def test_uniform_is_unbiased(name):
    slots, bins = 400, 4
    row = np.repeat(np.arange(bins), [10, 20, 30, 40])
    values = np.random.default_rng(1).permuted(np.tile(row, (slots, 1)), axis=1)
    requirements = [(2, 2.0)] * 50 + [(3, 4.0)] * 50
    done = simulate_local(name, values, bins, requirements, KEY)
    assert set(done.status) == {"published"}
    errors = done.released - np.bincount(row) / len(row)
    # Which users have which value adds to the error when classes weigh differently.
    scores = errors.mean(axis=0) / (errors.std(axis=0) / np.sqrt(slots))
    assert np.abs(scores).max() < stats.norm.isf(1e-6 / 8)


# ---- errors --------------------------------------------------------------------------------

# AMSE on a fifth of the paper's stream Sin, with a fifth of the users and of the windows: means of
# eight keys.
SIZES = {"plpa": 1.8e-3, "plpa+": 1.9e-3, "plpd": 2.1e-3, "plpd+": 2.7e-3, "lpa": 2.7e-3}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.slow
def test_error_of_a_short_stream(name):
    rng = np.random.default_rng(3)
    slots, n = 400, 2000
    share = 0.05 * np.sin(0.05 * np.arange(1, slots + 1)) + 0.075
    values = (rng.random((slots, n)) < share[:, None]).astype(np.int8)
    requirements = list(
        zip(rng.choice([8, 16, 24], n).tolist(), rng.choice([1.5, 2, 2.5], n).tolist(), strict=True)
    )
    done = simulate_local(name, values, 2, requirements, KEY)
    truth = values.mean(axis=1)
    error = np.mean((done.released[:, 1] - truth) ** 2)
    print(f"AMSE of {name}: {error:.2e}")
    assert SIZES[name] / 2 < error < SIZES[name] * 2

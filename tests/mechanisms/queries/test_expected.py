"""What error is expected of queries, without data."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.queries import expected
from streamveil.mechanisms.queries.expected import (
    Assumed,
    Expected,
    assumed_counts,
    dropped_share,
    epsilon_factor,
    expected_error,
    expected_shares,
)
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.simulated import simulate_query_set
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean, Quantiles

PLACES = Categories(tuple("abcdefghijkl"))
SIZES = np.array([3000, 1000])
ASKED = Requirements((Requirement(1, 0.5), Requirement(1, 1.0)))


def query_set_of(*queries: Query) -> QuerySet:
    return QuerySet(Slots.of("1h"), queries)


def error_of(query, assumed, units=ASKED.budgets, asked=ASKED, **more):
    return expected_error(query_set_of(query), 0, asked, SIZES, units, assumed, **more)


# In a window of one slot everything is spent in every slot: the noise has variance 2 / epsilon**2.
def test_the_error_of_a_mechanism_that_is_known_by_formula():
    asked, sizes = Requirements((Requirement(1, 0.5),)), np.array([4000])
    query = Query("places", value="place", domain=PLACES, mechanism="uniform")
    found = expected_error(
        *(query_set_of(query), 0, asked, sizes, asked.budgets, Assumed(4000.0)), slots=150
    )
    assert found.figure == pytest.approx(8**0.5, rel=0.1)
    assert found.cells == pytest.approx(8, rel=0.2)
    assert found.figures == (found.figure,)


def test_independent_noise_adds_up_in_rollups():
    query = Query("places", value="place", domain=PLACES, mechanism="uniform", times=(9,))
    found = error_of(query, Assumed(4000.0), slots=90)
    assert found.rollups == (pytest.approx((3 * found.figure,), rel=0.15),)
    too_long = error_of(replace(query, times=(91,)), Assumed(4000.0), slots=90)
    assert np.isnan(too_long.rollups).all()


@pytest.mark.parametrize(
    ("rate", "slots", "most", "dropped"),
    [
        (8000.0, 1, 1, 0.5),  # two events of each of 4000 users, of whom one is kept
        (8000.0, 1, 2, 0.0),
        (2000.0, 2, 1, 0.25),  # one event on average, and 0.75 users with one or two
    ],
)
def test_what_contribution_bounding_drops(rate, slots, most, dropped):
    query = Query("places", value="place", domain=PLACES, slots=slots, max_contributions=most)
    assert dropped_share(query, SIZES, Assumed(rate)) == pytest.approx(dropped)
    users = Query("users", value="place", domain=PLACES, slots=slots, statistic=DistinctUsers())
    assert dropped_share(users, SIZES, Assumed(rate)) == 0


def test_less_budget_is_more_error_and_the_same_is_the_same():
    query = Query("places", value="place", domain=PLACES, mechanism="uniform")
    assumed = Assumed(400.0)
    whole, half = (error_of(query, assumed, ASKED.budgets // n, slots=40) for n in (1, 2))
    assert half.figure > 1.5 * whole.figure
    assert error_of(query, assumed, slots=40) is whole  # it is remembered


@pytest.mark.slow
def test_what_a_wanted_error_needs():
    query = Query("places", value="place", domain=PLACES, mechanism="uniform")
    query_set, assumed = query_set_of(query), Assumed(4000.0)
    now = error_of(query, assumed).figure
    given = (query_set, 0, ASKED, SIZES, ASKED.budgets, assumed)
    assert epsilon_factor(*given, now) == 1
    # Shrinkage helps more where there is more noise: over eight queries a quarter takes 3.58.
    for wanted, least, most in ((now / 4, 3, 4.2), (3 * now, 0.2, 0.4)):
        factor = epsilon_factor(*given, wanted)
        assert least < factor < most
        there = error_of(query, assumed, (ASKED.budgets * factor).astype(np.int64)).figure
        assert there == pytest.approx(wanted, rel=0.05)
    for wrong in (0, float("nan"), -1):
        with pytest.raises(ConfigurationError, match="give a number above 0"):
            epsilon_factor(*given, wrong)


@pytest.mark.slow
def test_what_no_epsilon_gives_is_refused():
    delay = Query("delay", statistic=Mean("delay", 0, 10))
    given = (query_set_of(delay), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    with pytest.raises(ConfigurationError, match="query 'delay': not even epsilon"):
        epsilon_factor(*given, 1e-9)


def test_what_nothing_gives_is_known_after_two_simulations(monkeypatch):
    asked = []

    def error(*given, **more):
        asked.append(given)
        return Expected(1.0, (5.0,))

    monkeypatch.setattr(expected, "expected_error", error)
    places = Query("places", value="place", domain=PLACES)
    given = (query_set_of(places), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    for wanted, words in ((1.0, "not even epsilon"), (50.0, "with a thousandth")):
        asked.clear()
        with pytest.raises(ConfigurationError, match=words):
            epsilon_factor(*given, wanted)
        assert len(asked) == 2


@pytest.mark.filterwarnings("error")
def test_a_rate_of_next_to_nothing_is_a_stream_of_nothing():
    random = np.random.default_rng(1)
    drawn = assumed_counts(Query("all"), SIZES, Assumed(1e-320), 5, 9, random)
    assert not sum(table.sum() for table in drawn)


def test_what_anything_gives_is_refused():
    places = Query("places", value="place", domain=PLACES)
    given = (query_set_of(places), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    with pytest.raises(ConfigurationError, match="query 'places': with a thousandth"):
        epsilon_factor(*given, 1e9)


@pytest.mark.slow
def test_figures_of_nothing_are_not_known():
    delay = Query("delay", statistic=Mean("delay", 0, 10))
    given = (query_set_of(delay), 0, ASKED, SIZES, ASKED.budgets, Assumed(1e-9))
    assert np.isnan(expected_error(*given).figure)
    with pytest.raises(ConfigurationError, match="query 'delay': so few events"):
        epsilon_factor(*given, 1.0)


@pytest.mark.slow
def test_shares_follow_weights_and_given_ones_stay():
    one, two = (
        Query(name, value="place", domain=PLACES, mechanism="uniform", weight=weight)
        for name, weight in (("one", 1.0), ("two", 64.0))
    )
    fixed = Query("fixed", mechanism="uniform", share=0.25)
    query_set = query_set_of(one, two, fixed)
    units = np.stack([ASKED.budgets * 3 // 8, ASKED.budgets * 3 // 8, ASKED.budgets // 4])
    found = expected_shares(query_set, ASKED, SIZES, units, [Assumed(4000.0)] * 3)
    assert found[2] == 0.25
    assert found.sum() == pytest.approx(1)
    # The least of w / a**2 has shares in the ratio of cube roots of weights.
    assert found[1] / found[0] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(
    "query",
    [
        Query("places", value="place", domain=PLACES),
        Query("day", slots=24, max_contributions=3),
        Query("delay", value="place", domain=PLACES, statistic=Mean("delay", -30, 180)),
        Query("late", statistic=Quantiles("delay", (0, 10, 20), (0.5,))),
    ],
    ids=lambda query: query.name,
)
def test_streams_that_are_assumed_have_the_rate_that_is(query):
    assumed = Assumed(200.0, drift=0)
    drawn = assumed_counts(query, SIZES, assumed, 1, 50, np.random.default_rng(1))
    whole = query.statistic.weights.sum(axis=1).max()
    events = np.mean([table.sum() for table in drawn]) / whole
    # 4000 users of whom each is there with a chance of 1 / 20: at most three times a day.
    often = np.random.default_rng(2).binomial(24, 0.05, 100_000)
    seen = 200 if query.slots == 1 else 4000 * np.minimum(often, 3).mean()
    assert events == pytest.approx(seen, rel=0.05)


# A query without bins drifts as well, and counts change over a window as was assumed.
@pytest.mark.many
@pytest.mark.parametrize("domain", [None, PLACES], ids=["one bin", "bins"])
@pytest.mark.parametrize("drift", [0.02, 0.1])
def test_streams_that_are_assumed_drift_as_they_should(domain, drift):
    bins = {} if domain is None else {"value": "place", "domain": domain}
    query, window = Query("places", **bins), 16
    assumed = Assumed(1e6, drift, long_drift=0.3, chance=0)
    over = {1: [], window: []}
    for seed in range(40):
        random, sizes = np.random.default_rng(seed), np.array([10**7])
        drawn = assumed_counts(query, sizes, assumed, window, 60, random)
        counts = np.array(list(drawn))[:, 0].astype(float)
        for k, changes in over.items():
            changes.append(((counts[k:] - counts[:-k]) ** 2).mean(axis=0))
    usual = 1e6 / np.arange(1, query.domain.bins + 1)
    usual /= (1 / np.arange(1, query.domain.bins + 1)).sum()
    found = {k: np.sqrt(np.mean(changes, axis=0)) / usual for k, changes in over.items()}
    assert found[1].mean() == pytest.approx(drift, rel=0.2)
    assert found[window].mean() == pytest.approx(0.3, rel=0.2)


@pytest.mark.many
@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (None, 0.75)])
def test_counts_vary_by_chance_as_it_is_assumed(chance, share):
    assumed, random = Assumed(1000.0, drift=0, chance=chance), np.random.default_rng(5)
    query, sizes = Query("all"), np.array([4000])
    drawn = assumed_counts(query, sizes, assumed, 1, 2000, random)
    counts = np.array([table.sum() for table in drawn])
    assert counts.var() == pytest.approx(1000 * share, rel=0.2)
    assert counts.mean() == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 0}, {"rate": float("inf")}, {"drift": -1}, {"long_drift": 11}, {"chance": 2}],
)
def test_what_cannot_be_assumed_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"the (rate|drift|long drift|chance) is"):
        Assumed(**{"rate": 1.0, **wrong})


@pytest.mark.slow
def test_the_error_is_that_of_a_stream_as_it_was_assumed():
    query = Query("places", value="place", domain=PLACES)
    asked = Requirements((Requirement(20, 1.0), Requirement(10, 2.0)))
    assumed, slots = Assumed(2000.0, 0.05), 80
    drawn = assumed_counts(query, SIZES, assumed, 20, slots, np.random.default_rng(77))
    counts = np.array(list(drawn))
    done = simulate_query_set(query_set_of(query), {"places": counts}, asked, SIZES, bytes(32))
    measured = ((done.counts("places") - counts.sum(axis=1)) ** 2).mean() ** 0.5
    found = error_of(query, assumed, asked.budgets, asked, slots=slots).figure
    assert found == pytest.approx(measured, rel=0.25)


def test_errors_between_those_simulated_are_powers():
    xs, ys = np.log([0.1, 0.2, 0.4]), np.log([100, 25, 12.5])
    for share, error in ((0.1, 100), (0.2, 25), (0.4, 12.5), (0.05, 400), (0.8, 6.25)):
        assert expected._between(np.log(share), xs, ys) == pytest.approx(np.log(error))

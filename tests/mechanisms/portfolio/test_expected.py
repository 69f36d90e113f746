"""What error is expected of questions, without data."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.portfolio import expected
from streamveil.mechanisms.portfolio.expected import (
    Assumed,
    Expected,
    assumed_counts,
    epsilon_factor,
    expected_error,
    expected_shares,
)
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.simulated import simulate_portfolio
from streamveil.mechanisms.portfolio.statistics import Mean, Quantiles

PLACES = Categories(tuple("abcdefghijkl"))
SIZES = np.array([3000, 1000])
ASKED = Requirements((Requirement(1, 0.5), Requirement(1, 1.0)))


def portfolio_of(*questions: Question) -> Portfolio:
    return Portfolio(Slots.of("1h"), questions)


def error_of(question, assumed, units=ASKED.budgets, asked=ASKED, **more):
    return expected_error(portfolio_of(question), 0, asked, SIZES, units, assumed, **more)


# In a window of one slot everything is spent in every slot: the noise has variance 2 / epsilon**2.
def test_the_error_of_a_mechanism_that_is_known_by_formula():
    asked, sizes = Requirements((Requirement(1, 0.5),)), np.array([4000])
    question = Question("places", value="place", domain=PLACES, mechanism="uniform")
    found = expected_error(
        *(portfolio_of(question), 0, asked, sizes, asked.budgets, Assumed(4000.0)), slots=150
    )
    assert found.figure == pytest.approx(8**0.5, rel=0.1)
    assert found.cells == pytest.approx(8, rel=0.2)
    assert found.figures == (found.figure,)


def test_less_budget_is_more_error_and_the_same_is_the_same():
    question = Question("places", value="place", domain=PLACES, mechanism="uniform")
    assumed = Assumed(400.0)
    whole, half = (error_of(question, assumed, ASKED.budgets // n, slots=40) for n in (1, 2))
    assert half.figure > 1.5 * whole.figure
    assert error_of(question, assumed, slots=40) is whole  # it is remembered


def test_what_a_wanted_error_needs():
    question = Question("places", value="place", domain=PLACES, mechanism="uniform")
    portfolio, assumed = portfolio_of(question), Assumed(4000.0)
    now = error_of(question, assumed).figure
    given = (portfolio, 0, ASKED, SIZES, ASKED.budgets, assumed)
    assert epsilon_factor(*given, now) == 1
    assert epsilon_factor(*given, now / 4) == pytest.approx(4, rel=0.1)
    assert epsilon_factor(*given, 3 * now) == pytest.approx(1 / 3, rel=0.15)
    for wrong in (0, float("nan"), -1):
        with pytest.raises(ConfigurationError, match="give a number above 0"):
            epsilon_factor(*given, wrong)


@pytest.mark.slow
def test_what_no_epsilon_gives_is_refused():
    delay = Question("delay", statistic=Mean("delay", 0, 10))
    given = (portfolio_of(delay), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    with pytest.raises(ConfigurationError, match="question 'delay': not even epsilon"):
        epsilon_factor(*given, 1e-9)


def test_what_nothing_gives_is_known_after_two_simulations(monkeypatch):
    asked = []

    def error(*given, **more):
        asked.append(given)
        return Expected(1.0, (5.0,))

    monkeypatch.setattr(expected, "expected_error", error)
    places = Question("places", value="place", domain=PLACES)
    given = (portfolio_of(places), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    for wanted, words in ((1.0, "not even epsilon"), (50.0, "with a thousandth")):
        asked.clear()
        with pytest.raises(ConfigurationError, match=words):
            epsilon_factor(*given, wanted)
        assert len(asked) == 2


@pytest.mark.filterwarnings("error")
def test_a_rate_of_next_to_nothing_is_a_stream_of_nothing():
    random = np.random.default_rng(1)
    drawn = assumed_counts(Question("all"), SIZES, Assumed(1e-320), 5, 9, random)
    assert not sum(table.sum() for table in drawn)


def test_what_anything_gives_is_refused():
    places = Question("places", value="place", domain=PLACES)
    given = (portfolio_of(places), 0, ASKED, SIZES, ASKED.budgets, Assumed(400.0))
    with pytest.raises(ConfigurationError, match="question 'places': with a thousandth"):
        epsilon_factor(*given, 1e9)


def test_figures_of_nothing_are_not_known():
    delay = Question("delay", statistic=Mean("delay", 0, 10))
    given = (portfolio_of(delay), 0, ASKED, SIZES, ASKED.budgets, Assumed(1e-9))
    assert np.isnan(expected_error(*given).figure)
    with pytest.raises(ConfigurationError, match="question 'delay': with so few events"):
        epsilon_factor(*given, 1.0)


def test_shares_follow_weights_and_given_ones_stay():
    one, two = (
        Question(name, value="place", domain=PLACES, mechanism="uniform", weight=weight)
        for name, weight in (("one", 1.0), ("two", 64.0))
    )
    fixed = Question("fixed", mechanism="uniform", share=0.25)
    portfolio = portfolio_of(one, two, fixed)
    units = np.stack([ASKED.budgets * 3 // 8, ASKED.budgets * 3 // 8, ASKED.budgets // 4])
    found = expected_shares(portfolio, ASKED, SIZES, units, [Assumed(4000.0)] * 3)
    assert found[2] == 0.25
    assert found.sum() == pytest.approx(1)
    # The least of w / a**2 has shares in the ratio of cube roots of weights.
    assert found[1] / found[0] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(
    "question",
    [
        Question("places", value="place", domain=PLACES),
        Question("day", slots=24, max_contributions=3),
        Question("delay", value="place", domain=PLACES, statistic=Mean("delay", -30, 180)),
        Question("late", statistic=Quantiles("delay", (0, 10, 20), (0.5,))),
    ],
    ids=lambda question: question.name,
)
def test_streams_that_are_assumed_have_the_rate_that_is(question):
    assumed = Assumed(200.0, drift=0)
    drawn = assumed_counts(question, SIZES, assumed, 1, 50, np.random.default_rng(1))
    whole = question.statistic.weights.sum(axis=1).max()
    events = np.mean([table.sum() for table in drawn]) / whole
    # 4000 users of whom each is there with a chance of 1 / 20: at most three times a day.
    often = np.random.default_rng(2).binomial(24, 0.05, 100_000)
    seen = 200 if question.slots == 1 else 4000 * np.minimum(often, 3).mean()
    assert events == pytest.approx(seen, rel=0.05)


# A question without bins drifts as well, and counts change over a window as was assumed.
@pytest.mark.parametrize("domain", [None, PLACES], ids=["one bin", "bins"])
@pytest.mark.parametrize("drift", [0.02, 0.1])
def test_streams_that_are_assumed_drift_as_they_should(domain, drift):
    bins = {} if domain is None else {"value": "place", "domain": domain}
    question, window = Question("places", **bins), 16
    assumed = Assumed(1e6, drift, long_drift=0.3, chance=0)
    over = {1: [], window: []}
    for seed in range(40):
        random, sizes = np.random.default_rng(seed), np.array([10**7])
        drawn = assumed_counts(question, sizes, assumed, window, 60, random)
        counts = np.array(list(drawn))[:, 0].astype(float)
        for k, changes in over.items():
            changes.append(((counts[k:] - counts[:-k]) ** 2).mean(axis=0))
    usual = 1e6 / np.arange(1, question.domain.bins + 1)
    usual /= (1 / np.arange(1, question.domain.bins + 1)).sum()
    found = {k: np.sqrt(np.mean(changes, axis=0)) / usual for k, changes in over.items()}
    assert found[1].mean() == pytest.approx(drift, rel=0.2)
    assert found[window].mean() == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (None, 0.75)])
def test_counts_vary_by_chance_as_it_is_assumed(chance, share):
    assumed, random = Assumed(1000.0, drift=0, chance=chance), np.random.default_rng(5)
    question, sizes = Question("all"), np.array([4000])
    drawn = assumed_counts(question, sizes, assumed, 1, 2000, random)
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


def test_the_error_is_that_of_a_stream_as_it_was_assumed():
    question = Question("places", value="place", domain=PLACES)
    asked = Requirements((Requirement(20, 1.0), Requirement(10, 2.0)))
    assumed, slots = Assumed(2000.0, 0.05), 80
    drawn = assumed_counts(question, SIZES, assumed, 20, slots, np.random.default_rng(77))
    counts = np.array(list(drawn))
    done = simulate_portfolio(portfolio_of(question), {"places": counts}, asked, SIZES, bytes(32))
    measured = ((done.counts("places") - counts.sum(axis=1)) ** 2).mean() ** 0.5
    found = error_of(question, assumed, asked.budgets, asked, slots=slots).figure
    assert found == pytest.approx(measured, rel=0.25)


def test_errors_between_those_simulated_are_powers():
    xs, ys = np.log([0.1, 0.2, 0.4]), np.log([100, 25, 12.5])
    for share, error in ((0.1, 100), (0.2, 25), (0.4, 12.5), (0.05, 400), (0.8, 6.25)):
        assert expected._between(np.log(share), xs, ys) == pytest.approx(np.log(error))

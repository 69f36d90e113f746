"""Portfolios on counts in memory."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, NoiseSource, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioStream
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.simulated import simulate_portfolio

KEY = bytes(range(32))
PLACES = Categories(("cafe", "park", "zoo"))
HOUR = Question("hour", value="place", domain=PLACES)
DAY = Question("day", slots=3, mechanism="pba")
ASKED = (Requirement(4, 1.0), Requirement(2, 3.0))
SIZES = np.array([20, 30])
BOTH = Portfolio(Slots.of("1h"), (HOUR, DAY))


def counts_of(hours: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "hour": random.integers(0, 9, (hours, 2, 3)),
        "day": random.integers(0, 30, (hours // 3, 2, 1)),
    }


def test_it_releases_what_the_stream_of_a_portfolio_does():
    counts, shares = counts_of(7), np.tile(Requirements(ASKED).budgets // 2, (2, 1))
    found = simulate_portfolio(BOTH, counts, ASKED, SIZES, KEY, shares=shares)
    stream = PortfolioStream(BOTH, Requirements(ASKED), SIZES, shares, NoiseSource(KEY))
    state, told = stream.start(), []
    for slot in range(7):
        due = {q: counts[("hour", "day")[q]][slot // (1, 3)[q]] for q in stream.due(slot)}
        state, released = stream.release(state, slot, due)
        told.append(released)
    assert (found.counts("hour") == [each[0].counts for each in told]).all()
    assert (found.counts("day") == [told[2][1].counts, told[5][1].counts]).all()
    assert [one.question for one in found.entries[:4]] == ["hour", "hour", "hour", "day"]


def test_shares_are_planned_unless_they_are_given():
    found = simulate_portfolio(BOTH, counts_of(3), ASKED, SIZES, KEY)
    assert (found.shares.sum(axis=0) <= Requirements(ASKED).budgets).all()
    assert (found.shares > 0).all()


def test_counts_that_do_not_fit_are_refused():
    counts = counts_of(6)
    with pytest.raises(ConfigurationError, match="the portfolio asks hour, day"):
        simulate_portfolio(BOTH, {"hour": counts["hour"]}, ASKED, SIZES, KEY)
    with pytest.raises(ValueError, match="1 slots; 6 base slots have 2"):
        simulate_portfolio(BOTH, {**counts, "day": counts["day"][:1]}, ASKED, SIZES, KEY)
    with pytest.raises(ValueError, match="2 classes, 3 cells"):
        simulate_portfolio(BOTH, {**counts, "hour": counts["day"]}, ASKED, SIZES, KEY)
    with pytest.raises(ValueError, match="give whole numbers"):
        simulate_portfolio(BOTH, {**counts, "day": counts["day"] / 2}, ASKED, SIZES, KEY)


# Slots of a question are counted from base slot 0: the first of a day that began before is in part.
def test_streams_that_begin_later():
    counts = {"hour": counts_of(6)["hour"][:5], "day": counts_of(6)["day"]}
    shares = np.tile(Requirements(ASKED).budgets // 2, (2, 1))
    found = simulate_portfolio(BOTH, counts, ASKED, SIZES, KEY, shares=shares, first_slot=7)
    assert [len(found.releases[name]) for name in ("hour", "day")] == [5, 2]
    hours = [(one.first_base_slot, one.last_base_slot) for one in found.entries[:3]]
    assert hours == [(7, 7), (8, 8), (6, 8)]
    stream = PortfolioStream(BOTH, Requirements(ASKED), SIZES, shares, NoiseSource(KEY))
    _, first = stream.release(stream.start(), 7, {0: counts["hour"][0]})
    assert (found.releases["hour"][0].counts == first[0].counts).all()
    with pytest.raises(ValueError, match="2 slots; 6 base slots have 6"):
        simulate_portfolio(
            *(BOTH, {**counts, "hour": counts["hour"][:2]}, ASKED, SIZES, KEY), first_slot=6
        )

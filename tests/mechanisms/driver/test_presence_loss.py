"""What neighbours lose by releases and queries together, apart from the sums of the code.

A noisy number of rate r that differs by n between two inputs tells them apart by at most r n. The
rates are those with which noise was drawn, the differences those of what it was added to. So the
loss adds up, and no pair may lose more than was asked for, nor by queries more than is set aside.
Broken on purpose, the code is convicted.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.core.budgets import Requirements, to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
from streamveil.mechanisms.presence import Counters, Limit, kept_share
from streamveil.mechanisms.presence.calendars import Rules
from streamveil.mechanisms.presence.kept_share import MANY_USERS, Beyond, ShareQuery
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism

KEY = bytes(range(32))
BINS = 3
EPSILON = 1.0


def tables(limit, asked, adjacency, events, slots):
    """Counts that count, by slot, and what does not, of one user: events (slots, bins)."""
    rules = Rules.of([limit], [asked], adjacency)
    when = np.flatnonzero(events.sum(axis=1))
    who, classes = np.zeros((2, len(when)), np.int64)
    layers = np.zeros(slots, np.int64)
    layers[when] = Counters(rules, KEY, who).layers(who, when, classes, slots)
    kept = np.where(layers[:, None], 0, events)[:, None]
    beyond = []
    for slot in range(slots):
        bins = np.flatnonzero(events[slot] * (layers[slot] > 0))
        some = np.full(len(bins), layers[slot]), np.zeros_like(bins), bins, events[slot, bins]
        beyond.append(Beyond(*some))
    return kept, beyond


class Released:
    """All that is released of one input: what noise is added to, and at which rates."""

    def __init__(self, limit, asked, adjacency, most, events):
        self.answers = []
        with pytest.MonkeyPatch.context() as monkeypatch:
            self._run(monkeypatch, limit, asked, adjacency, most, events)

    def _run(self, monkeypatch, limit, asked, adjacency, most, events):
        drawn, answer = {"by": 0}, ShareQuery.answer

        def laplace(units, size, words):
            return np.full(size, units * drawn["by"])

        def near_counts(query, sums, rates, words):
            drawn["by"] = 0
            raw = answer(query, sums, rates, words)
            drawn["by"] = 1
            self.answers.append((raw, answer(query, sums, rates, words) - raw))
            return raw

        monkeypatch.setattr(kept_share, "discrete_laplace", laplace)
        monkeypatch.setattr(ShareQuery, "answer", near_counts)
        sensitivity = most * (2 if adjacency == REPLACE else 1)
        priced = Requirements([limit.priced(asked, adjacency)])
        made = PresentStream(
            mechanism("uniform", Population(priced, np.array([MANY_USERS]), BINS, sensitivity)),
            NoiseSource(KEY),
            {},
            Presence((limit,), Requirements([asked]), adjacency),
        )
        self.counts, beyond = tables(limit, asked, adjacency, events, len(events))
        state, self.rates = made.start(), []
        for slot, counts in enumerate(self.counts):
            state, release = made.release(state, slot, counts, beyond[slot])
            self.rates.append(int(release.spent[0]) / sensitivity)


def losses(limit, asked, adjacency, most, worlds):
    """Units by which queries, and slots, tell two worlds apart."""
    one, other = (Released(limit, asked, adjacency, most, events) for events in worlds)
    queries = 0
    for (raw, rates), (beside, same) in zip(one.answers, other.answers, strict=True):
        np.testing.assert_array_equal(rates, same)
        differ = np.abs(raw - beside)
        assert not differ[rates == 0].any()  # what has no noise says nothing
        queries += int(rates @ differ)
    differ = np.abs(one.counts - other.counts).sum(axis=(1, 2))
    return queries, float(np.array(one.rates) @ differ)


@st.composite
def neighbours(draw):
    """A limit, and what one user has in each slot and bin of two worlds."""
    window = draw(st.integers(9, 20))
    blocks = draw(st.integers(1, 3))
    limit = Limit(draw(st.integers(1, 2)), blocks)
    adjacency = draw(st.sampled_from([ADD_REMOVE, REPLACE]))
    most = draw(st.integers(1, 3))
    slots = 3 * window
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))

    def events(rate):
        there = random.random(slots) < rate
        return random.multinomial(most * there, np.full(BINS, 1 / BINS))

    one = events(draw(st.sampled_from([0.1, 0.4, 0.8, 1.0])))
    start = draw(st.integers(0, slots - window))
    other = one.copy()
    beside = events(draw(st.sampled_from([0.2, 1.0]))) if adjacency == REPLACE else 0 * one
    other[start : start + window] = beside[start : start + window]
    return limit, Requirement(window, EPSILON), adjacency, most, (one, other)


@pytest.mark.slow
@settings(max_examples=80)
@given(neighbours())
def test_no_pair_of_neighbours_loses_more_than_was_asked_for(pair):
    limit, asked, adjacency, *_ = pair
    if not limit.applies(asked, adjacency):
        return
    queries, slots = losses(*pair)
    assert queries <= aside(EPSILON)
    assert queries + slots <= to_units(EPSILON)


def worst(most=1):
    """What queries and slots cost a user who is always there, of the dearest window."""
    limit, asked, slots = Limit(1, 2), Requirement(24, EPSILON), 72
    events = np.zeros((slots, BINS), np.int64)
    events[np.arange(slots), np.arange(slots) % BINS] = most
    found = []
    for start in range(12, 24, 4):
        less = events.copy()
        less[start : start + 24] = 0
        found.append(losses(limit, asked, ADD_REMOVE, most, (events, less)))
    return np.max(found, axis=0) / [aside(EPSILON), to_units(EPSILON) - aside(EPSILON)]


def test_a_user_who_is_always_there_pays_nearly_all():
    for most in (1, 3):
        queries, slots = worst(most)
        assert 0.55 < queries <= 1
        assert 0.7 < slots <= 1


def rest_by_bin(monkeypatch):
    sums = ShareQuery.sums

    def mutant(query, counts, beyond, mine):
        near = np.minimum(beyond.layers, 2)
        return sums(query, counts, beyond._replace(layers=near), mine)

    monkeypatch.setattr(ShareQuery, "sums", mutant)


def twice(monkeypatch):
    rates = ShareQuery.rates
    monkeypatch.setattr(ShareQuery, "rates", lambda query, budget: rates(query, 2 * budget))


def slots_not_events(monkeypatch):
    sensitivities = ShareQuery.sensitivities.fget
    monkeypatch.setattr(
        ShareQuery,
        "sensitivities",
        property(lambda query: tuple(one // query.sensitivity for one in sensitivities(query))),
    )


def rest_without_noise(monkeypatch):
    sensitivities = ShareQuery.sensitivities.fget
    monkeypatch.setattr(
        ShareQuery, "sensitivities", property(lambda query: (sensitivities(query)[0], 0))
    )


@pytest.mark.parametrize("broken", [rest_by_bin, twice, slots_not_events])
def test_what_is_broken_is_convicted(monkeypatch, broken):
    broken(monkeypatch)
    queries, _ = worst(most=3)
    assert queries > 1


def test_what_has_no_noise_is_convicted(monkeypatch):
    rest_without_noise(monkeypatch)
    with pytest.raises(AssertionError):
        worst()

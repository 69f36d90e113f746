"""The share of lives that is kept: what questions cost, and how right answers are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.presence.kept_share import LAYERS
from streamveil.mechanisms.presence.life_share import (
    BEYOND,
    DOUBT,
    EVERY,
    GUESS,
    LifeQuery,
    LifeShare,
    due,
    mostly_left_out,
)
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.randomness.noise import RandomWords
from tests.mechanisms.presence.lives import life_layers


def told(there, in_life, events=1):
    """Layers of one life by slot, of whether the user is there in each: shape (slots, 4)."""
    slots = np.flatnonzero(there)
    visits = np.arange(len(slots))
    return life_layers(visits, np.full(len(slots), events), in_life, slots, len(there))


def answers(table, in_life):
    """What is asked of a life, answer by answer: shape (answers, 4)."""
    found, since = [], np.zeros(LAYERS + 1, np.int64)
    for age, row in enumerate(table, 1):
        since += row
        asked = due(age, in_life)
        found.append(np.where(asked, since, 0))
        since[asked] = 0
    return np.array(found)


@pytest.mark.parametrize("in_life", [1, 2, 3])
@pytest.mark.parametrize("events", [1, 3])
def test_a_life_changes_all_answers_by_no_more_than_is_paid_for(in_life, events):
    """Of all ways to be there. Replaced are two lives, of which each changes them by so much."""
    worst = np.zeros(LAYERS + 1, np.int64)
    for way in range(1 << 11):
        there = way >> np.arange(11) & 1
        changed = np.abs(answers(told(there, in_life, events), in_life)).sum(axis=0)
        assert (changed <= told(there, in_life, events).sum(axis=0)).all()
        worst = np.maximum(worst, told(there, in_life, events).sum(axis=0))
    inside, beyond = LifeQuery(in_life, events).sensitivities
    assert (worst[:LAYERS] <= in_life * events).all()
    assert worst[:LAYERS].sum() <= inside
    assert worst[BEYOND] <= beyond == events
    if LAYERS * in_life < 11:
        assert worst[:LAYERS].sum() == inside  # tight
        assert worst[BEYOND] == beyond


@settings(max_examples=100)
@given(st.integers(1, 12), st.lists(st.booleans(), min_size=1, max_size=400))
def test_a_visit_is_in_one_answer_of_a_kind(in_life, there):
    table = told(np.array(there), in_life)
    found = answers(table, in_life).sum(axis=0)
    visits = int(np.sum(there))
    each = [np.clip(visits - layer * in_life, 0, in_life) for layer in range(LAYERS)]
    assert table.sum(axis=0).tolist() == [*each, int(visits > LAYERS * in_life)]
    assert (found <= table.sum(axis=0)).all()


@pytest.mark.parametrize("query", [LifeQuery(1, 1), LifeQuery(5, 3), LifeQuery(20, 2)])
@pytest.mark.parametrize("budget", [aside(1.0), 12_345])
def test_questions_cost_no_more_than_their_budget(query, budget):
    rates, (inside, beyond) = query.rates(budget), query.sensitivities
    assert 0.98 * budget < rates.layers * inside + rates.rest * beyond <= budget


def test_when_is_asked_depends_on_the_age_alone():
    often = [age for age in range(1, 101) if due(age, 5)[0]]
    assert often == [10, *range(EVERY, 101, EVERY)]
    assert [age for age in range(1, 100) if due(age, 30)[0]] == [40, 60, 80]
    assert [age for age in range(1, 21) if due(age, 3)[0]] == [6, 12, 20]
    seldom = [age for age in range(1, 200) if due(age, 5)[BEYOND]]
    assert seldom == [15, 30, 45, 60, 90, 120, 180]


def test_what_is_not_asked_is_not_told():
    query = LifeQuery(2, 1)
    asked = np.array([True, True, True, False])
    sums = np.array([100, 50, 20, 30])
    answer = query.answer(sums, asked, query.rates(aside(1.0)), RandomWords(bytes(32)))
    assert answer[BEYOND] == 0
    assert (answer[:LAYERS] != sums[:LAYERS]).any()


def test_in_the_first_slots_nothing_can_be_left_out():
    assert LifeShare.unknown(LifeQuery(5, 1)).estimate(5) == (1.0, 0.0)
    share, variance = LifeShare.unknown(LifeQuery(5, 1)).estimate(6)
    assert GUESS < share < 1
    assert 0 < variance < DOUBT**2
    assert LifeShare.unknown(LifeQuery(5, 1)).estimate(10) == (GUESS, DOUBT**2)


def lives(kind, random, users, slots, in_life):
    """Layers by slot, events of each, and those that count, of users who come and go."""
    length = {
        "none too long": np.full(users, in_life),
        "all twice as long": np.full(users, 2 * in_life),
        "unlike": random.geometric(1 / in_life, users),
    }[kind]
    number = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
    slot = np.repeat(random.integers(-10, slots, users), length) + number
    there = (slot >= 0) & (slot < slots)
    slot, number = slot[there], number[there]
    table = life_layers(number, np.ones_like(number), in_life, slot, slots)
    every = np.bincount(slot, minlength=slots)
    return table, every, np.bincount(slot[number < in_life], minlength=slots)


# Of 20 runs each with a nominal coverage of 90 %; the runs have a fixed key.
@pytest.mark.parametrize("kind", ["none too long", "all twice as long", "unlike"])
def test_the_share_is_right_within_its_own_error(kind):
    random, query = np.random.default_rng(1), LifeQuery(4, 1)
    rates, errors, stated = query.rates(aside(1.0)), [], []
    for run in range(20):
        table, every, kept = lives(kind, random, 50_000, 200, 4)
        known, since = LifeShare.unknown(query), np.zeros(LAYERS + 1, np.int64)
        for age, row in enumerate(table, 1):
            since += row
            asked = due(age, 4)
            if asked.any():
                words = RandomWords((1000 * run + age).to_bytes(32, "little"))
                known = known.told(query.answer(since, asked, rates, words), asked, rates)
                since[asked] = 0
        share, variance = known.estimate(200)
        errors.append(share - kept[100:].sum() / every[100:].sum())
        stated.append(np.sqrt(variance))
        events, error = known.beyond
        assert abs(events - table[:192, BEYOND].sum()) < 5 * error
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert 0.75 <= np.mean(np.abs(errors) < 1.645 * np.array(stated)) <= 1


def test_where_little_is_known_or_told_nothing_fades():
    query = LifeQuery(3, 1)
    rates, asked = query.rates(aside(1.0)), np.ones(LAYERS + 1, bool)
    quiet, loud = np.array([10, 5, 0, 2]), np.array([100_000, 50_000, 0, 2])
    known = LifeShare.unknown(query)
    for _ in range(30):
        known = known.told(quiet, asked, rates)
    assert known.sums.tolist() == [300, 150, 0, 60]
    for _ in range(30):
        known = known.told(loud, asked, rates)
    assert known.sums[0] < 10.5 * loud[0]
    assert known.sums[BEYOND] == 120  # users who are beyond stay so
    before = known.sums[0]
    for _ in range(30):
        known = known.told(quiet, asked, rates)
    assert known.sums[0] == before + 300


def test_what_makes_up_most_is_told():
    known = {"kept_share": 0.9, "events_beyond": 300.0, "events_beyond_stderr": 60.0}
    assert not mostly_left_out(known, 200)
    assert mostly_left_out(known, 150)
    assert mostly_left_out({**known, "kept_share": 0.4}, 200)
    assert not mostly_left_out({**known, "events_beyond": 100.0}, -5)

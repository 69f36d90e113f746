"""The share of lives that is kept: what queries cost, and how right answers are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
from streamveil.mechanisms.presence.life_share import (
    BEYOND,
    DOUBT,
    EVERY,
    GUESS,
    MEMORIES,
    NEAR,
    OTHERS,
    LifeQuery,
    LifeShare,
    LivesLeftOut,
    Missing,
    due,
    mostly_left_out,
    unknown,
)
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.randomness.noise import RandomWords
from tests.mechanisms.presence.lives import life_layers, near_and_beyond


def layers_of(there, in_life, events=1):
    """Layers of one life by slot, of whether the user is there in each: shape (slots, 4)."""
    slots = np.flatnonzero(there)
    visits = np.arange(len(slots))
    return life_layers(visits, np.full(len(slots), events), in_life, slots, len(there))


def answers(table, in_life):
    """What is asked of a lifetime, answer by answer: shape (answers, 2)."""
    found, since = [], np.zeros(2, np.int64)
    for age, row in enumerate(near_and_beyond(table), 1):
        since += row
        asked = due(age, in_life)
        found.append(np.where(asked, since, 0))
        since[asked] = 0
    return np.array(found)


@pytest.mark.parametrize("in_life", [1, 2, 3])
@pytest.mark.parametrize("events", [1, 3])
def test_a_life_changes_all_answers_by_no_more_than_is_paid_for(in_life, events):
    """Of all ways to be there. Replaced are two lives, of which each changes them by so much."""
    worst = np.zeros(2, np.int64)
    for way in range(1 << 11):
        there = way >> np.arange(11) & 1
        table = layers_of(there, in_life, events)
        changed = np.abs(answers(table, in_life)).sum(axis=0)
        assert (changed <= near_and_beyond(table).sum(axis=0)).all()
        worst = np.maximum(worst, near_and_beyond(table).sum(axis=0))
    near, beyond = LifeQuery(in_life, events).sensitivities
    assert worst[NEAR] <= near
    assert worst[BEYOND] <= beyond == events
    if LAYERS * in_life < 11:
        assert worst.tolist() == [near, beyond]  # tight


@settings(max_examples=100)
@given(st.integers(1, 12), st.lists(st.booleans(), min_size=1, max_size=400))
def test_a_visit_is_in_one_answer_of_a_kind(in_life, there):
    table = layers_of(np.array(there), in_life)
    found = answers(table, in_life).sum(axis=0)
    visits = int(np.sum(there))
    each = [np.clip(visits - layer * in_life, 0, in_life) for layer in range(LAYERS)]
    assert table.sum(axis=0).tolist() == [*each, int(visits > LAYERS * in_life)]
    assert (found <= near_and_beyond(table).sum(axis=0)).all()


@pytest.mark.parametrize("query", [LifeQuery(1, 1), LifeQuery(5, 3), LifeQuery(20, 2)])
@pytest.mark.parametrize("budget", [aside(1.0), 12_345])
def test_queries_cost_no_more_than_their_budget(query, budget):
    rates, (near, beyond) = query.rates(budget), query.sensitivities
    assert 0.98 * budget < rates.layers * near + rates.rest * beyond <= budget


def test_when_is_asked_depends_on_the_age_alone():
    often = [age for age in range(1, 101) if due(age, 5)[0]]
    assert often == [10, *range(EVERY, 101, EVERY)]
    assert [age for age in range(1, 100) if due(age, 30)[0]] == [40, 60, 80]
    assert [age for age in range(1, 21) if due(age, 3)[0]] == [6, 12, 20]
    seldom = [age for age in range(1, 200) if due(age, 5)[BEYOND]]
    assert seldom == [15, 30, 45, 60, 90, 120, 180]


def test_what_is_not_asked_is_not_answered():
    query = LifeQuery(2, 1)
    sums = np.array([50, 30])
    rates, words = query.rates(aside(1.0)), RandomWords(bytes(32))
    answer = query.answer(sums, np.array([True, False]), rates, words)
    assert answer[BEYOND] == 0
    assert answer[NEAR] != sums[NEAR]


def test_in_the_first_slots_nothing_can_be_left_out():
    known = LifeShare.unknown(LifeQuery(5, 1))
    for _ in range(5):
        known = known.released(100)
    assert known.missing(5) == (0, 0)
    few, most = known.missing(6), known.missing(10)
    assert 0 < few.events < most.events == pytest.approx(100 * GUESS)
    assert 0 < few.variance < most.variance
    assert most.variance >= (100 * DOUBT) ** 2


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
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none too long", "all twice as long", "unlike"])
def test_the_share_is_right_within_its_own_error(kind):
    random, query = np.random.default_rng(1), LifeQuery(4, 1)
    rates, errors, stated = query.rates(aside(1.0)), [], []
    for run in range(20):
        table, every, kept = lives(kind, random, 50_000, 200, 4)
        known, since = LifeShare.unknown(query), np.zeros(2, np.int64)
        for age, row in enumerate(near_and_beyond(table), 1):
            since, known = since + row, known.released(kept[age - 1])
            asked = due(age, 4)
            if asked.any():
                words = RandomWords((1000 * run + age).to_bytes(32, "little"))
                known = known.updated(query.answer(since, asked, rates, words), asked, rates)
                since[asked] = 0
        share, error = LivesLeftOut.of([known], 200, np.zeros(2)).share
        errors.append(share - kept[100:].sum() / every[100:].sum())
        stated.append(error)
        events, error = known.beyond
        assert abs(events - table[:192, LAYERS].sum()) < 5 * error
    assert np.sqrt(np.mean(np.square(errors))) < (0.06 if kind == "unlike" else 0.03)
    assert 0.75 <= np.mean(np.abs(errors) < 1.645 * np.array(stated)) <= 1


def learnt(near, age=400):
    """Of a stream with so many near events in each slot, and 100 that count."""
    query, asked = LifeQuery(3, 1), np.array([True, False])
    rates, known = query.rates(aside(1.0)), LifeShare.unknown(query)
    for at in range(1, age + 1):
        known = known.released(100)
        if at % EVERY == 0:
            events = sum(near(slot) for slot in range(at - EVERY, at))
            known = known.updated(np.array([int(events), 0]), asked, rates)
    return known


def test_answers_without_any_noise_to_speak_of_are_believed():
    query, asked = LifeQuery(1, 1), np.array([True, True])
    rates, known = query.rates(aside(4096.0)), LifeShare.unknown(query)
    for near in (0, 0, 0, 5, 5):
        known = known.released(100).updated(np.array([near, 0]), asked, rates)
        assert np.isfinite(known.numbers).all()
        assert known.weights.sum() == pytest.approx(1)
        assert np.isfinite(known.missing(40)).all()


def test_the_memory_that_foretells_best_is_believed():
    steady, rising = learnt(lambda slot: 300), learnt(lambda slot: 5 * slot)
    assert steady.weights.argmax() == 0
    assert rising.weights.argmax() == len(MEMORIES) - 1
    assert steady.missing(400).events == pytest.approx(300, rel=0.05)
    assert rising.missing(400).events > 1600
    assert rising.missing(400).variance > 4 * steady.missing(400).variance


def test_who_is_beyond_may_still_come():
    query, asked = LifeQuery(3, 1), np.array([False, True])
    rates, known = query.rates(aside(1.0)), LifeShare.unknown(query)
    for _ in range(9):
        known = known.released(100)
    known = known.updated(np.array([0, 500]), asked, rates)
    missing = known.missing(9)
    assert missing.events == pytest.approx(500 * 10 / 9 / 2 + 100 * GUESS, rel=0.1)
    assert missing.variance**0.5 > 100


def test_what_was_saved_is_what_it_was():
    known = learnt(lambda slot: slot)
    again = LifeShare.unknown(known.query).of_numbers(np.array(known.numbers))
    assert again.numbers == known.numbers
    assert again.missing(400) == known.missing(400)


def test_where_nothing_counts_any_more_what_is_missing_is_reported_all_the_same():
    left_out = LivesLeftOut(Missing(90.0, 25.0), 0.0, np.array([2.0, 1.0]))
    counts, variances = left_out.made_up([0, 0], [4.0, 4.0])
    assert counts.tolist() == [60.0, 30.0]
    assert (variances > 4).all()
    assert left_out.share[0] == 0


def test_what_makes_up_most_is_reported():
    known = {"kept_share": 0.9, "events_beyond": 300.0, "events_beyond_stderr": 60.0}
    assert not mostly_left_out(known, 200)
    assert mostly_left_out(known, 150)
    assert mostly_left_out({**known, "kept_share": 0.4}, 200)
    assert not mostly_left_out({**known, "events_beyond": 100.0}, -5)


# ---- a part of the cells ----------------------------------------------------------------------

SOME = np.array([True, False, False, True])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 9)), max_size=30))
def test_an_event_is_in_one_of_the_two_answers_about_near_events(rows):
    """So both change by no more, together, than one answer about all of them would."""
    layers, bins, events = np.array(rows, np.int64).reshape(-1, 3).T
    beyond = Beyond(layers, np.zeros(len(rows), np.int64), bins, events)
    mine = np.ones(len(rows), np.bool_)
    counts = np.zeros(4, np.int64)
    whole = LifeQuery(2, 9).sums(counts, beyond, mine)
    part = LifeQuery(2, 9, SOME).sums(counts, beyond, mine)
    assert part[NEAR] + part[OTHERS] == whole[NEAR]
    assert part[NEAR] == events[(layers < LAYERS) & SOME[bins]].sum()
    assert part[BEYOND] == events[(layers >= LAYERS) & SOME[bins]].sum()
    assert LifeQuery(2, 9, SOME).sensitivities == LifeQuery(2, 9).sensitivities
    assert LifeQuery(2, 9, SOME).rates(12_345) == LifeQuery(2, 9).rates(12_345)


def part_share(seed, query, shares=(0.13, 1.0), odds=0.35):
    """What is known after 200 slots, of which this part of the numbers is what is asked about."""
    known, rates, words = unknown(query), query.rates(aside(30.0)), RandomWords(bytes([seed]) * 32)
    own, each = (round(share * 100 * query.unit) for share in shares)
    since = np.zeros(query.width, np.int64)
    for age in range(1, 201):
        part = query.part is not None
        known = known.released(own, each) if part else known.released(own)
        if age > query.in_life:
            near = np.array([own, 0, each - own][: query.width])
            since += np.round(odds * near).astype(np.int64)
        asked = due(age, query.in_life)
        if asked.any():
            answer = query.answer(since, asked, rates, words)
            known = known.updated(answer, asked, rates)
            since[query.asked(asked)] = 0
    return known, odds * own


def test_a_part_is_estimated_better_with_the_others():
    alone, split = LifeQuery(12, 1024, unit=1024), LifeQuery(12, 1024, SOME, 1024)
    errors = []
    for query in (alone, split):
        found = [part_share(seed, query) for seed in range(40)]
        missed = [(known.missing(200).events - true) / true for known, true in found]
        errors.append(float(np.sqrt(np.mean(np.square(missed)))))
        sure = [
            abs(m) * t < 1.645 * k.missing(200).variance ** 0.5
            for m, (k, t) in zip(missed, found, strict=True)
        ]
        assert np.mean(sure) >= 0.85
    assert errors[1] < 0.8 * errors[0]


def test_what_was_saved_of_a_part_is_what_it_was():
    known, _ = part_share(1, LifeQuery(12, 1024, SOME, 1024))
    again = unknown(known.own.query).of_numbers(np.array(known.numbers))
    assert again.numbers == known.numbers
    assert again.missing(200) == known.missing(200)

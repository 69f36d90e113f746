"""No window of base slots costs a user more than E over all queries, counted from outside.

Two counts are made that ask neither the mechanisms nor the filters. Of schedules with one class of
users, all noise is noted as it is drawn: its units, times what a user changes, are what a slot
costs. Of the adaptive mechanism, whose sums cost slots before, what a user loses is seen in a
neighbouring world (`adaptive/recount.py`), where the user does other things in all base slots of a
window. Both are whole units of 2**-40 epsilon, compared with E as fractions.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    MECHANISMS,
    Categories,
    ConfigurationError,
    NoiseSource,
    ReleaseStream,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.queries.bounds import AutoBounds, looks_at, paying, rate_of, set_aside
from streamveil.mechanisms.queries.cuts import Months
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.statistics import Count
from streamveil.mechanisms.wevent.sampling import Sampling
from tests.mechanisms.adaptive.recount import ANSWERS, GAPS, KINDS, Slot, Tape, World
from tests.mechanisms.streams import KEY

PROPERTY = settings(max_examples=40)
BASE_SLOTS = 70
MOST_SENSITIVE = 6
DRAWING = ("pba", "pbd", "ba", "bd", "uniform", "sample")
"""Whose noise costs the slot in which it is drawn."""


@st.composite
def queries(draw, mechanisms, looks):
    """A query of up to 30 base slots, or of months; some have bounds that are looked for."""
    number = draw(st.integers(0, 10**6))
    mechanism = draw(st.sampled_from(mechanisms))
    looked_for = looks and not MECHANISMS[mechanism].draws and draw(st.booleans())
    return Query(
        f"q{number}",
        slots=draw(st.integers(1, 30) | st.builds(Months, st.sampled_from([1, 1, 2, 3]))),
        value=("place",),
        domain=Categories(("a", "b", "c")[: draw(st.integers(1, 3))]),
        statistic=AutoBounds("mean", f"column-{number}") if looked_for else Count(),
        mechanism=mechanism,
        max_contributions=draw(st.integers(1, 3)),
    )


@st.composite
def streams(draw, mechanisms=tuple(MECHANISMS), classes=3, looks=False, replan=False):
    """A query set of up to six queries, requirements of up to 200 base slots, random shares."""
    asked = draw(
        st.lists(queries(mechanisms, looks), min_size=1, max_size=6, unique_by=lambda one: one.name)
    )
    epsilons = st.builds(lambda x: 10**x, st.floats(-5, 1))
    requirement = st.builds(Requirement, st.integers(1, 200), epsilons)
    requirements = Requirements(draw(st.lists(requirement, min_size=1, max_size=classes)))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(asked), max_size=len(asked)))
    query_set = QuerySet(Slots.of(draw(st.sampled_from(["1h", "1d", "1d"]))), tuple(asked))
    sizes = np.array([draw(st.sampled_from([1, 30, 2000])) for _ in requirements])
    caps = requirements.budgets - set_aside(query_set, requirements, sizes)
    shares = np.array([[int(cap) * one // sum(weights) for cap in caps] for one in weights])
    return QueryStream(
        query_set,
        requirements,
        sizes,
        shares,
        NoiseSource(KEY),
        adjacency=draw(st.sampled_from([ADD_REMOVE, REPLACE])),
        replan=replan,
    )


def counts(random, population) -> np.ndarray:
    """From nothing to very many: shape (K, d)."""
    shape = (len(population.requirements), population.bins)
    return (random.random(shape) * random.choice([0, 3, 2000])).astype(np.int64)


def run(stream, random, first) -> list[tuple[int, int, list[int]]]:
    """Release base slots, from a saved state now and then: what is booked, by base slots."""
    state, found = stream.start(), []
    for base_slot in range(first, first + BASE_SLOTS):
        if random.random() < 0.1:
            state = stream.decode(stream.encode(state))
        tables = {
            q: counts(random, stream.streams[q].mechanism.population) for q in stream.due(base_slot)
        }
        prices = stream.price(state, base_slot)
        state, releases = stream.release(state, base_slot, tables)
        for q, release in releases.items():
            assert (release.spent <= prices[q]).all()
            cut = stream.query_set.queries[q].cut
            start = cut.first(cut.of(base_slot))
            found.append((start, base_slot, release.spent.tolist()))
    return found


def look_of(stream) -> list[int]:
    """What a look at bounds costs each class: an event that moves changes two cells of each."""
    pays, units = paying(stream.requirements, stream.sizes)
    looks = len(looks_at(stream.query_set))
    rate = rate_of(looks, units) if looks else 0
    return [looks * 2 * rate if each else 0 for each in pays]


def assert_no_window_overspends(found, requirements, before=None) -> None:
    """Add up all that meets any window of base slots, of any class, and earlier releases."""
    for k, requirement in enumerate(requirements):
        ends = {first for first, _, _ in found} | {last for _, last, _ in found}
        for start, backwards in product(ends, (False, True)):
            low = start - requirement.window + 1 if backwards else start
            high = low + requirement.window - 1
            met = [each[k] for first, last, each in found if first <= high and last >= low]
            spent = sum(met) + (before[k] if before else 0)
            assert Fraction(spent, 2**40) <= Fraction(requirement.epsilon)


# Any mechanisms, side by side, with restarts: neither filter ever refuses, and no window of base
# slots is overspent.
@PROPERTY
@given(stream=streams(looks=True), seed=st.integers(0, 2**32))
def test_no_window_of_base_slots_overspends(stream, seed):
    random = np.random.default_rng(seed)
    found = run(stream, random, int(random.integers(-50, 50)))
    assert_no_window_overspends(found, stream.requirements, look_of(stream))


# The same where all noise is seen as it is drawn: it costs what is booked, or nothing where a slot
# books a look that it leaves out.
@PROPERTY
@given(stream=streams(DRAWING, classes=1), seed=st.integers(0, 2**32))
def test_what_is_booked_is_what_noise_costs(stream, seed):
    drawn, draw, release = [], Sampling.noise, ReleaseStream.release

    def noted(chosen, size, words):
        drawn[-1] += chosen.threshold * chosen.population.sensitivity
        return draw(chosen, size, words)

    def begun(*given):
        drawn.append(0)
        return release(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampling, "noise", noted)
        patch.setattr(ReleaseStream, "release", begun)
        found = run(stream, np.random.default_rng(seed), 0)
    costs = [(first, last, [cost]) for (first, last, _), cost in zip(found, drawn, strict=True)]
    for (*_, (booked,)), cost in zip(found, drawn, strict=True):
        assert cost <= booked
        assert cost == 0 or booked - cost < 2 * MOST_SENSITIVE  # a look and a release round down
    assert_no_window_overspends(costs, stream.requirements)


# ---- neighbouring worlds --------------------------------------------------------------------


def some_length(random) -> int | Months:
    """Of slots: so many base slots, or a month."""
    days = int(random.choice([1, 1, 2, 5, random.integers(1, 31), 0]))
    return days or Months(1)


def query_set_of(random) -> QueryStream:
    """A random query set for the adaptive mechanism, of a few bins."""
    amount = int(random.integers(1, 7))
    asked = tuple(
        Query(
            f"q{q}",
            slots=some_length(random),
            value=("place",),
            domain=Categories(tuple("abc"[: random.integers(2, 4)])),
            max_contributions=int(random.integers(1, 3)),
        )
        for q in range(amount)
    )
    requirements = Requirements(
        Requirement(int(random.integers(1, random.choice([10, 201]))), 10 ** random.uniform(-3, 1))
        for _ in range(random.integers(1, 4))
    )
    weights = random.integers(1, 9, amount)
    shares = np.array(
        [[int(cap) * int(one) // weights.sum() for cap in requirements.budgets] for one in weights]
    )
    sizes = random.choice([1, 50, 10**4], len(requirements))
    return QueryStream(
        QuerySet(Slots.of("1d"), asked), requirements, sizes, shares, NoiseSource(KEY)
    )


def world_of(stream, random, seed, slots) -> World:
    """The slots of one query, released: answers and plans are made up."""
    population = stream.mechanism.population
    tape = Tape(seed, str(random.choice(ANSWERS)), random.choice(GAPS), random.choice(KINDS), slots)
    tables = [counts(random, population) + population.sensitivity for _ in range(slots)]
    rows = [Slot(dict(enumerate(table))) for table in tables]
    return World([stream] * slots, rows, tape).run(random)


def others(random, events, bins, whole) -> np.ndarray:
    """What a slot counts of a user without the window: as many events less as count, shape (d,).

    Where the window has a part of the slot, others have taken their places.
    """
    one = np.eye(bins, dtype=np.int64)
    of, to = random.permutation(bins)[:2]
    return -events * one[of] if whole else events * (one[to] - one[of])


def window_loses_no_more(stream, worlds, random) -> int:
    """A user of a class does something else in a window of base slots. Returns the units lost."""
    k = int(random.integers(len(stream.requirements)))
    requirement = stream.requirements[k]
    start = int(random.integers(BASE_SLOTS))
    end = start + requirement.window - 1
    lost = 0
    for query, world in zip(stream.query_set, worlds, strict=True):
        events, bins, cut = query.max_contributions, query.domain.bins, query.cut
        path = {}
        for slot in range(cut.of(start), min(cut.of(end) + 1, len(world.slots))):
            whole = start <= cut.first(slot) and cut.last(slot) <= end
            path[slot] = (k, others(random, events, bins, whole or cut.longest == 1))
        if path:
            lost += sum(loss for _, loss in world.losses(path))
    assert Fraction(lost, 2**40) <= Fraction(requirement.epsilon)
    return lost


def check(seed: int) -> int:
    random = np.random.default_rng([seed, 21])
    try:
        stream = query_set_of(random)
    except ConfigurationError:
        return 0
    worlds = []
    for query, one in zip(stream.query_set, stream.streams, strict=True):
        slots = query.cut.of(BASE_SLOTS) + 1
        worlds.append(world_of(one, random, seed, slots))
    return max(window_loses_no_more(stream, worlds, random) for _ in range(3))


def test_no_user_loses_more_in_a_window_of_base_slots():
    assert check(51)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_user_loses_more_in_many_query_sets(part):
    assert sum(check(seed) for seed in range(part, 40, 4))

"""What a slot costs at most is known before its counts, of all mechanisms of both streams."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    DYNAMIC_MECHANISMS,
    INFINITE_MECHANISMS,
    MECHANISMS,
    BudgetExceeded,
    DynamicStream,
    NoiseSource,
    Population,
    ReleaseStream,
    dynamic_mechanism,
    mechanism,
)
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import Lifetime
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import Setting
from streamveil.mechanisms.wevent.dpwsm import DPWSM
from streamveil.mechanisms.wevent.pwsm import PWSM
from tests.mechanisms.streams import KEY, people, windows_and_epsilons

PROPERTY = settings(max_examples=15)
SLOTS, BINS = 24, 3
ADAPTIVE = ["adaptive:cycle=3", "adaptive:gate=0.5:reserve=0.5:audit=0", "adaptive:reserve=0"]
FIXED = [
    *MECHANISMS,
    *(pytest.param(one, marks=pytest.mark.slow) for one in ADAPTIVE),
    "adaptive:assume_independent=false",
    "ablation:ledger=saving",
]
FOREVER = [*INFINITE_MECHANISMS, "gated:p=1.5", "gated:total=500", "horizon:slots=5"]
NO_MOVES = Moves.none()
NOBODY = CohortCounts(*3 * [np.zeros(0, np.int64)])


def counts_of(random: np.random.Generator, classes: int) -> np.ndarray:
    """Counts of slots that jump between nothing and very many."""
    scale = random.choice([0, 3, 40, 2000], (SLOTS, 1, 1))
    return (random.random((SLOTS, classes, BINS)) * scale).astype(np.int64)


def fixed(text: str, population: Population, counts: np.ndarray) -> list[tuple]:
    """Release all slots: counts, what they cost, and the price that was stated before."""
    stream = ReleaseStream(mechanism(text, population), NoiseSource(KEY))
    state, found = stream.start(), []
    for slot, table in enumerate(counts):
        price = stream.price(state)
        assert (price == stream.price(stream.decode(stream.encode(state)))).all()
        check_room(population, [spent for _, spent, _ in found], price)
        state, release = stream.release(state, slot, table)
        found.append((release.counts.tolist(), release.spent, price))
    return found


def check_room(population: Population, spent: list[np.ndarray], price: np.ndarray) -> None:
    """No price is beyond what the window of a class has left."""
    for k, one in enumerate(population.requirements):
        reach = len(spent) if isinstance(one, Lifetime) else one.window - 1
        recent = sum(int(each[k]) for each in spent[max(len(spent) - reach, 0) :])
        assert recent + int(price[k]) <= math.floor(Fraction(one.epsilon) * 2**40)


def changing(text: str, asked: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> list[tuple]:
    """The same where each class asks for something else in every slot: (T, K, 4)."""
    stream = DynamicStream(
        dynamic_mechanism(text, Setting(BINS, 8)), asked[0], sizes, NoiseSource(KEY)
    )
    classes = len(sizes)
    state, cohorts, found = stream.start(), np.arange(classes), []
    for slot, table in enumerate(counts):
        moves = NO_MOVES
        if slot:
            moves = Moves(cohorts, cohorts + classes, sizes, asked[slot])
            cohorts = cohorts + classes
        cells = CohortCounts(
            np.repeat(cohorts, BINS), np.tile(np.arange(BINS), classes), table.reshape(-1)
        )
        price = stream.price(state, slot, moves)
        state, release = stream.release(state, slot, cells, moves)
        found.append((release.counts.tolist(), release.spent, price))
    return found


def check(found: list[tuple]) -> None:
    for _, spent, price in found:
        assert spent.shape == price.shape
        assert (spent >= 0).all()
        assert (spent <= price).all()


@pytest.mark.many
@pytest.mark.parametrize("text", FIXED)
@PROPERTY
@given(asked=windows_and_epsilons(), sensitivity=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_no_slot_costs_more_than_was_said(text, asked, sensitivity, seed):
    random = np.random.default_rng(seed)
    sizes = random.choice([0, 1, 50, 10**4], len(asked)).tolist()
    check(fixed(text, people(asked, sizes, BINS, sensitivity), counts_of(random, len(asked))))


@pytest.mark.many
@pytest.mark.parametrize("text", FOREVER)
@PROPERTY
@given(
    epsilon=st.floats(-6, 2).map(lambda x: 10**x),
    sensitivity=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_no_slot_forever_costs_more_than_was_said(text, epsilon, sensitivity, seed):
    counts = counts_of(np.random.default_rng(seed), 1)
    check(fixed(text, people([Lifetime(epsilon)], [100], BINS, sensitivity), counts))


WISHES = asked_units([(4, 1.0, 4, 1.0), (2, 0.5, 3, 2.0), (1, 9.0, 8, 0.3), (8, 0.2, 1, 5.0)])


@pytest.mark.many
@pytest.mark.parametrize(
    "text",
    [*DYNAMIC_MECHANISMS, *(pytest.param(one, marks=pytest.mark.slow) for one in ADAPTIVE)],
)
@PROPERTY
@given(seed=st.integers(0, 2**32))
def test_no_slot_of_changing_requirements_costs_more_than_was_said(text, seed):
    random = np.random.default_rng(seed)
    asked = WISHES[random.integers(len(WISHES), size=(SLOTS, 3))]
    check(changing(text, asked, np.array([1, 50, 10**4]), counts_of(random, 3)))


# No mechanism says more than need be: some slots cost what was said, but for rounding of weights.
@pytest.mark.slow
@pytest.mark.parametrize("text", FIXED + FOREVER)
def test_some_slots_cost_what_was_said(text):
    forever = text.partition(":")[0] in INFINITE_MECHANISMS
    asked = [Lifetime(20.0)] if forever else [(3, 10.0), (5, 20.0)]
    counts = counts_of(np.random.default_rng(1), len(asked))
    found = fixed(text, people(asked, [1000] * len(asked), BINS), counts)
    check(found)
    near = [(spent > 0) & (spent >= 0.999 * price) for _, spent, price in found]
    assert np.any(near) == (text != "constant")


class Unasked:
    """A mechanism that is not asked for its price."""

    def __init__(self, asked):
        self._asked = asked

    def __getattr__(self, name):
        return getattr(self._asked, name)

    def price(self, *_):
        return np.full(2, np.iinfo(np.int64).max)


ASKED = np.tile(WISHES[:2], (SLOTS, 1, 1))
SIZES = np.array([1000, 50])


# To ask for the price shapes no release: what is said does not steer what is done.
@pytest.mark.many
@pytest.mark.parametrize("text", [*MECHANISMS, "adaptive:cycle=3"])
def test_the_price_shapes_no_release(text):
    population = people([(3, 10.0), (5, 20.0)], [1000, 50], BINS)
    counts = counts_of(np.random.default_rng(2), 2)
    stream = ReleaseStream(Unasked(mechanism(text, population)), NoiseSource(KEY))
    state = stream.start()
    for slot, (released, spent, _) in enumerate(fixed(text, population, counts)):
        state, release = stream.release(state, slot, counts[slot])
        assert release.counts.tolist() == released
        assert (release.spent == spent).all()


@pytest.mark.parametrize("text", [*DYNAMIC_MECHANISMS, "adaptive:cycle=3"])
def test_the_price_shapes_no_release_of_changing_requirements(monkeypatch, text):
    counts = counts_of(np.random.default_rng(2), 2)
    asked = [each[:2] for each in changing(text, ASKED, SIZES, counts)]
    kind = type(dynamic_mechanism(text, Setting(BINS, 8)))
    monkeypatch.setattr(kind, "price", Unasked.price)
    unasked = [each[:2] for each in changing(text, ASKED, SIZES, counts)]
    assert str(asked) == str(unasked)


# ---- who says too little is refused ---------------------------------------------------------


REFUSED = r"ledger 0 of mechanism '{}': requested .* remaining .* in what it named as the price"


def a_unit_less(patch, kind) -> None:
    price = kind.price
    patch.setattr(kind, "price", lambda *given: np.maximum(price(*given) - 1, 0))


MOVING = np.tile(900 * (np.arange(SLOTS) % 2)[:, None, None], (1, 2, BINS))


def test_a_slot_that_costs_more_than_was_said_is_refused(monkeypatch):
    a_unit_less(monkeypatch, PWSM)
    with pytest.raises(BudgetExceeded, match=REFUSED.format("pba")):
        fixed("pba", people([(3, 10.0), (5, 20.0)], [1000, 50], BINS), MOVING)


def test_a_slot_of_changing_requirements_is_refused_alike(monkeypatch):
    a_unit_less(monkeypatch, DPWSM)
    with pytest.raises(BudgetExceeded, match=REFUSED.format("dpba")):
        changing("dpba", ASKED, SIZES, MOVING)


# ---- a slot that has begun ------------------------------------------------------------------


def begun():
    stream = DynamicStream(
        dynamic_mechanism("adaptive", Setting(BINS, 8)), ASKED[0], SIZES, NoiseSource(KEY)
    )
    state = stream.start()
    moves = Moves(np.array([0]), np.array([7]), np.array([400]), WISHES[2:3])
    return stream, state, moves, stream.price(state, 0, moves)


# Users move once, however often the price is asked; the price is that of their new ledgers.
def test_a_slot_begins_once():
    stream, state, moves, price = begun()
    assert (stream.price(state, 0, moves) == price).all()
    assert state.interned.sizes.sum() == SIZES.sum()
    assert len(price) == 3
    state, release = stream.release(state, 0, NOBODY, moves)
    assert (release.spent <= price).all()
    stream.encode(state)


def test_a_slot_that_has_begun_keeps_its_moves():
    stream, state, moves, _ = begun()
    for slot, others in ((1, moves), (0, NO_MOVES)):
        with pytest.raises(ValueError, match="slot 0 has begun with its moves: release it first"):
            stream.price(state, slot, others)


# Where its users have moved is in no history yet: a restart would move them once more.
def test_a_slot_that_has_begun_is_not_saved():
    stream, state, _, _ = begun()
    with pytest.raises(ValueError, match="slot 0 has begun: release it, then save the state"):
        stream.encode(state)

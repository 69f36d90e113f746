"""What a look at users costs, by enumeration; what is chosen by it, and by a public rate."""

import itertools

import numpy as np
import pytest

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    REPLACE,
    ConfigurationError,
    Lifetime,
    Requirement,
)
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.limits import EVERY_SLOT, LOOK, terms
from streamveil.mechanisms.randomness.noise import NoiseSource
from tests.mechanisms.presence.all_ways import mask

KEY = bytes(range(32))
ASKED = Requirement(100, 1.0)


def words(seed=0):
    return NoiseSource(KEY).slot(seed, b"digest").words("presence")


def crowd(rate, seed=0, users=10_000, blocks=12):
    """Slots with events of blocks of users who are there at rates with a tail."""
    random = np.random.default_rng(seed)
    rates = np.minimum(rate * random.gamma(2, 1 / 2, users), 1)
    used = random.binomial(Look(ASKED).every, np.repeat(rates, blocks))
    return used[used > 0]


class Small(Look):
    """A look with few cells, so that short windows have some."""

    most = 2


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize(("window", "blocks"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (6, 3)])
def test_no_neighbours_differ_by_more_than_is_paid_for(window, blocks, adjacency):
    look = Small(Requirement(window, 1.0), blocks, adjacency)
    length = look.every
    slots, inside = window + 2 * (length - 1), mask(length - 1, window)
    ways = np.arange(1 << slots)
    worst = np.zeros(2, np.int64)
    for phase in range(length):
        answers = all_answers(look, slots, phase)
        others = [0] if adjacency == ADD_REMOVE else np.unique(ways & inside)
        for other in others:
            apart = np.abs(answers - answers[ways & ~inside | other])
            worst = np.maximum(worst, [apart[:, :-1].sum(axis=1).max(), apart[:, -1].max()])
    assert (worst <= look.sensitivities).all()
    if length > 2:
        assert worst[0] == look.sensitivities[0]


def all_answers(look, slots, phase):
    """Without noise, of all ways to be there: shape (ways, cells + 2)."""
    ways = np.arange(1 << slots)
    made = np.zeros((len(ways), len(look.limits) + 2), np.int64)
    for start in range(-phase, slots, look.every):
        block = mask(max(start, 0), min(start + look.every, slots) - max(start, 0))
        used = np.bitwise_count(ways & block).astype(np.int64)
        there = np.flatnonzero(used)
        made[there, np.searchsorted(look.limits, used[there])] += 1
        made[:, -1] += np.maximum(used - look.most, 0)
    return made


def test_cells_are_those_of_the_limits_to_choose_from():
    look = Look(ASKED)
    assert look.limits.tolist() == [1, 2, 3, 4, 6, 8]
    assert look.cells(np.array([1, 2, 5, 5, 8, 9, 50])).tolist() == [1, 1, 0, 0, 2, 1, 2, 43]
    assert Look(Requirement(11, 1.0)).most == 0  # four slots of eleven are too many to pay
    assert Look(Lifetime(1.0)).most == 0
    assert Look(Requirement(1000, 1.0)).limits[-1] == 83


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
def test_what_a_look_costs_is_set_aside(adjacency):
    look = Look(ASKED, 2, adjacency)
    cells, above = look.sensitivities
    budget = int(to_units(1.0))
    assert sum(np.multiply(look.rates, (cells, above))) <= budget // LOOK
    for limit in (Limit(4, chosen=True), Limit(EVERY_SLOT.max_slots, chosen=True)):
        (aside,) = terms([limit], [ASKED], adjacency).aside
        assert aside >= budget // LOOK
        price = limit.priced(ASKED, adjacency)
        spent = int(to_units(price.epsilon)) // price.window * limit.slots(ASKED, adjacency)
        assert spent + aside <= budget


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "least", "most"), [(0.01, 1, 4), (0.05, 4, 8), (0.1, 6, 8)])
def test_a_look_finds_a_limit_where_users_are_rarely_there(rate, least, most):
    look, found = Look(ASKED), []
    for seed in range(20):
        chosen = look.choice(look.answer(look.cells(crowd(rate, seed)), words(seed)))
        assert chosen.chosen
        found.append(chosen)
    limited = [one.max_slots for one in found if not one.is_none]
    assert len(limited) >= 12
    assert least <= np.median(limited) <= most


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "users"), [(0.3, 10_000), (0.7, 10_000), (0.05, 200), (0.05, 0)])
def test_it_finds_none_where_they_are_often_there_or_few(rate, users):
    look = Look(ASKED)
    for seed in range(20):
        answer = look.answer(look.cells(crowd(rate, seed, users)), words(seed))
        assert look.choice(answer).is_none


def test_a_public_rate_costs_nothing():
    auto = Auto(0.01)
    asked = [Requirement(5, 1.0), ASKED]
    looks = auto.looks((), asked, ADD_REMOVE)
    assert auto.limits(looks, (), asked, ADD_REMOVE) == (EVERY_SLOT, Limit(2))
    often = Auto(0.4)
    assert often.limits(often.looks((), asked, ADD_REMOVE), (), asked, ADD_REMOVE) is None
    for rate, more in itertools.pairwise((0.005, 0.01, 0.02, 0.05)):
        assert Look(ASKED).expected(rate).max_slots <= Look(ASKED).expected(more).max_slots


def test_whoever_has_a_limit_is_not_looked_at():
    auto, asked = Auto(blocks=3), [Requirement(5, 1.0), ASKED, ASKED]
    looks = auto.looks((None, None, 2), asked, ADD_REMOVE)
    assert [look is not None for look in looks] == [False, True, False]
    made = auto.limits(looks, (None, None, 2), asked, ADD_REMOVE)
    assert [one.is_none for one in made] == [True, True, False]
    assert [one.chosen for one in made] == [False, True, False]
    assert made[2] == Limit(2, 3)
    assert Auto().limits([None] * 3, (), asked, ADD_REMOVE) is None


@pytest.mark.parametrize(
    "wrong",
    [*({"rate": one} for one in (0.0, 1.0, -0.1, float("nan"), True, "5%")), {"blocks": 0}],
)
def test_what_is_no_rate_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="give"):
        Auto(**wrong)


def test_a_budget_too_small_to_look_is_refused():
    asked = [Requirement(100, 200 * 2.0**-40)]
    with pytest.raises(ConfigurationError, match="too small a budget to estimate a limit"):
        Auto().looks((), asked, ADD_REMOVE)
    assert Auto(0.01).looks((), asked, ADD_REMOVE) == [Look(asked[0])]

"""What every user loses in every slot is what is booked for it, and no window loses more than E.

Losses are counted from outside, in two neighbouring worlds (`recount.py`): how far the integers
under each noisy result move when one user of a class has other events in a slot, times the unit of
the noise. They are summed as whole units of 2**-40 epsilon, and never rounded. All else that is
released, revisions included, must be the same in both worlds, where answers are. Answers are quiet,
wild, true or as noisy as they should be, so that gaps end early, jumps come and audits disagree;
plans have gaps of all lengths; streams go on from saved states now and then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from streamveil.mechanisms import DynamicStream, NoiseSource, Population, ReleaseStream, Requirement
from streamveil.mechanisms.adaptive.changing import DynamicAdaptive
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.protocol import Setting
from tests.mechanisms.adaptive.recount import ANSWERS, GAPS, KINDS, Slot, Tape, World
from tests.mechanisms.adaptive.test_fixed import OPTIONS
from tests.mechanisms.streams import KEY

# Of what `test_broken_sums.py` breaks, the rarest shows in one of eight configurations in which
# requirements begin to change, a third of all: so many miss it once in a thousand times.
CONFIGURATIONS = 150
SAMPLE = 6
SLOTS = 28
# After them, what has begun ends: plans are looked at every few slots.
ALL_SLOTS = SLOTS + 6
PICKS = 10
HORIZON = 12
# Slots are revised this many slots later, or never.
LAGS = (0, 0, 1, 0, 2, 3)
# In slots of these lengths, a daily cycle is looked for without the option.
TWO_HOURS = 7_200_000_000
CYCLES = ("none", "none", "none", "none", "2", "3", "5", "auto")
# The cohort that moves in slot t is FIRST_MOVED + t.
FIRST_MOVED = 1000


@dataclass
class Case:
    """A stream, and what each cohort asked for in each slot: (w_B, E_B, w_F, E_F), exactly."""

    world: World
    asked: list[dict[int, tuple[int, Fraction, int, Fraction]]]
    parents: dict[int, int]
    sensitivity: int
    bins: int
    cyclic: bool
    total: bool
    """Whether there is one more cell, the sum of all bins."""


def requirement(random) -> tuple[int, float]:
    """A window and an epsilon of any magnitude, down to less than a user's events can use."""
    epsilon = {
        "usual": random.uniform(0.05, 20),
        "any": 10 ** random.uniform(-11, 1.3),
        "units": int(random.integers(1, 200)) * 2.0**-40,
    }[random.choice(["usual", "usual", "any", "units"])]
    return int(random.integers(1, HORIZON + 1)), epsilon


def counts(random, cohorts, bins, total) -> dict[int, np.ndarray]:
    """Of a slot: from nothing to so many that a sum of them wraps round."""
    most = random.choice([0, 3, 1000, 10**6, 2**44])
    by_cohort = {k: (random.random(bins) * most).astype(np.int64) for k in cohorts}
    return {k: with_sum(one) for k, one in by_cohort.items()} if total else by_cohort


def with_sum(bins) -> np.ndarray:
    """Bins, and the sum of them."""
    return np.append(bins, bins.sum())


def population(random):
    """Bins, sensitivity, what classes ask for, and their sizes."""
    bins, sensitivity = int(random.integers(1, 10)), int(random.integers(1, 4))
    pairs = [requirement(random) for _ in range(random.integers(1, 5))]
    return bins, sensitivity, pairs, random.choice([0, 1, 50, 10**4, 10**6], len(pairs))


def case_of(seed: int, kinds: str | None = None) -> Case:
    """A random configuration, its slots released.

    Requirements are fixed, or change from the first slot on, or from a later one. Then cohorts
    move, or some of their users; some leave, and ask for nothing.
    """
    random = np.random.default_rng(seed)
    says = random.choice([*ANSWERS, "any", "any"])
    tape = Tape(seed, says, random.choice(GAPS), kinds or random.choice(KINDS), SLOTS)
    options = OPTIONS[random.choice([0, 0, 0, *range(len(OPTIONS))])]
    options = {**options, "cycle": random.choice(CYCLES)}
    bins, sensitivity, pairs, sizes = population(random)
    changing = (ALL_SLOTS, 0, int(random.integers(1, SLOTS)))[seed % 3]
    length = TWO_HOURS if seed % 4 == 1 else None
    asking = tuple(Requirement(*pair) for pair in pairs)
    people = Population(asking, sizes, bins, sensitivity, length)
    total = changing == ALL_SLOTS and bins >= FEWEST_BINS and seed % 2 == 0
    if total:
        people = Population(asking, sizes, bins + 1, 2 * sensitivity, totals=1)
        # A cycle is followed with the total measured in each release, or not at all.
        options["cycle"] = "none"
    source = NoiseSource(KEY)
    setting = Setting(bins, HORIZON, sensitivity, length)
    machines = (
        Adaptive("adaptive", people, **options),
        DynamicAdaptive("adaptive", setting, **options),
    )
    machines[0].revise = machines[1].revise = int(random.choice(LAGS))
    fixed = ReleaseStream(machines[0], source)
    dynamic = DynamicStream(
        machines[1],
        people.requirements.as_changing,
        sizes,
        source,
    )
    asks = {k: pair * 2 for k, pair in enumerate(pairs)}
    users, parents, slots, asked = dict(enumerate(sizes.tolist())), {}, [], []
    for slot in range(ALL_SLOTS):
        moves = Moves.none()
        if slot >= changing and random.random() < 0.3 and any(users.values()):
            parent = int(random.choice([k for k in users if users[k]]))
            child, some = FIRST_MOVED + slot, int(random.integers(1, users[parent] + 1))
            asks[child], parents[child], users[child] = wish(random, asks), parent, some
            users[parent] -= some
            columns = (np.array([one]) for one in (parent, child, some))
            moves = Moves(*columns, asked_units(np.array([asks[child]])))
        # Under fixed requirements there are classes without users; they are charged as others.
        here = [k for k in users if slot < changing or (users[k] and asks[k][2])]
        slots.append(Slot(counts(random, here, bins, total), moves))
        exact = {
            k: (asks[k][0], Fraction(asks[k][1]), asks[k][2], Fraction(asks[k][3])) for k in here
        }
        asked.append(exact)
    streams = [fixed] * changing + [dynamic] * (ALL_SLOTS - changing)
    world = World(streams, slots, tape).run(random)
    return Case(world, asked, parents, sensitivity, bins, bool(machines[1].cycle), total)


def wish(random, asks) -> tuple[int, float, int, float]:
    """What a user asks for from now on: what others do, something new, or to leave."""
    if random.random() < 0.1:
        return (0, 0.0, 0, 0.0)
    if random.random() < 0.5:  # so that ledgers merge
        return asks[random.choice(list(asks))]
    back = requirement(random)
    return (*back, *(back if random.random() < 0.5 else requirement(random)))


def events(random, case, there=None) -> np.ndarray:
    """What one user may change in a slot at most: see :func:`of_bins`."""
    changed = of_bins(random, case, there)
    return with_sum(changed) if case.total else changed


def of_bins(random, case, there) -> np.ndarray:
    """The change in one bin, in several, or moved between two."""
    one, size = np.eye(case.bins, dtype=np.int64), case.sensitivity
    if there is not None and size % 2 == 0 and case.bins > 1 and random.random() < 0.5:
        of, to = random.permutation(case.bins)[:2]
        if there[of] >= size // 2:
            return (one[to] - one[of]) * (size // 2)
    if random.random() < 0.5:
        return size * one[random.integers(case.bins)]
    return random.multinomial(size, np.full(case.bins, 1 / case.bins)).astype(np.int64)


def recount(case: Case, seed: int) -> Counter:
    """Compare what is booked with losses, slot by slot and in windows; how often what was seen."""
    random, world, seen = np.random.default_rng([seed, 1]), case.world, Counter()
    for slot in sorted(random.choice(SLOTS, PICKS, replace=False).tolist()):
        if not case.asked[slot]:
            continue
        cohort = int(random.choice(list(case.asked[slot])))
        there = world.slots[slot].counts[cohort]
        losses = world.losses({slot: (cohort, events(random, case, there))})
        booked, lost = world.booked[slot][cohort], sum(loss for _, loss in losses)
        purposes = {purpose for purpose, _ in losses}
        # Of a gate's distance, events in bins above and below it cancel out; in a slot's total, who
        # moves between bins; and a span may last longer than the stream.
        hiding = ("gate", "total") if not case.cyclic else ("gate", "cycle")
        unlike = next((one for one in hiding if one in purposes or one == "cycle"), None)
        if unlike:
            assert lost <= booked
            seen[unlike] += 1
            seen[f"{unlike}, equal"] += lost == booked
        else:
            assert lost == booked
        seen.update(purposes - {"gate"})
        seen["booked"] += booked > 0
    for _ in range(2):
        window_loses_no_more(case, random)
    return seen


def window_loses_no_more(case: Case, random) -> None:
    """A user takes part in every slot of a window, as much as may be, and loses E at most."""
    start = int(random.integers(SLOTS))
    if not case.asked[start]:
        return
    slot, cohort, path = start, int(random.choice(list(case.asked[start]))), {}
    _, _, ahead, cap = case.asked[start][cohort]
    while slot < min(start + ahead, ALL_SLOTS):
        child = FIRST_MOVED + slot
        if slot > start and case.parents.get(child) == cohort:
            stays = cohort in case.asked[slot] and random.random() < 0.3
            cohort = cohort if stays else child
        if cohort in case.asked[slot]:
            path[slot] = cohort, events(random, case)
        slot += 1
    lost = sum(loss for _, loss in case.world.losses(path))
    assert Fraction(lost, 2**40) <= cap


def assert_within(case: Case) -> None:
    """Add up what is booked, of every path of users, in every window ahead and back."""
    booked, asked = case.world.booked, case.asked
    for last in {k for slot in asked for k in slot}:
        column, rows, cohort = [], [], last
        for slot in reversed(range(ALL_SLOTS)):
            if slot < cohort - FIRST_MOVED:
                cohort = case.parents[cohort]
            column.insert(0, booked[slot].get(cohort, 0))
            rows.insert(0, asked[slot].get(cohort))
        for t, row in enumerate(rows):
            if row is None:
                continue
            back, back_cap, ahead, cap = row
            assert Fraction(sum(column[t : t + ahead]), 2**40) <= cap
            if column[t]:
                assert Fraction(sum(column[max(0, t - back + 1) : t + 1]), 2**40) <= back_cap


def check(seeds, kinds: str | None = None) -> Counter:
    """Recount the configurations of some seeds, with what gaps end with, or any of them."""
    seen = Counter()
    for seed in seeds:
        case = case_of(seed, kinds)
        assert_within(case)
        seen += recount(case, seed)
    return seen


# What a slot costs is booked in that slot, neither more nor less, and no window loses more than E.
def test_losses_are_what_is_booked():
    check(range(SAMPLE))


# The same of all configurations; they have all there is to have.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_losses_of_all_configurations(part):
    seen = check(range(part * CONFIGURATIONS // 3, (part + 1) * CONFIGURATIONS // 3))
    print(seen)
    assert seen["gate, equal"] > seen["gate"] / 4
    for what in ("booked", "gate", "release", "audit", "sum", "total"):
        assert seen[what]

"""The audit of one budget forever: what all slots together tell of a user who is in all of them.

In memory::

    findings = audited_for_ever(1.0, mechanism="gated", extent=Extent(runs=20))

Neighbours differ in all that a user ever does. So canaries are there for life, or never, and every
life is a stream of its own from the first slot on, with a key of its own. Whatever a mechanism
remembers, a canary of g users loses no more than g times what all slots of its life were charged,
and no more than g times the budget. What slots were charged is added up exactly.

Gates are looked at by one canary alone, beside others at whose distance a gate opens half of the
time; measurements by canaries in all bins, beside others who leap in the last slot of a short life;
and many of them, one after the other, in a long one. Scores are learnt: see `life_odds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import ADD_REMOVE, PUBLISHED, REPLACE, Lifetime
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import SlotRelease, population_of
from streamveil.mechanisms.randomness.noise import digest
from streamveil.mechanisms.registry import INFINITE_DEFAULT, infinite_mechanism
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.findings import CHARGE, LIFE, Check, Findings
from streamveil.pipelines.audit.groups import group_of_window
from streamveil.pipelines.audit.guesses import Doubt, Guesses, apart, check, no_figures
from streamveil.pipelines.audit.life_odds import LifeOdds, Sight
from streamveil.pipelines.audit.options import DEFAULT_BINS
from streamveil.pipelines.audit.replay import Play, Stage
from streamveil.pipelines.audit.replay_worlds import stages_of
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.audit.runs import public, spent_of
from streamveil.pipelines.audit.whole_runs import release_stage, second
from streamveil.pipelines.guarantees import INFINITE

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GATES, BINS, LIVES = "looks", "bins", "lives"
"""One canary alone where a gate opens; one in every bin up to a measurement; the same in long
lives."""
KINDS = (GATES, BINS, LIVES)

# Slots of a life, and how many lives a run has.
SLOTS = {GATES: 8, BINS: 8, LIVES: 60}
OF_A_RUN = {GATES: 250, BINS: 64, LIVES: 16}
# Slots from one leap of the others to the next in a long life.
EVERY = 4
# How far others leap, in noise scales of the whole budget; farther each time.
FAR = 100
# Loss of a canary that tells most per guess.
_TELLING = 2.0
# Lives of each trial in search of where a gate opens.
_TRIED = 25


def audited_for_ever(
    epsilon: float,
    *,
    mechanism: str = INFINITE_DEFAULT,
    bins: int = DEFAULT_BINS,
    sensitivity: int = 1,
    adjacency: str = ADD_REMOVE,
    counts: Integers | None = None,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a mechanism with one budget for a whole stream.

    Args:
        epsilon: the budget.
        mechanism: a key of `INFINITE_MECHANISMS`, with options.
        bins: of the histogram, where there are no counts.
        sensitivity: as of `Population`.
        adjacency: what neighbouring streams differ in.
        counts: of a real stream, int64, shape (T, d), beside whose first slots canaries are put;
            worst cases without.
        extent: how long the audit goes on, in rounds of a run of each kind, of many lives.

    Raises ConfigurationError for a mechanism or a budget that cannot be.
    """
    if counts is not None:
        bins = counts.shape[1]
    audit = AuditForEver(
        epsilon, mechanism, bins, sensitivity, adjacency == REPLACE, counts, extent.seed
    )
    stages = audit.stages()
    return found_by(audit, mechanism, extent, own=counts is not None, notes=(), stages=stages)


@dataclass(frozen=True, eq=False)
class _Run:
    """Lives of one run."""

    sight: Sight
    users: Integers
    """Of each group, shape (lives, places)."""
    charged: Floats
    """What each life cost a user, epsilon, shape (lives,)."""
    published: npt.NDArray[np.bool_]
    """Which lives published anything, shape (lives,)."""

    def guesses(self, odds: LifeOdds) -> Guesses:
        """Beside what was charged."""
        places = self.users.shape[1]
        users = self.users.reshape(-1)
        return Guesses(
            odds.scores(self.sight),
            self.sight.there.reshape(-1),
            np.repeat(self.charged, places) * users,
            users,
            np.repeat(self.published, places),
            no_figures(users.size),
        )


class AuditForEver:
    """Runs of one mechanism, and what they show of their canaries."""

    def __init__(
        self,
        epsilon: float,
        mechanism: str,
        bins: int,
        sensitivity: int,
        moves: bool,
        counts: Integers | None,
        seed: int,
    ) -> None:
        self.runs = self.slots = 0
        self.overspent = 0.0
        self._asked = Lifetime(epsilon)
        self._population = population_of([self._asked], [0], bins, sensitivity)
        self._machine = infinite_mechanism(mechanism, bins, epsilon, sensitivity=sensitivity)
        self._moves, self._counts, self._seed = moves, counts, seed
        self._text = mechanism
        self._each = sensitivity // 2 if moves else sensitivity
        self._others: dict[str, Integers] = {}
        self._groups: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, list[_Run]] = {kind: [] for kind in KINDS}

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Make a run of every kind."""
        for kind in KINDS:
            self._seen[kind].append(self._run(kind, number))
            self.runs += 1
            done(number)

    def stages(self) -> Iterator[Stage]:
        """Worlds to be replayed: users are there for life, as all that they lose adds up."""
        return second(self._streams(), self._whole_runs)

    def _whole_runs(self) -> Stage:
        return release_stage(
            [self._asked],
            bins=self._population.bins,
            seed=self._seed,
            most=self._each,
            mechanism=self._text,
            guarantee=INFINITE,
            epsilon=self._asked.epsilon,
            adjacency=REPLACE if self._moves else ADD_REMOVE,
        )

    def _streams(self) -> Iterator[Stage]:
        return stages_of(
            self._population,
            [0],
            self._play,
            spent_of,
            self._seed,
            moves=self._moves,
            counts=None if self._counts is None else self._counts[:, None],
            charged=lambda spent: int(spent.sum()) / int(self._population.requirements.budgets[0]),
            in_windows=False,
        )

    def _play(self, counts: Integers, number: int) -> Play:
        key = digest(b"audit", b"%d" % self._seed, b"replay %d" % number)
        return partial(public, RunningStream(self._machine, key), counts)

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """Each check may be wrong with an even part of the probability."""
        found = {kind: list(self._guesses(kind)) for kind in KINDS}
        claims = ((GATES, CHARGE), (BINS, CHARGE), (LIVES, CHARGE), (BINS, LIFE), (LIVES, LIFE))
        for kind, claim in claims:
            guesses = found[kind]
            if claim == LIFE:
                guesses = [one.of_window(self._asked.epsilon) for one in guesses]
            yield check(kind, claim, self._asked, guesses, doubt / len(claims))

    def _guesses(self, kind: str) -> Iterator[Guesses]:
        """Of each run; scores are learnt from those that do not count."""
        runs = self._seen[kind]
        for run, odds in zip(runs, apart([one.sight for one in runs], LifeOdds), strict=True):
            yield run.guesses(odds)

    def _run(self, kind: str, number: int) -> _Run:
        if kind not in self._groups:
            self._find(kind)
        random = np.random.default_rng([self._seed, KINDS.index(kind), number])
        others, (few, many) = self._others[kind], self._groups[kind]
        lives, at = OF_A_RUN[kind], self._places(kind, len(others))
        there = random.random((lives, at.shape[1])) < 0.5
        users = random.choice(np.array([few, many]), there.shape)
        values, charged, published = [], [], []
        for life in range(lives):
            counts = self._with_groups(others, at, users[life], there[life])
            told = self._live(counts, f"{kind} {number} {life}")
            values.append(_numbers(told, at))
            charged.append(float(to_epsilon(sum(int(one.spent[0]) for one in told))))
            published.append(bool(_measured(told).any()))
        return _Run(Sight(np.stack(values), there), users, np.array(charged), np.array(published))

    def _places(self, kind: str, slots: int) -> Integers:
        """Bins of canaries in each slot, shape (T, places).

        Where events are replaced, others take theirs to the next bins.
        """
        bins = self._population.bins
        if kind != GATES:
            at = np.arange(0, bins - bins % 2, 2) if self._moves else np.arange(bins)
            return np.tile(at, (slots, 1))
        at = np.zeros((slots, 1), np.int64)
        if self._counts is None:
            at[:-1] = 1 % bins
        return at

    def _with_groups(
        self, others: Integers, at: Integers, users: Integers, there: npt.NDArray[np.bool_]
    ) -> Integers:
        """Counts of a life, shape (T, d)."""
        counts, slots = others.copy(), np.arange(len(others))[:, None]
        counts[slots, at[:, there]] += users[there] * self._each
        if self._moves:
            np.add.at(
                counts, (slots, (at[:, ~there] + 1) % counts.shape[1]), users[~there] * self._each
            )
        return counts

    def _live(self, counts: Integers, name: str) -> list[SlotRelease]:
        """Release all slots of a life. Raises BudgetExceeded when the filter refuses."""
        key = digest(b"audit", b"%d" % self._seed, name.encode())
        stream, releases = RunningStream(self._machine, key), []
        for slot, row in enumerate(counts):
            check_clock()
            releases.append(stream.release(slot, row[None]))
        self.slots += len(releases)
        spent = np.stack([one.spent for one in releases])
        budget = self._population.requirements.budgets[0]
        self.overspent = max(self.overspent, int(spent.sum()) / int(budget))
        return releases

    # ---- worst cases ------------------------------------------------------------------------

    def _find(self, kind: str) -> None:
        """Find others beside whom canaries tell much, and groups as large as tell most."""
        if self._counts is not None:
            others = self._counts[: SLOTS[kind]]
        elif kind == GATES:
            others = self._near(1)
        else:
            others = self._leaping(SLOTS[kind])
        asked = group_of_window(self._asked.epsilon, 1 << 40)[0]
        few, many = (_group(_TELLING / cost) if cost else asked for cost in self._costs(others))
        self._groups[kind] = (asked, asked) if kind == LIVES else (many, few)
        if kind == GATES and self._counts is None:
            others = self._near(max(self._groups[kind]))
        self._others[kind] = others

    def _costs(self, others: Integers) -> Floats:
        """The least and the most that lives without canaries cost, of some: epsilon, shape (2,)."""
        lives = [self._live(others, f"cost {life}") for life in range(_TRIED)]
        units = [sum(int(one.spent[0]) for one in told) for told in lives]
        return to_epsilon(np.array([min(units), max(units)]))

    def _leaping(self, slots: int) -> Integers:
        """Nobody but in every few slots, or the last one: then others are in other bins each time.

        Shape (slots, d).
        """
        others = np.zeros((slots, self._population.bins), np.int64)
        leaps = range(min(slots, EVERY) - 1 if slots > SLOTS[BINS] else slots - 1, slots, EVERY)
        for number, slot in enumerate(leaps):
            far = self._unit * (number + 1) ** 2
            others[slot] = far
            others[slot, number % 2 :: 2] = 4 * far
        return others

    @property
    def _unit(self) -> int:
        return round(FAR * self._population.sensitivity / self._asked.epsilon) + 1

    def _near(self, users: int) -> Integers:
        """Others beside whom a gate is in doubt, with such a group: shape (T, d).

        In all slots but the last one a bin is empty, and the group brings counts nearer to what was
        released; in the last one the others are in one bin, and it takes them farther away. A gate
        that stays shut and then opens has told both.
        """
        nobody, slots = np.zeros((SLOTS[GATES], self._population.bins), np.int64), SLOTS[GATES]
        at, there = self._places(GATES, slots), np.ones(1, dtype=bool)

        def opens(many: int, last: int, first: int, end: int) -> bool:
            others = self._doubtful(nobody, many, last)
            counts = self._with_groups(others, at, np.array([users]), there)[:end]
            lives = [self._live(counts, f"near {many} {last} {i}") for i in range(_TRIED)]
            shut = [told for told in lives if _opened(told) >= first]
            return 2 * sum(_opened(told) < end for told in shut) > len(shut)

        near, far = max(users // 4, 1), self._far
        many = _least(lambda events: opens(events, 0, 0, slots - 1), far, near)
        last = _least(lambda events: opens(many, events, slots - 1, slots), far, near)
        return self._doubtful(nobody, many, last)

    @staticmethod
    def _doubtful(nobody: Integers, many: int, last: int) -> Integers:
        others = nobody.copy()
        others[:-1] = many
        others[:-1, 1 % others.shape[1]] = 0
        others[-1, 0] = last
        return others

    @property
    def _far(self) -> int:
        """As many others in a bin as open any gate."""
        return 64 * self._unit * self._population.bins


def _group(users: float) -> int:
    return max(1, round(users))


def _least(enough: Callable[[int], bool], most: int, near: int) -> int:
    """The least number up to `most` that is enough, but for so many."""
    low, high = 0, most
    while high - low > near:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return (low + high) // 2


def _measured(told: list[SlotRelease]) -> npt.NDArray[np.bool_]:
    """Which slots measured anything, shape (T,): what is told may stay as it was."""
    fresh = np.array([one.status == PUBLISHED for one in told])
    epochs = np.array([one.diagnostics.get("epoch", 1.0) for one in told])
    found: npt.NDArray[np.bool_] = fresh | (np.diff(epochs, prepend=1.0) > 0)
    return found


def _opened(told: list[SlotRelease]) -> int:
    """The first slot that measured anything; as many as there are where none did."""
    return int(np.append(_measured(told), True).argmax())


def _numbers(told: list[SlotRelease], at: Integers) -> Floats:
    """What a life shows of places, whose bins are `at` in each slot, shape (T, places).

    When something was published first; where it is new, the share of the bin, and all counts
    together, in each slot. Shape (places, 1 + 2 T).
    """
    shares = np.stack([one.shares for one in told if one.shares is not None])
    sums = np.array([float(one.counts.sum()) for one in told])
    fresh = _measured(told)
    other = np.append(True, np.diff(sums) != 0)
    places = at.shape[1]
    return np.concatenate(
        [
            np.full((places, 1), float(_opened(told))),
            np.where(fresh[:, None], shares[np.arange(len(at))[:, None], at], np.nan).T,
            np.broadcast_to(np.where(other, sums, np.nan), (places, len(told))),
        ],
        axis=1,
    )

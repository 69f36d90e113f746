"""The audit of one budget forever: what all slots together tell of a user who is in all of them.

In memory::

    findings = audited_for_ever(1.0, mechanism="gated", extent=Extent(runs=20))

Neighbours differ in all that a user ever does. So canaries are there for life, or never, and every
life is a stream of its own from the first slot on, with a key of its own. Whatever a mechanism
remembers, a canary of g users loses no more than g times what all slots of its life were charged,
and no more than g times the budget. What slots were charged is added up exactly.

Gates are looked at by one canary alone, beside others at whose distance a gate opens half of the
time; measurements by canaries in all bins, beside others who leap in the last slot of a short life;
and many of them, one after the other, in a long one. Scores are learnt: see `shown.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import PUBLISHED, Lifetime
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import Mechanism, SlotRelease, population_of
from streamveil.mechanisms.randomness.noise import digest
from streamveil.mechanisms.registry import INFINITE_DEFAULT, infinite_mechanism
from streamveil.pipelines.audit.auditing import TELLING, StreamsAudit, telling_group
from streamveil.pipelines.audit.audits import Part
from streamveil.pipelines.audit.audits import World as WorldOf
from streamveil.pipelines.audit.canaries import Canaries, Mark
from streamveil.pipelines.audit.facts import Facts
from streamveil.pipelines.audit.findings import LIFE, Findings
from streamveil.pipelines.audit.guesses import Guesses
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.audit.runs import Public, public, published_in, releases_of, spent_of
from streamveil.pipelines.audit.shown import learnt_of_all
from streamveil.pipelines.audit.streams import MOST_COUNTS, OneStream
from streamveil.pipelines.audit.worlds import World
from streamveil.pipelines.options.guarantees import INFINITE

GATES, BINS, LIVES = "looks", "bins", "lives"
"""One canary alone where a gate opens; one in every bin up to a measurement; the same in long
lives."""
KINDS = (GATES, BINS, LIVES)

# Slots of a lifetime, and the number of lifetimes per run: fewer where they take much memory.
SLOTS = {GATES: 8, BINS: 8, LIVES: 60}
OF_A_RUN = {GATES: 250, BINS: 64, LIVES: 16}
LEAST_LIVES = 4
# Slots from one leap of the others to the next in a long life.
EVERY = 4
# How far others leap, in noise scales of the whole budget; farther each time.
FAR = 100
# Loss of a canary that tells most per guess.
_TELLING = 2.0
# People of a class: as many as any group has.
_ENOUGH = 1 << 40
# Lives of each trial in search of where a gate opens.
_TRIED = 25


def audited_for_ever(
    epsilon: float,
    *,
    mechanism: str = INFINITE_DEFAULT,
    counts: Integers | None = None,
    extent: Extent = USUAL,
    **facts: Any,
) -> Findings:
    """Audit a mechanism with one budget for a whole stream.

    Args:
        epsilon: the budget.
        mechanism: a key of `INFINITE_MECHANISMS`, with options.
        counts: of a real stream, int64, shape (T, d), beside whose first slots canaries are put;
            worst cases without.
        extent: how long the audit goes on, in rounds of a run of each kind, of many lives.
        facts: others of :class:`Facts`.

    Raises ConfigurationError for a mechanism or a budget that cannot be.
    """
    if counts is not None:
        facts["bins"] = counts.shape[1]
    audit_facts = Facts(mechanism=mechanism, requirements=[Lifetime(epsilon)], **facts)
    people = population_of(audit_facts.requirements, [0], audit_facts.bins, audit_facts.sensitivity)
    return found_by(LivesAudit(LifelongStream(audit_facts, people), counts, extent.seed), extent)


@dataclass(frozen=True, eq=False)
class LifelongStream(OneStream):
    """A mechanism with one budget forever, whose worlds may be of several lives."""

    @cached_property
    def machine(self) -> Mechanism[Any]:
        """The mechanism."""
        (asked,), facts = self.facts.requirements, self.facts
        return infinite_mechanism(
            facts.mechanism, self.people.bins, asked.epsilon, sensitivity=facts.sensitivity
        )

    def public(
        self, key: bytes, made: World, plans: Sequence[Canaries], number: int = 0
    ) -> Iterator[tuple[int, Public]]:
        """See :class:`OneStream`. Every lifetime has its own key."""
        (counts,) = made.counts(plans)
        life = made.life or len(counts)
        for first in range(0, len(counts), life):
            lived = RunningStream(self.machine, digest(key, b"%d" % first))
            yield from public(lived, counts[first : first + life])

    def arguments(self, classes: Sequence[int]) -> dict[str, Any]:
        """See :class:`OneStream`."""
        return {"guarantee": INFINITE, "epsilon": self.asked[0].epsilon}


class LivesAudit(StreamsAudit):
    """Of one mechanism, whose runs are of many lives.

    Args:
        stream: how lives are run.
        counts: of a real stream, shape (T, d); worst cases without.
        seed: of all that is drawn.
    """

    kinds = KINDS

    def __init__(self, stream: LifelongStream, counts: Integers | None, seed: int) -> None:
        self._stream, self._facts = stream, stream.facts
        (self._asked,) = stream.facts.requirements
        real = None if counts is None else [counts[:, None]]
        super().__init__(stream.facts.mechanism, stream, real, seed)
        self._cases: dict[str, tuple[Integers, tuple[int, int]]] = {}

    def parts(self, k: int) -> Mapping[str, Sequence[Part]]:
        """See :class:`StreamsAudit`."""
        looks = Part(GATES, learn=learnt_of_all)
        lives = [Part(kind, whole=LIFE, learn=learnt_of_all) for kind in (BINS, LIVES)]
        return {part.name: (part,) for part in (looks, *lives)}

    @property
    def too_short(self) -> Mapping[str, int]:
        """Nothing: lives are as short as the real stream."""
        return {}

    def fullest(self, outputs: Sequence[Public]) -> float:
        """What a life was charged in parts of its budget, of whole units: the most."""
        lives = max(sum("revisions" in one for one in outputs), 1)
        charged = spent_of(outputs).reshape(lives, -1).sum(axis=1)
        return int(charged.max()) / int(self.streams.people.requirements.budgets[0])

    # ---- runs with canaries -------------------------------------------------------------------

    def made(self, world: WorldOf, number: int, random: np.random.Generator) -> World:
        """See :class:`StreamsAudit`: many lives, beside the same others."""
        _, kind = world
        others = self._case(kind)[0]
        lives = min(OF_A_RUN[kind], max(MOST_COUNTS // others.size, LEAST_LIVES))
        plan = self._canaries(self._places(kind, len(others)), lives)
        return World((np.tile(others[:, None], (lives, 1, 1)),), (plan,), life=len(others))

    def users(self, world: WorldOf, made: World) -> list[tuple[int, int]]:
        """See :class:`StreamsAudit`."""
        return [self._case(world[1])[1]]

    def scored(
        self, world: WorldOf, made: World, plan: Canaries, outputs: Sequence[Public], q: int
    ) -> Guesses:
        """See :class:`StreamsAudit`: scores are learnt."""
        releases, at = releases_of(outputs), self._places(world[1], made.life)
        lives = [releases[i : i + made.life] for i in range(0, len(releases), made.life)]
        shown = np.stack([_numbers(one, at) for one in lives])
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # all values of a diagnostic may be missing
            usual = np.nan_to_num(np.nanmedian(shown, axis=0))
        found = Guesses.of(
            np.zeros(plan.there.size),
            plan.there,
            to_epsilon(plan.charged(spent_of(outputs))) * plan.users,
            users=plan.users,
            published=np.repeat([bool(_measured(one).any()) for one in lives], at.shape[1]),
            figures=(shown - usual).reshape(plan.there.size, shown.shape[2]),
        )
        return found.promised(self._asked.epsilon)

    def _places(self, kind: str, slots: int) -> Integers:
        """Bins of canaries in each slot, shape (T, places)."""
        if kind != GATES:
            (place,) = self.streams.scene.places
            return np.tile(place.there[0][0], (slots, 1))
        at = np.zeros((slots, 1), np.int64)
        if self.counts is None:
            at[:-1] = 1 % self._facts.bins
        return at

    def _canaries(self, at: Integers, lives: int) -> Canaries:
        """In each life one in each place, in bins `at` by slot, shape (T, places).

        Where events are replaced, others take theirs to the next bins.
        """
        slots, places = at.shape
        groups = np.arange(lives * places)
        first = groups // places * slots
        cells = np.tile(at.T, (lives, 1))
        when, each = first[:, None] + np.arange(slots), self._facts.each
        marks = [Mark.of(groups[:, None], when, cells, each)]
        if self._facts.moves:
            beside = (cells + 1) % self._facts.bins
            marks.append(Mark.of(groups[:, None], when, beside, each, there=False))
        return Canaries.nobody(0, tuple(marks), first, first + slots)

    def _live(self, counts: Integers, name: str) -> list[SlotRelease]:
        """Release all slots of a lifetime, of counts (T, 1, d), without any guesses about it."""
        stream = RunningStream(self._stream.machine, self.key(name))
        outputs = published_in(public(stream, counts))
        self.slots += len(counts)
        self.overspent = max(self.overspent, self.fullest(outputs))
        return releases_of(outputs)

    # ---- worst cases ------------------------------------------------------------------------

    def _case(self, kind: str) -> tuple[Integers, tuple[int, int]]:
        """Others, shape (T, d), beside whom canaries tell much, and groups that tell most."""
        if kind not in self._cases:
            if self.counts is not None:
                others = self.counts[0][: SLOTS[kind], 0]
            else:
                others = self._near(1) if kind == GATES else self._leaping(SLOTS[kind])
            asked = telling_group(TELLING, self._asked.epsilon, _ENOUGH)
            few, many = (
                telling_group(_TELLING, cost, _ENOUGH) if cost else asked
                for cost in self._costs(others).tolist()
            )
            users = (asked, asked) if kind == LIVES else (many, few)
            if kind == GATES and self.counts is None:
                others = self._near(max(users))
            self._cases[kind] = others, users
        return self._cases[kind]

    def _costs(self, others: Integers) -> Floats:
        """The least and the most that lives without canaries cost, of some: epsilon, shape (2,)."""
        lives = [self._live(others[:, None], f"cost {life}") for life in range(_TRIED)]
        units = [sum(int(one.spent[0]) for one in releases) for releases in lives]
        return to_epsilon(np.array([min(units), max(units)]))

    def _leaping(self, slots: int) -> Integers:
        """Nobody but in every few slots, or the last one: then others are in other bins each time.

        Shape (slots, d).
        """
        others = np.zeros((slots, self._facts.bins), np.int64)
        leaps = range(min(slots, EVERY) - 1 if slots > SLOTS[BINS] else slots - 1, slots, EVERY)
        for number, slot in enumerate(leaps):
            far = self._unit * (number + 1) ** 2
            others[slot] = far
            others[slot, number % 2 :: 2] = 4 * far
        return others

    @property
    def _unit(self) -> int:
        return round(FAR * self._facts.sensitivity / self._asked.epsilon) + 1

    def _near(self, users: int) -> Integers:
        """Others beside whom a gate is in doubt, with such a group: shape (T, d).

        In all slots but the last one a bin is empty, and the group brings counts nearer to what was
        released; in the last one the others are in one bin, and it takes them farther away. A gate
        that stays shut and then opens has revealed both.
        """
        nobody, slots = np.zeros((SLOTS[GATES], self._facts.bins), np.int64), SLOTS[GATES]
        group = self._canaries(self._places(GATES, slots), 1).of_users(np.array([users])).alone(0)

        def opens(many: int, last: int, first: int, end: int) -> bool:
            others = self._doubtful(nobody, many, last)
            counts = group.add_to(others[:, None])[:end]
            lives = [self._live(counts, f"near {many} {last} {i}") for i in range(_TRIED)]
            shut = [releases for releases in lives if _opened(releases) >= first]
            return 2 * sum(_opened(releases) < end for releases in shut) > len(shut)

        near = max(users // 4, 1)
        far = 64 * self._unit * self._facts.bins  # as many others in a bin as open any gate
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


def _least(enough: Callable[[int], bool], most: int, near: int) -> int:
    """The least number up to `most` that is enough, but for so many."""
    low, high = 0, most
    while high - low > near:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return (low + high) // 2


def _measured(releases: list[SlotRelease]) -> npt.NDArray[np.bool_]:
    """Which slots measured anything, shape (T,): a release may repeat the last one."""
    fresh = np.array([one.status == PUBLISHED for one in releases])
    epochs = np.array([one.diagnostics.get("epoch", 1.0) for one in releases])
    found: npt.NDArray[np.bool_] = fresh | (np.diff(epochs, prepend=1.0) > 0)
    return found


def _opened(releases: list[SlotRelease]) -> int:
    """The first slot that measured anything; as many as there are where none did."""
    return int(np.append(_measured(releases), True).argmax())


def _numbers(releases: list[SlotRelease], at: Integers) -> Floats:
    """What a life shows of places, whose bins are `at` in each slot, shape (T, places).

    When something was published first; where it is new, the share of the bin, and all counts
    together, in each slot. Shape (places, 1 + 2 T).
    """
    shares = np.stack([one.shares for one in releases if one.shares is not None])
    sums = np.array([float(one.counts.sum()) for one in releases])
    fresh = _measured(releases)
    other = np.append(True, np.diff(sums) != 0)
    places = at.shape[1]
    return np.concatenate(
        [
            np.full((places, 1), float(_opened(releases))),
            np.where(fresh[:, None], shares[np.arange(len(at))[:, None], at], np.nan).T,
            np.broadcast_to(np.where(other, sums, np.nan), (places, len(releases))),
        ],
        axis=1,
    )

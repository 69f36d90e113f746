"""The audit of a portfolio: what the answers to all questions tell of a user, together and each.

In memory::

    findings = audited_questions(portfolio, [Requirement(24, 1.0)], extent=Extent(runs=20))

One user's budget E over w base slots is of all questions together. So canaries are in a window of
base slots and in all questions at once, and scores of the questions' answers, whose noise is
independent, are added up: the window of all questions must be covered by E. Of each question, what
a slot tells must be covered by what it was charged, and what a window tells by the question's share
as well. Charges of all questions in every window are added up exactly.

Half of the probability of error is for bounds of all questions together, whose number stays the
same however many questions there are: what is promised is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.mechanisms.portfolio.windows import sensitivity_of
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import digest
from streamveil.pipelines.audit import replay_worlds
from streamveil.pipelines.audit.asked import (
    Asked,
    Telling,
    answered,
    charged_of,
    public_of,
    run_asked,
)
from streamveil.pipelines.audit.asked_worlds import AskedWorld, asked_world, padded
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.findings import (
    CHARGE,
    SHARE,
    TOGETHER,
    WINDOW,
    Check,
    Findings,
    asked_of,
)
from streamveil.pipelines.audit.groups import group_of_window, groups_of_slots
from streamveil.pipelines.audit.guesses import Doubt, Guesses, check, no_figures
from streamveil.pipelines.audit.options import DEFAULT_BINS_OF_QUESTIONS
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.audit.replay_worlds import MOST_BINS, STAGES, scripted
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by, left_out, watched
from streamveil.pipelines.audit.scores import guesses_of
from streamveil.pipelines.audit.shown import learnt
from streamveil.pipelines.audit.whole_runs import answers_stage, second
from streamveil.pipelines.audit.worlds import BINS, KINDS, SLOTS, WINDOWS, saves_up, sizes_of

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Checks of a class: of all questions together, and of each.
_CHECKS_TOGETHER, _CHECKS_EACH = 2, 5


def audited_questions(
    portfolio: Portfolio,
    requirements: Sequence[Requirement],
    *,
    name: str = "the portfolio",
    sizes: Integers | None = None,
    guessed: int | None = None,
    bins: int = DEFAULT_BINS_OF_QUESTIONS,
    adjacency: str = ADD_REMOVE,
    counts: Mapping[str, Integers] | None = None,
    first_slot: int = 0,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a portfolio, with the shares that are planned for it.

    Args:
        portfolio: what is asked; bounds of numbers are known.
        requirements: of each class, K of them, all distinct, windows in base slots.
        name: of the portfolio, for what is told.
        sizes: users of each class, shape (K,); in worst cases there are as many times more of all
            as these need.
        guessed: the class whose size is only a guess, as of :class:`Population`; None if all are
            known.
        bins: of every question in worst cases, in place of its own.
        adjacency: what neighbouring streams differ in.
        counts: of real streams by question, beside which canaries are put, as of
            :func:`simulate_portfolio`; worst cases without.
        first_slot: base slot with which these begin.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.

    Raises ConfigurationError for questions or requirements that cannot be.
    """
    known = Requirements.of(requirements)
    users = sizes_of(known, sizes)
    asked = Asked.of(portfolio, known, users, adjacency, guessed)
    real = None
    if counts is None:
        asked = asked.widened(bins)
    else:
        tables = [np.asarray(counts[question.name], np.int64) for question in portfolio]
        real = padded(asked, tables, first_slot)
    audit = AskedAudit(asked, real, extent.seed)
    narrowed = () if real else _narrowed(asked, bins)
    return found_by(
        *(audit, name, extent),
        own=counts is not None,
        notes=(*left_out(audit.people, audit.classes), *narrowed),
        stages=audit.stages(),
    )


def _narrowed(asked: Asked, bins: int) -> Iterator[str]:
    """Which worst cases have fewer bins than was said."""
    for question in asked.portfolio:
        if question.domain.bins < bins:
            yield (
                f"question {question.name!r} is asked of {question.domain.bins} bins: more would "
                "not fit into memory; canaries of windows are as few"
            )


@dataclass(frozen=True, eq=False)
class _Windows:
    """Guesses about canaries in windows, of one run."""

    each: tuple[Guesses, ...]
    """By each question, beside what its slots were charged."""
    shares: tuple[Floats, ...]
    """What the question could cost a user in the window, epsilon, shape (n,)."""

    @property
    def together(self) -> Guesses:
        """By the scores of all questions."""
        first = self.each[0]
        return Guesses(
            np.sum([one.scores for one in self.each], axis=0),
            first.there,
            np.sum([one.losses for one in self.each], axis=0),
            first.users,
            np.any([one.published for one in self.each], axis=0),
            no_figures(first.users.size),
        )


class AskedAudit:
    """Runs of one portfolio, and the guesses about their canaries."""

    def __init__(self, asked: Asked, counts: Sequence[Integers] | None, seed: int) -> None:
        self.runs = self.slots = 0
        self.overspent = 0.0
        self._asked, self._counts, self._seed = asked, counts, seed
        self._populations = [one.mechanism.population for one in asked.stream(bytes(32)).streams]
        self.people = Population(asked.requirements, asked.sizes, 1)
        self.classes = watched(self.people)
        self._groups: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self._slots: dict[tuple[int, str], list[list[Guesses]]] = {
            (k, kind): [] for k in self.classes for kind in KINDS if kind != WINDOWS
        }
        self._windows: dict[int, list[_Windows]] = {k: [] for k in self.classes}

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class."""
        for k in self.classes:
            for kind in KINDS:
                self._guess(k, kind, number)
                done(number)

    # ---- worlds that are replayed -----------------------------------------------------------

    def stages(self) -> Iterator[Stage]:
        """A user of each class in a window of base slots, and in all questions."""
        return second(self._streams(), self._whole_runs)

    def _whole_runs(self) -> Stage:
        asked = self._asked
        guessed = self.classes.index(asked.guessed) if asked.guessed in self.classes else None
        return answers_stage(
            asked.portfolio,
            [asked.requirements[k] for k in self.classes],
            seed=self._seed,
            guessed=guessed,
            adjacency=asked.adjacency,
        )

    def _streams(self) -> Iterator[Stage]:
        asked = self._asked if self._counts is not None else self._asked.narrowed(MOST_BINS)
        populations = [one.mechanism.population for one in asked.stream(bytes(32)).streams]
        trip = asked.round_trip
        for number in range(STAGES):
            random = np.random.default_rng([self._seed, 911, number])
            if self._counts is not None:
                end = len(self._counts[0]) * asked.portfolio.questions[0].slots
                end = min(end, -(-replay_worlds.LENGTH // trip) * trip)
                others = [
                    table[: end // one.slots]
                    for table, one in zip(self._counts, asked.portfolio, strict=True)
                ]
            else:
                longest = min(2 * asked.requirements.longest, replay_worlds.LONGEST)
                end = -(-max(replay_worlds.LENGTH, longest) // trip) * trip
                others = [
                    scripted(population, end // one.slots, random)
                    for population, one in zip(populations, asked.portfolio, strict=True)
                ]
            key = digest(b"audit", b"%d" % self._seed, b"replay %d" % number)
            neighbours = [
                Neighbour("everybody", _play(asked, key, [table[::-1] for table in others])),
                *(
                    self._neighbour(asked, k, key, others, (begin, last), random)
                    for k in self.classes
                    for begin, last in (_somewhere(asked, k, end, random),)
                ),
            ]
            yield Stage(
                _play(asked, key, others),
                tuple(neighbours),
                lambda seen: charged_of(asked, seen[:-1]),
            )

    def _neighbour(
        self,
        asked: Asked,
        k: int,
        key: bytes,
        others: Sequence[Integers],
        span: tuple[int, int],
        random: np.random.Generator,
    ) -> Neighbour:
        """With a user in some base slots, in one bin of each slot of each question."""
        counts = []
        for question, table in zip(asked.portfolio, others, strict=True):
            mine = table.copy()
            slots = np.arange(span[0] // question.slots, (span[1] - 1) // question.slots + 1)
            at = random.integers(table.shape[2], size=slots.size)
            mine[slots, k, at] += sensitivity_of(question, asked.adjacency)
            counts.append(mine)
        budget = int(asked.requirements.budgets[k])
        whose = (
            f"a user with {asked_of(asked.requirements[k])} in base slots {span[0]} to "
            f"{span[1] - 1}, in all questions"
        )

        def claims(published: list[Any]) -> dict[str, int]:
            found = {"the budget of a window": budget}
            charged = 0
            for one in published[:-1]:
                for entry, release in zip(one["ledger"], one["releases"].values(), strict=True):
                    if entry.first_base_slot < span[1] and entry.last_base_slot >= span[0]:
                        charged += int(release.spent[k])
            found["what the slots were charged"] = charged
            return found

        return Neighbour(whose, _play(asked, key, counts), claims)

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """Of all questions together first; half of the probability of an error is theirs."""
        part = doubt / 2 / len(self.classes)
        windows = {k: self._learnt(k) for k in self.classes}
        for k in self.classes:
            yield from self._checks_together(k, windows[k], part / _CHECKS_TOGETHER)
        each = part / (_CHECKS_EACH * len(self._populations))
        for q, question in enumerate(self._asked.portfolio):
            for k in self.classes:
                yield from self._checks_of(k, q, question.name, windows[k], each)

    def _learnt(self, k: int) -> list[_Windows]:
        """Guesses in windows, of each run, by what the record of each question tells."""
        runs = self._windows[k]
        by_question = [learnt(some) for some in zip(*(one.each for one in runs), strict=True)]
        return [
            replace(one, each=each)
            for one, each in zip(runs, zip(*by_question, strict=True), strict=True)
        ]

    def _checks_together(self, k: int, windows: Sequence[_Windows], each: Doubt) -> Iterator[Check]:
        requirement = self._asked.requirements[k]
        found = [one.together for one in windows]
        yield check("windows", CHARGE, requirement, found, each, TOGETHER)
        against = [one.of_window(requirement.epsilon) for one in found]
        yield check("windows", WINDOW, requirement, against, each, TOGETHER)

    def _checks_of(
        self, k: int, q: int, name: str, windows: Sequence[_Windows], each: Doubt
    ) -> Iterator[Check]:
        requirement = self._asked.requirements[k]
        single, wide = ([run[q] for run in self._slots[k, kind]] for kind in (SLOTS, BINS))
        whole = [one.each[q] for one in windows]
        against = [one.each[q].of_window(one.shares[q]) for one in windows]
        for part, claim, found in (
            ("publications", CHARGE, learnt([one.only(True) for one in single])),
            ("looks", CHARGE, learnt([one.only(False) for one in single])),
            ("bins", CHARGE, learnt(wide)),
            ("windows", CHARGE, whole),
            ("windows", SHARE, against),
        ):
            yield check(part, claim, requirement, found, each, name)

    def _guess(self, k: int, kind: str, number: int) -> None:
        """Run a world with canaries of a class, and guess."""
        random = np.random.default_rng([self._seed, k, KINDS.index(kind), number])
        world = asked_world(kind, self._asked, self._populations, k, number, random, self._counts)
        plans = self._flipped(k, kind, world, random)
        told = self._run(world, plans, f"{k} {kind} {number}")
        found = [
            guesses_of(seen, others, canaries, alone=kind == SLOTS)
            for seen, others, canaries in zip(told.transcripts, world.others, plans, strict=True)
        ]
        if kind != WINDOWS:
            self._slots[k, kind].append(found)
            return
        shares = tuple(
            _largest(caps[:, k], canaries) for caps, canaries in zip(told.caps, plans, strict=True)
        )
        self._windows[k].append(_Windows(tuple(found), shares))

    def _flipped(
        self, k: int, kind: str, world: AskedWorld, random: np.random.Generator
    ) -> list[Canaries]:
        """Groups that tell most, with coins: of windows the same groups in all questions."""
        if (k, kind) not in self._groups:
            self._groups[k, kind] = self._users(k, kind, world)
        groups = self._groups[k, kind]
        if kind == WINDOWS:
            first, *others = world.plans
            flipped = first.of_users(np.full(first.users.size, groups[0][0])).flipped(random)
            return [flipped, *(one.with_groups_of(flipped) for one in others)]
        return [
            plan.of_users(random.choice(np.array(users), plan.users.size)).flipped(random)
            for plan, users in zip(world.plans, groups, strict=True)
        ]

    def _users(self, k: int, kind: str, world: AskedWorld) -> list[tuple[int, int]]:
        """Of each question, users of a canary that shows in publications, and in looks."""
        people = int(self._asked.sizes[k])
        if kind == WINDOWS:
            return [group_of_window(self._asked.requirements[k].epsilon, people)]
        told = self._run(world, world.plans, f"trial {k} {kind}")
        return [
            groups_of_slots(kind, seen, plan, people, saves_up(question.mechanism))
            for question, seen, plan in zip(
                self._asked.portfolio, told.transcripts, world.plans, strict=True
            )
        ]

    def _run(self, world: AskedWorld, plans: Sequence[Canaries], name: str) -> Telling:
        key = digest(b"audit", b"%d" % self._seed, name.encode())
        counts = [one.add_to(others) for one, others in zip(plans, world.others, strict=True)]
        told = run_asked(self._asked, key, counts)
        self.runs += 1
        self.slots += sum(map(len, counts))
        self.overspent = max(self.overspent, told.fullest)
        return told


def _somewhere(asked: Asked, k: int, end: int, random: np.random.Generator) -> tuple[int, int]:
    """A window of base slots that meets as many slots of all questions as any."""
    window, trip = asked.requirements[k].window, asked.round_trip
    first = trip * int(random.integers(max((end - window) // trip, 0) + 1)) + trip - 1
    first = min(first, max(end - window, 0))
    return first, min(first + window, end)


def _play(asked: Asked, key: bytes, counts: Sequence[Integers]) -> Play:
    def played() -> Iterator[tuple[int, Any]]:
        published = []
        for base_slot, one in public_of(asked.stream(key), asked, counts):
            published.append(one)
            yield base_slot, one
        yield len(published), {"answers": answered(asked.portfolio, published)}

    return played


def _largest(values: Floats, canaries: Canaries) -> Floats:
    """The largest value of the slots of each canary, shape (n,)."""
    spans = zip(canaries.first, canaries.end, strict=True)
    return np.array([values[slice(*span)].max() for span in spans], dtype=np.float64)

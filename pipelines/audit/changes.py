"""The audit of requirements that change: users who ask for something else in the run.

In memory::

    asked = [Requirement(3, 3.0), Requirement(1, 30.0)]
    findings = audited_changes(asked, mechanism="dpbd", extent=Extent(runs=20))

The groups of a story are of one class at first, and ask for something else in one slot of it, drawn
among all that anybody asks for. Their events are in a window that was asked for: one that looks
ahead from the first slot, whatever they ask for later; or one that looks back from the last slot,
whatever they asked for before. What that window tells must be covered by what was asked for it, and
what slots tell by what the group's ledger was charged. Charges of all windows that were asked for
are added up from these ledgers, for users who change and for those who do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units, asked_units, to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    REPLACE,
    REQUIREMENT_COLUMNS,
    ConfigurationError,
    DynamicRequirement,
    Requirement,
)
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.protocol import DynamicMechanism, Population, Setting
from streamveil.mechanisms.randomness.noise import NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULT, dynamic_mechanism
from streamveil.pipelines.audit import replay_worlds
from streamveil.pipelines.audit.canaries import Canaries, Mark
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.findings import CHARGE, WINDOW, Check, Findings
from streamveil.pipelines.audit.guesses import Doubt, Guesses, check, joined
from streamveil.pipelines.audit.options import DEFAULT_BINS, DRAWN
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.audit.replay_worlds import STAGES, scripted
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by, left_out, watched
from streamveil.pipelines.audit.runs import Transcript, spent_of
from streamveil.pipelines.audit.scores import guesses_of
from streamveil.pipelines.audit.shown import learnt
from streamveil.pipelines.audit.worlds import BINS, FAR, WINDOWS, crowd, leaping, saves_up, sizes_of

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Random = np.random.Generator

KINDS = (BINS, WINDOWS)
# Checks of a class: see `_checks_of`.
_CHECKS = 3
# Stories of a run, one after the other; and slots of all of them about, where they are long.
STORIES, MOST_SLOTS = 16, 1200
# Of these, users who are replayed.
WATCHED = 3
# Losses of a canary of a slot and of one of a window that tell most per guess.
_TELLING = {BINS: 1.5, WINDOWS: 3.0}


def audited_changes(
    requirements: Sequence[Requirement],
    *,
    changes: Sequence[DynamicRequirement] = (),
    mechanism: str = DEFAULT,
    sizes: Integers | None = None,
    guessed: int | None = None,
    bins: int = DEFAULT_BINS,
    sensitivity: int = 1,
    adjacency: str = ADD_REMOVE,
    longest_window: int | None = None,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a mechanism over requirements that change, in worst cases.

    Args:
        requirements: of each class at first, K of them, all distinct.
        changes: what users may ask for later, beside these.
        mechanism: a key of `DYNAMIC_MECHANISMS`, with options.
        sizes: users of each class, shape (K,); there are as many times more as worst cases need.
        guessed: the class whose size is only a guess, as of :class:`Population`; None if all are
            known.
        bins: of the histogram.
        sensitivity: as of `Population`.
        adjacency: what neighbouring streams differ in.
        longest_window: that may be asked for; the longest that is, when None.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    asked = Requirements.of(requirements)
    users = sizes_of(asked, sizes)
    users = crowd(asked, users, bins)
    population = Population(asked, users, bins, sensitivity, guessed=guessed)
    later = asked_units(np.reshape([astuple(one) for one in changes], (-1, 4)))
    kinds = np.concatenate([asked.as_changing, later])
    longest = int(kinds[:, [0, 2]].max())
    horizon = longest if longest_window is None else longest_window
    if horizon < longest:
        raise ConfigurationError(
            f"longest_window is {horizon}, and somebody asks for a window of {longest} slots: give "
            f"{longest} or more, or leave it out"
        )
    machine = dynamic_mechanism(mechanism, Setting(bins, horizon, sensitivity))
    moves = adjacency == REPLACE
    audit = ChangesAudit(
        mechanism, machine, population, np.unique(kinds, axis=0), moves, extent.seed
    )
    notes = left_out(population, audit.classes)
    return found_by(audit, mechanism, extent, own=False, notes=notes, stages=audit.stages())


def later_requirements(path: str, classes: Sequence[Requirement]) -> list[DynamicRequirement]:
    """What a file of changes asks for, each once; nothing more than classes do for `DRAWN`.

    Rows without figures, by which users leave, are left out.

    Raises ConfigurationError for a file that cannot be read, or if nobody could change.
    """
    found: set[DynamicRequirement] = set()
    if path != DRAWN:
        from streamveil.io import read_events
        from streamveil.io.requirement_changes import change_columns

        change_columns(path)  # says what is missing
        for batch, _ in read_events(path, REQUIREMENT_COLUMNS):
            columns = [batch.column(name).to_pylist() for name in REQUIREMENT_COLUMNS]
            rows = (row for row in zip(*columns, strict=True) if not {None, ""} & {*row})
            found.update(_asked(path, row) for row in rows)
    known = {DynamicRequirement.constant(one) for one in classes}
    if len(known | found) < 2:
        raise ConfigurationError(
            f"--requirement_changes={path}: all ask for the same, so nobody changes: give a file "
            f"with other requirements, or {DRAWN} and a table with several"
        )
    return sorted(found, key=astuple)


def _asked(path: str, row: Sequence[Any]) -> DynamicRequirement:
    try:
        return DynamicRequirement(*map(float, row))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"--requirement_changes={path}: a row asks for {', '.join(map(str, row))}: {error}"
        ) from None


@dataclass(frozen=True, eq=False)
class Story:
    """What the groups of a story ask for, and when they have events."""

    change: int
    """The slot from which on they ask for something else."""
    later: Units
    """What that is, shape (4,)."""
    first: int
    end: int
    """Of the slots of the window with their events; `end` is the slot after it."""
    promised: int
    """Units that were asked for it."""
    back: bool
    """Whether it looks back: then it is kept only where its last slot costs anything."""


class ChangesAudit:
    """Runs of one mechanism, and the guesses about their canaries."""

    def __init__(
        self,
        name: str,
        machine: DynamicMechanism[Any],
        population: Population,
        kinds: Units,
        moves: bool,
        seed: int,
    ) -> None:
        self.runs = self.slots = 0
        self.overspent = 0.0
        self._machine, self._population, self._kinds = machine, population, kinds
        self._saves_up, self._moves, self._seed = saves_up(name), moves, seed
        self._each = population.sensitivity // (2 if moves else 1)
        self.classes = watched(population)
        self._guesses: dict[tuple[int, str], list[tuple[Guesses, Floats]]] = {
            (k, kind): [] for k in self.classes for kind in KINDS
        }

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class."""
        for (k, kind), guesses in self._guesses.items():
            random = np.random.default_rng([self._seed, k, KINDS.index(kind), number])
            guesses.append(self._guessed(k, kind, number, random))
            done(number)

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """Each check may be wrong with an even part of the probability."""
        for k in self.classes:
            yield from self._checks_of(k, doubt / (_CHECKS * len(self.classes)))

    def _checks_of(self, k: int, each: Doubt) -> Iterator[Check]:
        asked = self._population.requirements[k]
        single, whole = (learnt([one for one, _ in self._guesses[k, kind]]) for kind in KINDS)
        promised = [most for _, most in self._guesses[k, WINDOWS]]
        against = [one.of_window(most) for one, most in zip(whole, promised, strict=True)]
        yield check(BINS, CHARGE, asked, single, each)
        yield check(WINDOWS, CHARGE, asked, whole, each)
        yield check(WINDOWS, WINDOW, asked, against, each)

    # ---- stories ------------------------------------------------------------------------------

    def _guessed(self, k: int, kind: str, number: int, random: Random) -> tuple[Guesses, Floats]:
        """Guesses of a run, and what was promised of the window of each group, epsilon."""
        every = 2 * int(self._kinds[:, [0, 2]].max()) + 1
        many = max(2, min(STORIES, MOST_SLOTS // every))
        stories = [self._story(k, kind, (2 * i + 1) * every // 2, random) for i in range(many)]
        slots = many * every
        others = self._others(slots, bool(number % 2), random)
        beside = np.zeros((slots, many, others.shape[2]), np.int64)
        counts = np.concatenate([others, beside], axis=1)
        groups = [self._canaries(i, one).flipped(random) for i, one in enumerate(stories)]
        filled, half = counts, counts.astype(np.float64)
        for one in groups:
            filled, half = one.add_to(filled), one.halved(half)
        seen = self._run(k, stories, filled, groups, f"{k} {kind} {number}")
        found, promised = [], []
        for story, one in zip(stories, groups, strict=True):
            made = guesses_of(seen, half - one.halved(np.zeros_like(counts)), one, alone=False)
            spent = seen.spent[:, one.class_index]
            kept = not story.back or spent[story.end - 1] > 0
            whole = float(to_epsilon(story.promised))
            found.append(made)
            promised.append(np.full(one.users.size, whole) if kept else made.losses / made.users)
        return joined(found), np.concatenate(promised)

    def _others(self, slots: int, leaps: bool, random: Random) -> Integers:
        """Counts of others who do not change, shape (T, K, d).

        Beside mechanisms that save up for publications they leap so far, every so many slots, that
        these publish.
        """
        if not self._saves_up:
            return leaping(self._population, slots, 1, leaps, random)
        others = np.zeros((slots, *self._shape), np.int64)
        least = float((to_epsilon(self._kinds[:, 1::2]) / self._kinds[:, ::2]).min())
        every = int(random.integers(1, self._kinds[:, ::2].max() + 1))
        high = np.arange(slots) // every % 2 == 1
        others[high, int(self._population.requirements.shares.argmax())] = round(
            4 * FAR * self._population.sensitivity / least
        )
        return others

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._population.requirements), self._population.bins

    def _story(self, k: int, kind: str, middle: int, random: Random) -> Story:
        """A window that looks ahead or back, with a change within it; about some slot."""
        first_asked = self._population.requirements.as_changing[k]
        other = self._kinds[(self._kinds != first_asked).any(axis=1)]
        later = other[random.integers(len(other))] if len(other) else first_asked
        back = bool(random.random() < 0.5)
        window = int(later[0] if back else first_asked[2])
        first = middle - window // 2
        end = first + window
        # Looking back, the last slot is already of the later requirement.
        change = int(random.integers(first + (0 if back else 1), end if back else end + 1))
        promised = int(later[1] if back else first_asked[3])
        if kind == BINS:  # events of one slot, whatever is asked for then
            first, promised = int(random.integers(first, end)), promised // window
            end = first + 1
        return Story(change, later, first, end, promised, back)

    def _canaries(self, number: int, story: Story) -> Canaries:
        """Groups in all bins, with events in all slots of a window."""
        bins = self._population.bins
        at = np.arange(0, bins - bins % 2, 2) if self._moves else np.arange(bins)
        first, end = np.full(at.size, story.first), np.full(at.size, story.end)
        telling = _TELLING[BINS if story.end == story.first + 1 else WINDOWS]
        users = max(1, round(telling / max(float(to_epsilon(story.promised)), 1e-6)))
        marks = [Mark(at, first, end, self._each)]
        if self._moves:
            marks.append(Mark(at + 1, first, end, self._each, there=False))
        return Canaries(
            *(len(self._population.requirements) + number, tuple(marks), first, end),
            *(np.full(at.size, users), np.zeros(at.size, np.bool_)),
        )

    # ---- runs ---------------------------------------------------------------------------------

    def _run(
        self,
        k: int,
        stories: Sequence[Story],
        counts: Integers,
        groups: Sequence[Canaries],
        name: str,
    ) -> Transcript:
        """Release all slots of counts by class and story, shape (T, K + S, d).

        Users of a story are of class k until they change; the transcript has a column for each
        class and each story.
        """
        asked = self._population.requirements
        sizes, users = self._population.sizes.copy(), np.array([one.users.sum() for one in groups])
        sizes[k] += users.sum()
        releases, prices, rules = [], [], []
        for _, told in self._public(k, stories, counts, sizes, users, name):
            check_clock()
            releases.append(told["release"])
            prices.append(to_epsilon(told["price"]))
            rules.append(told["asked"])
        self.runs += 1
        self.slots += len(counts)
        spent = spent_of([{"release": one} for one in releases])
        self.overspent = max(self.overspent, fullest_asked(np.stack(rules), spent))
        columns = Requirements.of([*asked, *[asked[k]] * len(stories)])
        sizes = np.append(self._population.sizes, users)
        population = replace(self._population, requirements=columns, sizes=sizes)
        return Transcript(population, releases, np.stack(prices))

    def _public(
        self,
        k: int,
        stories: Sequence[Story],
        counts: Integers,
        sizes: Integers,
        users: Integers,
        name: str,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """All that is public of a run, slot by slot; `asked` is what each column asks for.

        Args:
            k: class of the stories' users at first.
            stories: that are told.
            counts: by class and story, shape (T, K + S, d).
            sizes: users of each class, those of stories among them.
            users: of each story.
            name: of the run, which draws noise of its own.
        """
        asked, known = self._population.requirements, len(self._population.requirements)
        stream = DynamicStream(
            self._machine,
            *(asked.as_changing, sizes),
            NoiseSource(digest(b"audit", b"%d" % self._seed, name.encode())),
            default=self._population.guessed,
        )
        cohorts = np.append(np.arange(known), np.full(len(stories), k))
        in_force, state = asked.as_changing[cohorts], stream.start()
        for slot, table in enumerate(counts):
            some = np.flatnonzero((np.array([one.change for one in stories]) == slot) & (users > 0))
            moves = _moves(cohorts, known, some, stories, users[some])
            cohorts[known + some] = known + some
            in_force = in_force.copy()
            in_force[known + some] = moves.requirements
            which, bins = np.nonzero(table)
            cells = CohortCounts(cohorts[which], bins, table[which, bins])
            price = stream.price(state, slot, moves)[state.interned.ledgers_of(cohorts)]
            state, release = stream.release(state, slot, cells, moves)
            spent = release.spent[state.interned.ledgers_of(cohorts)]
            yield (
                slot,
                {
                    "price": price,
                    "release": replace(release, spent=spent),
                    "asked": in_force,
                },
            )

    # ---- worlds that are replayed -----------------------------------------------------------

    def stages(self) -> Iterator[Stage]:
        """Of every class, a user who is there in a window of a story, beside others."""
        for number in range(STAGES):
            random = np.random.default_rng([self._seed, 911, number])
            for k in self.classes:
                yield self._stage(k, number, random)

    def _stage(self, k: int, number: int, random: Random) -> Stage:
        every = 2 * int(self._kinds[:, [0, 2]].max()) + 1
        many = max(2, min(STORIES, replay_worlds.LENGTH // every))
        stories = [self._story(k, WINDOWS, (2 * i + 1) * every // 2, random) for i in range(many)]
        others = scripted(self._population, many * every, random)
        nobody = np.zeros((len(others), many, others.shape[2]), np.int64)
        base = np.concatenate([others, nobody], axis=1)
        users = np.ones(many, np.int64)
        sizes = self._population.sizes.copy()
        sizes[k] += many

        def play(counts: Integers) -> Play:
            return partial(self._public, k, stories, counts, sizes, users, f"replay {k} {number}")

        neighbours = [Neighbour("everybody", play(_others(base, len(sizes))))]
        for i in random.choice(many, min(many, WATCHED), replace=False).tolist():
            neighbours.append(self._neighbour(stories[i], len(sizes) + i, base, play, random))
        return Stage(
            play(base),
            tuple(neighbours),
            lambda seen: fullest_asked(np.stack([one["asked"] for one in seen]), spent_of(seen)),
        )

    def _neighbour(
        self,
        story: Story,
        column: int,
        base: Integers,
        play: Callable[[Integers], Play],
        random: Random,
    ) -> Neighbour:
        """With a user in a window of a story."""
        counts, slots = base.copy(), np.arange(story.first, story.end)
        at = random.integers(base.shape[2], size=slots.size)
        counts[slots, column, at] += self._population.sensitivity

        def claims(published: list[Any]) -> dict[str, int]:
            spent = spent_of(published)[story.first : story.end, column]
            found = {"what the slots were charged": int(spent.sum())}
            if not story.back or spent[-1] > 0:
                found["what was asked for the window"] = story.promised
            return found

        whose = f"a user in slots {story.first} to {story.end - 1} who changes in {story.change}"
        return Neighbour(whose, play(counts), claims)


def _others(counts: Integers, classes: int) -> Integers:
    """A world in which those of classes, who do not change, are others."""
    found = counts.copy()
    found[:, :classes] = found[::-1, :classes]
    return found


def _moves(
    cohorts: Integers, known: int, some: Integers, stories: Sequence[Story], users: Integers
) -> Moves:
    """The users of some stories ask for something else."""
    if not some.size:
        return Moves.none()
    later = np.stack([stories[i].later for i in some])
    return Moves(cohorts[known + some], known + some, users, later)


def fullest_asked(asked: Units, spent: Units) -> float:
    """Largest charge of a window that was asked for, in parts of what was asked for.

    Args:
        asked: what each column asks for in each slot, as of :class:`DynamicRequirement`, (T, C, 4).
        spent: what each slot cost it, whole units, (T, C).

    A window that looks back counts where its last slot costs anything.
    """
    slots, columns = spent.shape
    until = np.concatenate([np.zeros((1, columns), np.int64), spent.cumsum(axis=0)])
    at, who = np.arange(slots)[:, None], np.arange(columns)
    back, back_most, ahead, ahead_most = np.moveaxis(asked, 2, 0)
    before = until[at + 1, who] - until[np.maximum(at + 1 - back, 0), who]
    after = until[np.minimum(at + ahead, slots), who] - until[at, who]
    looking_back = np.where(spent > 0, before / np.maximum(back_most, 1), 0.0)
    looking_ahead = np.where(ahead > 0, after / np.maximum(ahead_most, 1), 0.0)
    return float(max(looking_back.max(), looking_ahead.max()))

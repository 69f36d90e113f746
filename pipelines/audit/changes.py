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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units, asked_units, to_epsilon
from streamveil.mechanisms.core.records import (
    REQUIREMENT_COLUMNS,
    ConfigurationError,
    DynamicRequirement,
    Requirement,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.protocol import Setting
from streamveil.mechanisms.registry import DEFAULT, dynamic_mechanism
from streamveil.pipelines.audit import replay_worlds
from streamveil.pipelines.audit.auditing import StreamsAudit
from streamveil.pipelines.audit.audits import Part
from streamveil.pipelines.audit.audits import World as WorldOf
from streamveil.pipelines.audit.canaries import Canaries, Mark
from streamveil.pipelines.audit.facts import Facts
from streamveil.pipelines.audit.findings import WINDOW, Findings
from streamveil.pipelines.audit.guesses import Guesses
from streamveil.pipelines.audit.replay_worlds import Neighbours, scripted, strangers, users_in
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.audit.runs import Public, Transcript, fullest_asked, releases_of, spent_of
from streamveil.pipelines.audit.shown import guesses_of
from streamveil.pipelines.audit.streams import ChangingStream
from streamveil.pipelines.audit.worlds import BINS, FAR, WINDOWS, Story, World, leaping, saves_up
from streamveil.pipelines.options.audit_options import DRAWN

Random = np.random.Generator

# Stories of a run, one after the other; and slots of all of them about, where they are long.
STORIES, MOST_SLOTS = 16, 1200
# Of these, users who are replayed.
WATCHED = 3
# Losses of a canary of a slot and of one of a window that tell most per guess.
_TELLING = 1.5, 3.0


def audited_changes(
    requirements: Sequence[Requirement],
    *,
    changes: Sequence[DynamicRequirement] = (),
    mechanism: str = DEFAULT,
    longest_window: int | None = None,
    extent: Extent = USUAL,
    **facts: Any,
) -> Findings:
    """Audit a mechanism over requirements that change, in worst cases.

    Args:
        requirements: of each class at first, K of them, all distinct.
        changes: what users may ask for later, beside these.
        mechanism: a key of `DYNAMIC_MECHANISMS`, with options.
        longest_window: that may be asked for; the longest that is, when None.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.
        facts: others of :class:`Facts`.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    audit_facts = Facts(mechanism=mechanism, requirements=requirements, **facts)
    people = audit_facts.population(own=False)
    later = asked_units(np.reshape([astuple(one) for one in changes], (-1, 4)))
    asked = np.unique(np.concatenate([people.requirements.as_changing, later]), axis=0)
    longest = int(asked[:, [0, 2]].max())
    horizon = longest if longest_window is None else longest_window
    if horizon < longest:
        raise ConfigurationError(
            f"longest_window is {horizon}, and a user asks for a window of {longest} slots: give "
            f"{longest} or more, or leave it out"
        )
    dynamic_mechanism(
        mechanism, Setting(people.bins, horizon, audit_facts.sensitivity)
    )  # or refuses it
    stream = ChangingStream(audit_facts, people, horizon=horizon)
    return found_by(ChangesAudit(stream, asked, extent.seed), extent)


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
            f"{opt.requirement_changes}={path}: all rows ask for the same requirement, so no "
            f"user changes: give a file with other requirements, or {DRAWN} and a table with "
            "several"
        )
    return sorted(found, key=astuple)


def _asked(path: str, row: Sequence[Any]) -> DynamicRequirement:
    try:
        return DynamicRequirement(*map(float, row))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{opt.requirement_changes}={path}: a row asks for {', '.join(map(str, row))}: {error}"
        ) from None


class ChangesAudit(StreamsAudit):
    """Of one stream whose users ask for something else.

    Args:
        stream: how it is run.
        asked: all that anybody asks for, shape (n, 4).
        seed: of all that is drawn.
    """

    kinds = (BINS, WINDOWS)

    def __init__(self, stream: ChangingStream, asked: Units, seed: int) -> None:
        self._stream, self._asked = stream, asked
        self._people, self._moves = stream.people, stream.facts.moves
        super().__init__(stream.facts.mechanism, stream, None, seed)

    def parts(self, k: int) -> Mapping[str, Sequence[Part]]:
        """See :class:`StreamsAudit`."""
        return {BINS: (Part(BINS),), WINDOWS: (Part(WINDOWS, whole=WINDOW),)}

    def fullest(self, outputs: Sequence[Public]) -> float:
        """See :class:`StreamsAudit`: of all windows that were asked for."""
        return fullest_asked(np.stack([one["asked"] for one in outputs]), spent_of(outputs))

    # ---- runs with canaries -------------------------------------------------------------------

    def made(self, world: WorldOf, number: int, random: Random) -> World:
        """See :class:`StreamsAudit`."""
        k, kind = world
        stories, slots = self._stories(k, kind, MOST_SLOTS, random)
        others = self._others(slots, bool(number % 2), random)
        return self._world(k, stories, others, self._canaries(stories))

    def flipped(self, world: WorldOf, made: World, random: Random) -> tuple[Canaries, ...]:
        """See :class:`StreamsAudit`: groups are as large as a window calls for."""
        return (made.plans[0].flipped(random),)

    def transcript(self, outputs: Sequence[Public], q: int, plan: Canaries) -> Transcript:
        """See :class:`StreamsAudit`: of users of each column."""
        releases = releases_of(outputs)
        users = self._stream.users(plan, releases[0].spent.size)
        return Transcript(releases, users, self._people.sensitivity)

    def scored(
        self, world: WorldOf, made: World, plan: Canaries, outputs: Sequence[Public], q: int
    ) -> Guesses:
        """See :class:`StreamsAudit`: a story's window, where it is kept, was promised so much."""
        found = guesses_of(self.transcript(outputs, q, plan), made.others[q], plan, alone=False)
        stories, known = made.stories, len(self._people.requirements)
        spent = spent_of(outputs)[:, known:].T
        kept = np.array([one.kept(row) for one, row in zip(stories, spent, strict=True)])
        epsilons = to_epsilon([one.promised for one in stories])
        which = plan.columns - known
        promised = epsilons[which] * found.users
        return replace(found, whole=np.where(kept[which], promised, found.losses))

    @staticmethod
    def _world(k: int, stories: Sequence[Story], others: Integers, plan: Canaries) -> World:
        """Of users of a class, each story in a column of its own, beside (T, K, d) of others."""
        nobody = np.zeros((len(others), len(stories), others.shape[2]), np.int64)
        counts = np.concatenate([others, nobody], axis=1)
        return World((counts,), (plan,), stories=stories, of_class=k)

    def _stories(self, k: int, kind: str, slots: int, random: Random) -> tuple[list[Story], int]:
        """Some, one after the other, in so many slots about; and how many these are."""
        every = 2 * int(self._asked[:, [0, 2]].max()) + 1
        many = max(2, min(STORIES, slots // every))
        middles = [(2 * i + 1) * every // 2 for i in range(many)]
        return [self._story(k, kind, one, random) for one in middles], many * every

    def _story(self, k: int, kind: str, middle: int, random: Random) -> Story:
        """A window that looks ahead or back, with a change within it; about some slot."""
        first_asked = self._people.requirements.as_changing[k]
        other = self._asked[(self._asked != first_asked).any(axis=1)]
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

    def _others(self, slots: int, leaps: bool, random: Random) -> Integers:
        """Counts of others who do not change, shape (T, K, d).

        Beside mechanisms that save up for publications they leap so far, every so many slots, that
        these publish.
        """
        if not saves_up(self.name):
            return leaping(self._people, slots, 1, leaps, random)
        others = np.zeros((slots, len(self._people.requirements), self._people.bins), np.int64)
        least = float((to_epsilon(self._asked[:, 1::2]) / self._asked[:, ::2]).min())
        every = int(random.integers(1, self._asked[:, ::2].max() + 1))
        high = np.arange(slots) // every % 2 == 1
        others[high, int(self._people.requirements.shares.argmax())] = round(
            4 * FAR * self._people.sensitivity / least
        )
        return others

    def _canaries(self, stories: Sequence[Story]) -> Canaries:
        """Groups in all bins, with events in all slots of the window of a story."""
        (place,), known = self.streams.scene.places, len(self._people.requirements)
        story = np.repeat(np.arange(len(stories)), place.number)
        spans = np.array([(one.first, one.end) for one in stories], np.int64)
        first, end = spans[story].T
        marks = tuple(
            Mark.spanning(first, end, np.tile(cells, len(stories)), amount, there)
            for there, some in ((True, place.there), (False, place.instead))
            for cells, amount in some
        )
        telling = np.where(end - first == 1, *_TELLING)
        promised = to_epsilon([one.promised for one in stories])[story]
        users = np.rint(telling / np.maximum(promised, 1e-6)).astype(np.int64)
        return Canaries.nobody(known + story, marks, first, end).of_users(np.maximum(users, 1))

    # ---- worlds that are replayed -------------------------------------------------------------

    def neighbours(self, random: Random) -> Iterator[Neighbours]:
        """Of every class, a user who is there in a window of a story, beside others."""
        people, known = self._replayed.people, len(self._people.requirements)
        for k in self.classes:
            stories, slots = self._stories(k, WINDOWS, replay_worlds.LENGTH, random)
            spans = [(one.first, one.end) for one in stories]
            columns = range(known, known + len(stories))
            plan = users_in(columns, spans, people.bins, people.sensitivity, random)
            made = self._world(k, stories, scripted(people, slots, random), plan)
            some = random.choice(len(stories), min(len(stories), WATCHED), replace=False)
            yield Neighbours(
                made,
                replace(made, others=(strangers(made.others[0], random),)),
                {
                    i: f"a user in slots {one.first} to {one.end - 1} who changes in {one.change}"
                    for i, one in enumerate(stories)
                    if i in some
                },
                [one.promised for one in stories],
            )

    def claims(self, some: Neighbours, number: int, outputs: Sequence[Public]) -> dict[str, int]:
        """See :class:`StreamsAudit`."""
        story, found = some.made.stories[number], super().claims(some, number, outputs)
        column = len(self._people.requirements) + number
        if not story.kept(spent_of(outputs)[:, column]):
            del found["the budget"]
        return found

"""What audits of all guarantees have in common: rounds of worlds, guesses, and the rows they make.

A kind of guarantee says which worlds there are, what an attacker makes of a run of each, what is
promised of the canaries there, and which worlds are replayed. All else is here; how long it goes on
is in `rounds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import digest
from streamveil.pipelines.audit.findings import CHARGE, TOGETHER, WINDOW, About, Check, asked_of
from streamveil.pipelines.audit.guesses import LOSSES, Doubt, Guesses, check, together
from streamveil.pipelines.audit.replay import Stage
from streamveil.pipelines.audit.shown import learnt

# More classes are not audited one by one.
MOST_CLASSES = 4

World: TypeAlias = tuple[int, str]
"""Class of the canaries, and a kind of world."""


@dataclass(frozen=True)
class Part:
    """What canaries of a kind of world meet, and beside which claims it stands."""

    name: str
    charge: str = CHARGE
    """The claim of what the slots of a canary were charged; empty for none."""
    whole: str = ""
    """The claim of all that is promised of a canary; empty for none."""
    published: bool | None = None
    """Of canaries whose slots published something, or did not; None for all."""
    learn: Callable[[Sequence[Guesses]], list[Guesses]] = learnt
    """Guesses by what tells most, learnt from runs that do not count."""

    def of(self, runs: Sequence[Guesses]) -> list[Guesses]:
        """Guesses of each run, by what tells most of this part."""
        if self.published is not None:
            runs = [one.only(self.published) for one in runs]
        return self.learn(runs) if runs[0].figures.shape[1] else list(runs)


@dataclass(frozen=True)
class _Row:
    """Guesses of all runs that a bound is made of."""

    class_index: int
    query: str
    part: str
    claim: str
    runs: list[Guesses]


class Audit:
    """Runs of one configuration, and the guesses about their canaries.

    Args:
        name: of what is audited.
        seed: of all that is drawn.
        worlds: a run of each is made in every round; and what its canaries meet.
    """

    about: About | None = None
    """How findings are described, as of `Findings`."""
    limits: Sequence[tuple[float, float]] = LOSSES
    """Of losses where guesses are made, to choose from."""
    queries: Sequence[str] = ("",)
    """Names, where there are queries."""
    own = False
    """Whether canaries are put beside a real stream."""
    notes: Sequence[str] = ()
    """What is not audited."""

    def __init__(self, name: str, seed: int, worlds: Mapping[World, Sequence[Part]]) -> None:
        self.name, self.seed, self.worlds = name, seed, worlds
        self.runs = self.slots = 0
        """Made so far, and the slots of all of them together."""
        self.overspent = 0.0
        """Largest charge of a window in parts of its budget."""
        self.guesses: dict[World, list[tuple[Guesses, ...]]] = {world: [] for world in worlds}
        """Of each run of a world, by each query."""

    # ---- what a kind of guarantee says of itself ----------------------------------------------

    def guessed(self, world: World, number: int) -> tuple[Guesses, ...]:
        """Run a world with canaries; what an attacker makes of it, by each query."""
        raise NotImplementedError

    def requirement(self, k: int) -> Requirement:
        """What canaries of a class ask for."""
        raise NotImplementedError

    def subject(self, k: int) -> str:
        """Whose loss it is, where that is not a user's with the requirement."""
        return ""

    def stages(self) -> Iterator[Stage] | None:
        """Worlds that are replayed; None where nothing is."""
        return None

    def whole_runs(self) -> Stage | None:
        """Runs from events on, which are replayed behind the first of these; None for none."""
        return None

    @property
    def too_short(self) -> Mapping[str, int]:
        """Of what there are no guesses, as a real stream is too short, and slots it needs."""
        return MappingProxyType({})

    # ---- what is made of it -------------------------------------------------------------------

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every world once; `done` is called after each run."""
        for world, guesses in self.guesses.items():
            guesses.append(self.guessed(world, number))
            done(number)

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """What was found: each bound may be wrong with an even part of the probability.

        Of queries one half is for what all of them tell together, whose bounds are as many however
        many queries there are: what is promised is of these.
        """
        rows = [row for world in self.worlds for row in self._rows(world)]
        for several in (True, False):
            some = [row for row in rows if (row.query == TOGETHER) == several]
            for row in sorted(some, key=lambda row: [TOGETHER, *self.queries].index(row.query)):
                yield check(
                    *(row.part, row.claim, self.requirement(row.class_index), row.runs),
                    doubt / (len(some) if len(some) == len(rows) else 2 * len(some)),
                    row.query,
                    subject=self.subject(row.class_index),
                    limits=self.limits,
                )

    def _rows(self, world: World) -> Iterator[_Row]:
        k, runs = world[0], self.guesses[world]
        for part in self.worlds[world]:
            found = [part.of([run[q] for run in runs]) for q in range(len(self.queries))]
            if part.whole and self.queries != ("",):
                budget = self.requirement(k).epsilon
                both = [together(run, budget) for run in zip(*found, strict=True)]
                yield from _beside(k, TOGETHER, replace(part, whole=WINDOW), both)
            for query, some in zip(self.queries, found, strict=True):
                yield from _beside(k, query, part, some)

    def key(self, name: str) -> bytes:
        """Of all noise of a run."""
        return digest(b"audit", b"%d" % self.seed, name.encode())

    def ran(self, slots: int, charged: float) -> None:
        """Note a run of so many slots, whose fullest window cost such a part of its budget."""
        self.runs += 1
        self.slots += slots
        self.overspent = max(self.overspent, charged)


def _beside(k: int, query: str, part: Part, runs: list[Guesses]) -> Iterator[_Row]:
    """Guesses of a part beside each of its claims."""
    if part.charge:
        yield _Row(k, query, part.name, part.charge, runs)
    if part.whole:
        yield _Row(
            k, query, part.name, part.whole, [replace(one, losses=one.whole) for one in runs]
        )


def watched(population: Population) -> list[int]:
    """Classes that canaries are of: all, or of many those that differ most and the largest."""
    if len(population.requirements) <= MOST_CLASSES:
        return list(range(len(population.requirements)))
    shares = population.requirements.shares
    return sorted({int(shares.argmin()), int(shares.argmax()), int(population.sizes.argmax())})


def left_out(population: Population, classes: Sequence[int]) -> Iterator[str]:
    """What no canary was of."""
    known = len(population.requirements)
    if len(classes) < known:
        described = "; ".join(asked_of(population.requirements[k]) for k in classes)
        yield (
            f"canaries are of {len(classes)} of {known:,} classes: {described}; of the others only "
            "charges are checked"
        )

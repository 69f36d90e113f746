"""In how many slots a user should count: limits on presence side by side, on events of one's own.

Each limit is run under the mechanism that errs least without one, with the same seeds. Who is where
is known here, as it is to whoever may compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
from streamveil.mechanisms.presence.limits import limits_of, priced
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource, derived_key
from streamveil.mechanisms.registry import mechanism
from streamveil.pipelines.evaluation.choose import choices, errors_by_case
from streamveil.pipelines.evaluation.comparison import Comparison, noise_key, number
from streamveil.pipelines.evaluation.drivers import is_local
from streamveil.pipelines.evaluation.sources import Counted, Source

AUTO = "auto"
# A limit that errs this little less is not worth what it leaves out.
_WORTH_IT = 0.9

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """The limits to compare: some, or all that may pay."""

    given: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Candidates | None:
        """As on a command line. Raises ConfigurationError."""
        if text is None or text == AUTO:
            return None if text is None else cls()
        try:
            limits = tuple(Limit(int(part)).max_slots or 0 for part in text.split(","))
        except (ValueError, ConfigurationError):
            raise ConfigurationError(
                f"--max_slots={text} are no limits to compare: write numbers of slots, such as "
                f"2,4,8, or {AUTO} for all that may pay"
            ) from None
        return cls(tuple(sorted(set(limits))))

    def among(self, asked: Iterable[Any], adjacency: str) -> list[int]:
        """Those that some of the requirements leave room for, ascending."""
        if self.given:
            return list(self.given)
        looks = [Look(one, adjacency=adjacency) for one in asked]
        return sorted({int(most) for look in looks for most in look.limits})


class Stream:
    """Events of a source, user by user, under one setting of its requirements.

    Attributes:
        slots, users, bins, kept: of n groups of events, all of shape (n,): the slot from 0 on, the
            user's number, the bin, and how many events of the group count.
        class_of: class of each user, shape (U,).
        events: all events of each slot and bin, shape (T, d).
    """

    def __init__(self, source: Counted, epsilon: float, window: int) -> None:
        assert source.visits_path is not None
        self.public: Population = source.population(epsilon, window)
        self.asked = self.public.requirements
        self.adjacency = source.adjacency
        _, place = source.classes_in(epsilon, window)
        with np.load(source.visits_path) as file:
            self.slots, self.users, self.bins, self.kept = file["rows"]
            self.class_of = place[file["class_of"]]
        self.events = np.stack([one.events for one in source.slots()])

    @cached_property
    def visits(self) -> tuple[Integers, Integers]:
        """Users and slots, each pair once."""
        pairs = np.unique(np.stack([self.users, self.slots]), axis=1)
        return pairs[0], pairs[1]

    def limits(self, most: int) -> tuple[Limit, ...] | None:
        """The limit of each class; None where it does not pay for any."""
        try:
            return limits_of(Limit(most), (), self.asked, self.adjacency)
        except ConfigurationError:
            return None

    def chosen(self, seed: int) -> tuple[Limit, ...] | None:
        """What `--max_slots=auto` chooses."""
        auto, key = Auto(), noise_key(seed)
        looks = auto.looks((), self.asked, self.adjacency)
        made = auto.limits(looks, (), self.asked, self.adjacency)
        if made is None:
            return None
        limits, (users, slots) = list(made), self.visits
        for k, look in enumerate(looks):
            if look is not None:
                mine, asked = self.class_of[users] == k, (0, len(self.events) - 1)
                used = look.used(_phases(key), users[mine], slots[mine], asked)
                words = NoiseSource(key).slot(0, b"look").words(f"presence {k}")
                limits[k] = look.choice(look.answer(look.cells(used), words))
        return tuple(limits)

    def error(self, name: str, limits: Sequence[Limit], seed: int) -> float:
        """Mean squared error of a mechanism under limits, against every event."""
        key, (users, slots) = noise_key(seed), self.visits
        rules = Rules.of(limits, self.asked, self.adjacency)
        counters = Counters(rules, _phases(key), self.users[:0])
        layers = counters.layers(users, slots, self.class_of[users], len(self.events))
        order = np.lexsort((self.slots, self.users))  # as visits are
        fresh = np.diff(self.users[order]) | np.diff(self.slots[order])
        sizes = np.diff(np.flatnonzero(np.append(True, fresh)), append=len(order))
        layer = np.empty_like(self.slots)
        layer[order] = np.repeat(layers, sizes)
        return self._released(name, limits, key, layer)

    def _counted(self, rows: Integers) -> Integers:
        """Tables of some groups of events by slot, shape (T, K, d)."""
        tables = np.zeros((len(self.events), len(self.asked), self.public.bins), np.int64)
        where = self.slots[rows], self.class_of[self.users[rows]], self.bins[rows]
        np.add.at(tables, where, self.kept[rows])
        return tables

    def _beyond(self, layer: Integers) -> list[Beyond]:
        """What does not count, by slot."""
        told = [self._counted(np.flatnonzero(layer == above)) for above in range(1, LAYERS + 1)]
        found = []
        for tables in zip(*told, strict=True):
            above, classes, bins = np.nonzero(np.stack(tables))
            found.append(Beyond(above + 1, classes, bins, np.stack(tables)[above, classes, bins]))
        return found

    def _released(self, name: str, limits: Sequence[Limit], key: bytes, layer: Integers) -> float:
        asked = Requirements.of(self.asked)
        public = Population(
            priced(limits, asked, self.adjacency),
            self.public.sizes,
            self.public.bins,
            self.public.sensitivity,
            self.public.slot_length,
            guessed=self.public.guessed,
        )
        presence = Presence(tuple(limits), asked, self.adjacency)
        stream = PresentStream(mechanism(name, public), NoiseSource(key), {}, presence)
        state, squares = stream.start(), 0.0
        tables, beyond = self._counted(np.flatnonzero(layer == 0)), self._beyond(layer)
        for slot, events in enumerate(self.events):
            state, release = stream.release(state, slot, tables[slot], beyond[slot])
            squares += float(np.square((release.counts - events).astype(np.float64)).sum())
        return squares / self.events.size


def _phases(key: bytes) -> bytes:
    return derived_key(key, "presence")


def limit_advice(
    candidates: Candidates, sources: Iterable[Source], comparison: Comparison
) -> list[str]:
    """What limits err on each stream and which one to choose, or none: lines of text."""
    known = {one.name: one for one in sources if isinstance(one, Counted) and one.visits_path}
    lines = []
    errors = errors_by_case(comparison.family, comparison.runs)
    for case, choice in choices(comparison.family, comparison.runs).items():
        best = choice.leading
        if case[0] in known and best is not None and not is_local(best):
            stream = Stream(known[case[0]], *case[1:])
            told = comparison.family.told(case)
            compared = _compared(stream, candidates, best, errors[case][best])
            lines.append(f"{told}, {best}: {compared}")
    return lines


def _compared(
    stream: Stream, candidates: Candidates, name: str, without: npt.NDArray[np.float64]
) -> str:
    seeds = range(len(without))
    found: dict[str, float] = {}
    beside: list[str] = []
    for most in candidates.among(stream.asked, stream.adjacency):
        limits = stream.limits(most)
        if limits is None:
            beside.append(str(most))
        else:
            found[str(most)] = float(np.mean([stream.error(name, limits, s) for s in seeds]))
    if not found:
        most = max(Candidates().among(stream.asked, stream.adjacency), default=0)
        if not most:
            return "no limit on presence (--max_slots) pays over these windows"
        return (
            f"over these windows a limit on presence pays up to --max_slots={most}, so none of "
            f"{', '.join(beside)} does: compare smaller ones, or --max_slots={AUTO}"
        )
    chosen = [stream.chosen(seed) for seed in seeds]
    found[AUTO] = float(
        np.mean(
            [
                none if limits is None else stream.error(name, limits, seed)
                for seed, limits, none in zip(seeds, chosen, without, strict=True)
            ]
        )
    )
    return _told(found, float(without.mean()), beside)


def _told(found: Mapping[str, float], without: float, beside: Sequence[str] = ()) -> str:
    listed = ", ".join(f"{most}: {number(error)}" for most, error in found.items())
    if beside:
        listed += f" (over these windows not worth it: {', '.join(beside)})"
    best = min(found, key=lambda most: found[most])
    split = f"AMRE {number(without)} without a limit on presence, by --max_slots: {listed}"
    if found[best] > _WORTH_IT * without:
        return f"{split}; none is worth it, so leave --max_slots out"
    if best == AUTO:
        return f"{split}; release with --max_slots={AUTO}"
    return f"{split}; release with --max_slots={best}, or {AUTO} if who is there is secret"

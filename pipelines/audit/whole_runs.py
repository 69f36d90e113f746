"""Whole runs that are replayed: events in, and all that a run makes public out.

Streams that are replayed slot by slot (`replay_worlds.py`) end where a release leaves its stream.
Here events go the whole way, as :func:`streamveil.release` and :func:`streamveil.answers` take
them, and all that is public of a run is held against that of another one: releases and revisions,
the rows of both with their intervals, answers and their rows, the ledger, and the card. A card or
a ledger that says anything about events, such as how many there were, is caught here. The loss is
compared with the ledger as it is written, and with the budget.

Slots, columns and bins are made up, and users are few: what the rows around a mechanism say does
not depend on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.records import Lifetime, Requirement, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.pipelines.audit.asked import of_bins
from streamveil.pipelines.audit.findings import asked_of
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage

if TYPE_CHECKING:
    import pyarrow as pa

Integers = npt.NDArray[np.int64]

# Slots of a run, bins, and users of each class beside the one who is there or not. Streams that are
# replayed slot by slot are longer: here is looked at what is made of their releases.
LENGTH, BINS, OTHERS = 168, 8, 8
# Slots in which others come as often and to the same places, and how often that may be.
_SPELL, _OFTEN = 21, (0.0, 0.1, 0.5, 1.0)
_START, _HOUR = np.datetime64("2024-01-01T00:30:00", "us"), np.timedelta64(3_600_000_000, "us")


@dataclass(frozen=True)
class Events:
    """Rows of a table: arrays of shape (n,)."""

    users: Integers
    slots: Integers
    bins: Integers

    def and_also(self, other: Events) -> Events:
        """Both."""
        return Events(
            np.append(self.users, other.users),
            np.append(self.slots, other.slots),
            np.append(self.bins, other.bins),
        )

    def table(self, numbers: Mapping[str, tuple[float, float]]) -> pa.Table:
        """As a run reads them, with columns of numbers in such ranges."""
        import pyarrow as pa

        times = _START + self.slots * _HOUR
        columns: dict[str, Any] = {
            "user": self.users.astype(str),
            "bin": [f"bin {one}" for one in self.bins.tolist()],
            "time": pa.array(times, pa.timestamp("us", "UTC")),
        }
        for number, (name, (low, high)) in enumerate(numbers.items()):
            parts = (self.users * 7 + self.slots * 3 + self.bins + number) % 11 / 10
            columns[name] = low + parts * (high - low)
        return pa.table(columns)


def release_stage(
    requirements: Sequence[Requirement],
    *,
    bins: int,
    seed: int,
    most: int = 1,
    guessed: int | None = None,
    **arguments: Any,
) -> Stage:
    """Runs of a release.

    Args:
        requirements: of the classes that users are of; or one :class:`Lifetime`.
        bins: of the histogram, of which a few are enough.
        seed: of all that is drawn.
        most: events of a user that count in a slot.
        guessed: the class of users outside the table, whose number is only a guess.
        arguments: others of :func:`streamveil.release`.
    """
    places = min(bins, BINS)
    if not isinstance(requirements[0], Lifetime):
        arguments["requirements"] = _registry(requirements, guessed)

    def run(table: pa.Table, key: bytes) -> dict[str, Any]:
        from streamveil.pipelines.in_memory.functions import release

        found = release(
            table,
            user="user",
            value="bin",
            time="time",
            slot="1h",
            domain=[f"bin {one}" for one in range(places)],
            start=_time(0),
            end=_time(LENGTH),
            noise_key=key,
            max_contributions=most,
            **arguments,
        )
        return {
            "releases": found.releases,
            "rows": found.to_arrow().to_pydict(),
            "revisions": found.revisions,
            "rows of revisions": found.revisions_to_arrow().to_pydict(),
            "ledger": found.ledger.to_pydict(),
            "card": found.card,
        }

    limited = "max_slots" in arguments or "guarantee" in arguments
    return _stage(requirements, run, {}, places, most, seed, booked=not limited)


def answers_stage(
    portfolio: Portfolio,
    requirements: Sequence[Requirement],
    *,
    seed: int,
    guessed: int | None = None,
    **arguments: Any,
) -> Stage:
    """Runs of a query set, whose questions are of a few bins each: see :func:`release_stage`."""
    questions = tuple(replace(of_bins(one, BINS), where=()) for one in portfolio)
    base = replace(portfolio, base=Slots.of("1h"), questions=questions)
    numbers = {
        one.statistic.column: _range(one.statistic)
        for one in base
        if one.statistic.column is not None
    }
    longest = max(one.slots for one in base)
    end = -(-LENGTH // longest) * longest

    def run(table: pa.Table, key: bytes) -> dict[str, Any]:
        from streamveil.pipelines.in_memory.functions import answers

        found = answers(
            table,
            questions=base,
            user="user",
            time="time",
            requirements=_registry(requirements, guessed),
            start=_time(0),
            end=_time(end),
            noise_key=key,
            **arguments,
        )
        return {
            "answers": found.answers,
            "rows": found.to_arrow().to_pydict(),
            "ledger": found.ledger.to_pydict(),
            "card": found.card,
        }

    most = max(one.max_contributions for one in base)
    return _stage(requirements, run, numbers, BINS, most, seed, booked=False)


def _stage(
    requirements: Sequence[Requirement],
    run: Callable[[pa.Table, bytes], dict[str, Any]],
    numbers: Mapping[str, tuple[float, float]],
    bins: int,
    most: int,
    seed: int,
    *,
    booked: bool,
) -> Stage:
    """A run of others alone, one of other others, and one of a user of each class besides."""
    random = np.random.default_rng([seed, 912])
    key = random.bytes(32)
    others, strangers = (_others(len(requirements), bins, random) for _ in range(2))

    def play(events: Events) -> Play:
        def played() -> Iterator[tuple[int, Any]]:
            with _silent():
                yield 0, run(events.table(numbers), key)

        return played

    neighbours = [Neighbour("everybody", play(strangers))]
    for k, asked in enumerate(requirements):
        forever = isinstance(asked, Lifetime)
        window = LENGTH if forever else min(asked.window, LENGTH)
        first = int(random.integers(LENGTH - window + 1))
        slots = np.repeat(np.arange(first, first + window), most)
        user = np.full(slots.size, (k + 1) * (OTHERS + 1) - 1)
        mine = Events(user, slots, random.integers(bins, size=slots.size))
        where = "all slots" if forever else f"slots {first} to {first + window - 1}"
        whose = f"a user with {asked_of(asked)} in {where} of a whole run"

        def claims(
            published: list[Any],
            asked: Requirement = asked,
            first: int = first,
            end: int = first + window,
        ) -> dict[str, int]:
            found = {"the budget": int(asked.epsilon * 2**UNIT_BITS)}
            if booked:
                found["what the ledger says"] = _booked(published[0]["ledger"], asked, first, end)
            return found

        neighbours.append(Neighbour(whose, play(others.and_also(mine)), claims))
    return Stage(play(others), tuple(neighbours), what="whole runs", slots=LENGTH)


def _others(classes: int, bins: int, random: np.random.Generator) -> Events:
    """Users of all classes who come now and then, in spells; the last one of each never does."""
    users = np.arange(classes * (OTHERS + 1)).reshape(classes, -1)[:, :-1].ravel()
    spells = -(-LENGTH // _SPELL)
    often = np.repeat(random.choice(_OFTEN, spells), _SPELL)[:LENGTH]
    place = np.repeat(random.integers(bins, size=spells), _SPELL)[:LENGTH]
    slots, who = np.nonzero(random.random((LENGTH, users.size)) < often[:, None])
    gathered = random.random(slots.size) < 0.7
    at = np.where(gathered, place[slots], random.integers(bins, size=slots.size))
    return Events(users[who], slots, at)


def _registry(requirements: Sequence[Requirement], guessed: int | None) -> Registry:
    """All users, those who never come among them, but for those of a class that is guessed."""
    many = OTHERS + 1
    known = [k for k in range(len(requirements)) if k != guessed]
    return Registry.build(
        [str(k * many + user) for k in known for user in range(many)],
        np.repeat([requirements[k].window for k in known], many),
        np.repeat([requirements[k].epsilon for k in known], many),
        default=None if guessed is None else (requirements[guessed], many),
    )


def _time(slot: int) -> str:
    """When a slot begins."""
    return f"{(_START + slot * _HOUR).astype('datetime64[h]')}:00:00Z"


def _range(statistic: Any) -> tuple[float, float]:
    """Of the numbers of a column that is asked about."""
    edges = getattr(statistic, "edges", None)
    return (edges[0], edges[-1]) if edges else (statistic.lower, statistic.upper)


def second(stages: Iterator[Stage], make: Callable[[], Stage]) -> Iterator[Stage]:
    """Stages of a stream, and whole runs behind the first of them."""
    for number, stage in enumerate(stages):
        yield stage
        if not number:
            yield make()


def _booked(ledger: Mapping[str, list[Any]], asked: Requirement, first: int, end: int) -> int:
    """Units of a class in slots of the run, from the columns of a ledger."""
    begin, back = min(ledger["slot"]), "" if "window" in ledger else "_backward"
    names = ("slot", f"window{back}", f"epsilon{back}", "spent")
    rows = zip(*(ledger[name] for name in names), strict=True)
    return sum(
        round(spent * 2**UNIT_BITS)
        for slot, window, epsilon, spent in rows
        if (window, epsilon) == (asked.window, asked.epsilon) and first <= slot - begin < end
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Whatever a run has to say about made-up events is of no use to anybody."""
    logger = logging.getLogger("streamveil")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)

"""Whole runs that are replayed: events in, and all that a run makes public out.

Streams that are replayed slot by slot (`replay_worlds.py`) end where a release leaves its stream.
Here events go the whole way, as :func:`streamveil.release` takes them, and all that is public of a
run is held against that of another one: releases or answers and their revisions, the rows of both
with their intervals, the ledger, and the card. A card or a ledger that says anything about events,
such as how many there were, is caught here. The loss is compared with the ledger as it is written,
and with the budget.

Slots, columns and bins are made up, and users are few: what the rows around a mechanism say does
not depend on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import Lifetime, Requirement, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import TopK
from streamveil.mechanisms.queries.trees import FLAT, Tree
from streamveil.pipelines.audit.findings import asked_of
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.in_memory.run_options import USUAL_RUN, RunOptions

if TYPE_CHECKING:
    import pyarrow as pa


# Slots of a run, bins, and users of each class beside the one who is there or not. Streams that are
# replayed slot by slot are longer: here is looked at what is made of their releases.
LENGTH, BINS, OTHERS = 168, 8, 8
# Slots in which others come as often and to the same places, and how often that may be.
_SPELL, _OFTEN = 21, (0.0, 0.1, 0.5, 1.0)
# How often users come around the window in which they are there or not.
_AROUND = 0.05
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
        arguments: others of :func:`streamveil.release`, or fields of its `run`.
    """
    places = min(bins, BINS)
    rarer = {name: arguments.pop(name) for name in vars(USUAL_RUN) if name in arguments}
    arguments |= {
        "value": "bin",
        "slot": "1h",
        "domain": [f"bin {one}" for one in range(places)],
        "max_contributions": most,
        "run": RunOptions(**rarer),
    }
    booked = not {"max_slots", "guarantee"} & set(arguments)
    return _stage(requirements, (), arguments, places, most, seed, guessed, booked=booked)


def answers_stage(
    query_set: QuerySet,
    requirements: Sequence[Requirement],
    *,
    seed: int,
    guessed: int | None = None,
    **arguments: Any,
) -> Stage:
    """Runs of a query set, whose queries are of a few bins each: see :func:`release_stage`."""
    queries = tuple(replace(of_bins(one, BINS), where=()) for one in query_set)
    base = replace(query_set, base=Slots.of("1h"), queries=queries)
    most = max(one.max_contributions for one in base)
    return _stage(requirements, base, arguments, BINS, most, seed, guessed, booked=False)


def _public(data: pa.Table, *given: Any, **arguments: Any) -> dict[str, Any]:
    """All that `streamveil.release` makes public of events."""
    from streamveil.pipelines.in_memory.functions import release

    found = release(data, *given, user="user", time="time", **arguments)
    return {
        "rows": found.to_arrow().to_pydict(),
        "ledger": found.ledger.to_pydict(),
        "card": found.card,
        "results": [list(one) for one in found.values()],
        "revisions": [one.revisions for one in found.values()],
        "rows of revisions": [one.revisions_to_arrow().to_pydict() for one in found.values()],
    }


def of_bins(query: Query, bins: int) -> Query:
    """The query about so many bins, each with a group of its own where it has groups."""
    if isinstance(query.statistic, TopK):
        bins = max(bins, query.statistic.k)
    labels = tuple(f"bin {number}" for number in range(bins))
    groups = Tree((tuple(f"group {number}" for number in range(bins)),))
    tree = groups if query.tree.levels else FLAT
    return replace(query, value=("bin",), domain=Categories(labels), tree=tree)


def _stage(
    requirements: Sequence[Requirement],
    queries: QuerySet | tuple[()],
    arguments: Mapping[str, Any],
    bins: int,
    most: int,
    seed: int,
    guessed: int | None,
    *,
    booked: bool,
) -> Stage:
    """A run of others alone, one of other others, and one of a user of each class besides.

    Around their windows these users come now and then in all runs: what they do there may count in
    place of what is in the window, and its slots may be parts of longer ones.
    """
    random = np.random.default_rng([seed, 912])
    key, longest = random.bytes(32), max((one.fixed_slots for one in queries), default=1)
    run: Callable[..., dict[str, Any]] = partial(
        _public,
        start=_time(0),
        end=_time(-(-LENGTH // longest) * longest),
        noise_key=key,
        **_of_users(requirements, guessed),
        **arguments,
    )
    given = (queries,) if queries else ()
    numbers = {
        one.statistic.column: _range(one.statistic)
        for one in queries
        if one.statistic.column is not None
    }
    others, strangers = (_others(len(requirements), bins, random) for _ in range(2))
    spans = [_span(asked, random) for asked in requirements]
    for k, span in enumerate(spans):
        others = others.and_also(_around(k, span, bins, random))

    def play(events: Events) -> Play:
        def played() -> Iterator[tuple[int, Any]]:
            with _silent():
                yield 0, run(events.table(numbers), *given)

        return played

    neighbours = [Neighbour("everybody", play(strangers))]
    for k, asked in enumerate(requirements):
        first, end = spans[k]
        slots = np.repeat(np.arange(first, end), most)
        mine = Events(np.full(slots.size, _last(k)), slots, random.integers(bins, size=slots.size))
        forever = isinstance(asked, Lifetime)
        where = "all slots" if forever else f"slots {first} to {end - 1}"
        whose = f"a user with {asked_of(asked)} in {where} of a whole run"

        def claims(
            published: list[Any],
            asked: Requirement = asked,
            first: int = first,
            end: int = end,
        ) -> dict[str, int]:
            found = {"the budget": int(asked.epsilon * 2**UNIT_BITS)}
            if booked:
                found["what the ledger says"] = _booked(published[0]["ledger"], asked, first, end)
            return found

        neighbours.append(Neighbour(whose, play(others.and_also(mine)), claims))
    return Stage(play(others), tuple(neighbours), what="whole runs", slots=LENGTH)


def _span(asked: Requirement, random: np.random.Generator) -> tuple[int, int]:
    """The first slot of a window, and the one after its last."""
    window = LENGTH if isinstance(asked, Lifetime) else min(asked.window, LENGTH)
    first = int(random.integers(LENGTH - window + 1))
    return first, first + window


def _last(k: int) -> int:
    """The last user of a class: the one who is there or not."""
    return (k + 1) * (OTHERS + 1) - 1


def _around(k: int, span: tuple[int, int], bins: int, random: np.random.Generator) -> Events:
    """What the last user of a class does outside of a window."""
    slots = np.flatnonzero(random.random(LENGTH) < _AROUND)
    slots = slots[(slots < span[0]) | (slots >= span[1])]
    user = np.full(slots.size, _last(k))
    return Events(user, slots, random.integers(bins, size=slots.size))


def _others(classes: int, bins: int, random: np.random.Generator) -> Events:
    """Users of all classes who come now and then, in spells, but for the last one of each."""
    users = np.arange(classes * (OTHERS + 1)).reshape(classes, -1)[:, :-1].ravel()
    spells = -(-LENGTH // _SPELL)
    often = np.repeat(random.choice(_OFTEN, spells), _SPELL)[:LENGTH]
    place = np.repeat(random.integers(bins, size=spells), _SPELL)[:LENGTH]
    slots, who = np.nonzero(random.random((LENGTH, users.size)) < often[:, None])
    gathered = random.random(slots.size) < 0.7
    at = np.where(gathered, place[slots], random.integers(bins, size=slots.size))
    return Events(users[who], slots, at)


def _of_users(requirements: Sequence[Requirement], guessed: int | None) -> dict[str, Any]:
    """The table of users, as an argument; where all have one budget for a lifetime, none."""
    if isinstance(requirements[0], Lifetime):
        return {}
    return {"requirements": _registry(requirements, guessed)}


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

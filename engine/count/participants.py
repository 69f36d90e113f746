"""Who counted, and who asks for what: all that a shard knows where presence is limited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.engine import metrics
from streamveil.engine.count.bounding import runs
from streamveil.engine.count.changes import ChangeMapper, Changes, Keys, stranger_keys
from streamveil.engine.count.event_codes import (
    MEMBERS,
    BlockCounts,
    Layout,
    ShardKey,
    Visits,
    count,
    count_layers,
    read_codes,
)
from streamveil.engine.encode.event_mapper import NO_REQUIREMENT
from streamveil.engine.messages import (
    Kind,
    Message,
    array_from_bytes,
    array_to_bytes,
    arrays_from_bytes,
    arrays_to_bytes,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.slot_clock import SlotClock
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules, keys_of, steps
from streamveil.mechanisms.presence.changing import NOTHING_ASKED, Asking, Prices
from streamveil.mechanisms.presence.counters import UNTOLD

Integers = npt.NDArray[np.int64]


def choice_message(limits: Sequence[Limit], shard: int = 0, shards: int = 1) -> Message:
    """A message with limits of windows, none of a lifetime."""
    figures = [(one.max_slots, one.blocks, one.chosen) for one in limits]
    payload = array_to_bytes(np.array(figures, np.int64).reshape(-1, 3))
    return Message(Kind.CHOICE, 0, shard, payload, shards)


def limits_from(choice: Message) -> tuple[Limit, ...]:
    """The limits in such a message."""
    rows = array_from_bytes(choice.payload).tolist()
    return tuple(Limit(most, blocks, chosen=bool(paid)) for most, blocks, paid in rows)


@dataclass(frozen=True, eq=False)
class PresenceConfig:
    """Everything the limit is made of: public, but for the key and what the mapper knows."""

    registry: Registry
    """Where requirements change, one whose classes ascend by epsilon, over the longest window."""
    layout: Layout
    limits: tuple[Limit, ...]
    """Of each class."""
    adjacency: str
    make_key: Callable[[], bytes]
    """Gives the key on a worker."""
    clock: SlotClock
    first_slot: int | None = None
    last_slot: int | None = None
    stream: str = ""
    """Key of the counts that come out."""
    change_mapper: Callable[[], ChangeMapper] | None = None
    """What makes the mapper of changes on a worker; None where no requirement changes. Then the
    first slot is known."""
    resumed: bool = False
    """Whether an earlier run released the slot before the first one: changes from before are late.
    """
    keeps: bool = True
    """Whether a shard tells, at the end of a bounded input, what a run that goes on must know."""

    def under(self, limits: tuple[Limit, ...]) -> PresenceConfig:
        """The same under other limits."""
        return replace(self, limits=limits)

    @cached_property
    def rules(self) -> Rules:
        """Of each class."""
        return Rules.of(self.limits, self.registry.classes, self.adjacency)

    @cached_property
    def key(self) -> bytes:
        """The key of the phases, which seals counters as well."""
        return self.make_key()

    def visitors(self, kind: int, visits: Visits) -> tuple[Keys, Integers]:
        """Who is there in which slots of a block, by key: shape (n,) each."""
        users, slots, _ = self.there(kind, visits)
        return keys_of(users, names_of(kind, visits)), slots

    def there(self, kind: int, visits: Visits) -> tuple[Integers, Integers, Integers]:
        """Who is there in which slots of a block, and in how many groups: shape (n,) each.

        Users are members' positions, or strangers' numbers among the visits' own.
        """
        layout, codes = self.layout, visits.codes
        starts, sizes = runs(codes // codes.dtype.type(layout.bins))  # groups stand together
        slots, users, _ = read_codes(kind, codes[starts], layout)
        return users, slots + visits.block * layout.block, sizes

    def classes_of(self, kind: int, users: Keys) -> npt.NDArray[np.int32]:
        """Class of each user by the table, shape (n,); `NOTHING_ASKED` of who is not in it."""
        if kind == MEMBERS:
            return self.registry.class_of[users]
        other = self.registry.default_class
        return np.full(len(users), NOTHING_ASKED if other is None else other, np.int32)

    def told(self, key: ShardKey, counts: BlockCounts) -> tuple[str, Message]:
        """(stream, BlockCounts)."""
        message = self.layout.message(Kind.COUNTS, counts.block, key, counts.to_bytes())
        return self.stream, message


def names_of(kind: int, visits: Visits) -> Keys | None:
    """Keys of the strangers of some visits, by number; None of members, who are their own."""
    return None if kind == MEMBERS else stranger_keys(visits.strangers)


class LimitedVisits(NamedTuple):
    """What becomes of the events of some slots."""

    counts: BlockCounts
    """Those that count, and in which layer others are."""
    beyond: int
    """Events in slots in which their users do not count."""
    homeless: dict[int, int]
    """Events of users with no requirement in force, by slot."""


def thawed_counters(kept: Message, kind: int) -> Message:
    """What a shard kept while nobody could change, as one keeps it where they can."""
    none = Changes.none(kind)
    nothing = none.slots
    asked = arrays_to_bytes(none.users, nothing, nothing, nothing, nothing)
    known = several_to_bytes(kept.payload, asked)
    return kept._replace(payload=several_to_bytes(known, none.to_bytes()))


class PresentShard:
    """The users of one kind in a shard, slot by slot; before the first slot, nobody.

    Args:
        config: what the limit is made of.
        kind: MEMBERS or STRANGERS.
    """

    def __init__(self, config: PresenceConfig, kind: int) -> None:
        self._config = config
        self._kind = kind
        nobody = Changes.none(kind).users
        self._counters = Counters(config.rules, config.key, nobody)
        self._asking = None if config.change_mapper is None else Asking(self._prices, nobody)

    @property
    def _prices(self) -> Prices:
        config = self._config
        classes = config.registry.classes
        first_slot = None if config.resumed else config.first_slot
        length = int(config.rules.lengths[0])
        class_of = partial(config.classes_of, self._kind)
        return Prices(config.key, length, classes.longest, classes.budgets, class_of, first_slot)

    @property
    def next_slot(self) -> int | None:
        """First slot that is not decided; None before the first."""
        return self._counters.next_slot

    def ask(self, said: int | Integers, changes: Changes) -> None:
        """Take changes as slots begin, of all or of each, which is from that one or earlier."""
        assert self._asking is not None
        smaller = np.minimum(changes.requirements[:, 1], changes.requirements[:, 3])
        self._asking.ask(said, changes.users, changes.slots, smaller)

    def ask_up_to(self, last: int, changes: Changes) -> Changes:
        """Take changes in the order of slots, up to the last; returns the others.

        At once those of all users that are the first of each, then the second, and so on.
        """
        assert self._config.first_slot is not None
        due, later = changes.split(last)
        said = np.maximum(due.slots, self._config.first_slot)
        order = np.lexsort((said, due.users))
        due, said = due[order], said[order]
        other = np.append(True, steps(due.users))[: len(said)]
        turns = np.cumsum(other | np.append(True, steps(said))[: len(said)])
        turns -= np.maximum.accumulate(np.where(other, turns, 0))
        for turn in range(int(turns.max(initial=-1)) + 1):
            mine = turns == turn
            self.ask(said[mine], due[mine])
        return later

    def limited(self, visits: Visits) -> LimitedVisits:
        """What becomes of the events of some slots, none of which is closed after them."""
        layout, codes = self._config.layout, visits.codes
        if not len(codes):
            class_of = self._config.registry.classes_with_other
            return LimitedVisits(count(self._kind, visits, layout, class_of), 0, {})
        users, slots, sizes = self._config.there(self._kind, visits)
        classes, layers = self._layers(users, slots, names_of(self._kind, visits))
        homeless: dict[int, int] = {}
        lost = np.flatnonzero(classes == NOTHING_ASKED)
        if len(lost):
            events = np.add.reduceat(visits.kept, np.cumsum(sizes) - sizes)[lost]
            times, at = np.unique(slots[lost], return_inverse=True)
            sums = np.bincount(at, weights=events).astype(np.int64)
            homeless = dict(zip(times.tolist(), sums.tolist(), strict=True))
        of_groups = np.repeat(layers, sizes), np.repeat(np.maximum(classes, 0), sizes)
        counts = count_layers(self._kind, visits, *of_groups, layout)
        beyond = visits.events - counts.events - sum(homeless.values())
        metrics.count(metrics.EVENTS_BEYOND_LIMIT, beyond)
        metrics.count(metrics.EVENTS_COUNTED, counts.events)
        metrics.count(metrics.REJECTED_PREFIX + NO_REQUIREMENT, sum(homeless.values()))
        return LimitedVisits(counts, beyond, homeless)

    def _layers(
        self, users: Integers, slots: Integers, names: Keys | None
    ) -> tuple[Integers, Integers]:
        """Class and layer of each visit; a class below 0 is in no layer."""
        next_slot = int(slots.max()) + 1
        if self._asking is None:
            classes = self._config.classes_of(self._kind, users).astype(np.int64)
            return classes, self._counters.layers(users, slots, classes, next_slot, names)
        classes = self._asking.classes(keys_of(users, names), slots)
        priced = classes >= 0
        layers = np.full(len(users), UNTOLD)
        some = users[priced], slots[priced], classes[priced]
        layers[priced] = self._counters.layers(*some, next_slot, names)
        return classes, layers

    def skip(self, next_slot: int) -> None:
        """No visits and changes come of slots before this one: forget what does not matter."""
        self._counters.skip(next_slot)
        if self._asking is not None:
            self._asking.forget(next_slot)

    def to_bytes(self) -> bytes:
        """All that is remembered."""
        counted = arrays_to_bytes(*self._counters.arrays())
        if self._asking is None:
            return counted
        return several_to_bytes(counted, arrays_to_bytes(*self._asking.arrays()))

    def resume(self, data: bytes) -> None:
        """Go on from what :meth:`to_bytes` gave."""
        if self._asking is not None:
            data, asked = several_from_bytes(data)
            self._asking.resume(arrays_from_bytes(asked))
        self._counters.resume(arrays_from_bytes(data))

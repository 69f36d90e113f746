"""Who counted, and who asks for what: all that a shard knows where presence is limited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.bounding import runs
from streamveil.engine.count.changes import NEVER, Changes, Keys, stranger_keys
from streamveil.engine.count.event_codes import (
    MEMBERS,
    BlockCounts,
    ShardKey,
    Visits,
    count,
    count_layers,
    read_codes,
)
from streamveil.engine.count.shards import NOTHING, ShardLogic, ShardOutput
from streamveil.engine.messages import (
    Kind,
    Message,
    arrays_from_bytes,
    arrays_to_bytes,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules, keys_of, steps
from streamveil.mechanisms.presence.changing import NOTHING_ASKED, Asking, Prices
from streamveil.mechanisms.presence.counters import IN_NO_LAYER

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.cuts import Cut


@dataclass(frozen=True, eq=False, kw_only=True)
class ParticipationLimits(ShardLogic):
    """Users count in a few slots only.

    Which slots of a user count depends on the slots before, so this comes after what is bounded
    within a slot: the user takes part in it if any event is left. Events of other slots are counted
    for the operator, and leave no other trace. Where requirements change, the registry is one whose
    classes ascend by epsilon, over the longest window.
    """

    LABEL = "presence"

    limits: tuple[Limit, ...]
    """Of each class."""
    adjacency: str
    make_key: Callable[[], bytes]
    """Gives the key on a worker."""
    requirements: Requirements | None = None
    """Of each class, in the slots that are counted; those of the registry when None."""
    cut: Cut | None = None
    """How these slots cut those of the clock and of changes; None where they are the same."""

    def shard(self, key: ShardKey) -> LimitedShard:
        """A shard before its first slot."""
        return LimitedShard(self, key)

    def under(self, limits: Sequence[Limit]) -> ParticipationLimits:
        """The same under other limits."""
        return replace(self, limits=tuple(limits))

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Of each class."""
        return self.limits

    def query(self, key: ShardKey) -> tuple[int, ParticipationLimits]:
        """All shards are of the one count."""
        return 0, self

    def visits(self, key: ShardKey, message: Message) -> Visits:
        """What a shard was sent of a block."""
        return Visits.of(message)

    @cached_property
    def rules(self) -> Rules:
        """Of each class."""
        requirements = self.requirements or self.registry.classes
        return Rules.of(self.limits, requirements, self.adjacency)

    @cached_property
    def key(self) -> bytes:
        """The key of the phases, which seals counters as well."""
        return self.make_key()

    @property
    def sealing_key(self) -> bytes:
        """The same key."""
        return self.key

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


def names_of(kind: int, visits: Visits) -> Keys | None:
    """Keys of the strangers of some visits, by number; None of members, who are their own."""
    return None if kind == MEMBERS else stranger_keys(visits.strangers)


def migrated_counters(kept: Message, kind: int) -> Message:
    """What a shard kept while nobody could change, as one keeps it where they can."""
    none = Changes.none(kind)
    nothing = none.slots
    asked = arrays_to_bytes(none.users, nothing, nothing, nothing, nothing)
    known = several_to_bytes(kept.payload, asked)
    return kept._replace(payload=several_to_bytes(known, none.to_bytes()))


class LimitedShard:
    """The users of one kind in a shard, slot by slot; before the first slot, nobody."""

    def __init__(self, logic: ParticipationLimits, key: ShardKey) -> None:
        self._logic = logic
        self._key = key
        self._kind = key[0]
        nobody = Changes.none(self._kind).users
        self._counters = Counters(logic.rules, logic.key, nobody)
        self._asking = None if logic.change_mapper is None else Asking(self._prices, nobody)

    def close(self, slot: int, visits: Message, changes: Changes) -> ShardOutput:
        """Close the next slot, and forget users whose block of slots ends with it."""
        if len(changes.users):
            self._ask(slot, changes)
        output = self._limited(Visits.of(visits))
        self._skip(slot + 1)
        return output

    def close_blocks(self, blocks: dict[int, Message], changes: Changes) -> Iterator[ShardOutput]:
        """Close all slots of a bounded input; of quiet blocks there is nothing to say."""
        for block in sorted(blocks):
            visits = Visits.of(blocks.pop(block))
            changes = self._ask_up_to((block + 1) * self._logic.layout.block - 1, changes)
            yield self._limited(visits)
            self._skip(self._counters.next_slot or 0)
        yield from self._kept(changes)

    def _kept(self, changes: Changes) -> Iterator[ShardOutput]:
        """What a resumed run needs to know after the last slot of a bounded input."""
        logic = self._logic
        if self._counters.next_slot is None and not len(changes.users):
            return
        changes = self._ask_up_to(NEVER, changes)
        if not logic.keeps:
            return
        if logic.last_slot is not None:
            self._skip(logic.last_slot + 1)
        elif self._counters.next_slot is None:
            self._skip(logic.first_slot or 0)
        yield self._state(self._counters.next_slot or 0, changes)

    def _state(self, slot: int, changes: Changes) -> ShardOutput:
        return self._logic.kept(slot, self._key, self, changes)

    @property
    def _prices(self) -> Prices:
        logic = self._logic
        classes = logic.registry.classes
        return Prices(
            logic.key,
            int(logic.rules.lengths[0]),
            (logic.requirements or classes).longest,
            classes.budgets,
            partial(logic.classes_of, self._kind),
            None if logic.resumed else logic.first_slot,
            within=logic.cut is not None,
        )

    def _ask(self, said: int | Integers, changes: Changes) -> None:
        """Take changes as slots of the clock begin, of all or of each, each from then or before."""
        assert self._asking is not None
        smaller = np.minimum(changes.requirements[:, 1], changes.requirements[:, 3])
        cut, begun, within = self._logic.cut, np.asarray(said, np.int64), np.asarray(False)
        if cut is not None:
            begun = cut.numbers(begun)
            within = cut.firsts(begun) != said
            if not self._logic.resumed:  # nothing of a slot is before the stream
                within &= said != self._range[0]
        self._asking.ask(begun, changes.users, changes.slots, smaller, within)

    @property
    def _range(self) -> tuple[int | None, int | None]:
        """First and last slot of the clock."""
        return self._logic.first_slot, self._logic.last_slot

    def _ask_up_to(self, last: int, changes: Changes) -> Changes:
        """Take changes in the order of slots of the clock, up to the last; returns the others.

        At once those of all users that are the first of each, then the second, and so on.
        """
        first, end = self._range
        if self._asking is None or (end is None and last == NEVER):
            return changes
        assert first is not None
        due, later = changes.split(last if end is None else min(last, end))
        said = np.maximum(due.slots, first)
        order = np.lexsort((said, due.users))
        due, said = due[order], said[order]
        other = np.append(True, steps(due.users))[: len(said)]
        turns = np.cumsum(other | np.append(True, steps(said))[: len(said)])
        turns -= np.maximum.accumulate(np.where(other, turns, 0))
        for turn in range(int(turns.max(initial=-1)) + 1):
            mine = turns == turn
            self._ask(said[mine], due[mine])
        return later

    def _limited(self, visits: Visits) -> ShardOutput:
        """What becomes of the events of some slots, none of which is closed after them."""
        layout, codes = self._logic.layout, visits.codes
        if not len(codes):
            class_of = self._logic.registry.classes_with_other
            return self._output(count(self._kind, visits, layout, class_of))
        users, slots, sizes = self._logic.there(self._kind, visits)
        classes, layers = self._layers(users, slots, names_of(self._kind, visits))
        no_requirement = events_in(visits, classes == NOTHING_ASKED, slots, sizes)
        of_groups = np.repeat(layers, sizes), np.repeat(np.maximum(classes, 0), sizes)
        counts = count_layers(self._kind, visits, *of_groups, layout)
        beyond = visits.events - counts.events - sum(no_requirement.values())
        return self._output(counts, beyond, no_requirement)

    def _output(
        self, counts: BlockCounts, beyond: int = 0, no_requirement: Mapping[int, int] = NOTHING
    ) -> ShardOutput:
        layout = self._logic.layout
        message = layout.message(Kind.COUNTS, counts.block, self._key, counts.to_bytes())
        return ShardOutput(message, counts.events, beyond, no_requirement)

    def _layers(
        self, users: Integers, slots: Integers, names: Keys | None
    ) -> tuple[Integers, Integers]:
        """Class and layer of each visit; a class below 0 is in no layer."""
        next_slot = int(slots.max()) + 1
        if self._asking is None:
            classes = self._logic.classes_of(self._kind, users).astype(np.int64)
            return classes, self._counters.layers(users, slots, classes, next_slot, names)
        classes = self._asking.classes(keys_of(users, names), slots)
        priced = classes >= 0
        layers = np.full(len(users), IN_NO_LAYER)
        some = users[priced], slots[priced], classes[priced]
        layers[priced] = self._counters.layers(*some, next_slot, names)
        return classes, layers

    def _skip(self, next_slot: int) -> None:
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


def events_in(visits: Visits, some: Flags, slots: Integers, sizes: Integers) -> dict[int, int]:
    """Events of some visits, by slot.

    Args:
        visits: of a block.
        some: which of the visits of a user to a slot, shape (n,).
        slots: of each.
        sizes: in how many groups the events of each stand.
    """
    if not some.any():
        return {}
    events = np.add.reduceat(visits.kept, np.cumsum(sizes) - sizes)[some]
    times, at = np.unique(slots[some], return_inverse=True)
    sums = np.bincount(at, weights=events).astype(np.int64)
    return dict(zip(times.tolist(), sums.tolist(), strict=True))

"""Who counted in which slots of each query: what a shard knows where participation is limited.

A shard is of one query. What comes of its events in the slots of that query goes on by the base
slot with which each of them ends, as without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.changes import Changes
from streamveil.engine.count.event_codes import ShardKey, Visits, read_codes
from streamveil.engine.count.participants import (
    LimitedShard,
    ParticipationLimits,
    events_in,
    names_of,
)
from streamveil.engine.count.query_counter import NOTHING, QueryLayout, add_groups
from streamveil.engine.count.shards import ShardLogic, ShardOutput
from streamveil.engine.messages import Kind, Message, arrays_to_bytes, narrow
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.kept_share import LAYERS
from streamveil.mechanisms.queries.limits import all_limits, under_limits


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryLimits(ShardLogic):
    """Users count in a few slots of each query only."""

    LABEL = "presence of queries"

    layout: QueryLayout
    presences: tuple[Presence, ...]
    """Of each query: limits of its slots."""
    make_key: Callable[[], bytes]
    """Gives the key on a worker."""

    def shard(self, key: ShardKey) -> QueryShard:
        """A shard before its first slot."""
        return QueryShard(self, key)

    def under(self, limits: Sequence[Limit]) -> QueryLimits:
        """The same under other limits, of the classes of one query after another."""
        return replace(self, presences=under_limits(self.presences, limits))

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Of the classes of one query after another."""
        return all_limits(self.presences)

    def query(self, key: ShardKey) -> tuple[int, ParticipationLimits]:
        """The number of the query that a shard is of, and its limits in slots of its own."""
        number, _ = self.layout.query(key)
        return number, self.of_query(number)

    def visits(self, key: ShardKey, message: Message) -> Visits:
        """What a shard was sent of a block, numbered as blocks of its query are."""
        block = self.layout.block_of(self.layout.query(key)[0], message.slot)
        return Visits.of(message._replace(slot=block))

    def of_query(self, number: int) -> ParticipationLimits:
        """The limits of one query in slots of its own."""
        presence, cut = self.presences[number], self.layout.query_set.queries[number].cut
        return ParticipationLimits(
            registry=self.registry,
            layout=self.layout.queries[number],
            clock=self.clock,
            first_slot=None if self.first_slot is None else cut.of(self.first_slot),
            last_slot=None if self.last_slot is None else cut.of(self.last_slot + 1) - 1,
            stream=self.stream,
            keeps=self.keeps,
            resumed=self.resumed,
            change_mapper=self.change_mapper,
            limits=presence.limits,
            requirements=presence.requirements,
            cut=cut if cut.longest > 1 else None,
            adjacency=presence.adjacency,
            make_key=self.make_key,
        )

    @property
    def sealing_key(self) -> bytes:
        """The key of the phases, which seals counters as well."""
        return self.make_key()


class _Cells(NamedTuple):
    """Cells of the histograms of a block, by slot, class and cell of the measure."""

    cells: Integers
    values: Integers


class QueryShard(LimitedShard):
    """The users of one kind in a shard of a query, slot by slot; before the first slot, nobody."""

    def __init__(self, logic: QueryLimits, key: ShardKey) -> None:
        self._number, self._query = logic.layout.query(key)
        self._of_queries = logic
        super().__init__(logic.of_query(self._number), key)

    def close(self, slot: int, visits: Message, changes: Changes) -> ShardOutput:
        """Close the next base slot; a slot of the query may end with it."""
        query, changed = self._query, len(changes.users) > 0
        if changed:
            self._ask(slot, changes)
            self._skip(query.cut.of(slot))
        if not query.cut.due(slot):
            return ShardOutput(self._message(slot, NOTHING), changed=changed)
        block = query.cut.of(slot)  # of one slot
        (output,) = self._closed(Visits.of(visits._replace(slot=block)))
        self._skip(block + 1)
        return output

    def close_blocks(self, blocks: dict[int, Message], changes: Changes) -> Iterator[ShardOutput]:
        """Close all slots of a bounded input."""
        for called in sorted(blocks):
            changes = self._ask_up_to(called, changes)
            yield from self._closed(self._of_queries.visits(self._key, blocks.pop(called)))
            self._skip(self._counters.next_slot or 0)
        yield from self._kept(changes)

    @property
    def _range(self) -> tuple[int | None, int | None]:
        return self._of_queries.first_slot, self._of_queries.last_slot

    def _state(self, slot: int, changes: Changes) -> ShardOutput:
        return self._of_queries.kept(slot, self._key, self, changes)

    def _closed(self, visits: Visits) -> list[ShardOutput]:
        """What becomes of the events of some slots of the query, none of which is closed."""
        layout, measure = self._logic.layout, self._of_queries.layout.measures[self._number]
        size = layout.classes * measure.size
        layers: list[_Cells] = []
        counted, no_requirement = 0, dict[int, int]()
        if len(visits.codes):
            users, slots, sizes = self._logic.there(self._kind, visits)
            found = self._layers(users, slots, names_of(self._kind, visits))
            nowhere = events_in(visits, found[0] < 0, slots, sizes)
            no_requirement = {self._query.cut.last(slot): n for slot, n in nowhere.items()}
            classes, layer = (np.repeat(one, sizes) for one in found)
            counted = int(visits.kept[layer == 0].sum())
            layers = [self._cells(visits, classes, layer == one) for one in range(LAYERS + 1)]
        busy = np.unique(np.concatenate([one.cells // size for one in layers])) if layers else ()
        messages = [
            self._message(
                self._query.cut.last(visits.block * layout.block + int(slot)),
                _payload(layers, int(slot), size),
            )
            for slot in busy
        ]
        if not messages:
            last = self._of_queries.layout.called(self._number, visits.block)
            messages = [self._message(last, NOTHING)]
        as_mapped = self._of_queries.layout.as_mapped
        outputs = [
            ShardOutput(message, of_query=self._query.name, as_mapped=as_mapped)
            for message in messages
        ]
        beyond = visits.events - counted - sum(no_requirement.values())
        outputs[0] = outputs[0]._replace(
            counted=counted, beyond_limit=beyond, no_requirement=no_requirement
        )
        return outputs

    def _cells(self, visits: Visits, classes: Integers, some: npt.NDArray[np.bool_]) -> _Cells:
        """What some groups of events add to the histograms of a block."""
        layout, measure = self._logic.layout, self._of_queries.layout.measures[self._number]
        rows = np.flatnonzero(some)
        if not len(rows):
            return _Cells(*np.zeros((2, 0), np.int64))
        slots, _, fine = read_codes(self._kind, visits.codes[rows], layout)
        table = np.zeros((layout.block * layout.classes, measure.size), np.int64)
        add_groups(slots, classes[rows], fine, visits.kept[rows], layout, measure, table)
        filled = np.flatnonzero(table)
        return _Cells(filled, table.reshape(-1)[filled])

    def _message(self, base_slot: int, payload: bytes) -> Message:
        return self._of_queries.layout.message(Kind.COUNTS, base_slot, self._key, payload)


def _payload(layers: list[_Cells], slot: int, size: int) -> bytes:
    """Of a slot of a block: cells that count and their values, then the same of what does not.

    Cells of layer l are (l - 1) times the cells of all classes further.
    """
    mine = []
    for cells, values in layers:
        here = cells // size == slot
        mine.append((cells[here] - slot * size, values[here]))
    above = [(cells + layer * size, values) for layer, (cells, values) in enumerate(mine[1:])]
    beyond = (np.concatenate(each) for each in zip(*above, strict=True))
    return arrays_to_bytes(*map(narrow, (*mine[0], *beyond)))

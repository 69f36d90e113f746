"""Discovery of keys in an unbounded input, which makes one pass for each base slot.

The list of keys in a base slot depends on all events of earlier discovery slots, so the events of a
slot can be counted only after all earlier slots are closed. All events of a slot therefore go to
one worker. It waits for the earlier slots, and then discovers keys, counts and releases, as a run
with a saved state does in each pass (`discover.py`). The state after a pass is the state of the
stream, so all results are the same, byte for byte, as in passes of any length.

The event accounting of mapped events is not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.count.counter import BlockKey, Counter
from streamveil.engine.count.event_codes import Layout, ShardKey
from streamveil.engine.encode.dead_letters import late_slots
from streamveil.engine.encode.query_mapper import QueriesMapper, QueryEvents, with_queries
from streamveil.engine.messages import (
    LEDGER,
    STATE,
    Kind,
    Message,
    Output,
    batch_from_bytes,
    batch_to_bytes,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.run.discover import discover_keys
from streamveil.engine.run.release import release_plan
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.queries.discovered import before_discovery

_KEPT = (metrics.SLOTS_PREFIX, metrics.EVENTS_BOUNDED_AWAY, metrics.BOUNDS_PREFIX)
"""The part of the event accounting that is not known where events are mapped."""


def steps_one_by_one(plan: QueryPlan, *, lateness: int = 0) -> Steps:
    """How the events of an unbounded input become results, slot by slot.

    Args:
        plan: what is released. Discovered keys are listed while the stream runs.
        lateness: how long a slot stays open, in microseconds.
    """
    plan.check(bounded=False)
    resume, begun = plan.resume, plan.first_slot if plan.resume is None else plan.stream_start
    # Each pass takes the keys that are listed from the state before it.
    asked = before_discovery(plan.query_set)
    plan = replace(plan, query_set=asked, resume=None, discovery=b"", stream_start=begun)
    clock = SlotClock(plan.slots, lateness)
    layout = OneShard(1, 1, len(plan.known.classes), 1, 1)
    counter = SlotCounter(
        plan.known,
        layout,
        plan.bounding,
        QUERIES,
        by_user=False,
        max_rejected=plan.max_rejected,
        pack=_packed,
        plan=plan,
    )
    return Steps(
        stream=QUERIES,
        bounded=False,
        layout=layout,
        clock=clock,
        first_slot=plan.first_slot,
        last_slot=plan.last_slot,
        make_mapper=partial(SlotMapper, plan),
        counter=counter,
        config=ReleaseConfig(
            partial(one_driver, PassDriver(plan)),
            clock,
            _told,
            plan.first_slot,
            plan.last_slot,
            resume,
        ),
    )


class OneShard(Layout):
    """All events of a slot in one part."""

    @property
    def parts(self) -> int:
        """Members and all others together."""
        return 1


class MappedSlots(NamedTuple):
    """The mapped rows of a batch."""

    events: Sequence[QueryEvents]
    """The columns that each query reads."""
    by_slot: Mapping[int, pa.RecordBatch]
    """Its rows by base slot."""


class SlotMapper:
    """Splits batches by base slot, and reports lost events as :class:`QueriesMapper` does."""

    def __init__(self, plan: QueryPlan) -> None:
        self._mapper: QueriesMapper = plan.event_mapper()
        self._names = plan.columns.names

    @property
    def slots(self) -> Any:
        """Base slots."""
        return self._mapper.slots

    def map(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[MappedSlots, pa.RecordBatch]:
        """The rows of each base slot, and dead letters."""
        events, rejected = self._mapper.map(batch, latest)
        rows = self._mapper.by_slot(batch, latest)
        by_slot = {slot: some.select(self._names) for slot, some in rows}
        return MappedSlots(events, by_slot), rejected


class _PackedRows(NamedTuple):
    """Rows of a slot, to shuffle."""

    rows: pa.RecordBatch

    def to_bytes(self) -> bytes:
        """As a stream of Arrow."""
        return batch_to_bytes(self.rows)


def _packed(
    mapped: MappedSlots, layout: Layout, bounding: Any
) -> Iterator[tuple[int, ShardKey, Any, int]]:
    for slot, rows in mapped.by_slot.items():
        yield slot, (0, 0), _PackedRows(rows), 0


class SlotRows(NamedTuple):
    """All events of a slot that arrived."""

    parts: list[bytes]
    """Rows, in an order that does not depend on the order of their arrival."""
    kept: npt.NDArray[np.int64]
    """How many rows each part has."""
    dropped: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotCounter(Counter):
    """Collects the events of a slot, and passes all of them on."""

    plan: QueryPlan

    def bound(self, key: BlockKey, messages: Iterable[Message]) -> Any:
        """All events. The pass decides which of them are kept."""
        parts = sorted(message.payload for message in messages)
        return SlotRows(
            parts, np.array([batch_from_bytes(part).num_rows for part in parts], np.int64)
        )

    def tally(self, key: BlockKey, visits: Any, messages: int) -> EventTally:
        """The number of messages only, because events are counted where they are mapped."""
        return EventTally(messages=messages)

    def by_query(self, tally: EventTally, events: MappedSlots) -> EventTally:
        """The tally of mapped events, with what each query could read."""
        return with_queries(tally, self.plan.query_set, events.events)

    def told(self, key: BlockKey, visits: Any) -> Sequence[tuple[Any, Message]]:
        """(stream, all events of the slot)."""
        payload = several_to_bytes(*visits.parts)
        return [(self.stream, self.layout.message(Kind.COUNTS, key[2], key[:2], payload))]

    def late(self, key: BlockKey, events: int) -> pa.RecordBatch:
        """Dead letters for events of a slot that was closed."""
        return late_slots({key[2]: events})


class PassState(NamedTuple):
    """The state after the last pass."""

    saved: bytes
    """The state for the next one; empty before the first one."""
    next_slot: int | None


@dataclass(frozen=True)
class PassDriver:
    """Makes one pass for each base slot."""

    plan: QueryPlan

    def make(self) -> PassDriver:
        """Itself."""
        return self

    @property
    def parts(self) -> int:
        """All events of a slot come at once."""
        return 1

    @property
    def quiet(self) -> list[pa.RecordBatch]:
        """The input for a slot without events."""
        return []

    def start(self) -> PassState:
        """Before the first base slot."""
        return PassState(b"", None)

    def encode(self, state: PassState) -> bytes:
        """Bytes of the state, as those of a run over a saved state."""
        return state.saved

    def decode(self, data: bytes) -> PassState:
        """State of bytes. Raises ConfigurationError for bytes that were changed."""
        return PassState(data, self.plan.next_slot(data))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """A base slot with its events."""
        rows = [batch_from_bytes(one) for part in parts for one in several_from_bytes(part.payload)]
        yield block, rows

    def next_slot(self, state: PassState) -> int | None:
        """The base slot that comes next."""
        return state.next_slot

    def release(
        self, state: PassState, slot: int, events: list[pa.RecordBatch]
    ) -> tuple[PassState, list[Output]]:
        """Discover keys up to a base slot, and release the slots that end with it."""
        plan = self.plan
        due = replace(
            plan,
            first_slot=slot,
            last_slot=slot,
            resume=state.saved or None,
            ends=plan.ends and slot == plan.last_slot,
            may_be_empty=True,
            max_rejected=1.0,
        )
        with metrics.counting() as counted:
            outputs = list(release_plan(discover_keys(due, events), events))
        for name, number in counted.counters.items():
            if name.startswith(_KEPT):
                metrics.count(name, number)
        for name, largest in counted.largest.items():
            metrics.observe(name, largest)
        # The last slot leaves no state if it cuts slots of queries off.
        saved = [one.value[1] for one in outputs if one.tag == STATE] or [state.saved]
        told = [one for one in outputs if one.tag in (None, LEDGER)]
        return PassState(saved[0], slot + 1), told


def _told(
    driver: PassDriver, state: PassState, slot: int, released: list[Output], at: int
) -> Iterator[Output]:
    """The results of a pass, and what they cost."""
    for one in released:
        yield one._replace(at=at)

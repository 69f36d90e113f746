"""Discovery of keys in an input of several discovery slots, which makes one pass after the other.

The list of keys in a base slot depends on all events and results of earlier discovery slots, so the
events of a slot can be counted only after all earlier slots are closed. All events of a slot
therefore go to one worker. It waits for the earlier slots, and then discovers keys, counts and
releases, as a run with a saved state does in each pass (`discover.py`). The state after a pass is
the state of the stream, so all results are the same, byte for byte, as in passes of any length. In
an unbounded input, each base slot is a pass. In a bounded one, a pass ends with a discovery slot.

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
from streamveil.engine.count.bounds_choice import bounds_from
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
from streamveil.engine.run.discover import discover_keys, with_allowed_keys
from streamveil.engine.run.gathered import Batches, Gathered
from streamveil.engine.run.release import choose_bounds, release_plan
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.query_driver import tell_bounds
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.queries.bounds import are_known, with_bounds
from streamveil.mechanisms.queries.discovered import before_discovery

_KEPT = (metrics.SLOTS_PREFIX, metrics.EVENTS_BOUNDED_AWAY, metrics.BOUNDS_PREFIX)
"""Counters of which the steps that map events know nothing."""
_COUNTED = (metrics.EVENTS_COUNTED, metrics.EVENTS_UNASKED)
"""Counters that passes over a bounded input report in place of the steps that map events."""


def steps_one_by_one(plan: QueryPlan, *, lateness: int = 0) -> Steps:
    """How the events of an unbounded input become results, slot by slot.

    Args:
        plan: what is released. Discovered keys are listed while the stream runs.
        lateness: how long a slot stays open, in microseconds.
    """
    plan.check(bounded=False)
    resume = plan.resume
    plan = _of_stream(plan)
    clock = SlotClock(plan.slots, lateness)
    counter = _counter(plan, in_passes=False)
    return Steps(
        stream=QUERIES,
        bounded=False,
        layout=counter.layout,
        clock=clock,
        first_slot=plan.first_slot,
        last_slot=plan.last_slot,
        make_mapper=partial(SlotMapper, plan),
        counter=counter,
        config=ReleaseConfig(
            partial(one_driver, PassDriver(plan)),
            clock,
            _with_time,
            plan.first_slot,
            plan.last_slot,
            resume,
        ),
    )


def release_by_discovery_slot(plan: QueryPlan, events: Batches) -> Iterator[Output]:
    """Release a part of a stream that several discovery slots meet.

    Args:
        plan: what is released. It has a range.
        events: all batches of the part. All their rows are kept in memory until they are counted.

    Yields:
        What `release_plan` does, for the same plan.
    """
    resume, ends = plan.resume, tuple(plan.discovery_ranges)
    keeps, plan = plan.keeps_state, _of_stream(plan)
    run = Gathered(plan, _counter(plan, in_passes=True), QUERIES)
    if not are_known(plan.query_set):
        looking = with_allowed_keys(plan)
        choice = looking.bounds_choice(looking)
        assert choice is not None
        _, events = choose_bounds(run, choice, events)
    yield from run.map_events(SlotMapper(plan, ends), events)
    yield from run.count()
    config = ReleaseConfig(
        partial(one_driver, PassDriver(plan, ends)),
        SlotClock(plan.slots, 0),
        _released,
        plan.first_slot,
        plan.last_slot,
        resume,
        keeps=keeps,
        tells_booked=True,
        passed=PassDriver.passed,
    )
    yield from run.release(config, plan.first_slot, plan.last_slot)


def _of_stream(plan: QueryPlan) -> QueryPlan:
    """A plan from which passes are made. Each takes the listed keys from the state before it."""
    asked = before_discovery(plan.query_set)
    begun = plan.first_slot if plan.resume is None else plan.stream_start
    return replace(plan, query_set=asked, resume=None, discovery=b"", stream_start=begun)


def _counter(plan: QueryPlan, *, in_passes: bool) -> SlotCounter:
    return SlotCounter(
        plan.known,
        OneShard(1, 1, len(plan.known.classes), 1, 1),
        plan.bounding,
        QUERIES,
        by_user=False,
        max_rejected=plan.max_rejected,
        pack=_packed,
        plan=plan,
        in_passes=in_passes,
    )


class OneShard(Layout):
    """All events of a slot in one part."""

    @property
    def parts(self) -> int:
        """Registered and unregistered users together."""
        return 1


class MappedSlots(NamedTuple):
    """The mapped rows of a batch."""

    events: Sequence[QueryEvents]
    """The columns that each query reads."""
    by_slot: Mapping[int, pa.RecordBatch]
    """Its rows by the last base slot of their pass."""


class SlotMapper:
    """Splits batches by pass, and reports lost events as :class:`QueriesMapper` does.

    Args:
        plan: what is released.
        ends: last base slot of each pass; empty if each base slot is one.
    """

    def __init__(self, plan: QueryPlan, ends: Sequence[int] = ()) -> None:
        self._mapper: QueriesMapper = plan.trial_mapper()  # the first pass may choose bounds
        self._names = plan.columns.names
        self._ends = ends

    @property
    def slots(self) -> Any:
        """Base slots."""
        return self._mapper.slots

    def map(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[MappedSlots, pa.RecordBatch]:
        """The rows of each pass, and dead letters."""
        events, rejected = self._mapper.map(batch, latest)
        rows = self._mapper.by_slot(batch, latest, self._ends)
        by_slot = {slot: some.select(self._names) for slot, some in rows}
        return MappedSlots(events, by_slot), rejected


class _PackedRows(NamedTuple):
    """Rows of a pass, to shuffle."""

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
    """All events of a pass that arrived."""

    parts: list[bytes]
    """Rows, in an order that does not depend on the order of their arrival."""
    kept: npt.NDArray[np.int64]
    """How many rows each part has."""
    dropped: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotCounter(Counter):
    """Collects the events of a slot, and passes all of them on."""

    plan: QueryPlan
    in_passes: bool
    """Whether passes report how many events are counted."""

    def bound(self, key: BlockKey, messages: Iterable[Message]) -> Any:
        """Keep all events here, because contribution bounding is done in the pass."""
        parts = sorted(message.payload for message in messages)
        return SlotRows(
            parts, np.array([batch_from_bytes(part).num_rows for part in parts], np.int64)
        )

    def tally(self, key: BlockKey, visits: Any, messages: int) -> EventTally:
        """The number of messages only, because events are counted where they are mapped."""
        return EventTally(messages=messages)

    def by_query(self, tally: EventTally, events: MappedSlots) -> EventTally:
        """The tally of mapped events, with what each query could read."""
        found = with_queries(tally, self.plan.query_set, events.events)
        return replace(found, counted=0) if self.in_passes else found

    def messages(self, key: BlockKey, visits: Any) -> Sequence[tuple[Any, Message]]:
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
    """Makes one pass after the other."""

    plan: QueryPlan
    ends: tuple[int, ...] = ()
    """As of :class:`SlotMapper`."""

    def make(self) -> PassDriver:
        """Itself."""
        return self

    def chosen(self, choice: Message) -> PassDriver:
        """The same under bounds that were chosen from the events of all passes."""
        query_set = with_bounds(self.plan.query_set, bounds_from(choice.payload))
        return replace(self, plan=replace(self.plan, query_set=query_set))

    def tell_chosen(self) -> None:
        """Say which bounds were chosen."""
        tell_bounds(self.plan.query_set, test_mode=self.plan.test_mode)

    @property
    def parts(self) -> int:
        """All events of a slot come at once."""
        return 1

    @property
    def quiet(self) -> list[pa.RecordBatch]:
        """The batches of a slot without events: none."""
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
        """The last base slot of a pass with its events."""
        rows = [batch_from_bytes(one) for part in parts for one in several_from_bytes(part.payload)]
        yield block, rows

    def next_slot(self, state: PassState) -> int | None:
        """The base slot that comes next."""
        return state.next_slot

    def passed(self, start: int, stop: int) -> Iterator[int]:
        """The base slots without events with which a pass ends."""
        return (end for end in self.ends if start <= end < stop)

    def release(
        self, state: PassState, slot: int, events: list[pa.RecordBatch]
    ) -> tuple[PassState, list[Output]]:
        """Discover keys up to a base slot, and release the slots that end with it or before."""
        plan = self.plan
        due = replace(
            plan,
            first_slot=plan.first_slot if state.next_slot is None else state.next_slot,
            last_slot=slot,
            resume=state.saved or None,
            ends=plan.ends and slot == plan.last_slot,
            may_be_empty=True,
            max_rejected=1.0,
        )
        with metrics.counting() as counted:
            outputs = list(release_plan(discover_keys(due, events), events))
        kept = (*_KEPT, *(_COUNTED if self.ends else ()))
        for name, number in counted.counters.items():
            if name.startswith(kept):
                metrics.count(name, number)
        for name, largest in counted.largest.items():
            metrics.observe(name, largest)
        # The last slot leaves no state if it cuts slots of queries off.
        saved = [one.value[1] for one in outputs if one.tag == STATE] or [state.saved]
        published = [one for one in outputs if one.tag in (None, LEDGER)]
        return PassState(saved[0], slot + 1), published


def _with_time(
    driver: PassDriver, state: PassState, slot: int, released: list[Output], at: int
) -> Iterator[Output]:
    """The results of a pass, and what they cost."""
    for one in released:
        yield one._replace(at=at)


def _released(
    driver: PassDriver, state: PassState, slot: int, released: list[Output], at: int
) -> Iterator[Output]:
    """The results of a pass over several base slots, each with the event time of its own."""
    yield from released

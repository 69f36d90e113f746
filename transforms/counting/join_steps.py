"""The two ways to join a shard's changes with its events: at the end of both, and in event time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue

from streamveil.mechanisms.core.event_tallies import EventTally, Lost
from streamveil.mechanisms.core.seal import seal, unseal
from streamveil.mechanisms.core.user_table import Registry
from streamveil.transforms import metrics
from streamveil.transforms.columns.dead_letters import rejected_slots
from streamveil.transforms.columns.event_mapper import NO_REQUIREMENT
from streamveil.transforms.counting.bounding import runs
from streamveil.transforms.counting.changes import (
    NEVER,
    ChangeMapper,
    Changes,
    Integers,
    Keys,
    changes_from_bytes,
    changes_to_bytes,
    stranger_keys,
)
from streamveil.transforms.counting.cohorts import Cohorts, CohortState
from streamveil.transforms.counting.event_codes import (
    MEMBERS,
    Layout,
    read_codes,
)
from streamveil.transforms.counting.loss_limit import TALLIES
from streamveil.transforms.messages import (
    Part,
    arrays_from_bytes,
    arrays_to_bytes,
    block_of,
    kept_to_bytes,
    part_to_bytes,
    shard_counts_to_bytes,
    visits_from_bytes,
)
from streamveil.transforms.slots.arrivals import contradiction
from streamveil.transforms.slots.clock import Clock
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

REJECTED = "rejected"

VISITS, CHANGES, KEPT = b"v", b"c", b"k"

_MOVED = struct.Struct("<q")

ShardKey = tuple[int, int]


@dataclass(frozen=True, eq=False)
class JoinConfig:
    """Everything the join is made of: public, but for what the mapper knows."""

    registry: Registry
    clock: Clock
    layout: Layout
    change_mapper: Callable[[], ChangeMapper]
    """What makes the mapper on a worker: it holds a secret."""
    longest_window: int
    first_slot: int
    """First slot to release: changes from before are in force from the start."""
    last_slot: int | None = None
    stream: str = ""
    """Key of the counts that come out."""
    keeps: bool = False
    """Whether shards of a bounded input tell last what the run that goes on needs to know: who is
    in which cohort, and the changes from slots after the last one."""
    resumed: bool = False
    """Whether an earlier run released the slot before the first one: changes from before are late.
    """

    @cached_property
    def _classes(self) -> Integers:
        """What the classes ask for, as in `Moves`."""
        return self.registry.classes.as_changing

    def cohorts(self, key: ShardKey) -> Cohorts:
        """The cohorts of a shard."""
        kind, shard = key
        return Cohorts(
            kind,
            self.layout.part(kind, shard),
            self.layout.parts,
            self._classes,
            self.registry.class_of,
            self.registry.default_class,
            self.longest_window,
            self.layout.bins,
        )


@dataclass(frozen=True, eq=False)
class _Busy:
    """Bounded events of one kind of users in one slot; all arrays of shape (n,)."""

    slot: int
    users: Keys
    bins: Integers
    kept: Integers


def _busy_slots(kind: int, data: bytes, layout: Layout) -> Iterator[_Busy]:
    """Slots of a block with events, in order."""
    visits = visits_from_bytes(data)
    slots, users, bins = read_codes(kind, visits.codes, layout)
    keys = users if kind == MEMBERS else stranger_keys(users)
    order = np.argsort(slots, kind="stable")
    starts, lengths = runs(slots[order])
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        rows = order[start : start + length]
        slot = visits.block * layout.block + int(slots[rows[0]])
        yield _Busy(slot, keys[rows], bins[rows], visits.kept[rows])


def _close(
    config: JoinConfig,
    cohorts: Cohorts,
    state: CohortState,
    slot: int,
    changes: Changes,
    busy: list[_Busy],
) -> tuple[CohortState, list[Any], EventTally]:
    """The shard's state in a slot, what it tells of it, always one message, and a tally."""
    state, moves = cohorts.move(state, slot, changes)
    nothing = np.zeros(0, np.int64)
    users, bins, kept = (
        np.concatenate([getattr(one, name) for one in busy]) if busy else nothing
        for name in ("users", "bins", "kept")
    )
    counts, homeless = cohorts.count(state, slot, moves, users, bins, kept)
    at = config.clock.closing(slot)
    counted = int(counts.counts.sum())
    metrics.count(metrics.EVENTS_COUNTED, counted)
    lost = {}
    part = Part(slot, counts.shard, config.layout.parts)
    told = config.stream, part_to_bytes(part, shard_counts_to_bytes(counts))
    outputs: list[Any] = [TimestampedValue(told, at)]
    if homeless:
        metrics.count(metrics.REJECTED_PREFIX + NO_REQUIREMENT, homeless)
        detail = "slot {slot}: these events are of users with no requirement in force"
        letters = rejected_slots(NO_REQUIREMENT, detail, {slot: homeless})
        outputs.append(beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, at)))
        lost[NO_REQUIREMENT] = Lost(homeless, detail=detail.format(slot=slot))
    return state, outputs, EventTally(lost=lost, counted=counted)


class _JoinAtEndFn(beam.DoFn):
    """All visits and changes of a shard to its counts, slot by slot; on the side tallies."""

    def __init__(self, config: JoinConfig) -> None:
        self._config = config

    def process(self, element: tuple[ShardKey, Iterable[bytes]]) -> Iterator[Any]:
        config, (key, messages) = self._config, element
        cohorts = config.cohorts(key)
        state = cohorts.start()
        blocks: dict[int, bytes] = {}
        asked = [cohorts.no_changes()]
        for message in messages:
            data = message[1:]
            if message[:1] == VISITS:
                blocks[block_of(data)] = data
            elif message[:1] == KEPT:
                written, waiting = arrays_from_bytes(data)
                state = cohorts.decode(written.tobytes())
                asked.append(changes_from_bytes(waiting.tobytes()))
            else:
                asked.append(changes_from_bytes(data))
        changes = Changes.joined(asked)
        if config.resumed:
            metrics.count(metrics.CHANGES_LATE, int((changes.slots < config.first_slot).sum()))
        events = chain.from_iterable(
            _busy_slots(key[0], blocks.pop(block), config.layout) for block in sorted(blocks)
        )
        busy = next(events, None)
        while True:
            slot = min(
                max(changes.first, config.first_slot),
                NEVER if busy is None else busy.slot,
                cohorts.next_forgotten(state),
            )
            if slot == NEVER or (config.last_slot is not None and slot > config.last_slot):
                break
            due, changes = changes.split(slot)
            there = [busy] if busy is not None and busy.slot == slot else []
            if there:
                busy = next(events, None)
            state, outputs, tally = _close(config, cohorts, state, slot, due, there)
            yield from outputs
            if there:
                yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())
        if config.keeps and (state.made or len(changes.users)):
            parts = (cohorts.encode(state), changes_to_bytes(changes))
            kept = arrays_to_bytes(*(np.frombuffer(part, np.uint8) for part in parts))
            yield config.stream, kept_to_bytes(key, kept)


class _Progress(NamedTuple):
    """Where a shard stands; slots, `NEVER` where nothing waits."""

    next_slot: int
    """First slot that is not closed."""
    busy: int = NEVER
    """First slot with visits that wait."""
    changes: int = NEVER
    """First slot with changes that wait."""
    visits: int = 0
    """Visits that wait."""
    asked: int = 0
    """Messages of changes that wait."""
    moved: int | None = None
    """Slot in which the cohorts were last written; None before."""


class _JoinInTimeFn(Fenced):
    """Closes the slots of a shard one by one, in event time, and tells each, quiet or not.

    The step that follows cannot rely on its clock to have all of a slot: some runners let the
    timers of two steps overtake each other. So it is told by every shard.

    Input: ((kind, shard), visits or changes as bytes), in any order; visits of every slot, once,
    perhaps none, in blocks of one slot. Those that come again are dropped, or fail the stage if
    they differ and their slot is not closed: see `arrivals.py`. State, per shard: the visits and
    the changes that wait; how far it is, in the cell that is fenced; and the slot in which its
    cohorts were written with them as bytes, sealed: whose budget pays hangs on them.

    Timer `close`, in event time, armed by `process` and by itself when there are visits of the
    next slot: it waits for the slot's closing time, which the visits have seen and the changes may
    not. Changes alone arm nothing, so a stream that is drained comes to its end.
    """

    EVENTS = BagStateSpec("events", BytesCoder())
    ASKED = BagStateSpec("asked", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    COHORTS = ReadModifyWriteStateSpec("cohorts", BytesCoder())
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, config: JoinConfig) -> None:
        self._config = config
        self._fence = Fence()

    def setup(self) -> None:
        self._sealing_key = self._config.change_mapper().stranger_key

    def process(
        self,
        element: tuple[ShardKey, bytes],
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        progress = self._fence.cell(element[0], progress)
        at = self._read(progress)
        tag, data = element[1][:1], element[1][1:]
        if tag == CHANGES:
            asked = changes_from_bytes(data)
            if at.next_slot > self._config.first_slot:
                metrics.count(metrics.CHANGES_LATE, int((asked.slots < at.next_slot).sum()))
            changes.add(data)
            at = at._replace(changes=min(at.changes, asked.first), asked=at.asked + 1)
        elif block_of(data) < at.next_slot:
            metrics.count(metrics.PARTS_AFTER_RELEASE, 1)
            return
        else:
            visits.add(data)
            at = at._replace(busy=min(at.busy, block_of(data)), visits=at.visits + 1)
        self._write(progress, close, at)

    def _read(self, progress: Any) -> _Progress:
        return _Progress(*(progress.read() or (self._config.first_slot,)))

    def _write(self, progress: Any, close: Any, at: _Progress) -> None:
        progress.write(tuple(at))
        if at.busy == at.next_slot:
            close.set(self._config.clock.closing(at.next_slot))

    @on_timer(CLOSE)
    def _close_slot(
        self,
        key: Any = beam.DoFn.KeyParam,
        visits: Any = beam.DoFn.StateParam(EVENTS),
        changes: Any = beam.DoFn.StateParam(ASKED),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        cohorts: Any = beam.DoFn.StateParam(COHORTS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(key, progress)
        config, at = self._config, self._read(progress)
        slot, mine = at.next_slot, config.cohorts(key)
        written, purpose = cohorts.read() or b"", b"cohorts %d %d" % tuple(key)
        moved = _MOVED.unpack_from(written)[0] if written else None
        if moved != at.moved:
            raise went_back(f"cohorts of slot {moved} are read, and slot {at.moved} wrote some")
        state = mine.start()
        if written:
            state = mine.decode(unseal(self._sealing_key, purpose, written[_MOVED.size :]))
        due, busy = mine.no_changes(), []
        if at.changes <= slot:
            asked = list(map(changes_from_bytes, changes.read()))
            _check_waiting("changes", len(asked), at.asked)
            due, rest = Changes.joined(asked).split(slot)
            changes.clear()
            if len(rest.users):
                changes.add(changes_to_bytes(rest))
            at = at._replace(changes=rest.first, asked=int(len(rest.users) > 0))
        if at.busy <= slot:
            waiting = list(visits.read())
            _check_waiting("visits", len(waiting), at.visits)
            visits.clear()
            later = [data for data in waiting if block_of(data) > slot]
            for data in later:
                visits.add(data)
            at = at._replace(busy=min(map(block_of, later), default=NEVER), visits=len(later))
            there = [data for data in waiting if block_of(data) == slot]
            if len(set(there)) > 1:
                number, parts = config.layout.part(*key), config.layout.parts
                raise contradiction(Part(slot, number, parts))
            metrics.count(metrics.PARTS_REPEATED, len(there) - 1)
            busy = list(_busy_slots(key[0], there[0], config.layout)) if there else []
        moves = len(due.users) > 0 or mine.next_forgotten(state) <= slot
        state, outputs, _ = _close(config, mine, state, slot, due, busy)
        if moves:
            sealed = seal(self._sealing_key, purpose, mine.encode(state))
            cohorts.write(_MOVED.pack(slot) + sealed)
            at = at._replace(moved=slot)
        self._write(progress, close, at._replace(next_slot=slot + 1))
        yield from outputs


def _check_waiting(what: str, there: int, came: int) -> None:
    """Raise StateWentBack where not all waits that came."""
    if there != came:
        raise went_back(f"{there} messages of {what} wait where {came} came")

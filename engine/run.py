"""A bounded input here and now: record batches in, private releases out, without a runner.

The steps are those that a pipeline has, so with the same noise key the releases, the ledger and the
state are the same.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from streamveil.engine.count.bounds_choice import BOUNDS, BoundsChoice
from streamveil.engine.count.changes import map_changes
from streamveil.engine.count.counter import (
    BlockKey,
    Counter,
    Maps,
    count_block,
    map_batch,
    warn_of_range,
)
from streamveil.engine.count.limit_choice import FOR_STREAM, LimitChoice
from streamveil.engine.count.loss_limit import LossLimit, Reads
from streamveil.engine.count.shards import ShardLogic, close_at_end
from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.encode.query_mapper import slices_of
from streamveil.engine.messages import (
    DONE,
    REJECTED,
    STATE,
    TALLIES,
    Kind,
    Message,
    Output,
    array_to_bytes,
)
from streamveil.engine.per_record.mapper import PaneKey
from streamveil.engine.per_record.plan import Plan, added
from streamveil.engine.side_by_side import side_by_side
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.histogram_plan import HISTOGRAMS, HistogramPlan
from streamveil.engine.stream.local_plan import LOCAL, LocalPlan, slots_sent
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan
from streamveil.engine.stream.release_slots import ReleaseConfig, release_at_end
from streamveil.mechanisms.core.event_tallies import EventTally, sum_bytes

Batches = Iterable[pa.RecordBatch]


def release_histograms(
    plan: HistogramPlan, events: Batches, changes: Batches | None = None
) -> Iterator[Output]:
    """Release a private histogram for each slot of a bounded input.

    Args:
        plan: what is released, and for whom. The guarantee is that of
            :class:`streamveil.transforms.PrivateHistograms`.
        events: batches with at least the columns of the plan; read once, batch after batch.
        changes: batches of changes of requirements, if any may come.

    Yields:
        In this order: dead letters (`REJECTED`), then for each slot a `Release` (no tag), a ledger
        entry (`LEDGER`) and revisions (`REVISIONS`), then how many there are (`DONE`, `REVISED`)
        and the state (`STATE`).

    Raises:
        ConfigurationError: for what cannot be done; nothing is spent. Like all errors it is raised
            when the first output is asked for, or later.
        InputLost: if no event is counted, or too many are lost; nothing is spent.
        BudgetExceeded: rather than spend more than anybody's budget.
    """
    plan.check_look()
    with_changes = changes is not None or plan.dynamic
    plan.check_changes(changes=with_changes, bounded=True)
    by_shard = with_changes or plan.limits is not None
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = _Run(plan, plan.counter(layout, by_user=by_shard), HISTOGRAMS)
    yield from run.map_events(plan.event_mapper(with_changes), events)
    if with_changes:
        mapper = plan.change_mapper()
        for batch in changes or ():
            yield from run.gather(map_changes(mapper, layout, batch))
    yield from run.count()
    if by_shard:
        keeps = plan.keeps_state(changes=with_changes)
        logic = plan.shard_logic(layout, clock, changes=with_changes, keeps=keeps)
        choice = plan.limit_choice(logic)
        if choice is not None:
            run.choose_limits(choice)
        for message in plan.kept:
            run.sent[layout.key(message.shard)].append(message)
        run.count_messages(len(plan.kept))
        yield from run.close_shards(logic)
    config = plan.release_config(layout, clock, changes=with_changes)
    yield from run.release(config, plan.first_slot, plan.last_slot)


def release_queries(plan: QueryPlan, events: Batches) -> Iterator[Output]:
    """Answer all questions of a bounded input.

    Args:
        plan: what is asked, and of whom. The guarantee is that of
            :class:`streamveil.transforms.PrivateAnswers`.
        events: batches with the columns of the plan; read once. Where bounds are chosen they are
            kept in memory until that is done.

    Yields:
        As :func:`release_histograms`: a `SlotAnswer` (no tag) and a `PortfolioEntry` (`LEDGER`) of
        each, then how many there are (`DONE`, `BOOKED`) and the state (`STATE`).

    Raises:
        ConfigurationError, InputLost, BudgetExceeded: as :func:`release_histograms`.
        NothingChosen: where too few events can be told from noise to choose bounds; the look is
            spent.
    """
    plan.check(bounded=True)
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = _Run(plan, plan.counter(bounded=True), QUERIES)
    choice, bounds = plan.bounds_choice(plan), None
    if choice is not None:
        held = deque(events)
        bounds = run.choose_bounds(choice, _slices(held))
        events = _drained(held)
    yield from run.map_events(plan.event_mapper(bounds), _slices(events))
    kept = plan.kept(bounded=True)
    for block, message in kept:
        run.blocks[block].append(message)
    run.count_messages(len(kept))
    yield from run.count()
    yield from run.release(plan.release_config(layout, clock), plan.first_slot, plan.end)


def release_local(plan: LocalPlan, events: Batches) -> Iterator[Output]:
    """Release a histogram for each slot from devices' reports, which are played here.

    Args:
        plan: what is released, and for whom. The guarantee is that of
            :class:`streamveil.transforms.CollectHistograms`.
        events: as of :func:`release_histograms`.

    Yields:
        As :func:`release_histograms`; the state is that of the devices.

    Raises:
        ConfigurationError, InputLost, BudgetExceeded: as :func:`release_histograms`.
    """
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = _Run(plan, plan.counter(layout), LOCAL)
    yield from run.map_events(plan.event_mapper(), events)
    yield from run.count()
    crossing: list[Message] = []
    states: list[Output] = []
    for output in run.release(plan.edge_config(layout, clock), plan.first_slot, plan.last_slot):
        if output.tag is None:
            crossing.append(output.value[1])
        elif output.tag == DONE:
            crossing.append(slots_sent(output.value)[1])
        elif output.tag == STATE:
            states.append(output)
    config = plan.server_config(clock)
    yield from release_at_end(config, LOCAL, crossing)
    yield from states


def release_records(plan: Plan, records: Batches) -> Iterator[Output]:
    """Release a statistic that protects each record, of each key and pane of a bounded input.

    Args:
        plan: what is released of which records. The guarantee is that of
            :class:`streamveil.transforms.PerRecordCount` and its like.
        records: batches with the columns of the plan; read once.

    Yields:
        A `PerRecordRow` for each window of each key.
    """
    source, statistic = plan.source, plan.statistic()
    panes: dict[PaneKey, bytes] = {}
    for batch in records:
        if batch.num_rows:  # or it may have no columns
            for key, part in source.parts(batch, statistic, None):
                panes[key] = added(statistic, (panes.get(key, b""), array_to_bytes(part)))
    by_key: dict[int, list[Message]] = defaultdict(list)
    for (position, pane), payload in panes.items():
        by_key[position].append(Message(Kind.COUNTS, pane, payload=payload))
    config = plan.release_config()
    for position in range(source.number):
        messages = by_key.pop(position, [])
        word = Message(Kind.WHOLE, payload=b"%d" % len(messages))
        messages += [Message(Kind.OPEN, plan.first_pane), word]
        for output in release_at_end(config, position, messages):
            if output.tag is None:
                yield output


def _drained(held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches one by one, each of which is let go."""
    while held:
        yield held.popleft()


def _slices(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from slices_of(batch)


def _without_tallies(outputs: Iterable[Output], tallies: list[bytes]) -> Iterator[Any]:
    """Values of the outputs; tallies among them are added to `tallies`."""
    for output in outputs:
        if output.tag == TALLIES:
            tallies.append(output.value)
        else:
            yield output.value


def _mapped(mapper: Maps, counter: Counter, batch: pa.RecordBatch) -> Iterator[Output]:
    """What :func:`map_batch` gives, and before it what was lost of the batch as it was read."""
    yield Output(tally_of(batch), TALLIES)
    if batch.num_rows:  # of no rows a column may have any type
        yield from map_batch(mapper, counter, batch)


def _counted(counter: Counter, block: tuple[BlockKey, Sequence[Message]]) -> Iterator[Output]:
    return count_block(counter, *block)


class _Run:
    """What was gathered so far of one input."""

    def __init__(self, plan: Reads, counter: Counter, stream: str) -> None:
        self.blocks: dict[BlockKey, list[Message]] = defaultdict(list)
        """Events by block and shard."""
        self.sent: dict[Any, list[Message]] = defaultdict(list)
        """What was counted, by shard, or for the stream by its name."""
        self._counter, self._stream = counter, stream
        self._limit = LossLimit.of(plan)
        self._tallies: list[bytes] = []

    def map_events(self, mapper: Maps, batches: Batches) -> Iterator[Output]:
        """Gather events by block; gives dead letters."""
        for output in side_by_side(partial(_mapped, mapper, self._counter), batches):
            if output.tag == REJECTED:
                yield output
            elif output.tag == TALLIES:
                self._tallies.append(output.value.to_bytes())
            else:
                block, message = output.value
                self.blocks[block].append(message)

    def count(self) -> Iterator[Output]:
        """Count block by block."""
        blocks = ((block, self.blocks.pop(block)) for block in list(self.blocks))
        yield from self.gather(side_by_side(partial(_counted, self._counter), blocks))

    def gather(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Put messages and tallies where they go; gives the rest."""
        for output in outputs:
            if output.tag is None:
                to, message = output.value
                self.sent[to].append(message)
            elif output.tag == TALLIES:
                self._tallies.append(output.value)
            else:
                yield output

    def count_messages(self, messages: int) -> None:
        """Count messages that come from a saved state, and not from a step before."""
        self._tallies.append(EventTally(messages=messages).to_bytes())

    def choose_limits(self, choice: LimitChoice) -> None:
        """Choose participation limits by a private look at the visits of all shards.

        Raises InputLost before anything is asked where the input is lost.
        """
        looks: list[Message] = []
        tallies = list(self._tallies)
        for key, messages in self.sent.items():
            looks += [look for _, look in _without_tallies(choice.look(key, messages), tallies)]
        looks.append(self._word(tallies))
        for output in self.gather(choice.choose(self._stream, looks)):
            assert output.tag == FOR_STREAM
            to, message = output.value
            self.sent[to].append(message)

    def choose_bounds(self, choice: BoundsChoice, batches: Batches) -> bytes:
        """Choose bounds by a private look at a sample of all events.

        Raises InputLost before anything is asked where the input is lost, and NothingChosen.
        """
        blocks: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
        mapper, looks, tallies = choice.sample.mapper, list[Message](), list[bytes]()
        for batch in batches:
            for key, message in _without_tallies(choice.sample.map_batch(mapper, batch), tallies):
                blocks[key].append(message)
        for key in list(blocks):
            counted = choice.count(key, blocks.pop(key))
            looks += [look for _, look in _without_tallies(counted, tallies)]
        looks.append(self._word(tallies))
        (chosen,) = self.gather(choice.choose(self._stream, looks))
        assert chosen.tag == BOUNDS
        return bytes(chosen.value)

    def close_shards(self, logic: ShardLogic) -> Iterator[Output]:
        """Close all slots of all shards; gives dead letters."""
        for key in [key for key in self.sent if key != self._stream]:
            yield from self.gather(close_at_end(logic, key, self.sent.pop(key)))

    def release(
        self, config: ReleaseConfig, first_slot: int | None, last_slot: int | None
    ) -> Iterator[Output]:
        """Release all slots. Raises InputLost where too much is lost, before anything else."""
        warn_of_range(first_slot, last_slot)
        ticks = [slot for slot in (first_slot, last_slot) if slot is not None]
        messages = self.sent.pop(self._stream, [])
        messages += [Message(Kind.OPEN, slot) for slot in ticks]
        messages.append(self._word(self._tallies))
        yield from release_at_end(config, self._stream, messages)

    def _word(self, tallies: Iterable[bytes]) -> Message:
        """That this is all. Raises InputLost where it is too little."""
        return self._limit.check(sum_bytes(tallies), self._stream)[1]

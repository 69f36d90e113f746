"""A bounded input here and now: record batches in, private releases out, without a runner.

The steps are those that a pipeline has, so with the same noise key the releases, the ledger and the
state are the same. See :mod:`streamveil.transforms.histograms` for the guarantee.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streamveil.engine.count.changes import map_changes
from streamveil.engine.count.counter import Counter, count_block, map_batch, warn_of_range
from streamveil.engine.count.event_codes import ShardKey
from streamveil.engine.count.limit_choice import FOR_STREAM, LimitChoice
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.count.shards import ShardLogic, close_at_end
from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.messages import REJECTED, TALLIES, Kind, Message, Output
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.histogram_plan import HISTOGRAMS, HistogramPlan
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.mechanisms.core.event_tallies import EventTally, sum_bytes


def release_histograms(
    plan: HistogramPlan,
    events: Iterable[pa.RecordBatch],
    changes: Iterable[pa.RecordBatch] | None = None,
) -> Iterator[Output]:
    """Release a private histogram for each slot of a bounded input.

    Args:
        plan: what is released, and for whom.
        events: batches with at least the columns of the plan; read once, batch after batch.
        changes: batches of changes of requirements, if any may come.

    Yields:
        In this order: dead letters (`REJECTED`), then for each slot a `Release` (no tag), a ledger
        entry (`LEDGER`) and revisions (`REVISIONS`), then how many there are (`DONE`, `REVISED`)
        and the state (`STATE`).

    Raises:
        ConfigurationError: for what cannot be done; nothing is spent.
        InputLost: if no event is counted, or too many are lost; nothing is spent.
        BudgetExceeded: rather than spend more than anybody's budget.
    """
    plan.check_look()
    with_changes = changes is not None or plan.dynamic
    plan.check_changes(changes=with_changes, bounded=True)
    warn_of_range(plan.first_slot, plan.last_slot)
    run = _Run(plan, with_changes)
    yield from run.map_events(events)
    yield from run.map_changes(changes or ())
    yield from run.count()
    ticks = (slot for slot in (plan.first_slot, plan.last_slot) if slot is not None)
    messages = [*run.counts, *(Message(Kind.OPEN, slot) for slot in ticks), run.word()]
    run.counts.clear()
    config = plan.release_config(run.layout, run.clock, changes=with_changes)
    yield from release_at_end(config, config.drivers()(HISTOGRAMS), messages)


@dataclass(eq=False)
class _Run:
    """What was gathered so far of one input."""

    plan: HistogramPlan
    with_changes: bool
    blocks: dict[Any, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """Events by block and shard."""
    shards: dict[ShardKey, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """Visits, changes and state by shard, where these count from slot to slot."""
    counts: list[Message] = field(default_factory=list)
    """For the release stage."""
    tallies: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make what all steps need."""
        plan = self.plan
        self.layout = plan.layout(bounded=True)
        self.clock = SlotClock(plan.slots)
        self.by_shard = self.with_changes or plan.limits is not None

    def map_events(self, events: Iterable[pa.RecordBatch]) -> Iterator[Output]:
        """Gather events by block; gives dead letters."""
        mapper = self.plan.event_mapper(self.with_changes)
        self._counter: Counter = self.plan.counter(self.layout, by_user=self.by_shard)
        for batch in events:
            self.tallies.append(tally_of(batch).to_bytes())
            if not batch.num_rows:  # of no rows a column may have any type
                continue
            for output in map_batch(mapper, self._counter, batch):
                if output.tag == REJECTED:
                    yield output
                elif output.tag == TALLIES:
                    self.tallies.append(output.value.to_bytes())
                else:
                    block, message = output.value
                    self.blocks[block].append(message)

    def map_changes(self, changes: Iterable[pa.RecordBatch]) -> Iterator[Output]:
        """Gather changes by shard; gives dead letters."""
        if not self.with_changes:
            return
        mapper = self.plan.change_mapper()
        for batch in changes:
            yield from self._gathered(map_changes(mapper, self.layout, batch))

    def count(self) -> Iterator[Output]:
        """Count block by block, and where it must be shard by shard; gives dead letters."""
        for block in list(self.blocks):
            yield from self._gathered(count_block(self._counter, block, self.blocks.pop(block)))
        if not self.by_shard:
            return
        logic = self.plan.shard_logic(
            self.layout, self.clock, changes=self.with_changes, keeps=self.plan.keeps
        )
        choice = self.plan.limit_choice(logic)
        if choice is not None:
            self._choose(choice)
        for message in self.plan.kept:
            self.shards[self.layout.key(message.shard)].append(message)
        self.tallies.append(EventTally(messages=len(self.plan.kept)).to_bytes())
        for key in list(self.shards):
            yield from self._close(logic, key, self.shards.pop(key))

    def word(self) -> Message:
        """That this is all. Raises InputLost where it is too little."""
        total = sum_bytes(self.tallies)
        return LossLimit.of(self.plan).check(total, HISTOGRAMS)[1]

    def _gathered(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Put messages where they go; gives the rest."""
        for output in outputs:
            if output.tag == TALLIES:
                self.tallies.append(output.value)
            elif output.tag is not None:
                yield output
            elif self.by_shard:
                key, message = output.value
                self.shards[key].append(message)
            else:
                self.counts.append(output.value[1])

    def _choose(self, choice: LimitChoice) -> None:
        """Choose participation limits by a private look at the visits of all shards.

        Raises InputLost before anything is asked where the input is lost.
        """
        looks: list[Message] = []
        tallies = list(self.tallies)
        for key, messages in self.shards.items():
            for output in choice.look(key, messages):
                if output.tag == TALLIES:
                    tallies.append(output.value)
                else:
                    looks.append(output.value[1])
        whole = LossLimit.of(self.plan).check(sum_bytes(tallies), HISTOGRAMS)[1]
        for output in choice.choose([*looks, whole]):
            if output.tag == TALLIES:
                self.tallies.append(output.value)
            elif output.tag == FOR_STREAM:
                self.counts.append(output.value[1])
            else:
                key, message = output.value
                self.shards[key].append(message)

    def _close(self, logic: ShardLogic, key: ShardKey, messages: list[Message]) -> Iterator[Output]:
        """Close all slots of a shard; gives dead letters."""
        for output in close_at_end(logic, key, messages):
            if isinstance(output, EventTally):
                self.tallies.append(output.to_bytes())
                continue
            self.counts.append(output.message)
            if output.no_requirement:
                at = self.clock.closing(max(output.no_requirement))
                yield Output(output.dead_letters(), REJECTED, at)

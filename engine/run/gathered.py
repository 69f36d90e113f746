"""What is gathered of a bounded input, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamveil.engine.count.counter import (
    BlockKey,
    Counter,
    Maps,
    count_block,
    map_batch,
    warn_of_range,
)
from streamveil.engine.count.loss_limit import LossLimit, Reads
from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.messages import REJECTED, TALLIES, Kind, Message, Output
from streamveil.engine.side_by_side import side_by_side
from streamveil.engine.stream.release_slots import ReleaseConfig, release_at_end
from streamveil.mechanisms.core.event_tallies import EventTally, sum_bytes

if TYPE_CHECKING:
    from streamveil.engine.count.limit_choice import LimitChoice
    from streamveil.engine.count.shards import ShardLogic

Batches = Iterable[pa.RecordBatch]


def without_tallies(outputs: Iterable[Output], tallies: list[bytes]) -> Iterator[Any]:
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


class Gathered:
    """What was gathered so far of one input."""

    def __init__(self, plan: Reads, counter: Counter, stream: str) -> None:
        self.blocks: dict[BlockKey, list[Message]] = defaultdict(list)
        """Events by block and shard."""
        self.sent: dict[Any, list[Message]] = defaultdict(list)
        """What was counted, by shard, or for the stream by its name."""
        self._counter, self.stream = counter, stream
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
        from streamveil.engine.count.limit_choice import FOR_STREAM

        looks: list[Message] = []
        tallies = list(self._tallies)
        for key, messages in self.sent.items():
            if key == self.stream:  # bounds that were chosen before, which go past the look
                tallies.append(EventTally(messages=-len(messages)).to_bytes())
                continue
            looks += [look for _, look in without_tallies(choice.look(key, messages), tallies)]
        looks.append(self.word(tallies))
        for output in self.gather(choice.choose(self.stream, looks)):
            assert output.tag == FOR_STREAM
            to, message = output.value
            self.sent[to].append(message)

    def close_shards(self, logic: ShardLogic) -> Iterator[Output]:
        """Close all slots of all shards; gives dead letters."""
        from streamveil.engine.count.shards import close_at_end

        for key in [key for key in self.sent if key != self.stream]:
            yield from self.gather(close_at_end(logic, key, self.sent.pop(key)))

    def release(
        self, config: ReleaseConfig, first_slot: int | None, last_slot: int | None
    ) -> Iterator[Output]:
        """Release all slots. Raises InputLost where too much is lost, before anything else."""
        warn_of_range(first_slot, last_slot)
        ticks = [slot for slot in (first_slot, last_slot) if slot is not None]
        messages = self.sent.pop(self.stream, [])
        messages += [Message(Kind.OPEN, slot) for slot in ticks]
        messages.append(self.word(self._tallies))
        yield from release_at_end(config, self.stream, messages)

    def word(self, tallies: Iterable[bytes]) -> Message:
        """That this is all. Raises InputLost where it is too little."""
        return self._limit.check(sum_bytes(tallies), self.stream)[1]

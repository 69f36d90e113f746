"""The way of a plan's events, step by step: what every host of the engine carries out.

A host reads batches, maps them, gathers what belongs together, counts it, lets shards close slots
where these depend on the slots before, and releases. What each of these steps does is here; how
data gets from one to the next is up to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamveil.engine.count.counter import BlockKey, Counter, Maps
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.messages import Message, Output
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.release_slots import ReleaseConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from streamveil.engine.count.bounds_choice import BoundsChoice
    from streamveil.engine.count.limit_choice import LimitChoice
    from streamveil.engine.count.shards import ShardLogic
    from streamveil.engine.encode.query_mapper import QueriesMapper


class ChoosesKeys(Protocol):
    """Discovers the keys of a bounded input before its events are counted: see `KeyChoice`."""

    @property
    def stream(self) -> str:
        """Key of the pairs of a key and a user."""

    def mapper(self, found: bytes | None = None) -> QueriesMapper:
        """What maps batches, with the keys that were found."""

    def map_batch(self, mapper: QueriesMapper, batch: pa.RecordBatch) -> Iterator[Output]:
        """The pairs of a batch; on the side a tally of the messages."""

    def choose(self, key: str, messages: Iterable[Message]) -> Iterator[Output]:
        """Find the keys from the pairs of all batches."""

    def release(self, key: str, messages: Iterable[Message], found: bytes) -> Iterator[Output]:
        """Release all slots, with the keys that were found."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CountSteps:
    """Up to the counts of one input: public, but for the keys that some make on a worker."""

    stream: str
    """Key of the counts."""
    bounded: bool
    """Whether the input ends, with all that goes with it."""
    layout: Layout
    clock: SlotClock
    """How time is cut, and when a slot of an unbounded input closes."""
    first_slot: int | None
    """First slot to release; None for that of the events."""
    last_slot: int | None
    make_mapper: Callable[..., Maps]
    """Makes what maps batches; of bounds that are chosen or keys that are found, if there are any.
    """
    counter: Counter
    waiting: Sequence[tuple[BlockKey, Message]] = ()
    """Events of slots that were not over when the run before ended."""
    key_choice: ChoosesKeys | None = None
    """Discovers keys before anything is mapped."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Steps(CountSteps):
    """Up to the results."""

    config: ReleaseConfig
    in_slices: bool = False
    """Whether a batch is mapped in slices: see `query_mapper.slices_of`."""
    bounds_choice: BoundsChoice | None = None
    """Chooses bounds of numbers before anything is mapped."""
    shard_logic: ShardLogic | None = None
    """How shards close slots, where that depends on the slots before."""
    limit_choice: LimitChoice | None = None
    """Chooses participation limits before shards close slots."""
    kept: Sequence[Message] = ()
    """What shards kept in the run before."""

    @property
    def takes_changes(self) -> bool:
        """Whether changes of requirements go to the shards."""
        return self.shard_logic is not None and self.shard_logic.change_mapper is not None

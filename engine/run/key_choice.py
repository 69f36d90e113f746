"""Discovery of keys from a bounded input that many workers read, as on Beam.

Each worker sends the distinct pairs of a key and a user of its batches to one worker, which finds
the keys in the same way as a run in one process (`discover.py`). Pairs are a set, so it does not
matter how events are divided into batches, nor whether a batch is sent twice. The list of found
keys is public. The steps that map, count and release the events wait for this list. So the results
are the same, byte for byte, as those of a run in one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.capabilities import OF_DISCOVERED_ON_BEAM
from streamveil.engine.count.counter import Counter
from streamveil.engine.count.loss_limit import whole_counts
from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.encode.query_mapper import KeyEvents, QueriesMapper
from streamveil.engine.messages import (
    TALLIES,
    Kind,
    Message,
    Output,
    batch_from_bytes,
    batch_to_bytes,
    compressed,
    expanded,
)
from streamveil.engine.run.discover import discover_from, distinct_pairs, with_allowed_keys
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan
from streamveil.engine.stream.release_slots import ReleaseConfig, release_at_end
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.bounds import are_known
from streamveil.mechanisms.queries.discovered import Listed, listed_of, undiscovered


def steps_of_discovered(plan: QueryPlan) -> Steps:
    """The steps from the events of a bounded input to results, if keys are discovered first.

    Args:
        plan: what is released. Its keys are not discovered yet.

    Raises:
        ConfigurationError: for bounds that are not chosen yet, and for participation limits.
    """
    limits = plan.presences is not None
    refused = {"auto_bounds": not are_known(plan.query_set), "limit": limits}
    for reason, given in refused.items():
        if given:
            name = undiscovered(plan.query_set)[0].name
            raise ConfigurationError(f"query {name!r}: {OF_DISCOVERED_ON_BEAM[reason]}")
    choice = KeyChoice(plan)
    steps = with_allowed_keys(plan).steps(bounded=True, changes=False)
    return replace(
        steps,
        make_mapper=choice.mapper,
        counter=replace(steps.counter, make=choice.counter),
        key_choice=choice,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """What the steps on a worker need after the keys are found."""

    plan: QueryPlan

    @cached_property
    def counter(self) -> Counter:
        """What counts events."""
        return self.plan.counter(self.plan.layout(bounded=True))

    @cached_property
    def config(self) -> ReleaseConfig:
        """What the release stage is made of."""
        plan = self.plan
        return plan.release_config(plan.layout(bounded=True), SlotClock(plan.slots))


@dataclass(frozen=True, eq=False)
class KeyChoice:
    """Discovers the keys of a bounded input, and maps, counts and releases events by these keys."""

    plan: QueryPlan
    """What is released. Its keys are not discovered yet."""
    _found: dict[bytes, _Found] = field(default_factory=dict, init=False, repr=False)
    """What was made on this worker, by the list of found keys."""

    @property
    def stream(self) -> str:
        """Key of the pairs."""
        return QUERIES

    def map_batch(self, mapper: QueriesMapper, batch: pa.RecordBatch) -> Iterator[Output]:
        """The distinct pairs of a batch for each query, and a tally of the messages."""
        sent = 0
        if batch.num_rows:
            with metrics.counting():  # events are counted when they are released
                by_query = mapper.keys_of(batch)
            for number, events in enumerate(by_query):
                if len(events.base_slots):
                    sent += 1
                    payload = _to_bytes(distinct_pairs(events))
                    yield Output((self.stream, Message(Kind.COUNTS, number, payload=payload)))
        tally = EventTally.total([tally_of(batch), EventTally(batch.num_rows, messages=sent)])
        yield Output(tally.to_bytes(), TALLIES)

    def choose(self, _: str, messages: Iterable[Message]) -> Iterator[Output]:
        """Find the keys from the pairs of all batches.

        Raises:
            InputLost: if a message is missing. No budget is spent.
            TooManyPairs, BudgetExceeded: as :func:`discover_keys`.
        """
        pairs = ((one.slot, _from_bytes(one.payload)) for one in whole_counts(messages))
        found = listed_of(discover_from(self.plan, pairs).query_set)
        yield Output(json.dumps({name: one.keys for name, one in found.items()}).encode())

    def mapper(self, found: bytes | None = None) -> QueriesMapper:
        """What maps batches by the keys that were found."""
        return (self.plan if found is None else self._of(found).plan).event_mapper()

    def counter(self, found: bytes) -> Counter:
        """What counts events by the keys that were found."""
        return self._of(found).counter

    def release(self, key: str, messages: Iterable[Message], found: bytes) -> Iterator[Output]:
        """Release all slots by the keys that were found: see :func:`release_at_end`."""
        yield from release_at_end(self._of(found).config, key, messages)

    def _of(self, found: bytes) -> _Found:
        if found not in self._found:
            listed = {name: Listed(tuple(keys)) for name, keys in json.loads(found).items()}
            self._found[found] = _Found(self.plan.with_keys(listed))
        return self._found[found]


def _to_bytes(events: KeyEvents) -> bytes:
    """Events as a compressed batch of Arrow."""
    arrays = [*map(pa.array, (events.base_slots, events.members, *events.users.T)), events.texts]
    names = [str(number) for number in range(len(arrays))]
    return compressed(batch_to_bytes(pa.RecordBatch.from_arrays(arrays, names)))


def _from_bytes(data: bytes) -> KeyEvents:
    """What :func:`_to_bytes` was given."""
    *numbers, texts = batch_from_bytes(expanded(data)).columns
    base_slots, members, *words = (one.to_numpy() for one in numbers)
    return KeyEvents(base_slots, np.stack(words, axis=1), members, texts)

"""From events to private releases: the one transform that a user drops between source and sink."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from streamveil.mechanisms.mechanism import Population
from streamveil.mechanisms.noise import KEY_BYTES, derived_key
from streamveil.mechanisms.records import (
    ConfigurationError,
    Domain,
    LedgerEntry,
    Registry,
    Release,
    Slots,
)
from streamveil.mechanisms.registry import mechanism
from streamveil.transforms import metrics
from streamveil.transforms.bins import DomainMap
from streamveil.transforms.counting import BlockCounts, Layout, count, pack
from streamveil.transforms.mapping import Columns, EventMapper
from streamveil.transforms.release import LEDGER, REJECTED, ReleaseConfig, _ReleaseSlotsFn
from streamveil.transforms.wire import array_from_bytes, array_to_bytes, counts_to_bytes

ADD_REMOVE = "add_remove"
REPLACE = "replace"

_STREAM = "histogram"

_LOGGER = logging.getLogger("streamveil")


class Outputs(NamedTuple):
    """What :class:`PrivateHistograms` gives."""

    releases: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry]
    """One for each slot: what it cost every class; public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `REJECTED_SCHEMA`: raw data, for the operator only."""


@dataclass(frozen=True)
class GivenKey:
    """A noise key held in memory; it travels with the pipeline and is never shown."""

    key: bytes

    def __call__(self) -> bytes:
        """The key."""
        return self.key

    def __repr__(self) -> str:
        return "GivenKey(<secret>)"


@dataclass(eq=False)
class PrivateHistograms(beam.PTransform):
    """Release a private histogram per slot, keeping every user's requirement.

    Input: a PCollection of Arrow record batches (pyarrow.RecordBatch) with at least the columns
    named in `columns`, bounded or not, in the global window. Output: :class:`Outputs`.

    Guarantee: (w, E)-event personalised differential privacy. For every user with requirement
    (w, E), the joint distribution of all releases of any w consecutive slots changes by at most a
    factor exp(E) when that user's events in them are added or removed (`adjacency="add_remove"`)
    or replaced by others (`"replace"`). The registry, the domain, the slots and the range of
    slots are taken as public. Rejected events, counters and logs are raw and not covered.

    Without `first_slot` and `last_slot` the range runs from the first to the last slot with an
    accepted event, which then counts as public too.

    Raises:
        ConfigurationError: at construction for options that do not fit; when the pipeline runs,
            before anything is released, for columns that are missing or of a wrong type, and for
            an input without any accepted event when no range was given.
        ValueError: when applied to a windowed or triggered input, which cannot be accounted for.
    """

    registry: Registry
    """The public table of users and requirements."""
    domain: Domain
    """The public bins."""
    slots: Slots
    """How time is cut."""
    columns: Columns
    """Which columns hold user, value and time."""
    mechanism: str = "pba"
    """`bd`, `ba`, `pbd` or `pba`."""
    max_contributions: int = 1
    """Events of a user that count in a slot; more are dropped by a rule that looks only at that
    user's events."""
    adjacency: str = ADD_REMOVE
    """`add_remove`, or `replace`, which doubles the sensitivity."""
    noise_key: bytes | Callable[[], bytes] | None = None
    """32 secret bytes, or a picklable way for a worker to get them; fresh ones when None."""
    first_slot: int | None = None
    """First slot to release; events before it are rejected."""
    last_slot: int | None = None
    """Last slot to release; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split while counting."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        if self.max_contributions < 1:
            raise ConfigurationError(
                f"max_contributions is {self.max_contributions}: nothing would be counted; "
                "give 1 or more"
            )
        if self.adjacency not in (ADD_REMOVE, REPLACE):
            raise ConfigurationError(
                f"adjacency {self.adjacency!r} is unknown: choose {ADD_REMOVE} or {REPLACE}"
            )
        if self.shards < 1:
            raise ConfigurationError(f"shards is {self.shards}: give 1 or more")
        given = self.first_slot is not None and self.last_slot is not None
        if given and self.first_slot > self.last_slot:  # type: ignore[operator]
            raise ConfigurationError(
                f"the range of slots is empty: {self.first_slot} comes after {self.last_slot}"
            )
        DomainMap(self.domain, self.columns.value)
        mechanism(self.mechanism, self.population)
        if isinstance(self.noise_key, bytes) and len(self.noise_key) != KEY_BYTES:
            raise ConfigurationError(
                f"the noise key has {len(self.noise_key)} bytes: give {KEY_BYTES} random ones"
            )

    @property
    def population(self) -> Population:
        """The public facts that the mechanism steers by."""
        sensitivity = self.max_contributions * (2 if self.adjacency == REPLACE else 1)
        return Population(self.registry.classes, self.registry.sizes, self.domain.bins, sensitivity)

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> Outputs:
        """Build the pipeline: batches -> codes -> counts -> releases."""
        _refuse_windows(batches)
        bounded = batches.is_bounded
        if bounded and (self.first_slot is None or self.last_slot is None):
            _LOGGER.warning(
                "the range of slots is taken from the events, so a single event can extend it: "
                "give its start and end to keep that private"
            )
        key = self.noise_key
        if not callable(key):
            key = GivenKey(secrets.token_bytes(KEY_BYTES) if key is None else key)
        layout = Layout.choose(self.registry, self.domain.bins, self.shards, timely=not bounded)
        config = ReleaseConfig(
            self.mechanism,
            self.population,
            self.slots,
            layout,
            key,
            _STREAM,
            self.first_slot,
            self.last_slot,
            bounded,
        )
        mapped = batches | "MapEvents" >> beam.ParDo(_MapEventsFn(self, layout, key)).with_outputs(
            REJECTED, main="codes"
        )
        # ((kind, shard), codes as bytes), timestamped within their block of slots
        block = self.slots.length * layout.block
        counts = (
            mapped.codes
            | "WindowIntoBlocks"
            >> beam.WindowInto(
                FixedWindows(
                    Duration(micros=block), offset=Timestamp(micros=self.slots.origin % block)
                )
            )
            | "GatherBlocks" >> beam.GroupByKey()
            | "CountBlocks"
            >> beam.ParDo(_CountBlocksFn(self, layout)).with_output_types(tuple[str, bytes])
            | "WindowIntoStream" >> beam.WindowInto(GlobalWindows())
        )
        # (stream, BlockCounts as bytes), timestamped at the end of their block
        released = (
            (counts, self._ticks(counts, layout))
            | "AddTicks" >> beam.Flatten()
            | "ReleaseSlots"
            >> beam.ParDo(_ReleaseSlotsFn(config)).with_outputs(LEDGER, REJECTED, main="releases")
        )
        released.releases.element_type = Release
        released[LEDGER].element_type = LedgerEntry
        released[REJECTED].element_type = pa.RecordBatch
        rejected = (mapped[REJECTED], released[REJECTED]) | "AllRejected" >> beam.Flatten()
        return Outputs(released.releases, released[LEDGER], rejected)

    def _ticks(
        self, counts: beam.PCollection[tuple[str, bytes]], layout: Layout
    ) -> beam.PCollection[tuple[str, bytes]]:
        """Empty counts that keep the release stage going where there are no events.

        With a range of slots given, both its ends; without one, nothing, but an empty input is
        refused, since nothing then says which slots to release.
        """
        if self.first_slot is None or self.last_slot is None:
            if not counts.is_bounded:
                return counts.pipeline | "NoTicks" >> beam.Create([]).with_output_types(
                    tuple[str, bytes]
                )
            return (
                counts
                | "CountParts" >> beam.combiners.Count.Globally()
                | "RefuseNothing"
                >> beam.FlatMap(_refuse_nothing).with_output_types(tuple[str, bytes])
            )
        ends = sorted({self.first_slot // layout.block, self.last_slot // layout.block})
        return counts.pipeline | "Ticks" >> beam.Create(
            [(_STREAM, counts_to_bytes(BlockCounts.empty(block))) for block in ends]
        ).with_output_types(tuple[str, bytes])


def _refuse_windows(batches: beam.PCollection[pa.RecordBatch]) -> None:
    windowing = batches.windowing
    if not isinstance(windowing.windowfn, GlobalWindows):
        raise ValueError(
            f"the events are in windows ({windowing.windowfn}): slots are cut from event times "
            "here, and every window would spend the whole budget; apply this before WindowInto"
        )
    default = isinstance(windowing.triggerfn, DefaultTrigger)
    if not default or windowing.accumulation_mode != AccumulationMode.DISCARDING:
        raise ValueError(
            f"the events have a trigger ({windowing.triggerfn}): a slot is released once; remove it"
        )


def _refuse_nothing(parts: int) -> Iterable[tuple[str, bytes]]:
    if not parts:
        raise ConfigurationError(
            "no event was accepted, so nothing says which slots to release: check the rejected "
            "events, or give the range (--start and --end)"
        )
    return ()


class _MapEventsFn(beam.DoFn):
    """Record batches to ((kind, shard), codes as bytes), and dead letters on the side."""

    def __init__(
        self, transform: PrivateHistograms, layout: Layout, noise_key: Callable[[], bytes]
    ) -> None:
        self._options = (
            transform.columns,
            transform.slots,
            transform.domain,
            transform.registry,
        )
        self._range = (transform.first_slot, transform.last_slot)
        self._layout = layout
        self._most = transform.max_contributions
        self._noise_key = noise_key

    def setup(self) -> None:
        self._mapper = EventMapper(
            *self._options, derived_key(self._noise_key(), "strangers"), *self._range
        )
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        events, rejected = self._mapper.map(element)
        metrics.count(metrics.EVENTS_READ, element.num_rows)
        metrics.count(metrics.EVENTS_ACCEPTED, len(events.slots))
        if rejected.num_rows:
            for reason in rejected.column("reason").value_counts().to_pylist():
                metrics.count(metrics.REJECTED_PREFIX + reason["values"], reason["counts"])
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        slots, block_slots = self._mapper.slots, self._layout.block
        for block, key, codes, dropped in pack(events, self._layout, self._most):
            metrics.count(metrics.EVENTS_BOUNDED_AWAY, dropped)
            at = Timestamp(micros=slots.end((block + 1) * block_slots - 1) - 1)
            yield TimestampedValue((key, array_to_bytes(codes)), at)


class _CountBlocksFn(beam.DoFn):
    """All codes of a block and shard to (stream, BlockCounts as bytes)."""

    def __init__(self, transform: PrivateHistograms, layout: Layout) -> None:
        self._slots = transform.slots
        self._registry = transform.registry
        self._layout = layout
        self._most = transform.max_contributions

    def setup(self) -> None:
        self._class_of = self._registry.classes_with_other()

    def process(
        self,
        element: tuple[tuple[int, int], Iterable[bytes]],
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[tuple[str, bytes]]:
        (kind, _), parts = element
        block = self._slots.index(window.start.micros) // self._layout.block
        counts = count(
            kind,
            block,
            map(array_from_bytes, parts),
            self._layout,
            self._class_of,
            self._most,
        )
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, counts.dropped)
        yield _STREAM, counts_to_bytes(counts)

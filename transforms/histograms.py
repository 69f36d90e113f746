"""From events to private releases: the one transform that a user drops between source and sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterCount,
    AfterWatermark,
    DefaultTrigger,
)
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

from streamveil.mechanisms.domains import Domain
from streamveil.mechanisms.mechanism import Population
from streamveil.mechanisms.noise import NoiseSource, derived_key
from streamveil.mechanisms.odometer import Odometer
from streamveil.mechanisms.records import (
    ConfigurationError,
    LedgerEntry,
    Release,
    Slots,
    check_shares,
    format_time,
)
from streamveil.mechanisms.registry import DEFAULT, mechanism
from streamveil.mechanisms.stream import ReleaseStream
from streamveil.mechanisms.users import Registry
from streamveil.transforms import metrics
from streamveil.transforms.bins import DomainMap
from streamveil.transforms.counting import BlockCounts, Layout, bound_block, count, pack
from streamveil.transforms.keys import SameKey
from streamveil.transforms.mapping import Columns, EventMapper
from streamveil.transforms.release import (
    LEDGER,
    REJECTED,
    STATE,
    ReleaseConfig,
    _ReleaseSlotsFn,
    late_letters,
)
from streamveil.transforms.wire import array_from_bytes, array_to_bytes, counts_to_bytes

ADD_REMOVE = "add_remove"
REPLACE = "replace"

_STREAM = "histogram"

# How long Beam keeps a block's window to tell late events apart; later ones it drops by itself.
_LATENESS = Duration(seconds=7 * 24 * 3600)
_LONGEST_RANGE = 10_000_000  # slots

_LOGGER = logging.getLogger("streamveil")


class Outputs(NamedTuple):
    """What :class:`PrivateHistograms` gives."""

    releases: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry]
    """One for each slot: what it cost every class; public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `REJECTED_SCHEMA`: raw data, for the operator only."""
    state: beam.PCollection[tuple[int, bytes]]
    """Of a bounded input: the slot that comes next and what a run that goes on from there takes
    as `resume`. The largest slot counts. It is private: it holds a digest of the true counts."""


@beam.typehints.with_input_types(pa.RecordBatch)
@dataclass(eq=False)
class PrivateHistograms(beam.PTransform):
    """Release a private histogram per slot, keeping every user's requirement.

    Input: a PCollection of Arrow record batches (pyarrow.RecordBatch) with at least the columns
    named in `columns`, bounded or not, in the global window. Output: :class:`Outputs`.

    Guarantee: (w, E)-event personalised differential privacy. For every user with requirement
    (w, E), the joint distribution of all releases of any w consecutive slots changes by at most a
    factor exp(E) when all of that user's events in them are added or removed
    (`adjacency="add_remove"`) or any of them replaced by others (`"replace"`). This holds for one
    run: each run starts a ledger of its own, so runs over adjacent slots add up in the windows
    that span them, and runs over the same slots add up entirely. The registry, the domain, the
    slots and the range of slots are taken as public. Rejected events, counters and logs are raw
    and not covered.

    Without `first_slot` and `last_slot` the range runs from the first to the last slot with an
    accepted event, which then counts as public too. An input without end should have both: then
    every slot is released as the watermark passes its end; otherwise quiet slots wait for the next
    event, and the moment of their release tells of it. Events that come after the watermark are
    rejected as late.

    Raises:
        ConfigurationError: at construction for options that do not fit; when the pipeline runs,
            for columns that are missing or of a wrong type, and for an input without any accepted
            event when no range was given. A bounded input fails before anything is released; in
            one without end, slots that were released before the fault stay released.
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
    mechanism: str = DEFAULT
    """`bd`, `ba`, `pbd` or `pba`."""
    max_contributions: int = 1
    """Events of a user that count in a slot; more are dropped by a rule that looks only at that
    user's events."""
    adjacency: str = ADD_REMOVE
    """What neighbouring inputs differ in, for one user and any w consecutive slots: `add_remove`,
    all of that user's events added or removed; `replace`, any of them replaced, which doubles the
    sensitivity and so the noise."""
    noise_key: bytes | Callable[[], bytes] | None = field(default=None, repr=False)
    """32 secret bytes, or a picklable way to get them, which is asked here and by every worker;
    fresh ones when None."""
    first_slot: int | None = None
    """First slot to release; events before it are rejected."""
    last_slot: int | None = None
    """Last slot to release; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split while counting."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run, whose users' ledgers go on in this one; `first_slot` must be
    the slot that came next there, and all options of the release must be the same."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        self.max_contributions = _whole("max_contributions", self.max_contributions)
        self.shards = _whole("shards", self.shards)
        if self.adjacency not in (ADD_REMOVE, REPLACE):
            raise ConfigurationError(
                f"adjacency {self.adjacency!r} is unknown: choose {ADD_REMOVE} or {REPLACE}"
            )
        _check_range(self.slots, self.first_slot, self.last_slot)
        DomainMap(self.domain, self.columns.value)
        check_shares(self.registry.classes, self.population.sensitivity)
        mechanism(self.mechanism, self.population)
        Odometer(self.registry.classes)
        self._key = SameKey.of(self.noise_key)
        if self.resume is not None:
            self._check_resume(self.resume)

    def _check_resume(self, written: bytes) -> None:
        noise = NoiseSource(self._key(), _STREAM)
        stream = ReleaseStream(
            mechanism(self.mechanism, self.population), noise, context=self.context
        )
        following = stream.decode(written).next_slot
        if following != self.first_slot:
            raise ConfigurationError(
                f"the run starts at slot {self.first_slot}, but slot {following} comes next after "
                "the state that it goes on from: start there"
            )

    @property
    def population(self) -> Population:
        """The public facts that the mechanism steers by."""
        sensitivity = self.max_contributions * (2 if self.adjacency == REPLACE else 1)
        return Population(self.registry.classes, self.registry.sizes, self.domain.bins, sensitivity)

    @property
    def context(self) -> bytes:
        """What the counts mean, beyond :attr:`population`: the noise is bound to all of it."""
        return repr(
            (
                _STREAM,
                self.domain,
                self.slots,
                self.columns,
                self.adjacency,
                self.max_contributions,
                self.registry.fingerprint,
            )
        ).encode()

    def event_mapper(self) -> EventMapper:
        """What maps batches of events to slots, users and bins, as this transform does."""
        return EventMapper(
            self.columns,
            self.slots,
            self.domain,
            self.registry,
            derived_key(self._key(), "strangers"),
            self.first_slot,
            self.last_slot,
        )

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> Outputs:
        """Build the pipeline: batches -> codes -> counts -> releases."""
        _refuse_windows(batches)
        bounded = batches.is_bounded
        if bounded and (self.first_slot is None or self.last_slot is None):
            _LOGGER.warning(
                "the range of slots is taken from the events, so a single event can extend it: "
                "give its start and end to keep that private"
            )
        layout = Layout.choose(self.registry, self.domain.bins, self.shards, timely=not bounded)
        config = ReleaseConfig(
            self.mechanism,
            self.population,
            self.slots,
            layout,
            self._key,
            _STREAM,
            self.context,
            self.first_slot,
            self.last_slot,
            bounded,
            self.resume,
        )
        mapped = batches | "MapEvents" >> beam.ParDo(_MapEventsFn(self, layout)).with_outputs(
            REJECTED, main="codes"
        )
        # ((kind, shard), codes as bytes), timestamped within their block of slots
        counted = (
            mapped.codes
            | "WindowIntoBlocks" >> _blocks(self.slots, layout, bounded)
            | "GatherBlocks" >> beam.GroupByKey()
            | "CountBlocks"
            >> beam.ParDo(_CountBlocksFn(self, layout)).with_outputs(REJECTED, main="counts")
        )
        counted.counts.element_type = tuple[str, bytes]
        counted[REJECTED].element_type = pa.RecordBatch
        counts = counted.counts | "WindowIntoStream" >> _one_stream()
        # (stream, BlockCounts as bytes), timestamped at the end of their block
        released = (
            (counts, *self._ticks(counts, mapped[REJECTED], layout))
            | "AddTicks" >> beam.Flatten()
            | "ReleaseSlots"
            >> beam.ParDo(_ReleaseSlotsFn(config)).with_outputs(
                LEDGER, REJECTED, STATE, main="releases"
            )
        )
        released.releases.element_type = Release
        released[LEDGER].element_type = LedgerEntry
        released[REJECTED].element_type = pa.RecordBatch
        released[STATE].element_type = tuple[int, bytes]
        rejected = (
            mapped[REJECTED],
            counted[REJECTED] | "WindowLateIntoOne" >> _one_stream(),
            released[REJECTED],
        ) | "AllRejected" >> beam.Flatten()
        return Outputs(released.releases, released[LEDGER], rejected, released[STATE])

    def _ticks(
        self,
        counts: beam.PCollection[tuple[str, bytes]],
        rejected: beam.PCollection[pa.RecordBatch],
        layout: Layout,
    ) -> Iterator[beam.PCollection[tuple[str, bytes]]]:
        """Empty counts at the given ends of the range, so that it is released without events too.

        With an end missing, a bounded input without events is refused: nothing says which slots.
        """
        ends = [slot for slot in (self.first_slot, self.last_slot) if slot is not None]
        if ends:
            yield counts.pipeline | "Ticks" >> beam.Create(
                [
                    (_STREAM, counts_to_bytes(BlockCounts.empty(block)))
                    for block in sorted({slot // layout.block for slot in ends})
                ]
            ).with_output_types(tuple[str, bytes])
        if len(ends) < 2 and counts.is_bounded:
            reasons = (
                rejected
                | "Reasons" >> beam.FlatMap(_reasons).with_output_types(tuple[str, int])
                | "CountReasons" >> beam.CombinePerKey(sum)
            )
            yield (
                counts
                | "CountParts" >> beam.combiners.Count.Globally()
                | "RefuseNothing"
                >> beam.FlatMap(_refuse_nothing, beam.pvalue.AsDict(reasons)).with_output_types(
                    tuple[str, bytes]
                )
            )


def _blocks(slots: Slots, layout: Layout, bounded: bool) -> beam.WindowInto:
    """Windows of a block of slots. Each fires once; what comes later fires apart, as late."""
    length = slots.length * layout.block
    windows = FixedWindows(Duration(micros=length), offset=Timestamp(micros=slots.origin % length))
    if bounded:
        return beam.WindowInto(windows)
    return beam.WindowInto(
        windows,
        trigger=AfterWatermark(late=AfterCount(1)),
        accumulation_mode=AccumulationMode.DISCARDING,
        allowed_lateness=_LATENESS,
    )


def _one_stream() -> beam.WindowInto:
    return beam.WindowInto(
        GlobalWindows(),
        trigger=DefaultTrigger(),
        accumulation_mode=AccumulationMode.DISCARDING,
        allowed_lateness=Duration(0),
    )


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number, 1 or more")
    return int(value)


def _check_range(slots: Slots, first: int | None, last: int | None) -> None:
    if first is None or last is None:
        return
    if first > last:
        raise ConfigurationError(
            f"the range of slots is empty: it starts at {format_time(slots.start(first))} and ends "
            f"at {format_time(slots.end(last))}"
        )
    if last - first >= _LONGEST_RANGE:
        raise ConfigurationError(
            f"the range from {format_time(slots.start(first))} to {format_time(slots.end(last))} "
            f"has {last - first + 1} slots, more than {_LONGEST_RANGE}: shorten it (--start and "
            "--end), or use longer slots"
        )


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


def _reasons(rejected: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    for reason in rejected.column("reason").value_counts().to_pylist():
        yield reason["values"], reason["counts"]


def _refuse_nothing(parts: int, reasons: dict[str, int]) -> Iterable[tuple[str, bytes]]:
    if not parts:
        found = ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items()))
        raise ConfigurationError(
            "no event was accepted, so nothing says which slots to release; rejected: "
            f"{found or 'none'}. Mend the events or the options, or give the range to release "
            "(--start and --end)"
        )
    return ()


class _MapEventsFn(beam.DoFn):
    """Record batches to ((kind, shard), codes as bytes), and dead letters on the side."""

    def __init__(self, transform: PrivateHistograms, layout: Layout) -> None:
        self._transform = transform
        self._layout = layout
        self._most = transform.max_contributions

    def setup(self) -> None:
        self._mapper = self._transform.event_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        events, rejected = self._mapper.map(element)
        metrics.count(metrics.EVENTS_READ, element.num_rows)
        metrics.count(metrics.EVENTS_ACCEPTED, len(events.slots))
        if rejected.num_rows:
            for reason, number in _reasons(rejected):
                metrics.count(metrics.REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        slots, block_slots = self._mapper.slots, self._layout.block
        for block, key, codes, dropped in pack(events, self._layout, self._most):
            metrics.count(metrics.EVENTS_BOUNDED_AWAY, dropped)
            at = Timestamp(micros=slots.end((block + 1) * block_slots - 1) - 1)
            yield TimestampedValue((key, array_to_bytes(codes)), at)


class _CountBlocksFn(beam.DoFn):
    """All codes of a block and shard to (stream, BlockCounts as bytes).

    A block's window fires once in time. Codes that come later were bounded without the earlier
    ones, so they must never be counted: they leave as dead letters.
    """

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
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Any]:
        (kind, _), parts = element
        block = self._slots.index(window.start.micros) // self._layout.block
        arrays = map(array_from_bytes, parts)
        visits = bound_block(kind, block, arrays, self._layout, self._most)
        counts = count(kind, visits, self._layout, self._class_of)
        if pane.timing == PaneInfoTiming.LATE:
            metrics.count(metrics.EVENTS_LATE, int(counts.counts.sum()))
            yield beam.pvalue.TaggedOutput(REJECTED, late_letters(counts, self._layout))
            return
        metrics.count(metrics.EVENTS_BOUNDED_AWAY, counts.dropped)
        yield _STREAM, counts_to_bytes(counts)

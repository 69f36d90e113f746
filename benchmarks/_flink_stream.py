"""The stream of flink_drill.py: events and heartbeat at a pace, and what came of every slot."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from _drill import keep, keep_cost
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from streamveil.io import WriteReleasesToFolder, release_messages
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms, QueryOutputs

SECOND = 1_000_000
BINS = tuple("abcdef")
USERS = [f"user{i}" for i in range(90)]
WINDOW, EPSILON = 5, 1.0
MOST_SLOTS = 1_000_000
STRAGGLING = 4  # slots


@dataclass(frozen=True)
class Pace:
    """When the events of a slot of one second come, in real time."""

    begin: float
    """Seconds since 1970."""
    seconds: float
    """Real time from slot to slot."""
    clock: bool = False
    """Whether the watermark is the clock, and some events come too late; otherwise it follows the
    events."""

    def now(self) -> float:
        """The slot that it is time for."""
        return (time.time() - self.begin) / self.seconds


class _Slots(RestrictionProvider):
    def initial_restriction(self, element: Pace) -> OffsetRange:
        return OffsetRange(0, MOST_SLOTS)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Pace, restriction: OffsetRange) -> int:
        return restriction.size()


_WATERMARK = ManualWatermarkEstimator.default_provider()


class _PacedFn(beam.DoFn):
    """The number of each slot when its events come, at the start of its event time."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        pace: Pace,
        tracker: Any = beam.DoFn.RestrictionParam(_Slots()),  # noqa: B008
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(_WATERMARK),  # noqa: B008
    ) -> Iterator[Any]:
        slot = tracker.current_restriction().start
        while True:
            now = pace.now()
            at = int(now) if pace.clock else slot
            watermark.set_watermark(Timestamp(at))
            if slot > now:
                tracker.defer_remainder(Duration(seconds=(slot - now) * pace.seconds))
                return
            if not tracker.try_claim(slot):
                return
            yield TimestampedValue(slot, Timestamp(slot))
            slot += 1


@dataclass(eq=False)
class Paced(beam.PTransform):
    """The number of every slot, at a pace, forever; it is a heartbeat as well."""

    pace: Pace

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection[int]:
        return (
            pipeline
            | "Pace" >> beam.Create([self.pace])
            | "Slot" >> beam.ParDo(_PacedFn()).with_output_types(int)
        )


def events_of(slot: int) -> pa.RecordBatch:
    """The events of a slot: always the same."""
    draw = random.Random(slot)
    users = draw.sample(USERS, draw.randint(0, len(USERS)))
    times = [slot * SECOND + draw.randrange(SECOND) for _ in users]
    values = [draw.choice(BINS) for _ in users]
    return pa.RecordBatch.from_pydict(
        {"user": users, "value": values, "time": pa.array(times, pa.timestamp("us", "UTC"))}
    )


def arrived(slot: int, pace: Pace) -> Iterator[pa.RecordBatch]:
    """What a source finds of a slot, and the stragglers of one before; who reads later finds more.

    A watched folder is such a source: after a restart the files are there that were not before.
    """
    batch, past = events_of(slot), events_of(max(0, slot - STRAGGLING))
    in_time = batch.num_rows // 2 if pace.now() < slot + STRAGGLING else batch.num_rows
    yield batch.slice(0, in_time)
    yield past.slice(past.num_rows // 2)


def released(
    batches: beam.PCollection[pa.RecordBatch],
    last_slot: int | None = None,
    heartbeat: beam.PTransform | None = None,
    settle: str | None = None,
) -> QueryOutputs:
    """The same release of the same events, whatever runs it."""
    return batches | PrivateHistograms(
        registry=Registry.of(dict.fromkeys(USERS, (WINDOW, EPSILON))),
        domain=Categories(BINS),
        slots=Slots.of("1s"),
        columns=Columns("user", ("value",), "time"),
        noise_key=bytes(range(32)),
        first_slot=0,
        last_slot=last_slot,
        allowed_lateness="1s",
        heartbeat=heartbeat,
        settle=settle,
    )


def build(pipeline: beam.Pipeline, pace: Pace, folder: Path, settle: str | None) -> None:
    """A stream into a folder of releases, and one of all that a sink was ever given."""
    slots = pipeline | "Events" >> Paced(pace)
    read = beam.FlatMap(arrived, pace) if pace.clock else beam.Map(events_of)
    batches = slots | "Batches" >> read.with_output_types(pa.RecordBatch)
    found = released(batches, heartbeat=Paced(pace), settle=settle)
    _ = found.results | "See" >> beam.Map(keep, str(folder / "seen"))
    _ = found.ledger | "SeeCosts" >> beam.Map(keep_cost, str(folder / "seen"))
    if settle or not pace.clock:
        messages = release_messages(BINS, layout="rows")  # as `keep` has them
        _ = found.results | WriteReleasesToFolder(str(folder / "releases"), messages=messages)


def reference(last_slot: int, path: str, costs: str | None = None) -> None:
    """The releases of one run in this process that nothing disturbs, as a file.

    What its slots cost is kept in the folder `costs`, if one is named.
    """
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from streamveil.io import WriteReleases

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        slots = pipeline | beam.Create(range(last_slot + 1))
        batches = slots | beam.Map(events_of).with_output_types(pa.RecordBatch)
        found = released(batches, last_slot)
        _ = found.results | WriteReleases(path, layout="rows")
        if costs:
            _ = found.ledger | beam.Map(keep_cost, costs)

"""Does a source have the watermark of the partition that is furthest behind? Not on Prism.

    python benchmarks/prism_partitions.py -- --runner=PrismRunner --prism_location=/FOLDER/prism

What is behind `--` are Beam's flags. Plain Beam, nothing of streamveil: a source reads partitions
side by side, each at its own pace. The first begins at the time 0 and goes on by a second with each
record; the others have records of an hour later. A timer at half an hour says how many records of
the first there were when it fired: all of them, if no partition moves the watermark past another.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

RECORDS = 30  # of the first partition; the others go on for as long
HOUR = 3600
PAUSE = 0.1  # seconds between records of the first partition; the others have shorter ones


class _Records(RestrictionProvider):
    """The numbers of the records that are still to be read."""

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, RECORDS * (element + 1))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return int(restriction.size())


class _ReadFn(beam.DoFn):
    """Reads one record, then leaves the rest for later, as a reader of a topic does."""

    RECORDS = beam.DoFn.RestrictionParam(_Records())
    WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())

    @beam.DoFn.unbounded_per_element()
    def process(
        self, partition: int, records: Any = RECORDS, watermark: Any = WATERMARK
    ) -> Iterator[Any]:
        number = records.current_restriction().start
        if not records.try_claim(number):
            return
        time = Timestamp(HOUR if partition else number)
        yield TimestampedValue(("all", partition), time)
        watermark.set_watermark(time)
        records.defer_remainder(Duration(PAUSE / (partition + 1)))


class _WaitFn(beam.DoFn):
    """Takes down how many records of the first partition there were when half an hour was over."""

    READ = ReadModifyWriteStateSpec("read", VarIntCoder())
    HALF = TimerSpec("half", TimeDomain.WATERMARK)

    def __init__(self, path: Path) -> None:
        self._path = path

    def process(
        self,
        element: tuple[str, int],
        read: Any = beam.DoFn.StateParam(READ),
        half: Any = beam.DoFn.TimerParam(HALF),
    ) -> None:
        half.set(Timestamp(HOUR // 2))
        read.write((read.read() or 0) + (element[1] == 0))

    @on_timer(HALF)
    def over(self, read: Any = beam.DoFn.StateParam(READ)) -> None:
        if not self._path.exists():
            self._path.write_text(str(read.read()))


def read_in_time(partitions: int, flags: list[str]) -> int:
    """How many of the RECORDS of the first partition came before the watermark had passed them."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "partitions")
        with beam.Pipeline(options=PipelineOptions([*flags, "--streaming"])) as pipeline:
            _ = (
                pipeline
                | beam.Create(range(partitions), reshuffle=False)
                | beam.ParDo(_ReadFn()).with_output_types(tuple[str, int])
                | beam.ParDo(_WaitFn(path))
            )
        return int(path.read_text())


def main() -> None:
    """Run it once and say what came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="flags of Beam, behind --")
    given = parser.parse_args()
    found = read_in_time(given.partitions, given.flags)
    print(f"{found} of {RECORDS} records of the first of {given.partitions} partitions in time")


if __name__ == "__main__":
    main()

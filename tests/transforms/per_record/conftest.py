"""What the tests of per-record transforms share: records, runs on pinned runners, their rows."""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import TimestampedValue

from streamveil.mechanisms import Slots
from streamveil.mechanisms.per_record import Inverse
from streamveil.transforms import ColumnsBudget, ValueBudget
from tests.transforms.stand_ins import Given

HOUR = 3_600_000_000
NOISY = ValueBudget("amount", Inverse(20.0, 200.0, 100.0))


def constant(amount):
    return np.full(len(amount), 4096.0)


# So much budget that every release is all but exact.
EXACT = ColumnsBudget(("amount",), constant, 4096.0, 4096.0, {"amount": [1.0]})


def as_batch(rows):
    """One record batch of (amount, key, hour) rows; hours may be fractions."""
    amounts, keys, hours = zip(*rows, strict=True) if rows else ((), (), ())
    times = [None if hour is None else int(hour * HOUR) for hour in hours]
    return pa.RecordBatch.from_pydict(
        {
            "amount": pa.array(amounts, pa.float64()),
            "key": pa.array(keys, pa.string()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def some_records(number=400, hours=6, seed=0):
    generator = np.random.default_rng(seed)
    return list(
        zip(
            generator.integers(1, 200, number).astype(float).tolist(),
            generator.choice(["a", "b", "z"], number).tolist(),
            generator.integers(0, hours, number).tolist(),
            strict=True,
        )
    )


def windows(first=0, last=7, **options):
    """Options of hourly panes."""
    return {
        "time": "time",
        "slots": Slots.of("1h"),
        "first_slot": first,
        "last_slot": last,
        **options,
    }


class Timeline(beam.PTransform):
    """Batches and heartbeats as time passes, in hours: a stream that never ends."""

    def __init__(self, transform, start=0):
        super().__init__()
        self.transform, self._now = transform, start
        self._stream = Stream(output_tags={"records", "ticks"})
        for tag in ("records", "ticks"):
            self._stream.advance_watermark_to(start * 3600, tag=tag)
        self._tick(start)

    def _tick(self, *hours):
        ticks = [TimestampedValue(hour, hour * 3600) for hour in hours]
        self._stream.add_elements(ticks, tag="ticks")

    def records(self, *rows):
        batch = TimestampedValue(as_batch(rows), self._now * 3600)
        self._stream.add_elements([batch], tag="records")
        return self

    def advance(self, to):
        """Every hour that begins sends a tick, then the watermarks move."""
        self._tick(*range(int(self._now) + 1, int(to) + 1))
        for tag in ("ticks", "records"):
            self._stream.advance_watermark_to(to * 3600, tag=tag)
        self._now = to
        return self

    def expand(self, pipeline):
        for tag in ("ticks", "records"):
            self._stream.advance_watermark_to_infinity(tag=tag)
        made = pipeline | self._stream
        self.transform.heartbeat = Given(made["ticks"])
        return made["records"]


@dataclass
class Ran:
    rows: list[Any]
    metrics: Any

    @property
    def figures(self):
        """Rows by key and window, as (key, start in hours, end in hours, statistic, figures)."""
        return sorted(
            (
                str(row.key),
                row.start if row.start is None else row.start // HOUR,
                row.end if row.end is None else row.end // HOUR,
                row.statistic,
                repr((row.estimate, row.stderr, row.epsilon_tau, row.dropped_bound)),
            )
            for row in self.rows
        )

    @property
    def whole(self):
        """Estimates, to the nearest whole number, by (key, start, end) in hours."""
        found = {
            (row.key, row.start // HOUR, row.end // HOUR): round(row.estimate) for row in self.rows
        }
        assert len(found) == len(self.rows)
        return found


@pytest.fixture
def release_on(tmp_path, kit, pipeline_on):
    """Run a transform over batches, or over another source, and collect its rows."""
    numbers = itertools.count()

    def release_on(runner, transform, source, *flags):
        path = tmp_path / f"rows{next(numbers)}"
        if not isinstance(source, beam.PTransform):
            source = beam.Create(source, reshuffle=False)
        pipeline = pipeline_on(runner, *flags)
        rows = pipeline | "Records" >> source | "Release" >> transform
        rows | kit.collect(path)
        result = pipeline.run()
        result.wait_until_finish()
        return Ran(kit.collected(path), result.metrics())

    return release_on


@pytest.fixture
def release(release_on, usual_runner):
    """The same on the usual runner."""
    return partial(release_on, usual_runner)


@pytest.fixture
def release_stream(release_on):
    """The same of a timeline."""

    def release_stream(transform, line):
        return release_on("bundle_based", transform, line, "--streaming")

    return release_stream


@pytest.fixture
def records():
    """The functions above, for test modules, which cannot import this file."""

    class Records:
        batch = staticmethod(as_batch)
        some = staticmethod(some_records)
        windows = staticmethod(windows)
        timeline = Timeline
        noisy = NOISY
        exact = EXACT

    return Records

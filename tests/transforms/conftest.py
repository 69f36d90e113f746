"""What the tests of the transforms share: events as rows, and collected outputs.

DoFns are pickled, so outputs come back through files, one for each output.
"""

import itertools
import math
import pickle
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine import metrics
from streamveil.engine.messages import BOOKED, DONE, LEDGER, REJECTED, REVISED, REVISIONS, STATE
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.run.local import release_local
from streamveil.engine.run.release import release_plan
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms
from tests.transforms.stand_ins import Given, WithChanges

HOUR = 3_600_000_000


def as_batch(rows):
    """One record batch of (user, value, slot) rows: one event a millisecond into its hour."""
    users, values, slots = zip(*rows, strict=True) if rows else ((), (), ())
    times = np.array(slots, np.int64) * HOUR + 1000
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "value": pa.array(values, pa.string()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def histograms(registry, domain="ab", **options):
    """The transform over hourly slots and one bin for each letter.

    With PBA, whose decisions a test can foresee and force. Whatever is lost is no fault here.
    """
    options = {"noise_key": bytes(32), "mechanism": "pba", "max_rejected": 1.0, **options}
    slots = options.pop("slots", Slots.of("1h"))
    columns = options.pop("columns", Columns("user", ("value",), "time"))
    return PrivateHistograms(registry, Categories(tuple(domain)), slots, columns, **options)


def bounded_counts(rows, registry: Registry, domain="ab"):
    """Brute force: counts (K, d) of each slot, for input that needs no bounding."""
    users = list(registry.users)
    tables = defaultdict(lambda: np.zeros((len(registry.classes), len(domain)), np.int64))
    for user, value, slot in rows:
        k = registry.class_of[users.index(user)] if user in users else registry.default_class
        if k is not None:
            tables[slot][k, domain.index(value)] += 1
    return tables


def direct(tables, slots, transform):
    """Releases and ledger of ReleaseStream without Beam, over `slots` in order."""
    population: Population = transform.population
    shape = (len(population.requirements), population.bins)
    stream = ReleaseStream(
        mechanism(transform.mechanism, population),
        NoiseSource(transform.noise_key, "histogram"),
        context=transform.context,
    )
    state = stream.start()
    results = []
    for slot in slots:
        counts = tables.get(slot, np.zeros(shape, np.int64))
        state, release = stream.release(state, slot, counts)
        results.append((slot, release, state.filter.in_window.copy()))
    return results


@dataclass
class Ran:
    """What one run of a pipeline gave."""

    counters: dict[str, int]
    distributions: dict[str, Any]
    ledger: list[Any]
    rejected: list[pa.RecordBatch]
    results: list[Any] | None = None
    rows: list[Any] | None = None
    done: list[int] | None = None
    booked: list[int] | None = None
    state: list[tuple[int, bytes]] | None = None
    assignments: list[bytes] | None = None
    revisions: list[Any] | None = None
    revised: list[Any] | None = None

    @property
    def releases(self):
        """Results of a single count."""
        return self.results

    @property
    def answers(self):
        """Results of a query set."""
        return self.results

    @property
    def slots(self):
        return [release.slot for release in self.releases]

    @property
    def dead_letters(self):
        return [row for batch in self.rejected for row in batch.to_pylist()]


class Collect(beam.PTransform):
    """Appends every element of a PCollection to a file, with one write each."""

    def __init__(self, path):
        super().__init__()
        self._path = str(path)

    def expand(self, elements):
        path = self._path

        def append(element):
            with open(path, "ab", buffering=0) as file:
                file.write(pickle.dumps(element))

        return elements | beam.Map(append)


def collected(path):
    """Read a file that Collect wrote, in the order of writing."""
    found = []
    if path.exists():
        with path.open("rb") as file:
            while True:
                try:
                    found.append(pickle.load(file))
                except EOFError:
                    break
    return found


def moment(slot):
    """Start of a slot, or of a fraction of it, in whole milliseconds as streams have them."""
    return Timestamp(micros=round(slot * HOUR / 1000) * 1000)


class Timeline(beam.PTransform):
    """What happens to a pipeline, in order: events, heartbeats, and two watermarks that move.

    Times are in slots of an hour, or as `moment` has them, and may be fractions. `advance` is how
    time passes: every slot that begins sends a tick, before the watermarks move. Gives the events;
    the transform that is to read them gets the heartbeat.
    """

    def __init__(self, transform, start=0, batch=as_batch, moment=moment):
        super().__init__()
        self.transform, self._batch, self._moment = transform, batch, moment
        self._now = start
        self._stream = Stream(output_tags={"events", "ticks"})
        self._move("events", start)
        self._move("ticks", start)
        self.tick(start)

    def _move(self, tag, slot):
        self._stream.advance_watermark_to(self._moment(slot), tag=tag)

    def tick(self, *slots):
        """The heartbeat tells slots."""
        ticks = [TimestampedValue(slot, self._moment(slot)) for slot in slots]
        self._stream.add_elements(ticks, tag="ticks")
        return self

    def events(self, *rows, at=None):
        """One batch of (user, value, slot) comes; `at` is its own event time."""
        at = self._now if at is None else at
        batch = TimestampedValue(self._batch(rows), self._moment(at))
        self._stream.add_elements([batch], tag="events")
        return self

    def watermark(self, to):
        """The watermark of the events alone moves."""
        self._move("events", to)
        return self

    def heartbeat(self, to):
        """Time passes for the heartbeat alone."""
        first, last = math.floor(self._now) + 1, math.floor(to)
        if self.transform.last_slot is not None:  # many more only cost time
            last = min(last, self.transform.last_slot + 100)
        if first <= last:
            self.tick(*range(first, last + 1))
        self._move("ticks", to)
        self._now = to
        return self

    def advance(self, to):
        """Time passes."""
        return self.heartbeat(to).watermark(to)

    def expand(self, pipeline):
        self._stream.advance_watermark_to_infinity(tag="ticks")
        self._stream.advance_watermark_to_infinity(tag="events")
        made = pipeline | self._stream
        self.transform.heartbeat = Given(made["ticks"])
        return made["events"]


@pytest.fixture
def run_on(tmp_path, pipeline_on):
    """Run a transform over batches, or over another source, and collect what comes out."""
    numbers = itertools.count()

    def run_on(runner, transform, batches, *flags):
        folder = tmp_path / f"run{next(numbers)}"
        folder.mkdir()
        source = batches
        if not isinstance(batches, beam.PTransform):
            source = beam.Create(batches, reshuffle=False)
        pipeline = pipeline_on(runner, *flags)
        outputs = pipeline | "Events" >> source | "Release" >> transform
        for name, output in outputs._asdict().items():
            if output is not None:
                output | f"Collect {name}" >> Collect(folder / name)
        result = pipeline.run()
        result.wait_until_finish()
        found = result.metrics().query()
        # A counter of one name may come from several steps.
        counters, distributions = Counter(), {}
        for metric in found["counters"]:
            if metric.key.metric.namespace == "streamveil":
                counters[metric.key.metric.name] += metric.committed
        for metric in found["distributions"]:
            if metric.key.metric.namespace == "streamveil":
                distributions[metric.key.metric.name] = metric.committed
        lists = {name: collected(folder / name) for name in outputs._fields}
        return Ran(counters, distributions, **lists)

    return run_on


@pytest.fixture
def run(run_on, usual_runner):
    """The same on the usual runner."""
    return partial(run_on, usual_runner)


# By their tags, as transforms name them.
OUTPUTS = {
    LEDGER: "ledger",
    REJECTED: "rejected",
    DONE: "done",
    BOOKED: "booked",
    REVISED: "revised",
    STATE: "state",
    REVISIONS: "revisions",
}


@pytest.fixture
def here():
    """The same of batches without Beam: test_engine_run.py shows that it gives the same bytes."""

    def here(transform, batches):
        changes = None
        if isinstance(transform, WithChanges):
            transform, changes = transform.transform, transform.batches
        with metrics.counting() as counts:
            if transform.plan_kind is PlanKind.LOCAL:
                outputs = list(release_local(transform, batches))
            else:
                outputs = list(release_plan(transform, batches, changes))
        lists = {name: [] for name in OUTPUTS.values()}
        for output in outputs:
            if output.tag is not None:
                lists[OUTPUTS[output.tag]].append(output.value)
        results = [output.value for output in outputs if output.tag is None]
        return Ran(Counter(counts.counters), counts.largest, **lists, results=results)

    return here


def assert_same_releases(mine, theirs):
    """Two lists of Release agree in every field."""
    assert [r.slot for r in mine] == [r.slot for r in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert (a.start, a.end, a.status, a.published_slot, a.epsilon, a.mechanism) == (
            b.start,
            b.end,
            b.status,
            b.published_slot,
            b.epsilon,
            b.mechanism,
        )
        np.testing.assert_array_equal(a.counts, b.counts)
        np.testing.assert_array_equal(a.stderr, b.stderr)
        np.testing.assert_array_equal(a.shares, b.shares)


@pytest.fixture
def kit():
    """The functions above, for test modules, which cannot import this file."""

    class Kit:
        batch = staticmethod(as_batch)
        histograms = staticmethod(histograms)
        bounded_counts = staticmethod(bounded_counts)
        direct = staticmethod(direct)
        assert_same_releases = staticmethod(assert_same_releases)
        collect = Collect
        timeline = Timeline
        collected = staticmethod(collected)

    return Kit

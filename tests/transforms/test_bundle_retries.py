"""Every bundle of a stage fails once at its end and is run again: nothing of it shows.

BundleBasedDirectRunner runs a bundle again that failed, up to four times, from the state that it
began with; of the runners that tests can use it is the only one. (FnApiRunner fails the pipeline.)
"""

from collections import Counter

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import TimestampedValue

from streamveil.engine.count.close_shards import CloseShards
from streamveil.engine.count.close_slots import CloseSlots
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.mechanisms import DynamicStream, Registry, Requirement
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.presence import Limit
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.count_events import _MapEventsFn
from streamveil.transforms.counting.map_changes import _MapChangesFn
from streamveil.transforms.in_time import InTime
from streamveil.transforms.slots.heartbeat import _OpenSlotsFn

pytestmark = pytest.mark.slow  # whole runs, each bundle twice

KEY = bytes(range(32))
USERS = [f"u{i}" for i in range(24)]
REGISTRY = Registry.of(
    {u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate(USERS)}, default=(Requirement(3, 1.0), 20)
)
LAST = 70  # more than a block of slots
RELEASE = (AtEnd, ReleaseInTime)


def rows(seed):
    generator = np.random.default_rng(seed)
    return [
        (f"u{u}", "abz"[v], int(s))
        for u, v, s in zip(
            generator.integers(30, size=300),
            generator.choice(3, size=300),
            generator.choice([0, 1, 2, 5, 64, LAST], size=300),
            strict=True,
        )
    ]


class Bounded(beam.PTransform):
    """All events at once."""

    def __init__(self, kit, transform):
        super().__init__()
        self.kit, self.transform = kit, transform

    def expand(self, pbegin):
        return pbegin | beam.Create([self.kit.batch(rows(s)) for s in range(3)], reshuffle=False)


class Unbounded(Bounded):
    """Events as the watermark goes on, some of them late."""

    def expand(self, pbegin):
        hour = 3600
        stream = Stream().advance_watermark_to(0)
        by_slot = {}
        for row in rows(0):
            by_slot.setdefault(row[2], []).append(row)
        for slot, some in sorted(by_slot.items()):
            batch = self.kit.batch(some + [("u1", "a", 0)] * (slot == 64))
            stream.add_elements([TimestampedValue(batch, slot * hour)])
            stream.advance_watermark_to(slot * hour + 1)
        stream.advance_watermark_to_infinity()
        batches = pbegin | stream.with_output_types(pa.RecordBatch)
        self.transform.heartbeat = beam.Create(range(LAST + 1))
        return batches


STAGES = {
    Bounded: [_MapEventsFn, AtEnd],
    Unbounded: [_MapEventsFn, _OpenSlotsFn, CloseSlots, ReleaseInTime],
}
# Where requirements change.
CHANGING = {
    Bounded: [_MapChangesFn, AtEnd],
    Unbounded: [_MapChangesFn, CloseShards, ReleaseInTime],
}
# Where users count in a few slots only.
LIMITED = {
    Bounded: [AtEnd],
    Unbounded: [CloseShards, ReleaseInTime],
}
FIGURES = ("window_backward", "epsilon_backward", "window_forward", "epsilon_forward")


class Changing(beam.PTransform):
    """The transform over events and a few changes, in two batches."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def expand(self, events):
        batches = [
            pa.RecordBatch.from_pylist(
                [
                    {"user": f"u{u}", "slot": 3 * u, **dict.fromkeys(FIGURES, 1.0 + u % 3)}
                    for u in range(start, 28, 2)
                ]
            )
            for start in (0, 1)
        ]
        changes = events.pipeline | "Changes" >> beam.Create(batches, reshuffle=False)
        return (events, changes) | "Histograms" >> self.transform


def fail_every_bundle_once(monkeypatch, stage):
    """Let a stage raise at the end of every bundle until that runs again; gives what happened.

    The stage is a DoFn, or a step that `InTime` hosts.
    """
    happened = Counter()
    host = stage if issubclass(stage, beam.DoFn) else InTime
    finish = host.finish_bundle

    def finish_bundle(self):
        if host is not stage and not isinstance(self.step, stage):
            finish(self)
            return
        happened["ends"] += 1
        if happened["ends"] % 2:
            raise RuntimeError("injected")
        finish(self)

    def note(kind):
        release = kind.release

        def noted(*given):
            happened["slots"] += 1
            return release(*given)

        monkeypatch.setattr(kind, "release", noted)

    monkeypatch.setattr(host, "finish_bundle", finish_bundle)
    note(ReleaseStream)
    note(DynamicStream)
    return happened


def plain_values(ran):
    """All that came out, as plain values; dead letters in any order."""
    return (
        [(r.slot, r.status, r.counts.tolist(), str(r.stderr), r.epsilon) for r in ran.releases],
        [str(vars(entry)) for entry in ran.ledger],
        [str(vars(revision)) for revision in ran.revisions],
        sorted(str(letter) for letter in ran.dead_letters),
        ran.state,
    )


def cases(stages):
    return pytest.mark.parametrize(
        ("source", "stage"), [(source, stage) for source in stages for stage in stages[source]]
    )


@cases(CHANGING)
def test_where_requirements_change(run_on, kit, monkeypatch, stage, source):
    options = ["--streaming"] if source is Unbounded else []

    def once():
        transform = kit.histograms(
            REGISTRY, mechanism="adaptive", noise_key=KEY, first_slot=0, last_slot=LAST, revise=5
        )
        return run_on("bundle_based", Changing(transform), source(kit, transform), *options)

    calm = once()
    assert calm.slots == list(range(LAST + 1))
    happened = fail_every_bundle_once(monkeypatch, stage)
    assert plain_values(once()) == plain_values(calm)
    assert happened["ends"] >= 2
    assert happened["slots"] == (LAST + 1) * (2 if stage in RELEASE else 1)


@cases(LIMITED)
def test_where_users_count_in_a_few_slots_only(run_on, kit, monkeypatch, stage, source):
    options = ["--streaming"] if source is Unbounded else []
    registry = Registry.of(dict.fromkeys(USERS, (40, 9.0)), default=(Requirement(40, 9.0), 20))
    limit = [Limit(1, 2)] * len(registry.classes)

    def once():
        transform = kit.histograms(
            registry, limit=limit, noise_key=KEY, mechanism="adaptive", first_slot=0, last_slot=LAST
        )
        return run_on("bundle_based", transform, source(kit, transform), *options)

    calm = once()
    assert calm.slots == list(range(LAST + 1))
    assert "kept_share" in calm.releases[-1].diagnostics
    happened = fail_every_bundle_once(monkeypatch, stage)
    assert plain_values(once()) == plain_values(calm)
    assert happened["ends"] >= 2
    assert happened["slots"] == (LAST + 1) * (2 if stage in RELEASE else 1)


@cases(STAGES)
def test_a_stage_whose_bundles_all_fail_once_gives_the_same(
    run_on, kit, monkeypatch, stage, source
):
    transform = kit.histograms(
        REGISTRY, mechanism="adaptive", noise_key=KEY, first_slot=0, last_slot=LAST, revise=5
    )
    options = ["--streaming"] if source is Unbounded else []
    calm = run_on("bundle_based", transform, source(kit, transform), *options)
    assert calm.slots == list(range(LAST + 1))
    reasons = {letter["reason"] for letter in calm.dead_letters}
    assert reasons >= {"outside the domain"} | ({"late"} if source is Unbounded else set())
    happened = fail_every_bundle_once(monkeypatch, stage)
    assert plain_values(
        run_on("bundle_based", transform, source(kit, transform), *options)
    ) == plain_values(calm)
    assert happened["ends"] >= 2
    assert happened["ends"] % 2 == 0
    # The bundles that release are run again as well.
    assert happened["slots"] == (LAST + 1) * (2 if stage in RELEASE else 1)

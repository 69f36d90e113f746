"""Parts of slots come in any order, some again: each slot is released from all of them, once."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders import FastPrimitivesCoder
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine import metrics
from streamveil.engine.arrivals import REMEMBERED, Arrivals
from streamveil.engine.messages import Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.release_in_time import LONGEST_WAIT, ReleaseInTime
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig
from streamveil.mechanisms import ConfigurationError, Registry, Slots
from streamveil.mechanisms.core.records import PUBLISHED, REQUIREMENT_COLUMNS, Release
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.transforms import in_time, release_plan
from tests.transforms.stand_ins import Cell, Hosted

FIRST, LAST, PARTS = 3, 9, 3
KEYS = [(slot, number) for slot in range(FIRST, LAST + 1) for number in range(PARTS)]


@dataclass
class Ledger:
    """A driver that writes down what each slot was released from."""

    parts: int = PARTS
    quiet: tuple = ()
    released: list = field(default_factory=list)

    def make(self):
        return self

    def start(self):
        return None

    def encode(self, state):
        return str(state).encode()

    def decode(self, data):
        return int(data)

    def slots(self, block, parts):
        yield block, sorted(part.payload for part in parts)

    def release(self, state, slot, counted):
        self.released.append((slot, counted))
        nothing = np.zeros(1)
        return slot + 1, SlotRelease(nothing, PUBLISHED, slot, 0.0, nothing, spent=nothing)

    def next_slot(self, state):
        return state

    def use(self, state):
        return 0.0

    def entry(self, state, slot, release):
        return None


class Written(Cell):
    """A value as a runner keeps it."""

    coder = FastPrimitivesCoder()

    def write(self, value):
        super().write(self.coder.decode(self.coder.encode(value)))


class Stage(Hosted):
    """The release stage of a stream and its state."""

    def __init__(self, parts=PARTS):
        self.ledger = Ledger(parts)
        slots = Slots(1000)
        publish = Publish(slots, "none")
        config = ReleaseConfig(partial(one_driver, self.ledger), SlotClock(slots), publish)
        super().__init__(ReleaseInTime(config), "")
        self.progress, self.state, self.taken = Written(), Written(), Written()

    def tell(self, *messages):
        """Let them come; the slots that are released."""
        made = [output for message in messages for output in self.take(message)]
        values = [getattr(output, "value", None) for output in made]
        return [value.slot for value in values if isinstance(value, Release)]


@pytest.fixture
def counted(monkeypatch):
    found = Counter()
    monkeypatch.setattr(metrics, "count", lambda name, n: found.update({name: n}))
    return found


def part(slot, number, content=None, parts=PARTS):
    content = b"%d of %d" % (number, slot) if content is None else content
    return Message(Kind.COUNTS, slot, number, content, parts)


def whole(slot, parts=PARTS):
    return [part(slot, number, parts=parts) for number in range(parts)]


START = Message(Kind.START, FIRST)
# Every part once, in any order, and some of them again in any place.
REPEATED = st.tuples(st.permutations(KEYS), st.lists(st.sampled_from(KEYS), max_size=25)).flatmap(
    lambda keys: st.permutations([*keys[0], *keys[1]])
)


@given(REPEATED, st.data())
@settings(max_examples=200)
def test_a_slot_is_released_from_all_its_parts_each_once(order, data):
    stage, released, came = Stage(), [], set()
    begins = data.draw(st.integers(0, len(order)))
    messages = [part(*key) for key in order]
    messages[begins:begins] = [START]
    if data.draw(st.booleans()):
        messages.append(START)
    for message in messages:
        released += stage.tell(message)
        came.add(message)
        for slot, counted in stage.ledger.released:
            assert {part(slot, number) for number in range(PARTS)} <= came
            assert counted == sorted(b"%d of %d" % (number, slot) for number in range(PARTS))
    assert released == list(range(FIRST, LAST + 1))
    assert [slot for slot, _ in stage.ledger.released] == released
    assert not stage.waiting.bag


@given(st.permutations(KEYS), st.sampled_from(KEYS), st.data())
@settings(max_examples=200)
def test_a_contradiction_fails_unless_its_slot_is_released(order, key, data):
    """Then it is dropped: the release stays what it is."""
    stage, after = Stage(), data.draw(st.integers(order.index(key) + 1, len(order)))
    stage.tell(START, *(part(*one) for one in order[:after]))
    before, released = stage.waiting.read(), list(stage.ledger.released)
    if key[0] in [slot for slot, _ in released]:
        assert stage.tell(part(*key, b"other")) == []
    else:
        words = f"part {key[1]} of 3 of slot {key[0]} came twice with different content"
        with pytest.raises(ConfigurationError, match=words):
            stage.tell(part(*key, b"other"))
    assert stage.waiting.read() == before
    assert stage.ledger.released == released


def test_a_part_that_comes_twice_takes_the_place_of_no_other(counted):
    stage = Stage(2)
    assert stage.tell(START, *2 * [part(FIRST, 0, parts=2)]) == []
    assert len(stage.waiting.bag) == 1
    assert counted[metrics.PARTS_REPEATED] == 1
    assert stage.tell(part(FIRST, 1, parts=2)) == [FIRST]


def test_what_comes_after_a_release_is_dropped_and_reported(counted, caplog):
    stage, last = Stage(), FIRST + REMEMBERED
    stage.tell(START, *(message for slot in range(FIRST, last + 1) for message in whole(slot)))
    released = list(stage.ledger.released)
    counted.clear()
    with caplog.at_level(logging.INFO, "streamveil"):
        again = [part(last, 1), part(last, 1, b"other"), part(FIRST, 1)]
        assert stage.tell(*again) == []
    assert counted == {metrics.PARTS_REPEATED: 1, metrics.PARTS_AFTER_RELEASE: 2}
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]
    assert f"part 1 of 3 of slot {last} arrived after" in caplog.text
    assert stage.tell(*whole(last + 1)) == [last + 1]
    assert stage.ledger.released[:-1] == released
    assert not stage.waiting.bag


def at_the_time(monkeypatch, seconds):
    """Let it be then; gives what holds the time, which may be set."""
    now = [seconds]
    kept = property(lambda self: int(now[0] * 1e6))
    monkeypatch.setattr(in_time._Kept, "now", kept)
    return now


def test_parts_that_wait_for_others_say_for_which(monkeypatch, caplog):
    now, shown = at_the_time(monkeypatch, 1000.0), []
    monkeypatch.setattr(metrics, "show", lambda name, value: shown.append((name, value)))
    stage = Stage()
    stage.tell(START, *whole(FIRST), part(FIRST + 1, 1), part(FIRST + 2, 0))
    now[0] += LONGEST_WAIT
    assert not caplog.records
    stage.tell(part(FIRST + 2, 1), part(FIRST + 2, 2))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "for 60 seconds: 3 parts of slots wait for 2 of 3 parts of slot 4 (parts 0, 2)" in (
        record.getMessage()
    )
    assert shown[-1] == (metrics.PARTS_WAITED_FOR, 60)
    assert stage.tell(part(FIRST + 1, 0), part(FIRST + 1, 2)) == [FIRST + 1, FIRST + 2]
    assert shown[-1] == (metrics.PARTS_WAITED_FOR, 0)


def test_parts_that_wait_for_the_start_say_so(monkeypatch, caplog):
    now = at_the_time(monkeypatch, 1000.0)
    stage = Stage(12)
    stage.tell(part(FIRST, 0, parts=12))
    now[0] += LONGEST_WAIT
    stage.tell(part(FIRST, 1, parts=12))
    assert "wait for the start of the stream" in caplog.text
    assert "10 of 12 parts of slot 3 (parts 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)" in (
        Arrivals(12, 3, 3, {3: 3}).missing
    )


def test_another_number_of_shards_is_refused():
    stage = Stage(2)
    for wrong in (part(FIRST, 0, parts=4), part(FIRST, 2, parts=2)):
        with pytest.raises(ConfigurationError, match=r"this run has 2: .* --shards"):
            stage.tell(START, wrong)


def test_another_start_is_refused():
    stage = Stage()
    stage.tell(START, *whole(FIRST), START)
    assert stage.tell(*whole(FIRST + 1)) == [FIRST + 1]
    with pytest.raises(ConfigurationError, match="slot 4, and it started with slot 3"):
        stage.tell(Message(Kind.START, 4))


def test_many_shards_wait_as_bits():
    stage = Stage(200)
    *some, last = whole(FIRST, parts=200)
    assert stage.tell(START, *some, *some) == []
    assert stage.tell(last) == [FIRST]


# ---- in a pipeline ------------------------------------------------------------------------------

REGISTRY = Registry.of({"ann": (2, 1.0), "bob": (2, 1.0)})


def twice(counts, keys, every):
    """A runner that delivers every part twice, in place of one that settles them."""
    return counts | "Twice" >> beam.FlatMap(lambda element: [element] * 2).with_output_types(
        counts.element_type
    )


# Without the numbers of parts two messages of one shard released a slot without the other shard.
@pytest.mark.parametrize("changing", [False, True])
def test_a_runner_that_delivers_twice_releases_the_same(
    run_on, kit, monkeypatch, counted, changing
):
    rows = [("ann", "a", 0), ("bob", "b", 1), ("ann", "b", 2)]
    ran = []
    for replaced in (False, True):
        if replaced:
            monkeypatch.setattr(release_plan, "settled", twice)
        options = {"mechanism": "dpba" if changing else "pba", "shards": 2}
        transform = kit.histograms(REGISTRY, first_slot=0, last_slot=3, **options)
        line = kit.timeline(transform).events(*rows).advance(2).events(("bob", "a", 2)).advance(5)
        release = Changing(transform) if changing else transform
        ran.append(run_on("bundle_based", release, line, "--streaming"))
    assert ran[0].slots == [0, 1, 2, 3]
    assert counted[metrics.PARTS_REPEATED] == 4 * 4
    kit.assert_same_releases(*(sorted(one.releases, key=attrgetter("slot")) for one in ran))


class Changing(beam.PTransform):
    """The transform, with one change of requirements."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def expand(self, events):
        figures = dict.fromkeys(REQUIREMENT_COLUMNS, 1.0)
        batch = pa.RecordBatch.from_pylist([{"user": "ann", "slot": 1, **figures}])
        changes = events.pipeline | beam.Create([batch], reshuffle=False)
        return (events, changes) | self.transform

"""Messages to events: what is parsed, what is a dead letter, and what holds the watermark."""

import json

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue

from streamveil.io import REJECTED_SCHEMA, messages
from streamveil.io.json_objects import read_objects
from streamveil.io.messages import ParseMessages
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.transforms import Columns, PrivateHistograms

NAMES = ("user", "value")
HOUR = 3600


def parse(*records):
    """Rows of the good messages, and (index, what is wrong) of the others."""
    bad = []
    arrays = read_objects(records, NAMES, lambda index, detail, _: bad.append((index, detail)))[0]
    assert [array.type for array in arrays] == [pa.string()] * len(NAMES)
    return list(zip(*(array.to_pylist() for array in arrays), strict=True)), bad


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (b'{"user":"u","value":"A"}', ("u", "A")),
        (b'{"value":"A","user":"u","x":[1]}', ("u", "A")),
        (b'{\n "user": "u",\n "value": "A"\n}\n', ("u", "A")),
        (b'{"user":7,"value":7.0}', ("7", "7")),
        (b'{"user":12345678901234567890123,"value":-0.25}', ("12345678901234567890123", "-0.25")),
        (b'{"user":null}', (None, None)),
        (b"{}", (None, None)),
        ('{"user":"é","value":"\\u00e9"}'.encode(), ("é", "é")),
    ],
)
def test_a_message_is_one_object_of_texts(text, row):
    assert parse(text) == ([row], [])
    # Beside others as well, which are then read at once or one by one.
    other = b'{"user":"o","value":"B"}'
    assert parse(other, text, other) == ([("o", "B"), row, ("o", "B")], [])


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (b"", "not JSON"),
        (b" \n", "not JSON"),
        (b"no", "not JSON"),
        (b'{"user":"u"', "not JSON"),
        (b'{"user":"a"}{"user":"b"}', "not JSON"),
        (b'{"user":"a"}\n{"user":"b"}', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'{"user":"\xff"}', "not UTF-8"),
        (b'{"user":true}', "'user' is a boolean"),
        (b'{"user":{"id":1}}', "'user' is an object"),
        (b'{"user":"\\ud800"}', "surrogate"),
    ],
)
def test_what_is_no_event_is_told_apart_from_its_neighbours(text, detail):
    good = b'{"user":"o","value":"B"}'
    rows, bad = parse(good, text, b" ", good)
    assert rows == [("o", "B")] * 2
    assert [index for index, _ in bad] == [1, 2]
    assert detail in bad[0][1]


def test_numbers_have_the_same_text_whatever_their_neighbours_are():
    alone = [parse(b'{"user":%s}' % number)[0][0][0] for number in (b"7", b"7.0", b'"7"', b"7e0")]
    together, _ = parse(*(b'{"user":%s}' % number for number in (b"7", b"7.0", b'"7"', b"7e0")))
    assert alone == [user for user, _ in together] == ["7"] * 4


@pytest.mark.parametrize("limits", [{}, {"BATCH_MESSAGES": 7}, {"BATCH_BYTES": 100}])
def test_every_message_comes_out_once(monkeypatch, keep, pipeline_on, runner, limits):
    for name, limit in limits.items():
        monkeypatch.setattr(messages, name, limit)
    records = [json.dumps({"user": f"u{i}", "value": i}).encode() for i in range(100)]
    records[17] = b"no"
    with pipeline_on(runner) as pipeline:
        events = pipeline | beam.Create(records) | ParseMessages("pubsub:x", NAMES)
        batches, rejected = keep(events.batches, "batches"), keep(events.rejected, "rejected")
    rows = [row for batch, _ in batches for row in batch.to_pylist()]
    assert sorted((row["user"], row["value"]) for row in rows) == sorted(
        (f"u{i}", str(i)) for i in range(100) if i != 17
    )
    assert {row["__row__"] for row in rows} == {None}
    ((letters, _),) = rejected
    assert letters.schema == REJECTED_SCHEMA
    assert letters.to_pylist() == [
        {
            "source": "pubsub:x",
            "row": None,
            "reason": "unparsable",
            "detail": "not JSON: Expecting value: line 1 column 1 (char 0)",
            "record": "no",
        }
    ]
    for batch, _ in batches:
        assert batch.schema.metadata == {b"streamveil.source": b"pubsub:x"}
        assert batch.schema.field("__row__").type == pa.int64()
        assert not limits or batch.num_rows <= 7


def stamped(user, value, second):
    """A message as Pub/Sub gives it, with its event time as timestamp."""
    text = json.dumps({"user": user, "value": value, "time": second})
    return TimestampedValue(text.encode(), second)


def test_a_batch_stands_at_its_earliest_message(keep):
    stream = test_stream.TestStream().add_elements([stamped("a", "A", 50), stamped("b", "A", 20)])
    stream = stream.add_elements([stamped("c", "A", 70)]).advance_watermark_to_infinity()
    options = PipelineOptions(["--streaming"])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        batches = keep((pipeline | stream | ParseMessages("x", NAMES)).batches, "batches")
    found = {tuple(batch["user"].to_pylist()): time for batch, time in batches}
    assert found == {("a", "b"): 20, ("c",): 70}


def test_batching_makes_no_event_late(keep):
    """Bundles over several slots, in any order, with the watermark right behind the earliest."""
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(0)
        .add_elements([stamped("u0", "A", 2 * HOUR + 5), stamped("u1", "B", 10)])
        .advance_watermark_to(10)
        .add_elements([stamped("u2", "A", HOUR + 1), stamped("u0", "A", HOUR - 1)])
        .advance_watermark_to(HOUR)  # slot 0 is closed here
        .add_elements([stamped("u1", "A", HOUR), stamped("u2", "B", 5)])  # the second one is late
        .advance_watermark_to(3 * HOUR)
        .advance_watermark_to_infinity()
    )
    names = ("user", "value", "time")
    histograms = PrivateHistograms(
        Registry.of({f"u{i}": (1, 4000.0) for i in range(3)}),
        Categories(("A", "B")),
        Slots.of("1h"),
        Columns("user", ("value",), "time", time_unit="s"),
        mechanism="uniform",
        first_slot=0,
        last_slot=2,
        heartbeat=beam.Create([0, 1, 2]),
    )
    options = PipelineOptions(["--streaming"])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        events = pipeline | stream | ParseMessages("x", names)
        outputs = events.batches | histograms
        releases, rejected = keep(outputs.releases, "releases"), keep(outputs.rejected, "rejected")
    counts = {release.slot: release.counts for release, _ in releases}
    assert {slot: row.tolist() for slot, row in counts.items()} == {0: [1, 1], 1: [2, 0], 2: [1, 0]}
    letters = [row for batch, _ in rejected for row in batch.to_pylist()]
    assert [row["reason"] for row in letters] == ["late"]

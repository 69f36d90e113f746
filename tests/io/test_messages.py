"""Messages to events: what is parsed, what is a dead letter, and what holds the watermark."""

import decimal
import hashlib
import io
import json

import apache_beam as beam
import fastavro
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue

from streamveil.engine.messages import REJECTED
from streamveil.io import REJECTED_SCHEMA, json_objects, message_batches, messages, typed_messages
from streamveil.io.avro import BLOCK, HEADER, MAGIC
from streamveil.io.json_objects import read_objects
from streamveil.io.message_batches import MessageParser
from streamveil.io.messages import ParseMessages
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Slots
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms

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
        (b'{"user":{"id":1}}', "'user' is an object"),
        (b'{"user":"\\ud800"}', "surrogate"),
    ],
)
def test_what_is_no_event_is_split_from_its_neighbours(text, detail):
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
            "detail": "not JSON: Expecting value at character 1",
            "record": "no",
        }
    ]
    for batch, _ in batches:
        assert batch.schema.metadata == {b"streamveil.source": b"pubsub:x"}
        assert batch.schema.field("__row__").type == pa.int64()
        assert not limits or batch.num_rows <= 7


# ---- messages of many events ------------------------------------------------------------------


def rows_of(kind, *sent, columns=NAMES, **settings):
    """(message's row, user, value) of all events, and (row, reason, detail) of all letters."""
    rows, letters = [], []
    for value, tag, _ in MessageParser("x", columns, False, kind, **settings).parse(list(sent)):
        found = value.to_pylist()
        if tag == REJECTED:
            letters += [(row["row"], row["reason"], row["detail"]) for row in found]
        else:
            rows += [(row["__row__"], row["user"], row["value"]) for row in found]
    return rows, letters


def test_all_that_was_read_is_reported(caplog):
    with caplog.at_level("INFO", "streamveil.progress"):
        rows_of("json", b'[{"user":"a"}, 5, {"user":"b"}]', b"no")
    assert [record.events for record in caplog.records] == [4]


def arrow(columns, **options):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(columns)
    given = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batch.schema, options=given) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def avro(fields, rows, codec="null"):
    handle = io.BytesIO()
    schema = {"type": "record", "name": "Event", "fields": fields}
    fastavro.writer(handle, schema, rows, codec)
    return handle.getvalue()


def test_which_event_of_which_message_is_bad_is_reported():
    good = b'[{"user":"a","value":1}]'
    mixed = b'[{"user":"b"}, [1], {"user":"c"}]'
    rows, letters = rows_of("json", good, b'{"user":"d"}', mixed, b"[]", b"[{]")
    assert sorted(rows, key=str) == [
        (0, "a", "1"),
        (0, "b", None),
        (2, "c", None),
        (None, "d", None),
    ]
    assert letters == [
        (
            None,
            "unparsable",
            "not JSON: Expecting property name enclosed in double quotes at character 3",
        ),
        (
            1,
            "unparsable",
            "not a JSON object; in the message with SHA-256 " + hashlib.sha256(mixed).hexdigest(),
        ),
    ]
    rows, letters = rows_of("jsonl", b'{"user":"a"}\r\n\nno\n{"user":"b"}', b"", b'{"user":"c"}')
    assert rows == [(1, "a", None), (4, "b", None), (1, "c", None)]
    assert [(row, detail.partition(":")[0]) for row, _, detail in letters] == [
        (None, "an empty message"),
        (3, "not JSON"),
    ]


@pytest.mark.parametrize(
    ("text", "users", "bad"),
    [
        (b"[]", [], []),
        (b" [ \n ] ", [], []),
        (b'[{"user":"a"},]', ["a"], [1]),
        (b'[,{"user":"a"}]', ["a"], [0]),
        (b'[{"user":"a]["},{"user":"\\"b,"}]', ["a][", '"b,'], []),
        (b'[{"user":"a\\\\"},{"user":"b"}]', ["a\\", "b"], []),
        (b'[{"user":"\xff"},{"user":"b"}]', ["b"], [0]),
        (b'[{"a":[1}]},{"user":"b"}]', [], [None]),
        (b'[{"user":"a"}', [], [None]),
        (b'[{"user":"a"}]]', [], [None]),
        (b'[{"user":"a"}] [{"user":"b"}]', [], [None]),
        (b'[{"user":"a"}]x', [], [None]),
        (b'["]', [], [None]),
        (b"[", [], [None]),
        (b"[" * 100_000, [], [None]),
    ],
)
def test_an_array_is_taken_apart(text, users, bad):
    """Beside others, which it leaves alone, and by itself."""
    other = b'[{"user":"o"}]'
    for before in ((), (other,)):
        rows, letters = rows_of("json", *before, text, *before)
        assert [user for _, user, _ in rows] == ["o"] * len(before) + users + ["o"] * len(before)
        assert [row for row, *_ in letters] == bad


def too_precise(*numbers):
    """Numbers of which some have more digits than their type, 3, as a careless writer sends."""
    array = pa.array(map(decimal.Decimal, numbers), pa.decimal128(20, 0))
    return pa.Array.from_buffers(pa.decimal128(3, 0), len(array), array.buffers())


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array([7, None, -1]), ["7", None, "-1"]),
        (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
        (pa.array([7.0, 0.1, 1e20, 1e-7]), ["7", "0.1", "1" + "0" * 20, "0.0000001"]),
        (pa.array([0.1], pa.float32()), ["0.1"]),
        (pa.array([decimal.Decimal("7.50")]), ["7.5"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.array(["a"], pa.large_string()), ["a"]),
        (pa.array(["a" * 20], pa.string_view()), ["a" * 20]),
        (pa.array([0], pa.timestamp("ns", "Europe/Berlin")), ["1970-01-01 00:00:00.000000000Z"]),
        (pa.array([0], pa.timestamp("s")), ["1970-01-01 00:00:00"]),
        (pa.array([1], pa.date32()), ["1970-01-02"]),
        (pa.array([43_200_000, 86_400_000]).view(pa.date64()), ["1970-01-01", "1970-01-02"]),
        (too_precise("123456", "7"), ["123456", "7"]),
        (pa.nulls(2), [None, None]),
    ],
)
def test_cells_of_arrow_are_texts_as_those_of_json(array, texts):
    message = arrow({"user": array})
    rows, letters = rows_of("arrow", message, message)
    assert rows == [(i, text, None) for i, text in enumerate(texts)] * 2
    assert letters == []


def doubling(leaf, times=40):
    """A container whose records hold two of a type that holds two, and so on: 2**times leaves."""
    kinds = [{"name": "user", "type": "string"}]
    inside = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": leaf}]}
    for number in range(times):
        kinds.append({"name": f"f{number}", "type": ["null", inside]})
        pair = [{"name": side, "type": f"R{number}"} for side in "ab"]
        inside = {"type": "record", "name": f"R{number + 1}", "fields": pair}
    return avro([*kinds, {"name": "last", "type": ["null", inside]}], [{"user": "a"}])


@pytest.mark.parametrize(("leaf", "good"), [("string", True), ("null", False)])
def test_a_schema_of_types_in_each_other_is_not_spelt_out(leaf, good):
    rows, letters = rows_of("avro", doubling(leaf))
    assert (len(rows), len(letters)) == ((1, 0) if good else (0, 1))


def zeros(kind):
    return {"name": "user", "type": kind}


def views_of_one(text, times):
    """Views of the same bytes: small, and large once they are written out."""
    _, views, data = pa.array([text], pa.string_view()).buffers()
    views = pa.py_buffer(views.to_pybytes()[:16] * times)
    return pa.Array.from_buffers(pa.string_view(), times, [None, views, data])


def growing_dictionary():
    """A stream whose every batch adds an entry to its dictionary."""
    sink, words = pa.BufferOutputStream(), []
    schema = pa.schema({"user": pa.dictionary(pa.int32(), pa.string())})
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for number in range(3):
            words.append(str(number))
            array = pa.DictionaryArray.from_arrays(pa.array([number], pa.int32()), words)
            writer.write_batch(pa.record_batch([array], schema))
    return sink.getvalue().to_pybytes()


def of_scale(scale):
    buffers = pa.array([decimal.Decimal(7)], pa.decimal128(38, 0)).buffers()
    return pa.Array.from_buffers(pa.decimal128(38, scale), 1, buffers)


def container(schema, number, block):
    """One of such records, which need not be."""
    handle, sync = io.BytesIO(), bytes(16)
    meta = {"avro.schema": json.dumps(schema).encode().replace(b"NAME", b"na\\u006de")}
    fastavro.schemaless_writer(handle, HEADER, {"magic": MAGIC, "meta": meta, "sync": sync})
    block = {"records": number, "data": block, "sync": sync}
    fastavro.schemaless_writer(handle, BLOCK, block)
    return handle.getvalue()


def escaped_nulls():
    """Records of a byte and 500 values, in a schema that hides that it names them."""
    nulls = [{"NAME": f"n{number}", "type": "null"} for number in range(500)]
    schema = {"type": "record", "name": "Event", "fields": [zeros("string"), *nulls]}
    return container(schema, 50_000, bytes(50_000))


@pytest.mark.parametrize(
    ("kind", "message", "detail"),
    [
        ("arrow", b"", "Tried reading schema"),
        ("arrow", b"no", "not an Arrow IPC stream"),
        ("arrow", arrow({"user": ["a"] * 9}, compression="zstd"), "compressed"),
        ("arrow", arrow({"user": pa.array(["a"]).dictionary_encode()}, compression="lz4"),
         "compressed"),
        ("arrow", arrow({"user": pa.nulls(10**9)}), "say that they hold 1000000000 events"),
        ("arrow", arrow({"user": [["a"]]}), "'user' holds list<item: string>: send text, numbers, "
         "booleans or times"),
        ("arrow", arrow({"user": ["a"]}) * 2, "continues after its end"),
        ("arrow", arrow({"user": pa.array(["a" * 9_000] * 9_000).dictionary_encode()}),
         "bytes of text"),
        ("arrow", arrow({"user": views_of_one("a" * 90_000, 1_000)}), "its views stand for more"),
        ("arrow", arrow({"user": views_of_one("a" * 90_000, 1_000).dictionary_encode()}),
         "its dictionaries stand for more"),
        ("arrow", growing_dictionary(), "a dictionary adds to another one"),
        ("arrow", arrow({"user": of_scale(-100)}), "'user' holds decimal128(38, -100)"),
        ("arrow", arrow({"user": of_scale(100)}), "'user' holds decimal128(38, 100)"),
        ("avro", b"Obj\x01", "not an Avro container"),
        ("avro", avro([zeros("string")], [{"user": "a"}])[:-1], "not an Avro container"),
        ("avro", avro([zeros("null")], [{"user": None}] * 9), "may take no byte"),
        ("avro", avro([zeros({"type": "array", "items": "null"})], [{"user": [None]}]),
         "that take no byte"),
        ("avro", avro([zeros("string")], [{"user": "a" * 70 * 10**6}], "deflate"),
         "unpack to more"),
        ("avro", escaped_nulls(), "says that it holds 50000 records"),
        ("avro", avro([zeros("null"), {"name": "x" * (1 << 18), "type": "int"}], []),
         "its schema has"),
        ("avro", avro([zeros("string")], [{"user": "a"}], "bzip2"), "codec 'bzip2' is not read"),
        ("avro", avro([zeros("bytes")], [{"user": b"a"}]), "'user' holds binary"),
        (
            "avro",
            avro([zeros({"type": "record", "name": "L",
                         "fields": [{"name": "next", "type": ["null", "L"]}]})],
                 [{"user": {"next": None}}]),
            "is inside itself",
        ),
    ],
    ids=lambda part: f"{len(part)} bytes" if isinstance(part, bytes) else None,
)  # fmt: skip
def test_a_message_that_cannot_be_taken_apart_is_one_dead_letter(kind, message, detail):
    good = {"arrow": arrow({"user": ["a"]}), "avro": avro([zeros("string")], [{"user": "a"}])}[kind]
    rows, ((row, reason, text),) = rows_of(kind, good, message, good)
    assert rows == [(0, "a", None)] * 2
    assert (row, reason) == (None, "unparsable")
    assert detail in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("text", [pa.string(), pa.string_view()])
def test_cells_that_cannot_be_read_are_those_of_their_event(text):
    raw = pa.array([b"a", b"\xff", b"c"])
    raw = raw.view(text) if text == pa.string() else raw.cast(pa.binary_view()).view(text)
    message = arrow({"user": raw, "value": [1.0, 2.0, float("nan")]})
    rows, letters = rows_of("arrow", message)
    assert rows == [(0, "a", "1")]
    assert [(row, detail.partition(";")[0]) for row, _, detail in letters] == [
        (1, "'user' is not UTF-8"),
        (2, "'value' is NaN, not a string, a number or a boolean"),
    ]


def test_a_decimal_of_avro_is_a_number_or_its_event_is_bad():
    """It took 14 s to make digits of 400,000 bytes."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = {"type": "record", "name": "Event", "fields": [zeros(kind)]}
    values = [(750).to_bytes(2, "big"), b"\x7f" * 400_000, b"\x01"]
    block = io.BytesIO()
    for value in values:
        fastavro.schemaless_writer(block, "bytes", value)
    rows, letters = rows_of("avro", container(schema, len(values), block.getvalue()))
    assert rows == [(0, "7.5", None), (2, "0.01", None)]
    ((row, _, detail),) = letters
    assert row == 1
    assert detail.startswith("'user' is a decimal of 400000 bytes")


def test_a_message_of_no_events_is_none():
    sink = pa.BufferOutputStream()
    union = pa.sparse_union([pa.field("x", pa.int8())])
    pa.ipc.new_stream(sink, pa.schema({"user": pa.string(), "other": union})).close()
    for kind, message in (
        ("json", b"[]"),
        ("arrow", sink.getvalue().to_pybytes()),
        ("arrow", arrow({"user": pa.array([], pa.bool_())})),
        ("avro", avro([zeros("string")], [])),
    ):
        assert rows_of(kind, message) == ([], [])


# They were refused together, as unpacking to more than a hundred times their size.
def test_one_users_long_texts_push_out_no_others():
    users, values = ["a", *["b"] * 200, "c"], ["1", *["x" * 60_000] * 200, "2"]
    events = [{"user": u, "value": v} for u, v in zip(users, values, strict=True)]
    fields = [zeros("string"), {**zeros("string"), "name": "value"}]
    for kind, message in (
        ("avro", avro(fields, events, "deflate")),
        ("arrow", arrow({"user": users, "value": pa.array(values).dictionary_encode()})),
    ):
        rows, letters = rows_of(kind, message)
        assert [user for _, user, _ in rows] == users
        assert letters == []


@pytest.mark.parametrize("kind", ["json", "jsonl", "arrow", "avro"])
def test_many_events_are_read_in_parts(monkeypatch, kind):
    """Each with its dead letters: an array of numbers alone once filled the memory."""
    numbers = [float("nan") if number % 4 == 1 else float(number) for number in range(11)]
    records = [json.dumps({"user": number}).encode() for number in numbers]
    message = {
        "json": b"[" + b",".join(records) + b"]",
        "jsonl": b"\n".join(records),
        "arrow": arrow({"user": numbers}),
        "avro": avro([zeros("double")], [{"user": number} for number in numbers]),
    }[kind]
    whole = rows_of(kind, message, message)
    assert len(whole[0]) == 16
    assert [row for row, *_ in whole[1]] == [number + (kind == "jsonl") for number in (1, 5, 9)] * 2
    monkeypatch.setattr(typed_messages, "MOST_EVENTS", 4)
    assert rows_of(kind, message, message) == whole
    parser = MessageParser("x", NAMES, False, kind)
    sizes = [output.value.num_rows for output in parser.parse([message])]
    assert max(sizes) <= 4


def test_a_message_that_is_too_long_is_one_dead_letter(monkeypatch):
    monkeypatch.setattr(message_batches, "MAX_MESSAGE_BYTES", 100)
    rows, letters = rows_of("json", b"[" * 101, b'[{"user":"a"}]')
    assert rows == [(0, "a", None)]
    assert letters == [(None, "unparsable", "a message of 101 bytes, more than 100")]


@pytest.mark.parametrize("kind", ["json", "jsonl", "arrow", "avro"])
def test_a_field_that_is_too_long_is_a_dead_letter(kind):
    users = ["a", "b" * 11, "é" * 6, "c" * 10, None]
    fields = [zeros(["null", "string"])]
    records = [json.dumps({"user": user}, ensure_ascii=False).encode() for user in users]
    message = {
        "json": b"[" + b",".join(records) + b"]",
        "jsonl": b"\n".join(records),
        "arrow": arrow({"user": users}),
        "avro": avro(fields, [{"user": user} for user in users]),
    }[kind]
    first = int(kind == "jsonl")
    rows, letters = rows_of(kind, message, max_field_bytes=10)
    assert rows == [(first + i, users[i], None) for i in (0, 3, 4)]
    digest = hashlib.sha256(message).hexdigest()
    assert letters == [
        (
            first + i,
            "field too long",
            f"'user' has {size} bytes, more than max_field_bytes (10); "
            f"in the message with SHA-256 {digest}",
        )
        for i, size in ((1, 11), (2, 12))
    ]


def test_64_kb_fit_by_default():
    users = ["x" * (1 << 16), "x" * ((1 << 16) + 1)]
    rows, letters = rows_of("json", *(json.dumps({"user": user}).encode() for user in users))
    assert [user for _, user, _ in rows] == users[:1]
    assert [(row, reason) for row, reason, _ in letters] == [(None, "field too long")]


# A record with very many keys, or nested ones, made an expression that cost more than a batch.
def test_an_odd_record_makes_no_expression_that_does_not_pay(monkeypatch):
    made = []
    monkeypatch.setattr(
        json_objects, "_pattern", lambda shape, *_: made.append(len(shape)) or "^no$"
    )
    usual = json.dumps({"user": "u", "value": "A"}).encode()
    odd = json.dumps({f"key {i}": i for i in range(500)}).encode()
    nested = json.dumps({f"key {i}": [i] for i in range(20)}).encode()
    rows, letters = rows_of("json", odd, nested, *[usual] * 5_000, odd)
    assert made == [2]
    assert len(rows) == 5_003
    assert letters == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"message_format": "xml"},
            "message_format 'xml' is unknown: choose of json, jsonl, arrow",
        ),
        ({"max_field_bytes": 0}, "max_field_bytes 0 is too small for any field"),
    ],
)
def test_settings_that_are_none_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        ParseMessages("x", NAMES, **settings)


# ---- what holds the watermark -----------------------------------------------------------------


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
        releases, rejected = keep(outputs.results, "releases"), keep(outputs.rejected, "rejected")
    counts = {release.slot: release.counts for release, _ in releases}
    assert {slot: row.tolist() for slot, row in counts.items()} == {0: [1, 1], 1: [2, 0], 2: [1, 0]}
    letters = [row for batch, _ in rejected for row in batch.to_pylist()]
    assert [row["reason"] for row in letters] == ["late"]

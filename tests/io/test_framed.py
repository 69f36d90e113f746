"""Messages in Confluent's wire format: each is read by the schema that it names, by no other."""

import datetime as dt
import decimal
import json
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.engine.messages import REJECTED
from streamveil.io import inbox_outputs, protobuf_schemas, schema_registry
from streamveil.io.framed_messages import read_framed
from streamveil.io.locations import source_of
from streamveil.io.message_formats import read_framed_messages
from streamveil.io.messages import ParseMessages
from streamveil.io.schema_registry import SchemaRegistry, Stored
from streamveil.mechanisms.core.records import ConfigurationError
from tests.io.framed import (
    FIELD,
    Registry,
    add,
    avro,
    avro_body,
    encoded,
    file_of,
    frame,
    message_class,
    protobuf,
)

NAMES = ("user", "value")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "schema-registry.md"
STRING, TEXTS = "string", [{"name": "user", "type": "string"}]
PLAIN = avro([*TEXTS, {"name": "value", "type": "string"}])


def read(kind, messages, registry, names=NAMES):
    """Rows by the index of their message, and what is wrong with each other message."""
    bad = {}

    def reject(index, place, detail, record):
        assert place is None
        assert index not in bad
        bad[index] = detail

    rows = {}
    for arrays, of in read_framed(kind, messages, names, registry, reject):
        for at, index in enumerate(of.tolist()):
            assert index not in rows
            rows[index] = tuple(array[at].as_py() for array in arrays)
    assert sorted([*rows, *bad]) == list(range(len(messages)))
    return rows, bad


# ---- Avro -------------------------------------------------------------------------------------

VERSIONS = {
    1: avro([*TEXTS, {"name": "value", "type": "int"}]),
    2: avro(  # promoted, with fields before and between, one of them nested
        [
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            *TEXTS,
            {"name": "x", "type": {"type": "map", "values": "long"}},
            {"name": "value", "type": "double"},
        ]
    ),
    3: avro([{"name": "user", "type": ["null", "string"]}]),  # without a field
    4: avro(  # renamed
        [
            {"name": "rider", "aliases": ["user"], "type": "string"},
            {"name": "value", "type": ["null", "long"], "default": None},
        ]
    ),
    5: PLAIN,
}
WRITTEN = {
    1: ({"user": "a", "value": 7}, ("a", "7")),
    2: ({"tags": ["t"] * 3, "user": "b", "x": {"k": 1}, "value": 2.50}, ("b", "2.5")),
    3: ({"user": None}, (None, None)),
    4: ({"rider": "d", "value": None}, ("d", None)),
    5: ({"user": "é", "value": "x"}, ("é", "x")),
}


def test_each_message_is_read_by_the_schema_that_it_names():
    bodies = {each: avro_body(VERSIONS[each], WRITTEN[each][0]) for each in VERSIONS}
    order = [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    rows, bad = read("avro", [frame(each, bodies[each]) for each in order], Registry(VERSIONS))
    assert bad == {}
    assert [rows[index] for index in range(len(order))] == [WRITTEN[each][1] for each in order]
    for each in VERSIONS:  # alone as beside others
        assert read("avro", [frame(each, bodies[each])], Registry(VERSIONS)) == (
            {0: WRITTEN[each][1]},
            {},
        )


def test_a_schema_of_the_reader_renames_and_has_defaults():
    readers = {
        **VERSIONS,
        9: avro(
            [
                {"name": "member", "aliases": ["user", "rider"], "type": ["null", "string"]},
                {"name": "value", "type": "double", "default": -1.0},
            ]
        ),
    }
    messages = [frame(each, avro_body(VERSIONS[each], WRITTEN[each][0])) for each in (1, 2, 3)]
    rows, bad = read("avro", messages, Registry(readers, by=9), ("member", "value"))
    assert bad == {}
    assert rows == {0: ("a", "7"), 1: ("b", "2.5"), 2: (None, "-1")}


def test_types_of_avro_are_texts_as_in_containers():
    kinds = {
        "b": "boolean",
        "f": "float",
        "e": {"type": "enum", "name": "Kind", "symbols": ["BIKE", "CAR"]},
        "again": ["null", "Kind"],
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "d": {"type": "int", "logicalType": "date"},
        "n": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "u": {"type": "string", "logicalType": "uuid"},
        "java": {"type": "string", "avro.java.string": "String"},
    }
    schema = avro([{"name": name, "type": kind} for name, kind in kinds.items()])
    record = {
        "b": True,
        "f": 0.5,
        "e": "CAR",
        "again": "BIKE",
        "t": dt.datetime(2024, 5, 1, 9, tzinfo=dt.timezone.utc),
        "d": dt.date(2024, 5, 1),
        "n": decimal.Decimal("12.50"),
        "u": "6f1f9a0e-0000-4000-8000-000000000000",
        "java": "j",
    }
    messages = [frame(1, avro_body(schema, record))]
    rows, bad = read("avro", messages, Registry({1: schema}), tuple(kinds))
    assert bad == {}
    assert rows[0] == (
        *("true", "0.5", "CAR", "BIKE", "2024-05-01 09:00:00.000000Z", "2024-05-01", "12.5"),
        *("6f1f9a0e-0000-4000-8000-000000000000", "j"),
    )


@pytest.mark.parametrize("first", ["where", "value"])
def test_a_schema_may_need_others(first):
    """One of them has a type inside, which is named before or after it."""
    kind = {"type": "enum", "name": "Kind", "symbols": ["BIKE", "CAR"]}
    place = {
        "type": "record",
        "name": "shared.Place",
        "fields": [{"name": "kind", "type": kind}, {"name": "x", "type": "int"}],
    }
    fields = {
        "where": "shared.Place",
        "also": ["null", "shared.Place"],
        "user": "string",
        "value": "shared.Kind",
    }
    order = sorted(fields, key=lambda name: name != first)
    schema = avro(
        [{"name": name, "type": fields[name]} for name in order], [("shared.Place", place)]
    )
    here = {"kind": "CAR", "x": 1}
    body = avro_body(schema, {"where": here, "also": here, "user": "a", "value": "BIKE"})
    assert read("avro", [frame(1, body)], Registry({1: schema})) == ({0: ("a", "BIKE")}, {})


GOOD = frame(1, avro_body(PLAIN, {"user": "a", "value": "x"}))
MANY = {"type": "array", "items": "null"}
BAD_AVRO = {
    b"": "an empty message",
    b"\0": "not in Confluent's wire format",
    b"\1" + GOOD[1:]: "not in Confluent's wire format",
    b'{"user": "a"}': "not in Confluent's wire format",
    GOOD[:-1]: "not avro: Expected 1 bytes, read 0",
    GOOD + b"\0": "not avro: 1 bytes follow its end",
    frame(99, b"x"): "not avro: the registry has no schema 99",
    frame(0xFFFFFFFF, b"x"): "not avro: the registry has no schema 4294967295",
    frame(2, b"{}"): "not avro: schema 2 is of JSON",
    frame(3, b"x"): "not avro: its schema is not one of records",
    frame(4, b"x"): "not avro: ",
    frame(5, b"\x02a\x02\x02\0"): "'value' holds list",
    frame(6, b"\x02a"): "'value' has the Avro type",
    frame(7, b"\xff" * 9 + b"\1"): "it has types in each other that take no byte",
    frame(8, b"\x02a\x02x"): "is inside itself",
    frame(9, b"\x02\xff\x02x"): "'user' is not UTF-8",
    frame(10, b"\x02a" + b"\0\0\0\0\0\0\xf8\x7f"): "'value' is NaN",
    frame(11, b"\x02a" + b"\xfe" * 9 + b"\1"): "'value' is ",
    frame(12, b"\x02a\x04"): "not avro: ",
    frame(13, b"x"): "schema 13 cannot be used: it has 300000 characters",
}
OF_BAD_AVRO = {
    1: PLAIN,
    2: Stored("JSON", "{}", ()),
    3: Stored("AVRO", '"string"', ()),
    4: Stored("AVRO", "no schema", ()),
    5: avro([*TEXTS, {"name": "value", "type": {"type": "array", "items": "int"}}]),
    6: avro([*TEXTS, {"name": "value", "type": ["null", "int", "string"]}]),
    7: avro([{"name": "many", "type": MANY}, *TEXTS]),
    8: avro([*TEXTS, {"name": "value", "type": ["null", "Event"]}]),
    9: PLAIN,
    10: avro([*TEXTS, {"name": "value", "type": "double"}]),
    11: avro(
        [*TEXTS, {"name": "value", "type": {"type": "long", "logicalType": "timestamp-millis"}}]
    ),
    12: avro([*TEXTS, {"name": "value", "type": {"type": "enum", "name": "K", "symbols": ["A"]}}]),
    13: "schema 13 cannot be used: it has 300000 characters",
}


def test_what_is_no_such_message_is_split_from_its_neighbours():
    registry = Registry(OF_BAD_AVRO)
    messages = [part for bad in BAD_AVRO for part in (GOOD, bad)]
    rows, bad = read("avro", messages, registry)
    assert rows == dict.fromkeys(range(0, len(messages), 2), ("a", "x"))
    for index, (message, why) in enumerate(BAD_AVRO.items()):
        assert why in bad[2 * index + 1], message
        assert read("avro", [message], registry) == ({}, {0: bad[2 * index + 1]})


# ---- Protobuf ---------------------------------------------------------------------------------

EVENTS = file_of()
ADD = EVENTS.message_type.add
add(ADD(name="Other"), "x", 1, FIELD.TYPE_INT32)
OUTER = ADD(name="Outer")
add(OUTER.nested_type.add(name="First"), "x", 1, FIELD.TYPE_INT32)
EVENT = OUTER.nested_type.add(name="Event")
add(EVENT, "user", 1, FIELD.TYPE_STRING)
add(EVENT, "value", 2, FIELD.TYPE_STRING)
PATH = b"\x04\x02\x02"  # two indexes, each 1
Event = message_class("demo.Outer.Event", EVENTS)


def test_a_type_inside_another_is_named_by_its_place():
    message = Event(user="a", value="x").SerializeToString()
    registry = Registry({1: protobuf(EVENTS)})
    other = b"\x08\x07"  # x = 7, of the first type
    messages = [
        frame(1, PATH + message),
        frame(1, b"\0" + other),
        frame(1, b"\x02\0" + other),
        frame(1, b"\x04\x02\0" + other),
    ]
    rows, bad = read("protobuf", messages, registry, ("user", "x"))
    assert rows == {0: ("a", None), 1: (None, "7"), 2: (None, "7"), 3: (None, "7")}
    assert bad == {}


def test_types_of_protobuf_are_texts():
    file = file_of(dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    event = file.message_type.add(name="Event")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="BIKE", number=3)
    add(event, "s", 1, FIELD.TYPE_STRING)
    add(event, "b", 2, FIELD.TYPE_BOOL)
    add(event, "i", 3, FIELD.TYPE_SINT64)
    add(event, "big", 4, FIELD.TYPE_UINT64)
    add(event, "d", 5, FIELD.TYPE_DOUBLE)
    add(event, "f", 6, FIELD.TYPE_FLOAT)
    add(event, "e", 7, FIELD.TYPE_ENUM, type_name=".demo.Kind")
    add(event, "odd", 8, FIELD.TYPE_ENUM, type_name=".demo.Kind")
    add(event, "t", 9, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add(event, "w", 10, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value")
    add(event, "none", 11, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value")
    event.oneof_decl.add(name="_absent")
    add(event, "absent", 12, FIELD.TYPE_INT32, proto3_optional=True, oneof_index=0)
    add(event, "zero", 13, FIELD.TYPE_INT32)
    message = message_class("demo.Event", file)(
        **{"s": "é", "b": True, "i": -7, "big": 2**64 - 1, "d": 1e21, "f": 0.1, "e": 3, "odd": 9}
    )
    message.t.FromJsonString("2024-05-01T09:00:00.5Z")
    message.w.value = 0
    names = tuple(field.name for field in event.field)
    rows, bad = read(
        "protobuf",
        [frame(1, b"\0" + message.SerializeToString())] * 2,
        Registry({1: protobuf(file)}),
        names,
    )
    assert bad == {}
    values = ("é", "true", "-7", str(2**64 - 1), "1000000000000000000000", "0.1", "BIKE", "9")
    expected = dict(zip(names, (*values, "2024-05-01T09:00:00.500Z", "0"), strict=False))
    assert dict(zip(names, rows[0], strict=True)) == {
        **expected,
        **{"none": None, "absent": None, "zero": "0"},
    }
    assert rows[1] == rows[0]


PLACE = file_of("shared/place.proto")
add(PLACE.message_type.add(name="Place"), "name", 1, FIELD.TYPE_STRING)
NEEDY = file_of("needy.proto", dependency=["shared/place.proto"])
_NEEDY = NEEDY.message_type.add(name="Event")
add(_NEEDY, "where", 1, FIELD.TYPE_MESSAGE, type_name=".demo.Place")
add(_NEEDY, "user", 2, FIELD.TYPE_STRING)
SOURCE = """
syntax = "proto3";
package demo;
import "shared/place.proto";
import "google/protobuf/timestamp.proto";
message Event { Place where = 1; string user = 2; google.protobuf.Timestamp value = 3; }
"""
PLACE_SOURCE = 'syntax = "proto3"; package demo; message Place { string name = 1; }'


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (encoded(NEEDY), encoded(PLACE)),
        (SOURCE, PLACE_SOURCE),
        (SOURCE, encoded(PLACE)),
        (encoded(NEEDY), PLACE_SOURCE),
    ],
)
def test_a_file_may_import_others_as_source_text_or_descriptors(text, reference):
    if not {text, reference}.isdisjoint({SOURCE, PLACE_SOURCE}):
        pytest.importorskip("grpc_tools")
    stored = Stored("PROTOBUF", text, (("shared/place.proto", reference),))
    message = message_class("demo.Event", PLACE, NEEDY)(user="a", where={"name": "cafe"})
    messages = [frame(1, b"\0" + message.SerializeToString())]
    assert read("protobuf", messages, Registry({1: stored})) == ({0: ("a", None)}, {})


def test_a_schema_of_the_reader_renames_fields_of_protobuf():
    file = file_of()
    file.message_type.add(name="Before")
    event = file.message_type.add(name="Outer").nested_type.add(name="Event")
    add(event, "member", 1, FIELD.TYPE_STRING)
    add(event, "value", 2, FIELD.TYPE_STRING)
    registry = Registry({1: protobuf(EVENTS), 2: protobuf(file)}, by=2)
    messages = [frame(1, PATH + Event(user="a", value="x").SerializeToString()), frame(1, b"\0")]
    rows, bad = read("protobuf", messages, registry, ("member", "value"))
    assert rows == {0: ("a", "x")}
    assert bad == {1: "not protobuf: the reader's schema has no type demo.Other"}


ODD = file_of("odd.proto", dependency=["google/protobuf/timestamp.proto"])
for _name, _kind in (("Nested", ".demo.Nested"), ("Time", ".google.protobuf.Timestamp")):
    add(ODD.message_type.add(name=_name), "user", 1, FIELD.TYPE_MESSAGE, type_name=_kind)
add(ODD.message_type.add(name="List"), "user", 1, FIELD.TYPE_STRING, label=FIELD.LABEL_REPEATED)
add(ODD.message_type.add(name="Raw"), "user", 1, FIELD.TYPE_BYTES)
add(ODD.message_type.add(name="Number"), "user", 1, FIELD.TYPE_DOUBLE)
OF_BAD_PROTOBUF = {
    1: protobuf(EVENTS),
    2: protobuf(ODD),
    3: Stored("PROTOBUF", encoded(NEEDY), ()),
    4: Stored("PROTOBUF", encoded(file_of(dependency=["google/protobuf/no_such.proto"])), ()),
    5: Stored("PROTOBUF", "message {", ()),
    6: Stored("PROTOBUF", 'import "../../x.proto";', (("../../x.proto", "x"),)),
    7: PLAIN,
}
GOOD_PROTOBUF = frame(1, PATH + Event(user="a", value="x").SerializeToString())
FAR = b"\x0a\x0b\x08" + b"\x80" * 9 + b"\x01"  # a Timestamp long before the year 1
BAD_PROTOBUF = {
    frame(1, b""): "it does not say which type it is",
    frame(1, b"\xff" * 20): "it does not say which type it is",
    frame(1, b"\x01"): "its type is said to be -1 types deep",
    frame(1, b"\xfe\xff\x03"): "types deep",
    frame(1, b"\x02\x08"): "its schema has no type 4",
    frame(1, b"\x02\x01"): "its schema has no type -1",
    frame(1, PATH + b"\x0a\x05a"): "Error parsing message",
    frame(1, PATH + b"\x0a\x01\xff"): "Error parsing message",
    frame(2, b"\0"): "'user' holds a message demo.Nested",
    frame(2, b"\x02\x02" + FAR): "not protobuf: ",
    frame(2, b"\x02\x04"): "'user' holds a list",
    frame(2, b"\x02\x06"): "'user' holds bytes",
    frame(2, b"\x02\x08\x09" + b"\0\0\0\0\0\0\xf0\x7f"): "'user' is infinite",
    frame(3, b"\0"): "its schema imports shared/place.proto, which the registry does not give",
    frame(4, b"\0"): "google/protobuf/no_such.proto, which is not known here",
    frame(5, b"\0"): "its schema cannot be compiled: it:1:9: ",
    frame(6, b"\0"): "its schema needs '../../x.proto', which is not a name of a file",
    frame(7, b"\0"): "schema 7 is of AVRO",
    frame(1, PATH + b"\x0a\x80\x80\x80\x01" + b"a" * (1 << 21)): "more than 1048576",
}


def test_what_is_no_message_of_protobuf_is_split_from_its_neighbours():
    pytest.importorskip("grpc_tools")
    registry = Registry(OF_BAD_PROTOBUF)
    messages = [part for bad in BAD_PROTOBUF for part in (GOOD_PROTOBUF, bad)]
    rows, bad = read("protobuf", messages, registry)
    assert rows == dict.fromkeys(range(0, len(messages), 2), ("a", "x"))
    for index, (message, why) in enumerate(BAD_PROTOBUF.items()):
        assert why in bad[2 * index + 1], message[:40]
        assert read("protobuf", [message], registry) == ({}, {0: bad[2 * index + 1]})


def test_a_schema_is_compiled_once_whether_it_can_be_used_or_not(monkeypatch):
    pytest.importorskip("grpc_tools")
    commands, run = [], subprocess.run

    def noted(command, **given):
        commands.append(command)
        return run(command, **given)

    monkeypatch.setattr(protobuf_schemas.subprocess, "run", noted)
    for text in (f"{PLACE_SOURCE} // once", "message } // once"):
        commands.clear()
        registry = Registry({1: Stored("PROTOBUF", text, ())})
        for path in (b"\0", b"\x02\0", b"\x02\x02"):
            read("protobuf", [frame(1, path)] * 3, registry)
        assert len(commands) == 1


# ---- JSON, and all together -------------------------------------------------------------------


def test_json_is_read_as_elsewhere_once_its_frame_is_off(monkeypatch):
    registry = Registry({1: Stored("JSON", "{}", ()), 2: PLAIN})
    monkeypatch.setattr("streamveil.io.message_formats.schemas_of", lambda _: registry)
    bodies = [b'{"user":"a","value":7.0}', b'[{"user":"b"},{"user":[]}]', b"no", b'{"user":{}}']
    messages = [b"{}", *(frame(1, body) for body in bodies), frame(2, bodies[0]), frame(3, b"{}")]
    bad, rows = [], []
    for parsed in read_framed_messages(
        "json", None, messages, NAMES, lambda *letter: bad.append(letter[:3])
    ):
        places = [None] * len(parsed.messages) if parsed.places is None else parsed.places
        values = zip(*(array.to_pylist() for array in parsed.arrays), strict=True)
        rows += zip(parsed.messages, places, values, strict=True)
    assert rows == [(1, None, ("a", "7")), (2, 0, ("b", None))]
    assert {(index, place) for index, place, _ in bad} == {
        *((0, None), (2, 1), (3, None), (4, None), (5, None), (6, None)),
    }


def test_messages_of_pub_sub_that_were_stored_are_read_the_same_way(tmp_path, monkeypatch):
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr("streamveil.io.message_formats.schemas_of", lambda _: Registry(VERSIONS))
    messages = [frame(1, avro_body(VERSIONS[1], WRITTEN[1][0])), b"no"]
    pq.write_table(pa.table({"data": pa.array(messages, pa.binary())}), tmp_path / "inbox.parquet")
    settings = KAFKA.partition("?")[2]
    source = source_of(f"pubsub:projects/project/subscriptions/name?{settings}", NAMES)
    outputs = list(inbox_outputs([str(tmp_path / "inbox.parquet")], source))
    rows = [row for value, tag, _ in outputs for row in value.to_pylist() if tag is None]
    assert [(row["user"], row["value"]) for row in rows] == [("a", "7")]
    letters = [row for value, tag, _ in outputs for row in value.to_pylist() if tag == REJECTED]
    assert [row["record"] for row in letters] == ["no"]


@pytest.mark.property
@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from(sorted(OF_BAD_PROTOBUF)))
def test_random_bytes_are_read_or_dead_letters_and_change_no_other_message(bodies, schema_id):
    schema_id = 1 if schema_id in (5, 6) else schema_id
    for kind, known, good in (
        ("avro", OF_BAD_AVRO, GOOD),
        ("protobuf", OF_BAD_PROTOBUF, GOOD_PROTOBUF),
    ):
        registry = Registry(known)
        framed = [frame(schema_id, body) for body in bodies]
        messages = [good, *framed, *bodies, good]
        rows, _ = read(kind, messages, registry)
        assert rows[0] == rows[len(messages) - 1] == ("a", "x")
        for index, message in enumerate(messages):
            alone, _ = read(kind, [message], registry)
            assert alone.get(0) == rows.get(index)


# ---- settings ---------------------------------------------------------------------------------

KAFKA = "kafka:h:9092/t?message_format=avro&schema_registry=http://r:8081"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("kafka:h:9092/t?message_format=protobuf", "needs the registry"),
        ("kafka:h:9092/t?schema_registry=http://r", "add message_format="),
        ("kafka:h:9092/t?message_format=avro&reader_schema=3", "reader_schema needs a registry"),
        (
            KAFKA.replace("avro", "arrow"),
            "no schemas in a registry: choose of avro, json, ",
        ),
        (KAFKA.replace("http:", "ftp:"), "'ftp://r:8081' is not an address"),
        (f"{KAFKA}&reader_schema=x", "reader_schema 'x' is no whole number"),
        (f"{KAFKA}&reader_schema=9999999999", "reader_schema 9999999999 is not the id"),
        (f"{KAFKA.replace('avro', 'json')}&reader_schema=1", "leave out reader_schema"),
        (
            f"{KAFKA}&schema_registry_credentials=me:secret",
            ("does not name a place: write file:PATH"),
        ),
        (KAFKA.replace("//", "//me:secret@"), "holds credentials, which would be logged"),
    ],
)
def test_settings_that_fit_nothing_are_refused_and_no_password_is_shown(location, words):
    with pytest.raises(ConfigurationError) as refused:
        source_of(location, NAMES)
    text = str(refused.value)
    assert words in text
    assert "\n" not in text
    if "@" in location:
        assert "secret" not in text


def test_settings_reach_both_brokers():
    pytest.importorskip("confluent_kafka")
    settings = KAFKA.partition("?")[2] + "&schema_registry_credentials=env:X&reader_schema=3"
    expected = SchemaRegistry("http://r:8081", "env:X", 3)
    source = source_of(f"kafka:h:9092/t?{settings}&group.id=g", NAMES)
    assert (source.registry, source.consumer_config) == (expected, {"group.id": "g"})
    source = source_of(f"pubsub:projects/project/subscriptions/name?{settings}", NAMES)
    assert (source.registry, source.message_format) == (expected, "avro")


def test_the_code_of_the_page_runs():
    pytest.importorskip("confluent_kafka")
    (text,) = re.findall(r"^```python registry\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    made = {}
    exec(text, made)
    assert made["events"].registry == SchemaRegistry("http://registry:8081", "env:REGISTRY_LOGIN")


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigurationError, match=r"install '\.\[registry\]'"):
        ParseMessages("s", NAMES, False, "avro", registry=SchemaRegistry("http://r"))


@pytest.mark.parametrize("place", ["env:NO_SUCH", "file:{}/none", "file:{}/empty"])
def test_credentials_are_read_where_they_are_and_never_shown(tmp_path, monkeypatch, place):
    (tmp_path / "empty").write_text("only-a-word")
    place = place.format(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        schema_registry._credentials(place)
    assert "only-a-word" not in str(refused.value)
    assert place in str(refused.value)
    (tmp_path / "good").write_text("me:a:b\n")
    monkeypatch.setenv("GOOD", "me:a:b")
    for good in (f"file:{tmp_path}/good", "env:GOOD"):
        assert schema_registry._credentials(good) == "me:a:b"
    assert json.dumps(repr(SchemaRegistry("http://r", "env:GOOD"))).find("a:b") == -1

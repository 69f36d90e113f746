"""Blocks of Avro read side by side give what fastavro gives, one record after the other."""

import io

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.io import avro, avro_blocks, read_events
from streamveil.io.avro_blocks import flat_fields
from streamveil.mechanisms.core.records import ConfigurationError

LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.integers(0, 2**53)
TEXTS = st.binary(max_size=5) | st.text(max_size=5).map(str.encode) | st.just(b"x" * 200)
FIXED = {"type": "fixed", "name": "Five", "size": 5}
# Each type as it is written, the word in the header that stands for it, and its values.
KINDS = {
    "text": ("bytes", "string", TEXTS),
    "bytes": ("bytes", "bytes", TEXTS),
    "int": ("int", "int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", "long", LONGS),
    "micros": ("long", {"type": "long", "logicalType": "timestamp-micros"}, LONGS),
    "millis": ("long", {"type": "long", "logicalType": "local-timestamp-millis"}, LONGS),
    "date": (
        *("int", {"type": "int", "logicalType": "date"}),
        st.integers(-(2**31), 2**31 - 1),
    ),
    "decimal": (
        "bytes",
        {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
        st.binary(min_size=1, max_size=9),
    ),
    "boolean": ("boolean", "boolean", st.booleans()),
    "float": ("float", "float", st.floats(width=32, allow_nan=False)),
    "double": ("double", "double", st.floats(allow_nan=False)),
    "enum": (
        *[{"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}] * 2,
        st.sampled_from("ABC"),
    ),
    "null": ("null", "null", st.none()),
}
# Types that nobody can ask for, between those that are read.
OTHERS = {
    "fixed": (FIXED, FIXED, st.binary(min_size=5, max_size=5)),
    "record": (
        *[
            {
                "type": "record",
                "name": "Inner",
                "fields": [
                    {"name": "s", "type": "string"},
                    {"name": "n", "type": ["long", "null"]},
                ],
            }
        ]
        * 2,
        st.fixed_dictionaries({"s": st.text(max_size=5), "n": st.none() | LONGS}),
    ),
}


def container(written, said, rows, codec="null", sync_interval=50):
    """Rows as they are stored, under a header that says more of them."""

    def header(fields):
        return {"type": "record", "name": "Row", "fields": fields}

    data, empty = io.BytesIO(), io.BytesIO()
    options = {"codec": codec, "sync_interval": sync_interval, "sync_marker": b"s" * 16}
    fastavro.writer(data, header(written), rows, **options)
    fastavro.writer(empty, header(said), [], **options)
    return empty.getvalue() + data.getvalue().split(b"s" * 16, 1)[1]


@st.composite
def containers(draw):
    """A container of some blocks, the columns to ask for, and where its blocks begin."""
    chosen = draw(st.lists(st.sampled_from([*KINDS, *OTHERS]), min_size=1, max_size=5, unique=True))
    wanted = [name for name in chosen if name in KINDS and draw(st.booleans())]
    wanted = wanted or ["long"]
    written, said, values = [], [], {}
    for name in dict.fromkeys([*chosen, *wanted]):
        stored, meant, some = (KINDS | OTHERS)[name]
        null = draw(st.sampled_from([None, 0, 1])) if name not in ("null", "record") else None
        union = {0: lambda kind: ["null", kind], 1: lambda kind: [kind, "null"]}.get(null)
        written.append({"name": name, "type": union(stored) if union else stored})
        said.append({"name": name, "type": union(meant) if union else meant})
        values[name] = st.none() | some if union else some
    rows = draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=20))
    codec = draw(st.sampled_from(["null", "deflate"]))
    interval = draw(st.sampled_from([0, 30, 200]))
    return container(written, said, rows, codec, interval), draw(st.permutations(wanted))


def read(path, columns, blocks, monkeypatch):
    """All rows and dead letters, or the refusal, where so many blocks are read at once."""
    with monkeypatch.context() as patch:
        patch.setattr(avro_blocks, "MIN_BLOCKS", blocks)
        patch.setattr(avro, "GROUP_BYTES", 1000)
        try:
            batches, letters = zip(*read_events(str(path), columns), strict=True)
        except ConfigurationError:
            return None
    table = pa.Table.from_batches(batches).combine_chunks()
    return table, [row for some in letters if some is not None for row in some.to_pylist()]


def assert_equal(path, columns, monkeypatch):
    one, all_ = (read(path, columns, blocks, monkeypatch) for blocks in (1 << 40, 1))
    if one is None:
        assert all_ is None
        return
    assert one[0].equals(all_[0], check_metadata=True)
    assert one[1] == all_[1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.avro"


@settings(max_examples=100)
@given(case=containers())
def test_blocks_at_once_are_records_one_by_one(tmp_path_factory, case):
    path = tmp_path_factory.getbasetemp() / "blocks.avro"
    data, columns = case
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        assert_equal(path, columns, patch)


@settings(max_examples=100)
@given(
    case=containers(), at=st.floats(0, 1), some=st.binary(min_size=1, max_size=3), cut=st.booleans()
)
def test_damaged_blocks_are_refused_or_read_alike(tmp_path_factory, case, at, some, cut):
    path = tmp_path_factory.getbasetemp() / "damaged.avro"
    data, columns = case
    first = data.index(b"s" * 16) + 16
    place = first + int(at * (len(data) - first))
    path.write_bytes(data[:place] + (b"" if cut else some + data[place + len(some) :]))
    with pytest.MonkeyPatch.context() as patch:
        assert_equal(path, columns, patch)


def text_rows(number):
    return [{"user": f"u{i}".encode(), "value": b"A", "n": i} for i in range(number)]


TEXT = [{"name": name, "type": "bytes"} for name in ("user", "value")]
SAID = [{"name": name, "type": "string"} for name in ("user", "value")]
N = [{"name": "n", "type": "long"}]


def test_one_odd_record_changes_no_other(path, monkeypatch):
    """Some that make its block be read by itself, some that are dead letters."""
    rows = text_rows(300)
    odd = [b"\xff", b"x" * 5000, b"", "\N{CROSS MARK}".encode()]
    for at, user in enumerate(odd):
        rows.insert(50 * at, {"user": user, "value": b"B", "n": 2**63 - 1})
    path.write_bytes(container([*TEXT, *N], [*SAID, *N], rows))
    assert_equal(path, ["n", "user", "value"], monkeypatch)
    table, letters = read(path, ["user", "n"], 40, monkeypatch)
    assert [row["row"] for row in letters] == [0]
    assert table["n"].to_pylist() == [row["n"] for row in rows[1:]]


def test_blocks_are_read_at_once_where_there_are_many(path, monkeypatch):
    """A reader that never does so would pass all of the above."""
    path.write_bytes(container([*TEXT, *N], [*SAID, *N], text_rows(2000)))
    asked = []
    read_blocks = avro.read_blocks
    monkeypatch.setattr(
        avro, "read_blocks", lambda *given: asked.append(read_blocks(*given)) or asked[-1]
    )
    batches = [batch for batch, _ in read_events(str(path), ["user", "n"])]
    assert [found is None for found in asked] == [False]
    assert batches[0].num_rows == 2000


def test_what_is_not_flat_is_read_one_by_one():
    def fields(kind):
        return flat_fields({"fields": [{"name": "x", "type": kind}]})

    assert fields({"type": "array", "items": "long"}) is None
    assert fields(["null", "long", "string"]) is None
    assert fields(["null", {"type": "record", "name": "R", "fields": []}]) is None
    assert [field.kind for field in fields(["string", "null"])] == ["string"]


def test_a_file_of_blocks_without_records_gives_an_empty_batch(path):
    data = container([*TEXT, *N], [*SAID, *N], [])
    for blocks in (0, 1):
        path.write_bytes(data + (b"\0\0" + b"s" * 16) * blocks)
        ((batch, letters),) = read_events(str(path), ["user", "n"])
        assert (batch.num_rows, letters) == (0, None)
        assert batch.schema.types[:2] == [pa.string(), pa.int64()]

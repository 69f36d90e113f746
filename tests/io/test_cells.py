"""Cells of typed files that nobody can read: their rows are rejected, and no others."""

import io
import json

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.engine.encode.event_mapper import Columns, EventMapper
from streamveil.io import read_events
from streamveil.io.cells import sound_batch
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ConfigurationError, QueryColumn, Requirement, Slots
from streamveil.mechanisms.core.user_table import Registry

COLUMNS = ("user", "value", "time")
REGISTRY = Registry.of({"u1": Requirement(1, 1.0), "u2": Requirement(1, 1.0)})


def mapper(unit=None):
    columns = Columns("user", ("value",), "time", time_unit=unit)
    return EventMapper(columns, Slots.of("1d"), Categories(("A", "B")), REGISTRY, b"k" * 32)


def read(path, columns=COLUMNS):
    """Good rows, and the dead letters as (row, detail)."""
    rows, letters = [], []
    for batch, rejected in read_events(str(path), columns):
        rows += [tuple(row.values()) for row in batch.to_pylist()]
        letters += (
            [(r["row"], r["detail"], r["record"]) for r in rejected.to_pylist()] if rejected else []
        )
    return rows, letters


def text(values, kind=None):
    raw = pa.array(values, pa.binary()).view(pa.string())
    return raw if kind is None else raw.cast(kind)


GOOD = {"user": [b"u1"] * 4, "value": [b"A"] * 4, "time": [b"2024-01-01"] * 4}


@pytest.mark.parametrize("kind", [None, pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("column", COLUMNS)
def test_text_of_parquet_that_is_not_utf8(tmp_path, column, kind):
    """It ended the run in a traceback, in the value and in the time."""
    cells = {**GOOD, column: [*GOOD[column][:2], b"a\xff", None]}
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({name: text(values, kind) for name, values in cells.items()}), path)
    rows, letters = read(path)
    assert [row[-1] for row in rows] == [0, 1, 3]
    ((row, detail, record),) = letters
    assert (row, detail) == (2, f"{column!r} is not UTF-8")
    assert json.loads(record)[column] == "a\N{REPLACEMENT CHARACTER}"
    for batch, _ in read_events(str(path), COLUMNS):
        events, rejected = mapper().map(batch)
        assert (len(events.slots), rejected.column("row").to_pylist()) == (2, [3])


def test_a_dictionary_loses_what_cannot_be_read():
    """One entry spoilt whole columns; an index outside of it ended in an IndexError."""
    indices = pa.array([0, 1, None, 2, 9, -1, 2], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, text([b"u1", b"\xff", b"u2"]), safe=False)
    found = []
    batch = sound_batch(
        "x", ["user"], [column], pa.array(range(7)).to_numpy(), lambda *r: found.append(r)
    )
    assert [r[:2] for r in found] == [
        (1, "'user' is not UTF-8"),
        (4, "'user' is an index outside its dictionary"),
        (5, "'user' is an index outside its dictionary"),
    ]
    batch.validate(full=True)
    assert batch.column("user").to_pylist() == ["u1", None, "u2", "u2"]
    assert batch.column("__row__").to_pylist() == [0, 2, 3, 6]


@pytest.mark.parametrize("column", COLUMNS)
def test_batches_that_a_caller_made(column):
    """They are mapped row by row as well: the others as if the bad cells were not there."""
    kinds = [
        text([b"u1", b"\xff", None, b"u1"]),
        pa.array(["u1", "\N{CROSS MARK}", None, "u1"], pa.string_view()),
        pa.DictionaryArray.from_arrays(
            pa.array([0, 7, None, 0], pa.int8()), pa.array(["u1"], pa.string_view()), safe=False
        ),
    ]
    good = {"user": "u1", "value": "A", "time": "2024-01-01"}
    for array in kinds:
        arrays = {name: pa.array([value] * 4) for name, value in good.items()}
        arrays[column] = array
        batch = pa.RecordBatch.from_pydict(arrays)
        events, rejected = mapper().map(batch)
        assert len(events.slots) + rejected.num_rows == 4
        usual = pa.RecordBatch.from_pydict({**arrays, column: pa.array(["u1", None, None, "u1"])})
        assert events.slots.tolist() == mapper().map(usual)[0].slots.tolist()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array([1.5] * 4, pa.float16()), "halffloat"),
        (pa.array([b"u1"] * 4, pa.binary_view()), "binary"),
        (pa.array([["u1"]] * 4), "list<"),
        (pa.array([1] * 4, pa.decimal128(9, 2)), "decimal128"),
    ],
    ids=str,
)
def test_other_types_are_refused_in_a_line(tmp_path, array, words):
    path = tmp_path / "x.parquet"
    cells = {name: text(values) for name, values in GOOD.items()}
    pq.write_table(pa.table({**cells, "user": array}), path)
    ((batch, _),) = read_events(str(path), COLUMNS)
    with pytest.raises(ConfigurationError, match=words) as error:
        mapper().map(batch)
    assert len(str(error.value).splitlines()) == 1


# Avro -----------------------------------------------------------------------------------------


def avro(path, kinds, rows):
    """Counts and bytes as they are stored, under a header that says more of them."""
    plain = {"timestamp": "long", "time": "long", "date": "int", "decimal": "bytes"}
    fields = []
    for name, kind in kinds.items():
        logical = kind.split("-")[0].removeprefix("local")
        stored = plain.get(logical or "timestamp", "bytes" if kind == "string" else kind)
        more = {} if kind in ("string", "long") else {"logicalType": kind}
        more |= {"precision": 40, "scale": 2} if kind == "decimal" else {}
        fields.append((name, stored, "string" if kind == "string" else {"type": stored, **more}))

    def header(at):
        made = [{"name": field[0], "type": field[at]} for field in fields]
        return {"type": "record", "name": "Row", "fields": made}

    data = io.BytesIO()
    fastavro.writer(data, header(1), rows, sync_marker=b"s" * 16)
    blocks = data.getvalue().split(b"s" * 16, 1)[1]
    empty = io.BytesIO()
    fastavro.writer(empty, header(2), [], sync_marker=b"s" * 16)
    path.write_bytes(empty.getvalue() + blocks)


@pytest.mark.parametrize("kind", ["micros", "millis", "nanos"])
@pytest.mark.parametrize("local", ["", "local-"])
def test_one_far_time_of_avro(tmp_path, kind, local):
    """It ended the whole run in an OverflowError."""
    second = {"micros": 10**6, "millis": 10**3, "nanos": 10**9}[kind]
    times = [0, 2**62, 86_400 * second, -(2**63)]
    path = tmp_path / "x.avro"
    rows = [{"user": b"u1", "value": b"A", "time": time} for time in times]
    avro(path, {"user": "string", "value": "string", "time": f"{local}timestamp-{kind}"}, rows)
    slots, rejected = [], 0
    for batch, unparsable in read_events(str(path), COLUMNS):
        events, letters = mapper().map(batch)
        slots += events.slots.tolist()
        rejected += letters.num_rows + (unparsable.num_rows if unparsable else 0)
    # 2**62 nanoseconds are in the year 2116: no far time.
    far = [] if kind != "nanos" else [2**62 // (86_400 * 10**9)]
    early = [] if kind != "nanos" else [-(2**63) // (86_400 * 10**9)]
    assert slots == [0, *far, 1, *early]
    assert rejected == 4 - len(slots)


def test_dates_times_of_day_and_decimals_of_avro(tmp_path):
    path = tmp_path / "x.avro"
    kinds = {"user": "string", "day": "date", "clock": "time-micros", "price": "decimal"}
    rows = [
        {"user": b"u1", "day": 19723, "clock": 2**60, "price": (1234).to_bytes(2, "big")},
        {"user": b"\xff", "day": 1, "clock": 1, "price": b""},
        {"user": b"u2", "day": 2**31 - 1, "clock": -5, "price": b"\xff" * 30},
    ]
    avro(path, kinds, rows)
    ((batch, letters),) = read_events(str(path), list(kinds))
    assert batch.column("day").cast(pa.int32()).to_pylist() == [19723, 2**31 - 1]
    assert batch.column("clock").to_pylist() == [2**60, -5]
    assert batch.column("price").to_pylist() == ["12.34", "-0.01"]
    assert letters.column("detail").to_pylist() == ["'user' is not UTF-8"]


def test_a_corrupt_block_of_avro_is_refused_in_a_line(tmp_path):
    path = tmp_path / "x.avro"
    avro(path, {"user": "string", "value": "string"}, [{"user": b"u1", "value": b"A"}] * 50)
    data = path.read_bytes()
    for at in range(len(data) - 150, len(data), 7):
        path.write_bytes(data[:at] + b"\xfe\xff\xff\xff\x7f" + data[at + 5 :])
        assert_kept_or_refused(path)


def assert_kept_or_refused(path):
    message = None
    try:
        rows, letters = read(path, ("user", "value"))
    except ConfigurationError as error:
        message = str(error)
    if message is None:
        assert len(rows) + len(letters) == 50
    else:
        assert message.startswith(str(path))
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_cells_of_a_query_are_no_fault_for_others(dictionary, large):
    raw = pa.array([b"a", b"caf\xe9", None, b"b"], pa.large_binary() if large else pa.binary())
    array = raw.view(pa.large_string() if large else pa.string())
    if dictionary:
        indices = pa.array([0, 1, 2, 3, 9], pa.int32())
        array = pa.DictionaryArray.from_arrays(indices, array, safe=False)
    rejected = []

    def reject(*line):
        rejected.append(line)

    for name, rows in (("place", [0, 2, 3]), (QueryColumn("place"), range(len(array)))):
        batch = sound_batch("f", [name], [array], np.arange(len(array)), reject)
        assert batch.column("__row__").to_pylist() == list(rows)
    texts = ["a", "caf\ufffd", None, "b", None][: len(array)]
    assert batch.column("place").to_pylist() == texts
    assert [line[0] for line in rejected] == ([1, 4] if dictionary else [1])

"""One more record, valid or not, changes nothing about what any other record maps to.

The law is tried on every reader, through its public function. Of tables, which must be good as a
whole, it is: either the run refuses and names that very row, or all others are read alike.
"""

import csv
import io
import json
import string
from collections import Counter
from functools import partial
from random import Random

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.engine.count.changes import ChangeMapper
from streamveil.engine.encode.event_mapper import Columns, EventMapper
from streamveil.engine.messages import REJECTED, Output
from streamveil.io import change_columns, read_domain, read_events, read_requirements
from streamveil.io.message_batches import MessageParser
from streamveil.io.messages import ParseMessages
from streamveil.mechanisms.core.domains import Categories, Edges
from streamveil.mechanisms.core.records import (
    CHANGE_COLUMNS,
    ConfigurationError,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.pipelines.options.budget_functions import lookup_of

EVENT = ("user", "value", "time")
USERS = ("u1", "u2", "7", "007", "true")
REGISTRY = Registry.of(dict.fromkeys(USERS, Requirement(1, 1.0)))
BINS = ("A", "B", "1", "01", "1.0", "true")
DOMAINS = (Categories(BINS), Edges((0.0, 1.0, 2.0, 1e6)))

# Records, drawn at random: the same in every run ------------------------------------------------

ODD = (
    ["", " ", '"', '"A', 'A"', ",", "x,y", "\r", "é", "\0", "null", "[1]", "{}", "-0", "1e400"],
    ["NaN", "inf", "0x10", "9" * 40, "\N{NO-BREAK SPACE}1", "\u2028", "a" * 5_000, "\ud7ff", "🙂"],
)
SOME = {
    "user": [*USERS, "u9", "7.0", "07"],
    "value": [*BINS, "0.5", "1.5", " 1"],
    "time": [
        *("2024-05-01", "2024-05-01T12:00:00Z", "2024-05-01 12:00:00.123456789+02", "1714521600"),
        *("1714521600.25", "1714521600000000000", "9999-12-31", "0000-01-01", "2024-02-30"),
    ],
    "number": ["1", "2", "7", "0.5", "1e3", "+3", "0", "-1", "1.5", "1e-30", "nan"],
    "name": ["01234", "1234", "true", "True", "1.0", "1", "null", "NA", "2024-05-01", "0", "a"],
}


def cell(draw, column):
    """Text of a cell, mostly of the kind that the column should have."""
    if draw.random() < 0.8:
        return draw.choice(SOME.get(column, SOME["number"]))
    if draw.random() < 0.6:
        return draw.choice(ODD[0] + ODD[1])
    return "".join(draw.choices(string.printable.replace("\n", ""), k=draw.randint(0, 8)))


def cells(draw, columns):
    return tuple(cell(draw, column) for column in columns)


def as_csv(record):
    """One line, without its end."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow(record)
    return text.getvalue()


def csv_line(draw, columns):
    """A row, or in one line of five something with quotes that do not close, or close at once."""
    if draw.random() < 0.8:
        return as_csv(cells(draw, columns)).encode()
    if draw.random() < 0.5:
        return draw.choice([b'u1,"A,2024-05-01', b'"u1,A,2024-05-01', b"\xff", b"u1,A"])
    return "".join(draw.choices('"",, \rAu1\xff', k=draw.randint(1, 12))).encode("latin-1")


def json_value(draw, column, depth=0):
    kind = draw.randrange(12 if depth < 2 else 9)
    if kind < 4:
        return cell(draw, column)
    if kind < 8:
        return draw.choice([7, 7.0, 2**53 + 1, 1.5, -(2**70), 1e300, float("nan"), 1714521600, 0.1])
    if kind == 8:
        return draw.choice([None, True, False])
    inner = [json_value(draw, column, depth + 1) for _ in range(draw.randrange(3))]
    return inner if kind < 11 else dict.fromkeys(map(str, inner), 1)


def json_line(draw, columns):
    """An object, with what it may hold, or in one line of ten anything else."""
    if draw.random() < 0.1:
        raw = [
            b"null",
            b"7",
            b'"a"',
            b"[]",
            b"{",
            b"\xff",
            b"nul",
            b"[" * 3000,
            b'{"user":"\\ud800"}',
        ]
        return draw.choice(raw)
    some = [name for name in columns if draw.random() < 0.9]
    return json.dumps({name: json_value(draw, name) for name in some}).encode()


def raw_cells(draw, columns):
    """Bytes or null in each cell, for formats with types."""
    return tuple(
        draw.choice([None, b"\xff", b"\xed\xa0\x80", b"a\xffb"])
        if draw.random() < 0.1
        else cell(draw, column).encode()
        for column in columns
    )


def far_times(draw, columns):
    """A whole number, text, and a time as a whole number."""
    some = [
        2**62,
        -(2**62),
        2**63 - 1,
        -(2**63),
        1714521600_000000,
        1714521600_000,
        0,
        -62135596800_000000,
    ]
    times = [draw.choice(some) if draw.random() < 0.7 else draw.getrandbits(63) for _ in range(2)]
    return times[0], cell(draw, "value"), times[1]


# Files of many records ------------------------------------------------------------------------


def write_lines(path, columns, lines, header):
    path.write_bytes(b"\n".join([*([header.encode()] if header else []), *lines]) + b"\n")


def csv_lines(path, columns, lines):
    write_lines(path, columns, lines, ",".join(columns))


def jsonl_lines(path, columns, lines):
    # The first line has every column: which there are is a matter of the file.
    write_lines(path, columns, lines, json.dumps(dict.fromkeys(columns)))


def text_column(values, kind):
    raw = pa.array(values, pa.binary())
    if kind == "dictionary":
        encoded = raw.dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.view(pa.string()))
    if kind == "large":
        return raw.cast(pa.large_binary()).view(pa.large_string())
    return raw.view(pa.string()).cast(pa.string_view()) if kind == "view" else raw.view(pa.string())


def parquet_rows(kind):
    def write(path, columns, records):
        arrays = [text_column(list(values), kind) for values in zip(*records, strict=True)]
        pq.write_table(pa.table(dict(zip(columns, arrays, strict=True))), path, row_group_size=20)

    return write


def avro_text(columns, records):
    """Text that need not be UTF-8: written as bytes, under a header that says text."""
    fields = [{"name": name, "type": ["null", "bytes"]} for name in columns]
    schema = {"type": "record", "name": "Row", "fields": fields, "doc": "~" * len(columns)}
    rows = [dict(zip(columns, record, strict=True)) for record in records]
    handle = io.BytesIO()
    fastavro.writer(handle, schema, rows, sync_interval=64)
    data = handle.getvalue()
    assert data.count(b'"bytes"') == len(columns)
    return data.replace(b'"bytes"', b'"string"').replace(b"~" * len(columns), b"", 1)


def avro_typed(columns, records):
    """Times as the integers of a logical type."""
    user, value, time = columns
    fields = [{"name": user, "type": "long"}, {"name": value, "type": "string"}]
    fields.append({"name": time, "type": {"type": "long", "logicalType": "timestamp-micros"}})
    rows = [dict(zip(columns, record, strict=True)) for record in records]
    handle = io.BytesIO()
    # Integers, past fastavro's own conversion of dates.
    fastavro.writer(handle, {"type": "record", "name": "Row", "fields": fields}, rows)
    return handle.getvalue()


def avro_file(encode):
    return lambda path, columns, records: path.write_bytes(encode(columns, records))


def typed_columns(records, unit):
    user, value, time = zip(*records, strict=True)
    return [
        pa.array(user, pa.int64()),
        pa.array(value, pa.string()),
        pa.array(time, pa.int64()).view(pa.timestamp(unit)),
    ]


def parquet_times(unit):
    def write(path, columns, records):
        pq.write_table(pa.table(typed_columns(records, unit), columns), path)

    return write


READERS = {
    "csv": (".csv", csv_line, csv_lines),
    "json lines": (".jsonl", json_line, jsonl_lines),
    "parquet": (".parquet", raw_cells, parquet_rows("plain")),
    "parquet, large": (".parquet", raw_cells, parquet_rows("large")),
    "parquet, view": (".parquet", raw_cells, parquet_rows("view")),
    "parquet, dictionary": (".parquet", raw_cells, parquet_rows("dictionary")),
    "parquet, times in us": (".parquet", far_times, parquet_times("us")),
    "parquet, times in ms": (".parquet", far_times, parquet_times("ms")),
    "avro": (".avro", raw_cells, avro_file(avro_text)),
    "avro, times": (".avro", far_times, avro_file(avro_typed)),
}

# The law --------------------------------------------------------------------------------------

RECORDS, FILES = 50, 20  # 1,000 records for every reader


def mapped(path, domain):
    """What each row of a file maps to, by its row: an event, or why there is none."""
    columns = Columns("user", ("value",), "time", "Europe/Berlin", "s")
    mapper = EventMapper(columns, Slots.of("1d"), domain, REGISTRY, b"k" * 32)
    found = {}
    for batch, unparsed in read_events(str(path), EVENT):
        events, rejected = mapper.map(batch)
        for letters in filter(None, (unparsed, rejected)):
            for row in letters.to_pylist():
                found[row["row"]] = (row["reason"], row["detail"])
        rows = [row for row in batch.column("__row__").to_pylist() if row not in found]
        kept = zip(
            events.slots.tolist(), events.bins.tolist(), events.members.tolist(), strict=True
        )
        found.update(zip(rows, kept, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_of_events(tmp_path, reader):
    ending, record, write = READERS[reader]
    first = {".csv": 2, ".jsonl": 2}.get(ending, 0)
    path = tmp_path / f"events{ending}"
    for seed in range(FILES):
        draw, domain = Random(seed), DOMAINS[seed % 2]
        records = [record(draw, EVENT) for _ in range(RECORDS)]
        more, at = record(draw, EVENT), draw.randint(0, RECORDS)
        write(path, EVENT, records)
        before = mapped(path, domain)
        write(path, EVENT, [*records[:at], more, *records[at:]])
        after = mapped(path, domain)
        for index, one in enumerate(records):
            if reader == "csv" and not is_row(one):
                continue  # it may go on in the next line, if that is no row either
            row = first + index
            assert before.get(row) == after.get(row + (index >= at)), (seed, one)


def is_row(line):
    """Whether a line is a row, strictly by RFC 4180: as its own fields are written again."""
    try:
        fields = next(csv.reader([line.decode("latin-1")]), [])
    except csv.Error:
        return False
    plain = not any('"' in part for part in fields)
    return len(fields) == len(EVENT) and (
        as_csv(fields).encode("latin-1") == line or (plain and b'"' not in line)
    )


# Messages of many events ------------------------------------------------------------------------


def arrow_stream(columns, arrays):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(arrays, list(columns))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def arrow_text(kind):
    def encode(columns, records):
        arrays = [text_column(list(values), kind) for values in zip(*records, strict=True)]
        return arrow_stream(columns, arrays)

    return encode


def arrow_times(columns, records):
    return arrow_stream(columns, typed_columns(records, "us"))


def json_array(columns, records):
    return b"[" + b", ".join(records) + b"]"


def lines(columns, records):
    return b"\n".join(records)


def one_event(columns, records):
    (record,) = records
    return record


MESSAGES = {
    "json, one": ("json", json_line, one_event),
    "json": ("json", json_line, json_array),
    "json lines": ("jsonl", json_line, lines),
    "arrow": ("arrow", raw_cells, arrow_text("plain")),
    "arrow, large": ("arrow", raw_cells, arrow_text("large")),
    "arrow, dictionary": ("arrow", raw_cells, arrow_text("dictionary")),
    "arrow, times": ("arrow", far_times, arrow_times),
    "avro": ("avro", raw_cells, avro_text),
    "avro, times": ("avro", far_times, avro_typed),
}
# Such bytes leave it open where an element of an array ends.
OPEN = (b"{", b"[" * 3000)


def closed(draw, columns):
    """A record that leaves nothing open, and no array of none."""
    while (record := json_line(draw, columns)) in (*OPEN, b"[]"):
        pass
    return record


def outcomes(outputs):
    """What each event came to: where it was counted, or why not; no word of which message."""
    columns = Columns("user", ("value",), "time", time_unit="s")
    mapper = EventMapper(columns, Slots.of("1d"), DOMAINS[0], REGISTRY, b"k" * 32)
    found = Counter()
    for value, tag, _ in outputs:
        if tag == REJECTED:
            for row in value.to_pylist():
                detail = row["detail"].partition("; in the message")[0]
                found[row["reason"], detail, row["record"]] += 1
            continue
        events, letters = mapper.map(value)
        parts = (events.slots.tolist(), events.bins.tolist(), events.members.tolist())
        found.update(zip(*parts, strict=True))
        found.update((row["reason"], row["detail"]) for row in letters.to_pylist())
    return found


def parsed(kind, messages):
    return outcomes(MessageParser("queue", EVENT, False, kind).parse(messages))


@pytest.mark.many
@pytest.mark.parametrize("case", MESSAGES)
def test_of_messages(case):
    """One more event in one of the messages: all others give what they gave."""
    kind, record, encode = MESSAGES[case]
    events = 1 if encode is one_event else 12
    for seed in range(8):
        draw = Random(seed)
        some = closed if record is json_line else record
        groups = [[some(draw, EVENT) for _ in range(events)] for _ in range(100 // events)]
        before = parsed(kind, [encode(EVENT, group) for group in groups])
        assert sum(before.values()) == len(groups) * events
        more, at = record(draw, EVENT), draw.randrange(len(groups))
        if events == 1:
            groups.insert(at, [more])
        else:
            groups[at].insert(draw.randrange(events + 1), more)
        after = parsed(kind, [encode(EVENT, group) for group in groups])
        if encode is json_array and more in OPEN:  # the message is one dead letter
            spoiled = parsed(kind, [encode(EVENT, groups.pop(at))])
            assert sum(spoiled.values()) == 1
            assert after - spoiled == parsed(kind, [encode(EVENT, group) for group in groups])
            continue
        assert not before - after, (seed, more)
        assert sum((after - before).values()) == (more != b"[]" or events > 1), (seed, more)


@pytest.mark.slow
@pytest.mark.parametrize("case", MESSAGES)
def test_of_messages_with_bytes_that_differ(case):
    """Whatever a message holds, all others give what they gave, and nothing fails."""
    kind, record, encode = MESSAGES[case]
    events = 1 if encode is one_event else 12
    draw = Random(case)
    some = closed if record is json_line else record
    messages = [encode(EVENT, [some(draw, EVENT) for _ in range(events)]) for _ in range(3)]
    alone = [parsed(kind, [message]) for message in messages]
    for _ in range(60):
        at, changed = draw.randrange(3), bytearray(draw.choice(messages))
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(changed))] = draw.getrandbits(8)
        del changed[draw.choice([draw.randrange(len(changed)), len(changed)]) :]
        others = [message for index, message in enumerate(messages) if index != at]
        after = parsed(kind, [*others[:at], bytes(changed), *others[at:]])
        expected = sum((alone[index] for index in range(3) if index != at), Counter())
        assert not expected - after, bytes(changed)


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_of_messages_in_a_pipeline(keep, kind):
    draw = Random(kind)
    groups = [[closed(draw, EVENT) for _ in range(5)] for _ in range(20)]
    encode = {"json": json_array, "jsonl": lines}[kind]
    messages = [encode(EVENT, group) for group in groups]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        source = pipeline | beam.Create([messages], reshuffle=False) | beam.FlatMap(list)
        events = source | ParseMessages("queue", EVENT, message_format=kind)
        batches, rejected = keep(events.batches, "good"), keep(events.rejected, "bad")
    outputs = [Output(batch) for batch, _ in batches]
    outputs += [Output(letters, REJECTED) for letters, _ in rejected]
    assert outcomes(outputs) == parsed(kind, messages)


# Tables ---------------------------------------------------------------------------------------


def requirements_of(path):
    registry = read_requirements(str(path))
    users = registry.users.to_pylist()
    requirements = [registry.classes[k] for k in registry.class_of.tolist()]
    return dict(zip(users, requirements, strict=True))


def budgets_of(path):
    return lookup_of(str(path), None, None).table


def bins_of(path):
    return dict.fromkeys(read_domain(str(path)).values)


TABLES = {
    "requirements": (("user", "window", "epsilon"), requirements_of),
    "budgets": (("category", "epsilon"), budgets_of),
    "domain": (("value",), bins_of),
    "keys": (("value", "about"), bins_of),
}


def encoded(rows, columns, ending):
    """Good rows as the records of a file."""
    if ending == ".csv":
        return [as_csv(row).encode() for row in rows]
    if ending == ".jsonl":
        return [json.dumps(dict(zip(columns, row, strict=True))).encode() for row in rows]
    return [tuple(map(str.encode, row)) for row in rows]


def good_rows(draw, columns):
    """Rows that are good, with names of their own that look like something else."""
    names = [*SOME["name"], *(f"{draw.getrandbits(20):07o}" for _ in range(RECORDS))]
    of = {"window": lambda: str(draw.randint(1, 50)), "epsilon": lambda: draw.choice(["1", "0.5"])}
    rest = columns[1:]
    return [(name, *(of.get(c, lambda: "x")() for c in rest)) for name in dict.fromkeys(names)]


@pytest.mark.many
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".avro", ".jsonl"])
@pytest.mark.parametrize("table", TABLES)
def test_of_tables(tmp_path, table, ending):
    columns, read = TABLES[table]
    path = tmp_path / f"table{ending}"
    record, write, first = {
        ".csv": (csv_line, csv_lines, 2),
        ".jsonl": (json_line, partial(write_lines, header=None), 1),
        ".avro": (raw_cells, avro_file(avro_text), 0),
        ".parquet": (raw_cells, parquet_rows("plain"), 0),
    }[ending]
    refused = 0
    for seed in range(FILES):
        draw = Random(seed)
        rows = good_rows(draw, columns)
        records = encoded(rows, columns, ending)
        more, at = record(draw, columns), draw.randint(1, len(rows))
        write(path, columns, records)
        before = read(path)
        assert list(before) == [row[0] for row in rows]  # as they are written
        write(path, columns, [*records[:at], more, *records[at:]])
        try:
            after = read(path)
        except ConfigurationError as error:
            refused += 1
            message = str(error)
            assert len(message.splitlines()) == 1
            assert f" {first + at}" in message or "twice" in message, (message, more)
            continue
        assert {name: after.get(name) for name in before} == before, (seed, more)
    assert refused


@pytest.mark.many
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_of_changes(tmp_path, ending):
    """Changes of requirements are read as events are, and mapped row by row."""
    columns = [name for name in CHANGE_COLUMNS if name != "time"]
    path = tmp_path / f"changes{ending}"
    mapper = ChangeMapper(Slots.of("1d"), "UTC", None, REGISTRY, b"k" * 32, 50)
    record, write = {
        ".csv": (csv_line, csv_lines),
        ".jsonl": (json_line, jsonl_lines),
        ".parquet": (raw_cells, parquet_rows("plain")),
    }[ending]

    def changes():
        found, letters = [], []
        for batch, unparsed in read_events(str(path), change_columns(str(path))):
            by_kind, rejected = mapper.map(batch)
            for each in filter(None, (unparsed, rejected)):
                letters += each.drop_columns(["row"]).to_pylist()
            for changed, _ in by_kind.values():
                rows = (changed.users, changed.slots, changed.requirements.tolist())
                found += map(repr, zip(*rows, strict=True))
        return Counter(found), Counter(map(repr, letters))

    for seed in range(FILES):
        draw = Random(seed)
        rows = [
            (draw.choice(USERS), str(draw.randint(19000, 20000)), *["7", "0.5"] * 2)
            for _ in range(RECORDS)
        ]
        records = encoded(rows, columns, ending)
        more, at = record(draw, columns), draw.randint(0, RECORDS)
        write(path, columns, records)
        before = changes()
        write(path, columns, [*records[:at], more, *records[at:]])
        after = changes()
        for was, now in zip(before, after, strict=True):
            assert was <= now, (seed, more)
        assert sum(sum(c.values()) for c in after) <= sum(sum(c.values()) for c in before) + 1

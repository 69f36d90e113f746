"""JSON record by record: what one says has no part in how another is read."""

import json
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamveil.engine.encode.event_mapper import EventMapper
from streamveil.io import check_events, json_objects, json_templates, read_events
from streamveil.io.json_objects import MAX_DEPTH, _one_by_one, read_objects
from streamveil.io.json_templates import read_template, template_of
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    Edges,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.number_text import number_text
from streamveil.transforms import Columns

NAMES = ("user", "value", "time")
LONG = 1 << 15

# Lines that are no events, or that Arrow's reader of JSON takes for others, or dies of.
ODD = [
    *(b"null", b"true", b"5", b"-1e5", b'"text"', b"[]", b"[1]", b"NaN", b"", b"  ", b"\0", b"no"),
    *(b'{"user":"a"} null', b'{"user":"a"}{"user":"b"}', b"null {}", b'{"user":"a"', b"}", b"{}"),
    *(b"\xff", b'{"user":"\xff"}', b'{"user":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", b'{"user":1}\r'),
    *(
        b'{"user":"\\ud800"}',
        b'{"user":"\\udc00"}',
        b'{"x":"\\ud800"}',
        b'{"user":"\\ud83d\\ude00"}',
    ),
    *(
        b'{"user":"\\u0000\\u00e9\\n\\"\\\\"}',
        b'{"user":"a\tb"}',
        b'{"user":"\x01"}',
        b'{"user":"\\x"}',
    ),
    *(b'{"user":1,"user":2}', b'{"x":1,"x":2,"user":3}', b'{"\\u0075ser":"u"}', b'{"user" : 7 }'),
    *(b'{"user":NaN}', b'{"x":NaN,"user":1}', b'{"x":Inf,"user":1}', b'{"user":-Infinity}'),
    *(b'{"user":true}', b'{"user":[1]}', b'{"user":{}}', b'{"user":null}', b'{"x":{"user":5}}'),
    *(
        b'{"user":01}',
        b'{"user":1.}',
        b'{"user":.5}',
        b'{"user":+1}',
        b'{"user":-}',
        b'{"user":1e}',
    ),
    *(b'{"user":7.0}', b'{"user":1e3}', b'{"user":-0}', b'{"user":1e400}', b'{"user":2e31}'),
    *(b'{"user":1e401}', b'{"user":%s}' % (b"9" * 5000), b'{"user":1e%s}' % (b"9" * 5000)),
    *(b'{"time":"2024-05-01T12:00:00Z"}', b'{"time":"1714521600"}', b'{"time":1714521600.5}'),
    *(b'{"x":%s%s}' % (b"[" * d, b"]" * d) for d in (MAX_DEPTH - 1, MAX_DEPTH, 2000, 1 << 20)),
    *(b'{"x":%s1%s}' % (b'{"a":' * d, b"}" * d) for d in (MAX_DEPTH - 1, MAX_DEPTH, 2000)),
    *(b'{"x":"%s"}' % (b"[" * 100), b"[" * (1 << 20), b'{"user":"%s"}' % (b"a" * LONG)),
]
GOOD = [
    *(
        {"user": f"u{i % 3}", "value": "A", "time": f"2024-05-01T00:00:{i % 60:02}Z"}
        for i in range(40)
    ),
    *({"user": i % 3, "value": i % 4, "time": 1714521600 + i / 8} for i in range(40)),
    *({"user": i % 3, "value": 0.5, "time": 1714521600123456789 + i, "x": [i]} for i in range(40)),
]


def read(lines, rows=None):
    """Row by row what a line gives, or the text of what is wrong with it."""
    found = {}

    def reject(row, detail, record):
        assert record == lines[row]
        found[row] = detail

    if rows is None:
        arrays, rows = read_objects(lines, NAMES, reject)
    else:
        rows, arrays = _one_by_one(lines, np.array(rows), NAMES, reject)
    assert [array.type for array in arrays] == [pa.string()] * len(NAMES)
    for array in arrays:
        array.validate(full=True)
    for row, *texts in zip(rows.tolist(), *(a.to_pylist() for a in arrays), strict=True):
        found[row] = tuple(texts)
    assert sorted(found) == list(range(len(lines)))
    return [found[row] for row in range(len(lines))]


@pytest.mark.parametrize("copies", [1, 30])
def test_odd_lines_among_others_are_read_as_alone(copies):
    """One by one and at once; the odd ones in front, at the end and anywhere."""
    lines = [json.dumps(row).encode() for row in GOOD]
    rows_by_line = {line: read([line])[0] for line in [*lines, *ODD]}
    many = [line for line in lines for _ in range(copies)]
    mixed = [*ODD, *many, *ODD]
    for arranged in (mixed, mixed[::2] + mixed[1::2]):
        assert read(arranged) == [rows_by_line[line] for line in arranged]


@pytest.mark.parametrize("line", [b'{"user":"\xed\xa0\xbd"}', b'{"user":"%s"}' % (b"a" * LONG)])
def test_many_lines_none_of_which_an_expression_reads(line):
    assert read([line] * 99) == read([line]) * 99


def test_what_odd_lines_are():
    rows_by_line = {line: read([line])[0] for line in ODD}
    users = {line: row[0] for line, row in rows_by_line.items() if isinstance(row, tuple)}
    assert users[b'{"user":7.0}'] == "7"
    assert users[b'{"user":1e3}'] == "1000"
    assert users[b'{"user":-0}'] == "0"
    assert users[b'{"user":1e400}'] == "1" + "0" * 400
    assert users[b'{"user":1e401}'] == "1e401"
    assert users[b'{"user":2e31}'] == "2" + "0" * 31
    for twice in (b'{"user":1,"user":2}', b'{"user":1,"user":1}'):
        assert read([twice]) == ["'user' is there twice"]
    assert read([b'{"user":1,"\\u0075ser":null}']) == ["'user' is there twice"]
    assert read([b'{"user":1,"x":2,"x":{"user":3,"user":4}}']) == [("1", None, None)]
    assert users[b'{"\\u0075ser":"u"}'] == "u"
    assert users[b'{"user":"\\u0000\\u00e9\\n\\"\\\\"}'] == '\0\u00e9\n"\\'
    assert users[b'{"user":"\\ud83d\\ude00"}'] == "\U0001f600"
    assert rows_by_line[b"null"] == rows_by_line[b"5"] == rows_by_line[b"[]"] == "not a JSON object"
    # The place in the record: which line of the file it is on, only the reader of lines knows.
    assert read([b'{"user":"a"', b"{"]) == [
        "not JSON: Expecting ',' delimiter at character 12",
        "not JSON: Expecting property name enclosed in double quotes at character 2",
    ]
    assert rows_by_line[b'{"user":NaN}'] == "'user' is NaN, not a string, a number or a boolean"
    assert (
        rows_by_line[b'{"user":-Infinity}']
        == "'user' is infinite, not a string, a number or a boolean"
    )
    assert rows_by_line[b"[" * (1 << 20)] == f"nested deeper than {MAX_DEPTH} levels"
    deep = [row for line, row in rows_by_line.items() if line.startswith((b'{"x":[', b'{"x":{"a"'))]
    assert [isinstance(row, str) for row in deep] == [False, True, True, True, False, True, True]


@pytest.mark.slow
def test_a_scalar_at_the_front_kills_no_process(tmp_path):
    """Arrow's reader of JSON died of it, so a process of its own is asked."""
    good = b'{"user":1,"value":"A","time":5}\n' * 99
    scalars = [b"null", b"true", b"5", b'"text"', b"[]", b"NaN", b"null null"]
    for i, scalar in enumerate(scalars):
        (tmp_path / f"{i}.jsonl").write_bytes(scalar + b"\n" + good)
    code = (
        "import sys\n"
        "from streamveil.io import read_events\n"
        "read = list(read_events(sys.argv[1], ('user', 'value', 'time')))\n"
        "print([(batch.num_rows, rejected.num_rows) for batch, rejected in read])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "*.jsonl")]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == str([(99, 1)] * len(scalars))


# ---- both ways to read a record are one -----------------------------------------------------

LITERALS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,25})([.][0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)
SCALARS = st.sampled_from(
    ["null", "true", "NaN", "Inf", "-Infinity", "01", "1.", '"\\x"', '"a\tb"']
)
TEXTS = st.text(max_size=8).map(json.dumps) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=8
).map(lambda text: json.dumps(text, ensure_ascii=False))
ESCAPED = st.text('\\u"0dD8c/nb\ud83d\ude00e\x00\u00e9 ', max_size=10).map(lambda text: f'"{text}"')
VALUES = st.recursive(
    LITERALS | SCALARS | TEXTS | ESCAPED,
    lambda value: (
        st.lists(value, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(TEXTS, value), max_size=2).map(
            lambda items: "{" + ",".join(f"{key}:{item}" for key, item in items) + "}"
        )
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ['"user"', '"value"', '"time"', '"x"', '"\\u0075ser"', '"\u00e9"', '"\\u00e9"']
)


@st.composite
def blocks(draw):
    """Records of one to three layouts, as one program writes them, and some that are none."""
    layouts = draw(st.lists(st.lists(KEYS, min_size=1, max_size=5), min_size=1, max_size=3))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\t"), ("\n,", ":")]))
    records = []
    for _ in range(draw(st.integers(1, 12))):
        keys = draw(st.sampled_from(layouts))
        members = [f"{key}{colon}{draw(VALUES)}" for key in keys]
        end = draw(st.sampled_from(["", "\n", "\r\n", " \t\n\n", "x", "\0"]))
        record = ("{" + comma.join(members) + "}" + end).encode(errors="surrogatepass")
        records.append(
            draw(st.sampled_from([record] * 6 + [record[:-1], b"\xef\xbb\xbf" + record]))
        )
    records += draw(st.lists(st.binary(max_size=12) | st.sampled_from(ODD[:40]), max_size=3))
    return records


@settings(max_examples=100)
@given(blocks(), st.sampled_from([1, 1 << 40]))
def test_reading_at_once_is_reading_one_by_one(records, price):
    records = (records * 64)[: max(64, len(records))]  # so many that expressions are made
    with pytest.MonkeyPatch.context() as patch:  # with templates, and with expressions alone
        patch.setattr(json_objects, "_TEMPLATE_PRICE", price)
        assert read(records) == read(records, rows=range(len(records)))


PLAIN = st.text("ab,:{}[] \u00e9\U0001f600", max_size=9)
NUMBERS = st.sampled_from(["7", "-1", "0.5", "10", "-0", "1.50", "1e3", "null", "true", "01", "1."])
CHANGES = st.tuples(
    st.floats(0, 1), st.sampled_from([b'"', b"\\", b"\n", b"\x00", b",", b"1", b""])
)


@st.composite
def of_one_writer(draw):
    """Records of one template, some with a byte more, less or changed."""
    keys = draw(st.permutations(["user", "value", "time", "x", "a \u00e9 key"]))[
        : draw(st.integers(1, 5))
    ]
    comma, colon, end = draw(
        st.sampled_from(
            [(",", ":", "\n"), (", ", ": ", "\n"), (" , ", " : ", ""), (",", ":", "\r\n")]
        )
    )
    quoted = [draw(st.booleans()) for _ in keys]
    records = []
    for _ in range(draw(st.integers(1, 10))):
        values = [f'"{draw(PLAIN)}"' if one else draw(NUMBERS) for one in quoted]
        members = (f'"{key}"{colon}{value}' for key, value in zip(keys, values, strict=True))
        record = ("{" + comma.join(members) + "}" + end).encode()
        for at, some in draw(st.lists(CHANGES, max_size=2) if records else st.just([])):
            place = int(at * len(record))
            record = record[:place] + some + record[place + draw(st.integers(0, 1)) :]
        records.append(record)
    return records


@settings(max_examples=100)
@given(of_one_writer())
def test_templates_read_what_one_by_one_is_read(records):
    records = [*records, *[records[0]] * 64]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_objects, "_TEMPLATE_PRICE", 1)
        patch.setattr(json_templates, "_SLICE_BYTES", 500)
        assert read(records) == read(records, rows=range(len(records)))


def test_records_of_one_writer_are_read_by_their_template():
    lines = [json.dumps(row).encode() + b"\n" for row in GOOD[:80]]
    for few in (lines[:40], lines[40:]):
        texts = pa.array(few, pa.large_binary()).cast(pa.large_string())
        template = template_of(few[0])
        found, arrays = read_template(texts[1:], template, (*NAMES, "y"))
        some = json.loads(few[0])
        assert template.keys == NAMES
        assert template.quoted == tuple(isinstance(value, str) for value in some.values())
        # A fraction of .0 is a whole number's other spelling, which an expression reads.
        spelled = [json.loads(line)["time"] for line in few[1:]]
        kept = [not (isinstance(time, float) and time == int(time)) for time in spelled]
        assert found.tolist() == kept
        assert arrays[0].to_pylist() == [
            str(json.loads(line)["user"]) for line, one in zip(few[1:], kept, strict=True) if one
        ]
        assert arrays[3].null_count == sum(kept)


@given(LITERALS)
def test_the_text_of_a_number_is_its_value(literal):
    text = number_text(literal)
    if text == literal and Decimal(literal).adjusted() > 400:
        return
    assume(abs(Decimal(literal).adjusted()) < 400)
    assert Decimal(text) == Decimal(literal)
    assert text == "0" or not text.startswith("-0") or text.startswith("-0.")
    assert "e" not in text.lower()
    if "." in text:
        assert not text.endswith(("0", "."))


@pytest.mark.parametrize(
    ("literals", "text"),
    [
        (("7", "7.0", "70e-1", "0.7e1", "7E+0", "0.007e00003"), "7"),
        (("-7.50", "-75e-1"), "-7.5"),
        (("0", "-0", "0.0", "-0.0e9", "0e999999999"), "0"),
        (("5e-324",), "0." + "0" * 323 + "5"),
        (("1e-401",), "1e-401"),
        (("9007199254740993", "9007199254740993.0"), "9007199254740993"),
        (("0.1000000000000000055511151231257827",), "0.1000000000000000055511151231257827"),
    ],
)
def test_equal_numbers_have_one_text(literals, text):
    assert {number_text(literal) for literal in literals} == {text}
    lines = [b'{"user":%s}' % literal.encode() for literal in literals]
    assert {row[0] for row in read(lines * 64)} == {text}


# ---- through the mapper ----------------------------------------------------------------------

ANY = st.sampled_from([odd for odd in ODD if b"\n" not in odd]) | st.fixed_dictionaries(
    {
        "user": st.text(max_size=3) | st.integers() | st.floats() | st.none() | st.booleans(),
        "value": st.sampled_from(["A", "1", 1, 1.0, 2.5, -1, None, [1], {"a": 1}]),
        "time": st.text(max_size=3)
        | st.sampled_from(["2024-05-01T12:00:00Z", "1714521600", "20240501", None, {}])
        | st.integers()
        | st.floats(),
    }
).map(lambda row: json.dumps(row).encode())


def mapped(path, mapper):
    """What each line maps to, by its number: (slot, bin, user), or the reason of a dead letter."""
    found = {}
    for batch, rejected in read_events(path, NAMES):
        events, letters = mapper.map(batch)
        for some in (letters, rejected):
            found |= {} if some is None else {r["row"]: r["reason"] for r in some.to_pylist()}
        strangers = iter(map(tuple, events.strangers.tolist()))
        users = [user if user >= 0 else next(strangers) for user in events.members.tolist()]
        rows = [row for row in batch["__row__"].to_pylist() if row not in found]
        codes = zip(events.slots.tolist(), events.bins.tolist(), users, strict=True)
        found |= dict(zip(rows, codes, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "unit"),
    [
        (Categories(("A", "0", "1", "0.5")), "s"),
        (Edges((0.0, 1.0, 4.0)), "ns"),
        (Categories(("A",)), None),
    ],
)
def test_one_more_record_changes_nothing_about_any_other(tmp_path, domain, unit):
    """1,200 records in all, put some at a time somewhere among good ones."""
    path = tmp_path / "events.jsonl"
    mapper = EventMapper(
        Columns("user", ("value",), "time", time_unit=unit),
        Slots.of("1s"),
        domain,
        Registry.of({"u0": (1, 1.0), "0": (1, 1.0)}, default=(Requirement(1, 1.0), 5)),
        bytes(32),
    )
    lines = [json.dumps(row).encode() for row in GOOD]

    def mapping(lines):
        path.write_bytes(b"\n".join(lines) + b"\n")
        check_events(str(path), NAMES)
        return mapped(str(path), mapper)

    calm = mapping(lines)
    assert sum(isinstance(line, tuple) for line in calm.values()) >= 20
    assert len(calm) == len(lines)

    @settings(max_examples=50)
    @given(st.lists(st.tuples(st.integers(0, len(lines)), ANY), min_size=8, max_size=12))
    def more(odd):
        records = [(at, 1, line) for at, line in enumerate(lines)]
        records = sorted([*records, *((at, 0, line) for at, line in odd)], key=lambda r: r[:2])
        found = mapping([line for *_, line in records])
        good = [row for row, (_, mine, _) in enumerate(records, 1) if mine]
        assert [found[row] for row in good] == [calm[row] for row in sorted(calm)]

    more()


def test_a_key_in_any_line_is_found_and_no_line_in_front_hides_it(tmp_path):
    path = tmp_path / "events.jsonl"
    bad, good = b"null\n", b'{"user":1,"value":2,"time":3}\n'
    path.write_bytes(b'{"x":1}\n' * 150 + bad * 150 + good)
    check_events(str(path), NAMES)
    with pytest.raises(ConfigurationError, match="no column 'when'; its columns are 'x'"):
        check_events(str(path), ("user", "when"))


def test_messages_of_any_kind_are_dead_letters_or_rows():
    large = [b'{"user":"%s"}' % (b"a" * (1 << 24)), b"[" * (1 << 24), b"\xff" * (1 << 24)]
    alone = {}
    for message in [*ODD, *large]:
        alone[message] = read_objects([message], NAMES, lambda *_: None)[0][0].to_pylist()
        assert len(alone[message]) <= 1
    users = [user for message in [*ODD, *large] for user in alone[message]]
    for goods in (1, 99):
        bad, good = [], [b'{"user":1,\n"value":"A","time":3}'] * goods
        messages = [*good, *ODD, *large, *good]
        arrays = read_objects(messages, NAMES, lambda index, *_, bad=bad: bad.append(index))[0]
        assert arrays[0].to_pylist() == ["1"] * goods + users + ["1"] * goods
        assert bad == [goods + i for i, message in enumerate([*ODD, *large]) if not alone[message]]


@pytest.mark.parametrize("record", ["null", '{"user": "u1"}'])
def test_a_file_of_one_bad_record_does_not_stop_the_others(tmp_path, record):
    (tmp_path / "b.jsonl").write_text('{"user": "u1", "value": "A", "time": "2024-05-01"}\n')
    (tmp_path / "a.jsonl").write_text(record)
    check_events(str(tmp_path / "*.jsonl"), ("user", "value", "time"))
    with pytest.raises(ConfigurationError, match=r"a\.jsonl"):
        check_events(str(tmp_path / "*.jsonl"), ("user", "where"))

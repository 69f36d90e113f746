"""JSON objects as columns of text: every record is read by itself, whatever stands beside it.

A string is its text, a number the decimal text of its value, exactly (:func:`number_text`), a
boolean `true` or `false`. There are three ways to read a record, equal by test. Templates, of which
a sample of the records is, tell where values are by the quotes alone (:mod:`json_templates`);
regular expressions, one for every order of keys in the sample, match what has other blanks, escapes
or lists; and Python's parser takes all else, one record after the other.
(Arrow's reader of JSON types a column by its block, and dies of a scalar in place of an object.)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.cells import not_utf8
from streamveil.io.files import Columns
from streamveil.io.json_templates import (
    USUAL_NUMBER,
    USUAL_TEXT,
    Template,
    read_template,
    template_of,
)
from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.number_text import number_text
from streamveil.mechanisms.core.records import QueryColumn

MAX_DEPTH = 64
"""Objects and lists inside each other, the record's own included. Python's parser has a limit that
depends on who calls it; this one is below."""

# Called with the index of a record, what is wrong with it and its bytes.
Reject = Callable[[int, str, bytes], None]

_Rows = npt.NDArray[np.int64]

_FEW = 64  # records for which regular expressions are not worth making
_LONG = 1 << 14  # bytes of a record from which on they are slower than a parser
_SAMPLE = 50
_SHAPES = 4
# What the expression of a shape costs for each of its keys, in records read by the parser instead:
# an expression is made where it saves more than that.
_KEY_PRICE, _NESTED_KEY_PRICE = 20, 700
_TEMPLATE_PRICE = 200  # so many records of a template are worth looking for them

_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

_COLON, _COMMA = ": ?", ", ?"  # as nearly all write; anywhere else blanks cost time
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?"
_CHARACTER = r'[^"\\\x00-\x1f]|\\["\\/bfnrt]'
_STRING = rf'"(?:{_CHARACTER}|\\u[0-9a-fA-F]{{4}})*"'
_ONE_CODE = r"\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"  # no surrogates
_WANTED = rf'(?:"(?:{_CHARACTER}|{_ONE_CODE})*"|{_NUMBER}|true|false|null)'
_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null)"


def _or_nested(value: str) -> str:
    """Pattern of such a value, or of a list or object of them."""
    member = f"{_STRING}{_COLON}{value}"
    several = [f"(?:{item}(?:{_COMMA}{item})*)?" for item in (value, member)]
    return rf"(?:{_SCALAR}|\[{several[0]}\]|\{{{several[1]}\}})"


_NESTED = _or_nested(_or_nested(_SCALAR))


def read_objects(
    records: Sequence[bytes] | pa.Array, columns: Columns, reject: Reject
) -> tuple[list[pa.Array], _Rows]:
    """The named keys of records, each one object, as strings; a missing key is null.

    Records that are not an object, that are nested deeper than `MAX_DEPTH`, or that hold a
    list, object or NaN under a named key, or such a key twice, go to `reject`; but of a
    :class:`QueryColumn` a list, an object or NaN is text.

    Args:
        records: their bytes; an Arrow array of them is of large_binary.
        columns: the keys.
        reject: gets what is no such object, in order.

    Returns:
        An array of string for each column, and the index of the record of each row, ascending.
    """
    found: list[tuple[_Rows, list[pa.Array]]] = []
    waiting = np.arange(len(records))
    if len(records) >= _FEW:
        if not isinstance(records, pa.Array):
            records = pa.array(records, pa.large_binary())
        found, waiting = _by_shape(records, columns)
    if len(waiting) or not found:
        found.append(_one_by_one(records, waiting, columns, reject))
    if len(found) == 1:
        return found[0][1], found[0][0]
    rows = np.concatenate([part for part, _ in found])
    order = np.argsort(rows)
    arrays = [
        pa.concat_arrays([part[at] for _, part in found]).take(pa.array(order))
        for at in range(len(columns))
    ]
    return arrays, rows[order]


def parse_object(record: bytes) -> Any:
    """The object of a record, or the text of what is wrong with it.

    Of the values under its keys a number is a tuple of its literal, and only NaN and the
    infinities, which some write though JSON has none, are floats. Of equal keys the last one
    counts, in a mapping that knows them: see :func:`_problem`.
    """
    value = _parse(record)
    return value if isinstance(value, (dict, _Fault)) else "not a JSON object"


def json_fault(record: bytes) -> str | None:
    """What keeps some bytes from being JSON, nested no deeper than objects may be, if anything."""
    value = _parse(record)
    return value if isinstance(value, _Fault) else None


class _Fault(str):
    """What is wrong with a record; not a text that it is."""


def _parse(record: bytes) -> Any:
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        return _Fault(f"not UTF-8: {error.reason} at byte {error.start}")
    if record.count(b"[") + record.count(b"{") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        return _Fault(f"nested deeper than {MAX_DEPTH} levels")
    try:
        return _decode(text)
    except json.JSONDecodeError as error:  # which knows no line but those of the record itself
        return _Fault(f"not JSON: {error.msg} at character {error.pos + 1}")


def plain_numbers(texts: pa.Array) -> pa.Array:
    """Numbers as text by :func:`number_text`: large_string; a null stays null."""
    texts = texts.cast(pa.large_string())
    odd = pc.fill_null(pc.invert(pc.match_substring_regex(texts, USUAL_NUMBER)), False)
    return _replaced(texts, odd, texts, number_text) if pc.any(odd).as_py() else texts


def _number(literal: str) -> tuple[str]:
    return (literal,)


class _Ambiguous(dict[str, Any]):
    """An object with a key that is there twice, which readers of JSON take differently."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs)
        self.twice = {key for key, found in counts.items() if found > 1}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Ambiguous(pairs)


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_int=_number, parse_float=_number).decode


def _depth(record: bytes) -> int:
    """How deep brackets are inside each other, up to where it may be no JSON any more."""
    data = np.frombuffer(_QUOTED.sub(b"", record), np.uint8) | 0x20
    steps = (data == ord("{")).astype(np.int8) - (data == ord("}"))
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _one_by_one(
    records: Sequence[bytes] | pa.Array, rows: _Rows, columns: Columns, reject: Reject
) -> tuple[_Rows, list[pa.Array]]:
    texts: list[list[str | None]] = [[] for _ in columns]
    good = []
    for row in rows.tolist():
        record = records[row]
        record = record if isinstance(record, bytes) else record.as_py()
        value = parse_object(record)
        problem = value if isinstance(value, str) else _problem(value, columns)
        if problem:
            reject(row, problem, record)
            continue
        good.append(row)
        for name, column in zip(columns, texts, strict=True):
            item = value.get(name)
            if isinstance(item, (list, dict, float)):  # of a QueryColumn
                item = _json_of(item)
            elif isinstance(item, bool):
                item = boolean_text(item)
            column.append(number_text(*item) if isinstance(item, tuple) else item)
    return np.array(good, np.int64), [pa.array(column, pa.string()) for column in texts]


def _json_of(value: Any) -> str:
    """A value as JSON; a number, which is a tuple of its literal, as it is written."""
    if isinstance(value, tuple):
        return str(value[0])
    if isinstance(value, list):
        return f"[{','.join(map(_json_of, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(k)}:{_json_of(v)}' for k, v in value.items())}}}"
    return json.dumps(value)


def _problem(row: Mapping[str, Any], columns: Columns) -> str | None:
    twice = row.twice if isinstance(row, _Ambiguous) else ()
    for name in columns:
        if name in twice:
            return f"{name!r} is there twice"
        value = row.get(name)
        if isinstance(value, (list, dict, float)) and not isinstance(name, QueryColumn):
            kinds: dict[type, str] = {list: "a list", dict: "an object"}
            kind = kinds.get(type(value)) or ("NaN" if value != value else "infinite")
            return f"{name!r} is {kind}, not a string, a number or a boolean"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"{name!r} holds half of a surrogate pair"
    return None


def _by_shape(
    records: pa.Array, columns: Columns
) -> tuple[list[tuple[_Rows, list[pa.Array]]], _Rows]:
    """Rows and columns of the records of common shapes, and the rows of all others."""
    short = pc.less(pc.binary_length(records), _LONG).to_numpy(zero_copy_only=False)
    found = []
    rest, rows = np.flatnonzero(~short), np.flatnonzero(short)
    texts, rows, undecoded = _utf8(records, rows)
    rest = np.concatenate([rest, undecoded])
    for read in _readers(texts, columns):
        matched, arrays = read(texts)
        if not matched.any():
            continue
        found.append((rows[matched], arrays))
        rows = rows[~matched]
        if not len(rows):
            return found, np.sort(rest)
        texts = texts.filter(pa.array(~matched))
    return found, np.sort(np.concatenate([rest, rows]))


_Read = Callable[[pa.Array], tuple[npt.NDArray[np.bool_], list[pa.Array]]]
"""Which texts are of a shape, and the columns of those."""


def _readers(texts: pa.Array, columns: Columns) -> Iterator[_Read]:
    """The ways to read common shapes, the fastest first."""
    for template in _templates(texts):
        yield partial(read_template, template=template, columns=columns)
    for pattern in _patterns(texts, columns):
        yield partial(_read_pattern, pattern=pattern, columns=columns)


def _sample(texts: pa.Array) -> list[str]:
    at = np.unique(np.linspace(0, len(texts) - 1, _SAMPLE, dtype=int))
    return texts.take(pa.array(at)).to_pylist() if len(texts) else []


def _templates(texts: pa.Array) -> Iterable[Template]:
    """The commonest templates among some of the records, if they are worth it."""
    sample = _sample(texts)
    sound = (text.encode() for text in sample if _shape(text))
    templates = Counter(filter(None, map(template_of, sound)))
    for template, found in templates.most_common(_SHAPES):
        if found * len(texts) >= _TEMPLATE_PRICE * len(sample):
            yield template


def _read_pattern(
    texts: pa.Array, pattern: str, columns: Columns
) -> tuple[npt.NDArray[np.bool_], list[pa.Array]]:
    """Which texts a pattern matches, and the columns of those."""
    try:
        groups = pc.extract_regex(texts, pattern)
    except pa.ArrowInvalid:  # of too many keys for an expression
        return np.zeros(len(texts), bool), []
    good = groups.is_valid()
    kept = groups.filter(good)
    literals = dict(zip((field.name for field in groups.type), kept.flatten(), strict=True))
    arrays = [
        _texts_of(literals[group])
        if (group := _group(at)) in literals
        else pa.nulls(len(kept), pa.string())
        for at in range(len(columns))
    ]
    return good.to_numpy(zero_copy_only=False), arrays


def _utf8(records: pa.Array, rows: _Rows) -> tuple[pa.Array, _Rows, _Rows]:
    """The given records as text, their rows, and the rows of those that are not UTF-8."""
    records = records if len(rows) == len(records) else records.take(pa.array(rows))
    try:
        return records.cast(pa.large_string()), rows, rows[:0]
    except pa.ArrowInvalid:
        good = np.ones(len(records), bool)
        good[not_utf8(records.view(pa.large_string()))] = False
        return records.filter(pa.array(good)).cast(pa.large_string()), rows[good], rows[~good]


def _patterns(texts: pa.Array, columns: Columns) -> Iterable[str]:
    """A pattern for each of the commonest shapes among some of the records, if it is worth it.

    So what an odd record costs its neighbours is bounded by what it would cost by itself.
    """
    size, sample = len(texts), _sample(texts)
    shapes = Counter(map(_shape, sample))
    for shape, found in shapes.most_common(_SHAPES):
        price = sum(_NESTED_KEY_PRICE if nested else _KEY_PRICE for _, nested in shape)
        if shape and found * size >= price * len(sample):
            yield _pattern(shape, columns)


_Shape = tuple[tuple[str, bool], ...]
"""Keys in order, and whether what is under each is nested."""


def _shape(record: str) -> _Shape:
    """Shape of an object; empty for what is none, or has a key twice or none."""
    value = parse_object(record.encode())
    if isinstance(value, (str, _Ambiguous)):
        return ()
    return tuple((key, isinstance(value[key], (list, dict))) for key in value)


def _pattern(shape: _Shape, columns: Columns) -> str:
    """Pattern of a record of that shape, with a group for each column that it has."""
    members = []
    for key, nested in shape:
        # Spelled with escapes or, where there is such a spelling, without.
        spelled = {json.dumps(key), json.dumps(key, ensure_ascii=False)}
        names = "|".join(re.escape(name) for name in sorted(spelled) if name.isprintable())
        value = _NESTED if nested else _SCALAR
        if key in columns:
            value = f"(?P<{_group(list(columns).index(key))}>{_WANTED})"
        members.append(f"(?:{names}){_COLON}{value}")
    return rf"^\{{{_COMMA.join(members)}\}}[ \t\r\n]*$"


def _group(at: int) -> str:
    return f"c{at}"


def _texts_of(literals: pa.Array) -> pa.Array:
    """Text of each literal: a string, a number or null."""
    strings = pc.starts_with(literals, '"')
    texts = pc.ascii_trim(literals, '"')
    escaped = _escaped(literals)
    if escaped.any():
        texts = _replaced(texts, pa.array(escaped), literals, json.loads)
    if not pc.all(strings).as_py():
        odd = pc.invert(pc.or_(strings, pc.match_substring_regex(literals, USUAL_TEXT)))
        if pc.any(odd).as_py():
            texts = _replaced(
                texts, odd, literals, lambda x: None if x == "null" else number_text(x)
            )
    return texts.cast(pa.string())


def _escaped(literals: pa.Array) -> npt.NDArray[np.bool_]:
    """Which literals have a backslash; shape (n,). Twenty times as fast as Arrow's search."""
    _, offsets, data = literals.buffers()
    ends = np.frombuffer(offsets, np.int64, len(literals) + 1, 8 * literals.offset)
    found = np.zeros(len(literals), bool)
    slashes = np.flatnonzero(np.frombuffer(data or b"", np.uint8)[: ends[-1]] == ord("\\"))
    rows = np.searchsorted(ends, slashes, side="right") - 1
    found[rows[rows >= 0]] = True
    return found


def _replaced(
    texts: pa.Array, rows: pa.Array, literals: pa.Array, read: Callable[[str], str | None]
) -> pa.Array:
    """The texts, and in some rows what the literal is read as; each distinct one is read once."""
    some = literals.filter(rows).dictionary_encode()
    values = pa.array(map(read, some.dictionary.to_pylist()), texts.type)
    return pc.replace_with_mask(texts, rows, values.take(some.indices))

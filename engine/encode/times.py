"""Time columns as microseconds since 1970-01-01T00:00Z, row by row valid or with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import methodcaller

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.encode.time_formats import ISO, as_iso, forms_of
from streamveil.mechanisms.core.records import (
    EXCEL,
    MICROSECONDS,
    TIME_VARIANTS,
    UNITS,
    ConfigurationError,
    check_zone,
    parse_time,
)
from streamveil.mechanisms.core.wording import opt

_SHIFT = {"s": 6, "ms": 3, "us": 0, "ns": -3}  # a unit is 10**shift microseconds

NULL_TIME = "null time"
UNPARSABLE_TIME = "unparsable time"
AMBIGUOUS_TIME = "ambiguous time"

Micros = npt.NDArray[np.int64]
# Reason of each bad row, by row number.
Reasons = dict[int, str]

# Years 1 to 9999: what ISO 8601 can write, and far inside what Beam's timestamps hold.
EARLIEST = parse_time("0001-01-01")
LATEST = parse_time("9999-12-31T23:59:59")

_DAY = MICROSECONDS["d"]
# Of Excel: 1900-03-01, 1970-01-01, and the day after 9999-12-31.
_FIRST_SERIAL, _SERIAL_OF_1970, _LAST_SERIAL = 61, 25_569, 2_958_466

_DATE = r"\d{4}-\d{2}-\d{2}"
# RFC 2822, and 1123, whose zones are names: after what takes their place.
_RFC = r"^([A-Za-z]{3}, )?\d{1,2} [A-Za-z]{3} \d{4} "
_RFC_FORMS = tuple(
    f"{day}%d %b %Y {clock}%z" for day in ("%a, ", "") for clock in ("%H:%M:%S", "%H:%M")
)
_LONG_FRACTION = r"([.]\d{6})\d+"  # beyond microseconds: cut
_APART = r" +([+-]\d{2}(:?\d{2})?)$"  # an offset after a space
_WHOLE = r"^-?(\d{1,18}|[0-8]\d{18})$"  # what 64 bits hold for sure
_NUMBER = re.compile(r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBER_PARTS = re.compile(r"([+-]?)(\d*)[.]?(\d*)(?:[eE]([+-]?)0*(\d+))?")
_CLOCK = r"\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?"
_NAIVE = rf"^{_DATE}[T ]{_CLOCK}$"
_ZONED = rf"^{_DATE}[T ]{_CLOCK}(Z|[+-]\d{{2}}(:?\d{{2}})?)$"
_ISO_KINDS = (
    (_ZONED, pa.timestamp("us", "UTC")),
    (_NAIVE, pa.timestamp("us")),
    (f"^{_DATE}$", pa.date32()),
)


def check_reading(zone: str, unit: str | None, form: str | None = None) -> None:
    """Refuse an unknown time zone, unit or form of text. Raises ConfigurationError."""
    if unit not in (None, *UNITS):
        raise ConfigurationError(
            f"time unit {unit!r} ({opt.time_unit}) is unknown: choose {', '.join(UNITS)}"
        )
    check_zone(zone)
    if form is not None:
        forms_of(form)


def to_micros(
    column: pa.Array,
    *,
    zone: str = "UTC",
    unit: str | None = None,
    form: str | None = None,
    name: str = "time",
) -> tuple[Micros, Reasons]:
    """Read a time column.

    Timestamps and dates are taken as they are; text is read as ISO 8601, or as a number if `unit`
    is given, each row as it is written; numbers count `unit`s since 1970-01-01T00:00Z, and what is
    below a microsecond is cut (floor). Digits alone are a number, never a date. Times without an
    offset are clock times in `zone`; one that the zone's clock shows twice or never is ambiguous.
    A date without a clock time is the first moment of that day in `zone`, also where its clocks
    skip midnight or show it twice; a day that they skip is ambiguous.
    With `form`, text and whole numbers are read as the strptime codes in it say, and in no other
    way; what several forms in it read as different times is ambiguous.

    Args:
        column: Arrow array of n rows.
        zone: IANA name of the time zone of times without an offset.
        unit: `s`, `ms`, `us` or `ns` for numbers, or `excel` for serial dates of spreadsheets,
            which are clock times in `zone`.
        form: codes of :mod:`time_formats`, such as `%d.%m.%Y %H:%M`.
        name: the column's name, for errors.

    Returns:
        Microseconds, int64, shape (n,), and the reason of each row that has none.

    Raises:
        ConfigurationError: for a column that cannot hold times, or numbers without a unit.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        values, reasons = to_micros(column.dictionary, zone=zone, unit=unit, form=form, name=name)
        return _through_dictionary(column, values, reasons)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _from_timestamps(column, zone)
    if form is not None and pa.types.is_integer(kind):
        column, kind = column.cast(pa.large_string()), pa.large_string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        text = column.cast(pa.large_string())
        return _from_text(text, zone, unit) if form is None else _from_forms(text, zone, unit, form)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), dict.fromkeys(range(len(column)), NULL_TIME)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if unit == EXCEL:
            return _from_serials(column, zone)
        return _from_numbers(column, unit, name)
    raise ConfigurationError(
        f"column {name!r} holds {kind}, which is not a time: give timestamps, dates, ISO 8601 "
        f"text, or numbers with {opt.time_unit}"
    )


def _through_dictionary(
    column: pa.Array, values: Micros, reasons: Reasons
) -> tuple[Micros, Reasons]:
    indices = column.indices
    missing = indices.is_null().to_numpy(zero_copy_only=False)
    at = indices.fill_null(0).to_numpy(zero_copy_only=False)
    rows = dict.fromkeys(np.flatnonzero(missing).tolist(), NULL_TIME)
    for bad, reason in reasons.items():
        rows.update(dict.fromkeys(np.flatnonzero((at == bad) & ~missing).tolist(), reason))
    return (values[at] if len(values) else np.zeros(len(at), np.int64)), rows


def _nulls(column: pa.Array) -> Reasons:
    if not column.null_count:
        return {}
    rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
    return dict.fromkeys(rows.tolist(), NULL_TIME)


def _from_timestamps(column: pa.Array, zone: str) -> tuple[Micros, Reasons]:
    reasons = _nulls(column)
    dates = pa.types.is_date(column.type)
    if dates:
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    unit, tz = column.type.unit, column.type.tz
    whole = column.cast(pa.int64())
    raw = (whole.fill_null(0) if whole.null_count else whole).to_numpy(zero_copy_only=False)
    # Compared in the column's own unit: a far year in seconds would overflow in microseconds.
    per_micro = {"s": (1, 1_000_000), "ms": (1, 1000), "us": (1, 1), "ns": (1000, 1)}[unit]
    outside = (raw > LATEST * per_micro[0] // per_micro[1]) | (
        raw < EARLIEST * per_micro[0] // per_micro[1]
    )
    if unit != "ns" and outside.any():
        reasons.update(dict.fromkeys(np.flatnonzero(outside).tolist(), UNPARSABLE_TIME))
        raw = np.where(outside, 0, raw)
    micros = raw // per_micro[0] * per_micro[1] if unit != "us" else raw
    if tz is None and zone != "UTC":
        micros, unclear = (_days if dates else _localize)(micros, zone)
        reasons = {**unclear, **reasons}
    return micros, reasons


def _localize(micros: Micros, zone: str) -> tuple[Micros, Reasons]:
    """Clock times of a zone as instants."""
    first, last = (_instants(micros, zone, side, side) for side in ("earliest", "latest"))
    unclear = np.flatnonzero(first != last)
    return first, {**_outside(first), **dict.fromkeys(unclear.tolist(), AMBIGUOUS_TIME)}


def _days(midnights: Micros, zone: str) -> tuple[Micros, Reasons]:
    """The first moment of each day of a zone."""
    # Where clocks skip midnight, the day begins as they jump over it.
    first = _instants(midnights, zone, "earliest", "latest")
    zoned = pa.array(first).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    shown = pc.local_timestamp(zoned).cast(pa.int64()).to_numpy(zero_copy_only=False)
    skipped = np.flatnonzero(shown // _DAY != midnights // _DAY)
    return first, {**dict.fromkeys(skipped.tolist(), AMBIGUOUS_TIME), **_outside(first)}


def _instants(micros: Micros, zone: str, twice: str, never: str) -> Micros:
    """Instants of clock times: which one of those that are shown twice, and for those never."""
    clock = pa.array(micros).cast(pa.timestamp("us"))
    instants = pc.assume_timezone(clock, zone, ambiguous=twice, nonexistent=never)
    found: Micros = instants.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _outside(instants: Micros) -> Reasons:
    """Those that a zone puts outside the years 1 to 9999."""
    outside = (instants < EARLIEST) | (instants > LATEST + MICROSECONDS["s"])
    return dict.fromkeys(np.flatnonzero(outside).tolist(), UNPARSABLE_TIME)


def _from_numbers(column: pa.Array, unit: str | None, name: str) -> tuple[Micros, Reasons]:
    if unit is None:
        raise ConfigurationError(
            f"column {name!r} holds {column.type}, which could count seconds or nanoseconds: "
            f"say {opt.time_unit}=s, ms, us or ns, or excel for serial dates, or for dates such as "
            f"20240531 {opt.time_format}=%Y%m%d, or give timestamps"
        )
    scale = {**MICROSECONDS, "us": 1, "ns": 1e-3}[unit]
    values = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan)
    near = values.to_numpy(zero_copy_only=False) * scale
    outside = ~((near >= EARLIEST) & (near <= LATEST))
    if pa.types.is_integer(column.type):
        whole = np.where(outside, 0, pc.fill_null(column, 0).to_numpy(zero_copy_only=False))
        # Nanoseconds may fill 64 bits without a sign.
        wide = whole.astype(np.uint64 if whole.dtype.kind == "u" else np.int64)
        micros = wide // 1000 if unit == "ns" else wide.astype(np.int64) * scale
    else:
        micros = np.floor(np.where(outside, 0.0, near)).astype(np.int64)
    reasons = dict.fromkeys(np.flatnonzero(outside).tolist(), UNPARSABLE_TIME)
    return micros.astype(np.int64), {**reasons, **_nulls(column)}


def _from_serials(column: pa.Array, zone: str) -> tuple[Micros, Reasons]:
    """Days since 1899-12-30 as spreadsheets count them: dates, and with a fraction clock times.

    A fraction is of a day, to the millisecond, as Excel shows it. Before March 1900, where Excel
    has a day that never was, there is none.
    """
    reasons = _nulls(column)
    days = column.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    outside = ~((days >= _FIRST_SERIAL) & (days < _LAST_SERIAL))
    for row in np.flatnonzero(outside).tolist():
        reasons.setdefault(row, UNPARSABLE_TIME)
    days = np.where(outside, _FIRST_SERIAL, days)
    clock = np.rint(days * (_DAY // 1000)).astype(np.int64) * 1000 - _SERIAL_OF_1970 * _DAY
    dates = days == np.floor(days)
    micros = clock
    if zone != "UTC":
        for rows, read in ((np.flatnonzero(dates), _days), (np.flatnonzero(~dates), _localize)):
            micros[rows], unclear = read(clock[rows], zone)
            reasons = {**{int(rows[i]): why for i, why in unclear.items()}, **reasons}
    return micros, reasons


def is_number(text: str) -> bool:
    """Whether a text is a number, which is a time where there is a unit."""
    return _NUMBER.fullmatch(text.strip()) is not None


def _from_text(column: pa.Array, zone: str, unit: str | None) -> tuple[Micros, Reasons]:
    reasons = _nulls(column)
    text, _ = _each(column, pc.utf8_trim_whitespace, column.type)
    micros = np.zeros(len(column), np.int64)
    unread = column.is_valid().to_numpy(zero_copy_only=False)
    if unit is not None:
        rows = _matching(text, f"^{_NUMBER.pattern}$")
        some = text.take(pa.array(rows))
        exact = unit != EXCEL
        micros[rows], bad = _from_number_text(some, unit) if exact else _from_serials(some, zone)
        reasons.update({int(rows[i]): reason for i, reason in bad.items()})
        unread[rows] = False
        if not unread.any():
            return micros, reasons
    waiting = np.flatnonzero(unread)
    text = _some(text, waiting)
    for tidy in (False, True):
        if not len(waiting):
            break  # as where all are tidy
        text = _tidied(text) if tidy else text
        for pattern, kind in _ISO_KINDS:
            at = _matching(text, pattern)
            if not len(at):
                continue
            rows = waiting[at]
            cast, good = _each(_some(text, at), methodcaller("cast", kind), kind)
            values, bad = _from_timestamps(cast, zone)
            reasons.update({int(rows[i]): reason for i, reason in bad.items() if good[i]})
            micros[rows[good]] = values[good]
            unread[rows[good]] = False
            rest = np.delete(np.arange(len(waiting)), at)
            waiting, text = waiting[rest], _some(text, rest)
    if len(waiting) and pc.any(pc.match_substring_regex(text, _RFC)).as_py():
        for form in _RFC_FORMS:
            iso = as_iso(text, form)
            at = np.flatnonzero(iso.is_valid().to_numpy(zero_copy_only=False))
            if len(at):
                values, bad = _from_text(_some(iso, at), zone, None)
                rows = np.delete(waiting[at], list(bad))
                micros[rows], unread[rows] = np.delete(values, list(bad)), False
    reasons.update(dict.fromkeys(np.flatnonzero(unread).tolist(), UNPARSABLE_TIME))
    return micros, reasons


def _tidied(text: pa.Array) -> pa.Array:
    """Times as most write them, with six digits of a fraction at most."""
    for untidy, tidy in (*TIME_VARIANTS, (_LONG_FRACTION, r"\1"), (_APART, r"\1")):
        if pc.any(pc.match_substring_regex(text, untidy)).as_py():
            text = pc.replace_substring_regex(text, untidy, tidy)
    return text


def _some(text: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Different rows of an array."""
    return text if len(rows) == len(text) else text.take(pa.array(rows))


def _matching(text: pa.Array, pattern: str) -> npt.NDArray[np.int64]:
    """Rows that a pattern matches."""
    matches = pc.fill_null(pc.match_substring_regex(text, pattern), False)
    return np.flatnonzero(matches.to_numpy(zero_copy_only=False))


def _from_number_text(text: pa.Array, unit: str) -> tuple[Micros, Reasons]:
    """Numbers as text, exactly: a float holds no nanoseconds of today, nor all microseconds."""
    micros = np.zeros(len(text), np.int64)
    reasons: Reasons = {}
    unread = np.ones(len(text), bool)

    def take(rows: npt.NDArray[np.int64], whole: pa.Array, unit: str) -> None:
        micros[rows], bad = _from_numbers(whole.cast(pa.int64()), unit, "")
        reasons.update({int(rows[i]): reason for i, reason in bad.items()})
        unread[rows] = False

    rows = _matching(text, _WHOLE)
    take(rows, text.take(pa.array(rows)), unit)
    if unread.any():
        digits = max(_SHIFT[unit], 0)
        # Of what is not negative, cutting digits rounds down.
        fraction = rf"^(\d{{1,{18 - digits}}})[.](\d{{{digits}}})\d*$"
        zeros, nothing = (pa.scalar(part, text.type) for part in ("0" * digits, ""))
        padded = pc.binary_join_element_wise(text, zeros, nothing)
        rows = _matching(padded, fraction)
        whole = pc.replace_substring_regex(padded.take(pa.array(rows)), fraction, r"\1\2")
        take(rows, whole, "ns" if unit == "ns" else "us")
    for row in np.flatnonzero(unread).tolist():
        value = _floor(text[row].as_py(), _SHIFT[unit])
        if value is None or not EARLIEST <= value <= LATEST:
            reasons[row] = UNPARSABLE_TIME
        else:
            micros[row] = value
    return micros, reasons


def _floor(number: str, shift: int) -> int | None:
    """floor(number * 10**shift), None from 10**19 on; any number of digits, any exponent."""
    match = _NUMBER_PARTS.fullmatch(number)
    assert match is not None
    sign, whole, part, below, exponent = match.groups(default="")
    digits = (whole + part).lstrip("0")
    if not digits:
        return 0
    moved = int(exponent or 0) if len(exponent) < 10 else 10**10
    point = len(digits) - len(part) + shift + (-moved if below == "-" else moved)
    if point > 19:
        return None
    point = max(point, 0)
    value = int(digits[:point].ljust(point, "0") or 0)
    return -value - bool(digits[point:].strip("0")) if sign == "-" else value


def _from_forms(column: pa.Array, zone: str, unit: str | None, text: str) -> tuple[Micros, Reasons]:
    """Text of one of several forms, each of which looks at all of it."""
    read = [
        _from_text(column, zone, unit) if form == ISO else _from_form(column, zone, form)
        for form in forms_of(text)
    ]
    micros, reasons = read[0]
    for others, unread in read[1:]:
        both = {
            row: AMBIGUOUS_TIME
            for row in np.flatnonzero(micros != others).tolist()
            if row not in reasons and unread.get(row) != UNPARSABLE_TIME
        }
        rest = [row for row, why in reasons.items() if why == UNPARSABLE_TIME]
        micros = micros.copy()
        micros[rest] = others[rest]
        reasons = {row: why for row, why in reasons.items() if why != UNPARSABLE_TIME}
        reasons |= both | {row: unread[row] for row in rest if row in unread}
    return micros, reasons


def _from_form(column: pa.Array, zone: str, form: str) -> tuple[Micros, Reasons]:
    """Text of another form; what is not of it has no time."""
    micros, reasons = _from_text(as_iso(column, form), zone, None)
    unread = {r: UNPARSABLE_TIME for r, reason in reasons.items() if reason == NULL_TIME}
    return micros, {**reasons, **unread, **_nulls(column)}


def _each(
    column: pa.Array, function: Callable[[pa.Array], pa.Array], kind: pa.DataType
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """What a function makes of each row, null where it fails, and where it does not.

    Arrow refuses a whole column for one bad row, so halve and retry.
    """
    try:
        return function(column), np.ones(len(column), bool)
    except pa.ArrowInvalid:
        if len(column) <= 1:
            return pa.nulls(len(column), kind), np.zeros(len(column), bool)
    half = len(column) // 2
    parts = [_each(part, function, kind) for part in (column[:half], column[half:])]
    return pa.concat_arrays([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

"""Time columns as microseconds since 1970-01-01T00:00Z, row by row valid or with a reason."""

from __future__ import annotations

import zoneinfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.records import MICROSECONDS, ConfigurationError, parse_time

UNITS = ("s", "ms", "us", "ns")

NULL_TIME = "null time"
UNPARSABLE_TIME = "unparsable time"
AMBIGUOUS_TIME = "ambiguous time"

Micros = npt.NDArray[np.int64]
# Reason of each bad row, by row number.
Reasons = dict[int, str]

# Years 1 to 9999: what ISO 8601 can write, and far inside what Beam's timestamps hold.
EARLIEST = parse_time("0001-01-01")
LATEST = parse_time("9999-12-31T23:59:59")

_DATE = r"\d{4}-\d{2}-\d{2}"
_LONG_FRACTION = r"([.]\d{6})\d+"  # beyond microseconds: cut
_APART = r" +([+-]\d{2}(:?\d{2})?)$"  # an offset after a space
_WHOLE = r"^-?\d{1,18}$"
_CLOCK = r"\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?"
_NAIVE = rf"^{_DATE}([T ]{_CLOCK})?$"
_ZONED = rf"^{_DATE}[T ]{_CLOCK}(Z|[+-]\d{{2}}(:?\d{{2}})?)$"


def check_reading(zone: str, unit: str | None) -> None:
    """Refuse an unknown time zone or unit. Raises ConfigurationError."""
    if unit not in (None, *UNITS):
        raise ConfigurationError(
            f"time unit {unit!r} (--time_unit) is unknown: choose {', '.join(UNITS)}"
        )
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigurationError(
            f"time zone {zone!r} (--time_zone) is unknown: write an IANA name such as Europe/Berlin"
        ) from None


def to_micros(
    column: pa.Array, *, zone: str = "UTC", unit: str | None = None, name: str = "time"
) -> tuple[Micros, Reasons]:
    """Read a time column.

    Timestamps and dates are taken as they are; text is read as ISO 8601, or as a whole number if
    `unit` is given; numbers count `unit`s since 1970-01-01T00:00Z. Times without an offset are
    clock times in `zone`; one that the zone's clock shows twice or never is ambiguous.

    Args:
        column: Arrow array of n rows.
        zone: IANA name of the time zone of times without an offset.
        unit: `s`, `ms`, `us` or `ns` for numbers.
        name: the column's name, for errors.

    Returns:
        Microseconds, int64, shape (n,), and the reason of each row that has none.

    Raises:
        ConfigurationError: for a column that cannot hold times, or numbers without a unit.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        values, reasons = to_micros(column.dictionary, zone=zone, unit=unit, name=name)
        return _through_dictionary(column, values, reasons)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _from_timestamps(column, zone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _from_text(column.cast(pa.large_string()), zone, unit)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), dict.fromkeys(range(len(column)), NULL_TIME)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _from_numbers(column, unit, name)
    raise ConfigurationError(
        f"column {name!r} holds {kind}, which is no time: give timestamps, dates, ISO 8601 text, "
        "or numbers with --time_unit"
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
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    unit, tz = column.type.unit, column.type.tz
    raw = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
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
        micros, unclear = _localize(micros, zone)
        reasons = {**unclear, **reasons}
    return micros, reasons


def _localize(micros: Micros, zone: str) -> tuple[Micros, Reasons]:
    """Clock times of a zone as instants."""
    clock = pa.array(micros).cast(pa.timestamp("us"))
    first, last = (
        pc.assume_timezone(clock, zone, ambiguous=side, nonexistent=side)
        .cast(pa.int64())
        .to_numpy(zero_copy_only=False)
        for side in ("earliest", "latest")
    )
    reasons = dict.fromkeys(np.flatnonzero(first != last).tolist(), AMBIGUOUS_TIME)
    outside = (first < EARLIEST) | (first > LATEST + MICROSECONDS["s"])
    return first, {**dict.fromkeys(np.flatnonzero(outside).tolist(), UNPARSABLE_TIME), **reasons}


def _from_numbers(column: pa.Array, unit: str | None, name: str) -> tuple[Micros, Reasons]:
    if unit is None:
        raise ConfigurationError(
            f"column {name!r} holds {column.type}, which could count seconds or nanoseconds: "
            "say --time_unit=s, ms, us or ns, or give timestamps"
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


def _from_text(column: pa.Array, zone: str, unit: str | None) -> tuple[Micros, Reasons]:
    reasons = _nulls(column)
    text = pc.utf8_trim_whitespace(column)
    for untidy in (_LONG_FRACTION, _APART):
        if pc.any(pc.match_substring_regex(text, untidy)).as_py():
            text = pc.replace_substring_regex(text, untidy, r"\1")
    micros = np.zeros(len(column), np.int64)
    unread = column.is_valid().to_numpy(zero_copy_only=False)
    kinds: list[tuple[str, pa.DataType]] = [
        (_ZONED, pa.timestamp("us", "UTC")),
        (_NAIVE, pa.timestamp("us")),
    ]
    if unit is not None:
        kinds.append((_WHOLE, pa.int64()))
    for pattern, kind in kinds:
        matches = pc.fill_null(pc.match_substring_regex(text, pattern), False)
        rows = np.flatnonzero(matches.to_numpy(zero_copy_only=False))
        if not len(rows):
            continue
        subset = text if len(rows) == len(text) else text.take(pa.array(rows))
        cast, good = _cast_all(subset, kind)
        values, bad = to_micros(cast, zone=zone, unit=unit)
        reasons.update({int(rows[i]): reason for i, reason in bad.items() if good[i]})
        micros[rows[good]] = values[good]
        unread[rows[good]] = False
    reasons.update(dict.fromkeys(np.flatnonzero(unread).tolist(), UNPARSABLE_TIME))
    return micros, reasons


def _cast_all(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Cast what can be cast: Arrow refuses a whole column for one bad row, so halve and retry."""
    try:
        return column.cast(kind), np.ones(len(column), bool)
    except pa.ArrowInvalid:
        if len(column) <= 1:
            return pa.nulls(len(column), kind), np.zeros(len(column), bool)
    half = len(column) // 2
    parts = [_cast_all(part, kind) for part in (column[:half], column[half:])]
    return pa.concat_arrays([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

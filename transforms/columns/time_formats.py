"""Times written otherwise than ISO 8601: strptime codes, read by column, row by row or not at all.

The C library's strptime takes what is no date (31 February) and skips what it does not know (an
offset), so a column is taken apart by a pattern here, and put together as ISO 8601.
"""

from __future__ import annotations

import functools
import re

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import ConfigurationError

_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_SHORT = tuple(name[:3] for name in _MONTHS)
# Pattern of what each code stands for; names are English, whatever the machine speaks.
_CODES = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{1,2}",
    "B": "|".join(_MONTHS),
    "b": "|".join(_SHORT),
    "d": r"\d{1,2}",
    "H": r"\d{1,2}",
    "I": r"\d{1,2}",
    "p": "am|pm",
    "M": r"\d{1,2}",
    "S": r"\d{1,2}",
    "f": r"\d{1,6}",
    "z": r"z|[+-]\d{2}:?\d{2}",
}
_SHORTHANDS = {"%T": "%H:%M:%S", "%F": "%Y-%m-%d", "%R": "%H:%M"}
_TOKEN = re.compile(r"%.?|[^%]+", re.DOTALL)
_DATES = ({"Y", "m", "d"}, {"y", "m", "d"}, {"Y", "b", "d"}, {"y", "b", "d"}, {"Y", "B", "d"})
_CLOCKS: tuple[set[str], ...] = (set(), {"H"}, {"I", "p"})


@functools.lru_cache
def pattern_of(form: str) -> str:
    """The pattern of a whole text in the form, with a named group for each code.

    Raises ConfigurationError for a code that is unknown or twice there, or a form without a date.
    """
    full = functools.reduce(lambda text, short: text.replace(*short), _SHORTHANDS.items(), form)
    parts, codes = [], set()
    for token in _TOKEN.findall(full):
        if token == "%%" or not token.startswith("%"):
            parts.append(re.escape("%" if token == "%%" else token))
            continue
        code = token[1:]
        if code not in _CODES:
            known = " ".join(f"%{name}" for name in (*_CODES, "F", "R", "T", "%"))
            raise ConfigurationError(
                f"time format {form!r} (--time_format) has {token!r}: the codes are {known}"
            )
        if code in codes:
            raise ConfigurationError(f"time format {form!r} (--time_format) has {token} twice")
        codes.add(code)
        parts.append(f"(?P<{code}>{_CODES[code]})")
    date, clock = codes - set("HIpMSfz"), codes & set("HIp")
    if date not in (*_DATES, {"y", "B", "d"}) or clock not in _CLOCKS:
        raise ConfigurationError(
            f"time format {form!r} (--time_format) tells no time: write a year (%Y), a month (%m, "
            "%b or %B) and a day (%d), each once, such as %d.%m.%Y %H:%M; with %I also %p"
        )
    needs = {"M": {"H", "I"}, "S": {"M"}, "f": {"S"}, "z": {"H", "I"}}
    for code, others in needs.items():
        if code in codes and not codes & others:
            raise ConfigurationError(
                f"time format {form!r} (--time_format) has %{code} without %{min(others)}"
            )
    return f"(?i)^{''.join(parts)}$"


def as_iso(column: pa.Array, form: str) -> pa.Array:
    """A column of text (large_string) as ISO 8601 text; null where it is not of the form.

    A date that does not exist is written as it stands, for the reader of ISO 8601 to refuse.
    """
    found = pc.extract_regex(pc.utf8_trim_whitespace(column), pattern_of(form))
    names = [field.name for field in found.type]
    at = {name: pc.struct_field(found, name) for name in names}
    month = _padded(at["m"]) if "m" in at else _month(at.get("b", at.get("B")), "B" in at)
    texts = [_year(at), "-", month, "-", _padded(at["d"])]
    if "H" in at or "I" in at:
        hour = at["H"] if "H" in at else _hour(at["I"], at["p"])
        texts += ["T", _padded(hour), ":", _padded(at["M"]) if "M" in at else "00"]
        texts += [":", _padded(at["S"])] if "S" in at else []
        texts += [".", at["f"]] if "f" in at else []
        texts += [pc.utf8_upper(at["z"])] if "z" in at else []
    iso = pc.binary_join_element_wise(
        *(
            text if isinstance(text, pa.Array) else pa.scalar(text, pa.large_string())
            for text in texts
        ),
        pa.scalar("", pa.large_string()),
    )
    return pc.if_else(found.is_valid(), iso, pa.scalar(None, pa.large_string()))


def _padded(digits: pa.Array) -> pa.Array:
    return pc.utf8_lpad(digits, 2, "0")


def _year(at: dict[str, pa.Array]) -> pa.Array:
    """Two digits are 1969 to 2068, as POSIX has it."""
    if "Y" in at:
        return at["Y"]
    early = pc.greater_equal(at["y"], pa.scalar("69", pa.large_string()))
    century = pc.if_else(
        early, pa.scalar("19", pa.large_string()), pa.scalar("20", pa.large_string())
    )
    return pc.binary_join_element_wise(century, at["y"], pa.scalar("", pa.large_string()))


def _month(names: pa.Array, whole: bool) -> pa.Array:
    known = pa.array(_MONTHS if whole else _SHORT, pa.large_string())
    at = pc.index_in(pc.utf8_lower(names), known)
    return _padded(pc.add(at, 1).cast(pa.large_string()))


def _hour(hours: pa.Array, halves: pa.Array) -> pa.Array:
    """Hours of 1 to 12 and a half of the day; others come out above 23, which no day has."""
    given = hours.cast(pa.int32())
    real = pc.and_(pc.greater_equal(given, 1), pc.less_equal(given, 12))
    afternoon = pc.equal(pc.utf8_lower(halves), pa.scalar("pm", pa.large_string()))
    whole = pc.if_else(pc.equal(given, 12), 0, given)
    shown = pc.add(whole, pc.if_else(afternoon, 12, 0))
    return pc.if_else(real, shown, 99).cast(pa.large_string())

"""Times written otherwise than ISO 8601: strptime codes, read by column, row by row or not at all.

The C library's strptime takes what is no date (31 February) and skips what it does not know (an
offset), so a column is taken apart by a pattern here, and put together as ISO 8601. Several forms
are a text with one in each line.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_SHORT = tuple(name[:3] for name in _MONTHS)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_DAYS = tuple(name[:3] for name in _WEEKDAYS)
_UTC = "utc|gmt|ut|z"
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
    "f": r"\d{1,9}",
    "z": rf"{_UTC}|[+-]\d{{2}}:?\d{{2}}",
    "a": "|".join(_SHORT_DAYS),
    "A": "|".join(_WEEKDAYS),
}
_SHORTHANDS = {"%T": "%H:%M:%S", "%F": "%Y-%m-%d", "%R": "%H:%M", "%Z": "%z", "%e": "%d"}
ISO = "iso"
"""As one of several forms: what is read where there is none."""
_TOKEN = re.compile(r"%.?|[^%]+", re.DOTALL)
_DATES = ({"Y", "m", "d"}, {"y", "m", "d"}, {"Y", "b", "d"}, {"y", "b", "d"}, {"Y", "B", "d"})
_CLOCKS: tuple[set[str], ...] = (set(), {"H"}, {"I", "p"})


def form_text(value: Any) -> str | None:
    """One or several forms, as a text or a list of texts, as one text with a form in each line.

    Raises ConfigurationError for anything else.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    raise ConfigurationError(
        f"time format {value!r} ({opt.time_format}): give codes of strptime, or a list of them"
    )


@functools.lru_cache
def forms_of(text: str) -> tuple[str, ...]:
    """The forms of a text, each once. Raises ConfigurationError as :func:`pattern_of`."""
    forms = tuple(dict.fromkeys(text.split("\n")))
    for form in forms:
        if form != ISO:
            pattern_of(form)
    return forms


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
            known = " ".join(f"%{name}" for name in (*_CODES, "e", "Z", "F", "R", "T", "%"))
            raise ConfigurationError(
                f"time format {form!r} ({opt.time_format}) has {token!r}: the codes are {known}"
            )
        if code in codes:
            raise ConfigurationError(f"time format {form!r} ({opt.time_format}) has {token} twice")
        codes.add(code)
        field = f"(?P<{code}>{_CODES[code]})"
        if code == "f" and parts and parts[-1] in (re.escape("."), ","):
            field = f"(?:{parts.pop()}{field})?"  # where there is no fraction, there is no point
        parts.append(f" ?{field}" if code == "d" and "%e" in form else field)
    date, clock = codes - set("HIpMSfzaA"), codes & set("HIp")
    if date not in (*_DATES, {"y", "B", "d"}) or clock not in _CLOCKS:
        raise ConfigurationError(
            f"time format {form!r} ({opt.time_format}) tells no time: write a year (%Y), a month "
            f"(%m, %b or %B) and a day (%d), each once, such as %d.%m.%Y %H:%M; with %I also %p"
        )
    needs = {"M": {"H", "I"}, "S": {"M"}, "f": {"S"}, "z": {"H", "I"}}
    for code, others in needs.items():
        if code in codes and not codes & others:
            raise ConfigurationError(
                f"time format {form!r} ({opt.time_format}) has %{code} without %{min(others)}"
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
        if "f" in at:
            point = pa.scalar(".", pa.large_string())
            whole = pc.equal(at["f"], pa.scalar("", pa.large_string()))
            texts.append(pc.if_else(whole, at["f"], _joined(point, at["f"])))
        texts += [pc.replace_substring_regex(at["z"], f"(?i)^({_UTC})$", "Z")] if "z" in at else []
    iso = _joined(*texts)
    good = found.is_valid()
    if "a" in at or "A" in at:
        good = pc.and_(good, _of_its_day(iso, at.get("a", at.get("A"))))
    return pc.if_else(good, iso, pa.scalar(None, pa.large_string()))


def _joined(*texts: Any) -> pa.Array:
    parts = (
        text if isinstance(text, (pa.Array, pa.Scalar)) else pa.scalar(text, pa.large_string())
        for text in (*texts, "")
    )
    return pc.binary_join_element_wise(*parts)


def _of_its_day(iso: pa.Array, names: pa.Array) -> pa.Array:
    """Whether each time is of the day of the week that is written; False where there is none."""
    days = pc.index_in(
        pc.utf8_slice_codeunits(pc.utf8_lower(names), 0, 3),
        pa.array(_SHORT_DAYS, pa.large_string()),
    )
    dates = pc.utf8_slice_codeunits(iso, 0, 10).dictionary_encode()
    found = pa.array(map(_weekday, dates.dictionary.to_pylist()), pa.int32()).take(dates.indices)
    return pc.fill_null(pc.equal(days, found), False)


def _weekday(date: str) -> int | None:
    try:
        return dt.date.fromisoformat(date).weekday()
    except ValueError:
        return None


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


# What a guess is made of: how days, dates and clock times may begin a text, and what parts them.
_DAY_PREFIXES = ("", "%a, ", "%A, ", "%a ", "%A ")
_YEARS, _NAMES = ("%Y", "%y"), ("%b", "%B")
_DATE_FORMS = (
    *(f"%Y{apart}%m{apart}%d" for apart in "-/. "),
    *(f"%d{apart}%m{apart}{year}|%m{apart}%d{apart}{year}" for year in _YEARS for apart in "/.- "),
    *(f"%d{apart}{name}{apart}{year}" for year in _YEARS for name in _NAMES for apart in "- /."),
    *(f"{name} %d{comma} %Y" for name in _NAMES for comma in ("", ",")),
    *(f"%Y{apart}{name}{apart}%d" for name in _NAMES for apart in "- "),
    "%Y%m%d",
)
_BETWEEN = (" ", "T", ", ", ":", "_", "-", " at ")
_CLOCK_FORMS = (
    *("%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M:%S.%f %p", "%I:%M:%S %p", "%I:%M:%S%p", "%H:%M:%S"),
    *("%I:%M %p", "%I:%M%p", "%H:%M", "%H.%M.%S", "%H.%M", "%H%M%S", "%H%M", "%I %p", "%I%p"),
)
_ZONES = ("", " %z", "%z")
_WHOLE_FORMS = (
    *("%a %b %e %H:%M:%S %Y", "%a %b %e %H:%M:%S %z %Y", "%Y%m%d%H%M%S", "%Y%m%d%H%M"),
    *("%Y%m%d %H%M%S", "%y%m%d"),
)
_MOST = 3
# A field of a log may begin or end with these.
_BRACKETS = re.compile(r"([\[(<{\"]*)(.*?)([\])>}\"]*)", re.DOTALL)


def guesses(text: str) -> list[str]:
    """Forms in which a text is a time, at most a few: more than one where it is ambiguous."""
    found: list[str] = []
    parts = _BRACKETS.fullmatch(text.strip())
    assert parts is not None
    before, inside, after = parts.groups()
    column = pa.array([inside], pa.large_string())
    for form in _candidates(inside):
        again = form.replace("%B", "%b") in found  # May
        if not again and len(found) < _MOST and _is_time(as_iso(column, form)[0].as_py()):
            found.append(form)
    return [f"{before}{form}{after}" for form in found]


def _candidates(text: str) -> Iterator[str]:
    """Forms that a text may have; the longest match of a part is the one."""
    for form in _WHOLE_FORMS:
        if re.search(pattern_of(form), text):
            yield form
    dates = [date for forms in _DATE_FORMS for date in forms.split("|")]
    for prefix, date in itertools.product(_DAY_PREFIXES, dates):
        rest = _rest(prefix + date, text)
        if rest == "":
            yield prefix + date
        elif rest is not None:
            yield from (f"{prefix}{date}{clock}" for clock in _clocks(rest))


def _clocks(rest: str) -> Iterator[str]:
    for between, clock, zone in itertools.product(_BETWEEN, _CLOCK_FORMS, _ZONES):
        if _rest(between + clock + zone, rest) == "":
            yield between + clock + zone
            return


@functools.lru_cache(maxsize=1 << 12)
def _beginning(form: str) -> re.Pattern[str]:
    pieces = (
        f"(?:{_CODES[token[1:]]})" if token.startswith("%") else re.escape(token)
        for token in _TOKEN.findall(form)
    )
    return re.compile("".join(pieces), re.IGNORECASE | re.ASCII)


def _rest(form: str, text: str) -> str | None:
    """What follows the part of a text that is of a form; None where it does not begin so."""
    match = _beginning(form).match(text)
    return None if match is None else text[match.end() :]


def _is_time(iso: str | None) -> bool:
    if iso is None:
        return False
    date, _, clock = iso.partition("T")
    hour, _, rest = clock.partition(":")
    try:
        dt.date.fromisoformat(date)
    except ValueError:
        return False
    return not clock or (int(hour) < 24 and int(rest[:2]) < 60)

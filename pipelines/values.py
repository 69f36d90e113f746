"""What the values of options say, read and checked without Beam: a wrong one is told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from streamveil.io.formats import EXTENSIONS, CsvDialect, format_of, output_format_of
from streamveil.io.places import is_stream, may_hold_files
from streamveil.mechanisms.core.domains import (
    Categories,
    Edges,
    Grid,
    check_value_columns,
    domain_of_list,
    domain_of_numbers,
    is_list,
    with_bins,
)
from streamveil.mechanisms.core.extras import install_line
from streamveil.mechanisms.core.local_days import CalendarSlots, shown
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    ConfigurationError,
    Lifetime,
    Requirement,
    Slots,
    check_shares,
    check_zone,
    parse_duration,
    parse_time,
)
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import BLOCKS, Limit
from streamveil.mechanisms.registry import check_revise
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.guarantees import USER, epsilons_of
from streamveil.pipelines.options import KEY_PLACES, METRICS_OPTIONS, REQUIRED, TABLE_OPTIONS

_DAY = MICROSECONDS["d"]
_FILE = "file:"

AUTO = "auto"

CLOCK, MARKER, FILES = "clock", "marker", "files"
_CLOSE_FORMS = (
    "clock, marker:PATTERN (such as marker:drops/%Y-%m-%d.done) or files:PATTERN (such as "
    "files:drops/events-%Y-%m-%d*.csv)"
)
_OF_STATE = (
    *("follow", "clock_file", "close_by", "missing_input", "slots_per_pass", "serve"),
    *METRICS_OPTIONS,
)
_LOOPBACK = "127.0.0.1"
_URL = re.compile(r"https?://[^/\s]+(/\S*)?")
_KEY_KINDS = ("file", "env", "secret")
_SLOT = re.compile(r"-?\d+")

# Delimiters that a shell or an eye does not take well, by other names.
_DELIMITERS = {
    **dict.fromkeys(("tab", "\\t"), "\t"),
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
}

# Beam may know such a place, or find files by such a pattern: it is asked later.
_NOT_A_PLAIN_PATH = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|.*[*?\[{]", re.DOTALL)


def check_required(
    command: str, given: Any, names: Sequence[str] = ("input", "output", *REQUIRED)
) -> None:
    """Raise ConfigurationError where options are missing that have no default: it names all."""
    missing = missing_of(given, names)
    if not missing:
        return
    instead = "" if command == "collect" else "--default_requirement"
    if missing == ["requirements"]:
        remedy = f"give the table of users{instead and ', or '}{instead}"
        raise ConfigurationError(f"--requirements is missing: {remedy}")
    first, *others = (f"--{name}" for name in missing)
    told = f"{first} is missing"
    if others:
        if others[-1] == "--requirements" and instead:
            others[-1] += f" (or {instead})"
        *some, last = others
        told += (
            f", and so {'are' if some else 'is'} {', '.join(some)}{' and ' if some else ''}{last}"
        )
    if command == "release" and missing == ["value_column", "domain"]:
        raise ConfigurationError(
            f"{told}: name the bins, or count all events in one with a query that has no value "
            "(--questions)"
        )
    raise ConfigurationError(f"{told}: see streamveil {command} --help")


def missing_of(given: Any, names: Sequence[str]) -> list[str]:
    """The names of those options that are not given, or empty."""
    values = {name: getattr(given, name) for name in names}  # some are tables, given in Python
    return [
        name
        for name, value in values.items()
        if value is None or (isinstance(value, str) and not value)
    ]


def needs_table(given: Any) -> tuple[str, ...]:
    """The option for the table of users, where nothing else says what users require."""
    return () if given.default_requirement else ("requirements",)


def range_of(given: Any) -> tuple[Slots, int | None, int | None]:
    """How time is cut, and the first and the last slot, None where not given.

    Without an origin a slot begins at the start; slot numbers are as if 1970-01-01 were the origin.

    Raises ConfigurationError.
    """
    zone, usual = given.slot_zone, Slots.of(given.slot)
    if zone is not None:
        check_zone(zone, "--slot_zone")
    start = None if given.start is None else _time("start", given.start, zone)
    end = None if given.end is None else _time("end", given.end, zone)
    if zone is not None:
        first = None if start is None else shown(start, zone) // _DAY * _DAY
        origin = None if given.origin is None else shown(_time("origin", given.origin, zone), zone)
        slots: Slots = CalendarSlots(usual.length, _origin(usual, origin, first), zone)
    else:
        # Beam's windows count in milliseconds.
        first = None if start is None else start // 1000 * 1000
        origin = None if given.origin is None else _time("origin", given.origin)
        slots = Slots(usual.length, _origin(usual, origin, first))
    return (
        slots,
        None if start is None else slots.index(start),
        None if end is None else slots.index(end - 1),
    )


def base_range_of(given: Any, base: Slots) -> tuple[Slots, int | None, int | None]:
    """The same of a portfolio, whose base slots have a length and an origin; that may be moved.

    Raises ConfigurationError.
    """
    if given.origin is not None:
        base = Slots(base.length, _time("origin", given.origin))
    start = None if given.start is None else base.index(_time("start", given.start))
    end = None if given.end is None else base.index(_time("end", given.end) - 1)
    return base, start, end


def _origin(usual: Slots, origin: int | None, start: int | None) -> int:
    """What is asked for; or else the first time from 1970 on that has a slot begin at the start."""
    if origin is not None:
        return origin
    return usual.origin if start is None else start % usual.length


def _time(option: str, text: str, zone: str | None = None) -> int:
    try:
        return parse_time(text, zone or "UTC")
    except ConfigurationError as error:
        raise ConfigurationError(f"--{option}: {error}") from None


def duration_of(name: str, text: str, least: int = 0) -> int:
    """Microseconds of an option that is a length of time. Raises ConfigurationError."""
    micros = parse_duration(text)
    if micros is None or micros < least:
        above = " above 0" if least else ""
        raise ConfigurationError(
            f"--{name}={text} is not a whole number{above} with a unit: write 10s, 5m or 2h"
        )
    return micros


def dialect_of(given: Any) -> CsvDialect:
    """How the files of the input are read. Raises ConfigurationError."""
    if given.sql is not None:
        from streamveil.io.sql import query_of

        return query_of(given.sql).dialect
    delimiter, columns = given.delimiter, given.columns
    return CsvDialect(
        "," if delimiter is None else _DELIMITERS.get(delimiter, delimiter),
        None if columns is None else tuple(name.strip() for name in columns.split(",")),
        any_name=not (delimiter is None and columns is None),
    )


def take_query(given: Any) -> None:
    """Take what --sql reads as the input, and the text of a file for the place of it.

    Raises ConfigurationError.
    """
    if getattr(given, "sql", None) is None:
        return
    from streamveil.io.sql import query_of

    if given.sql.startswith(_FILE):
        given.sql = _text_of_query(given.sql.removeprefix(_FILE))
    query = query_of(given.sql)
    for name in ("input", "delimiter", "columns", "format"):
        value = getattr(given, name, None)
        if value is not None:
            raise ConfigurationError(
                f"--{name}={value} and --sql exclude each other, since the SELECT says what is "
                "read and how: leave one out"
            )
    given.input = query.path


def computed_of(given: Any) -> str | None:
    """How --sql computes the columns, wherever its files are. Raises ConfigurationError."""
    if getattr(given, "sql", None) is None:
        return None
    from streamveil.io.sql import query_of

    return query_of(given.sql).computes


def _text_of_query(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"--sql={_FILE}{path} cannot be read ({why}): name a file of this machine with one "
            "SELECT"
        ) from error


def check_bins(given: Any) -> None:
    """Refuse a domain that is written out and is none, or does not fit the columns of values.

    What may be the name of a file is asked later. Raises ConfigurationError.
    """
    domain: Categories | Edges | Grid | None = domain_of_numbers(given.domain)
    if domain is None and is_list(given.domain):
        domain = domain_of_list(given.domain)
    if domain is not None:
        check_value_columns(
            with_bins(domain, given.other, given.null), tuple(given.value_column.split(","))
        )


def check_going_on(given: Any) -> None:
    """Refuse options of a run with a state that do not fit each other, or say nothing.

    Raises ConfigurationError.
    """
    resume = is_true("resume", given.resume)
    page_address_of(given)
    if given.restart_budget is not None:
        if not resume:
            raise ConfigurationError(
                "--restart_budget is for a stream that goes on: give --state and --resume"
            )
        whole("restart_budget", given.restart_budget)
    if not given.state:
        for name in _OF_STATE:
            if getattr(given, name) is not None:
                raise ConfigurationError(f"--{name} needs a folder for the state: --state")
        if resume:
            raise ConfigurationError("--resume needs the folder of the state: --state")
        return
    if given.follow is not None:
        duration_of("follow", given.follow, least=1)
    if given.slots_per_pass is not None:
        whole("slots_per_pass", given.slots_per_pass)
    if given.close_by is not None:
        close_rule_of(given.close_by)
    address_of(given)
    endpoint_of(given)


def close_rule_of(text: str) -> tuple[str, str]:
    """What closes slots, and the pattern of names. Raises ConfigurationError."""
    rule, _, pattern = text.partition(":")
    if text == CLOCK or (rule in (MARKER, FILES) and "%" in pattern):
        return rule, pattern
    raise ConfigurationError(f"--close_by={text} says nothing: write {_CLOSE_FORMS}")


def address_of(given: Any) -> tuple[str, int] | None:
    """Host and port where Prometheus may fetch figures. Raises ConfigurationError."""
    text = given.metrics_port
    if given.metrics is not None and not (text or given.otlp_endpoint):
        raise ConfigurationError(
            f"--metrics={given.metrics} says which figures, but not where to: give "
            "--metrics_port or --otlp_endpoint as well, or leave it out"
        )
    if text is None:
        return None
    if given.follow is None:
        raise ConfigurationError(
            f"--metrics_port={text} is for a run with --follow: one pass ends before anybody "
            "fetches its figures; give --follow, or send them to --otlp_endpoint"
        )
    return _address("metrics_port", text, 1, "9464")


def page_address_of(given: Any) -> tuple[str, int] | None:
    """Host and port of the page for operators; port 0 for any free one.

    Raises ConfigurationError.
    """
    text = given.serve
    if text is None:
        return None
    if given.follow is None:
        raise ConfigurationError(
            f"--serve={text} is for a run with --follow: one pass ends before anybody looks at its "
            "page; give --follow, or leave it out"
        )
    return _address("serve", text, 0, "8080")


def _address(option: str, text: str, least: int, example: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not least <= int(port) <= 0xFFFF:
        raise ConfigurationError(
            f"--{option}={text} is no port: write one such as {example}, for this machine alone, "
            f"or 0.0.0.0:{example} for whoever reaches it"
        )
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


def endpoint_of(given: Any) -> str | None:
    """URL of a collector of OpenTelemetry. Raises ConfigurationError."""
    url: str | None = given.otlp_endpoint
    if url is not None and not _URL.fullmatch(url):
        raise ConfigurationError(
            f"--otlp_endpoint={url} is no URL: write one such as http://localhost:4318"
        )
    return url


def key_places(text: str, slots: Slots | None) -> list[tuple[int, str]]:
    """Where noise keys are, and the slot from which on each is used: of the first it means nothing.

    Args:
        text: `PLACE`, or `PLACE,PLACE@SLOT,...`.
        slots: how time is cut, which tells the slot of a time; None where it is not.

    Raises:
        ConfigurationError: for a text that names no place. What it says never holds the text of
            the first, which may be the key itself.
    """
    first, *others = text.split(",")
    return [(0, _key_place(first)), *(_later_key(each, slots) for each in others)]


def _key_place(place: str) -> str:
    if not place:
        raise ConfigurationError(
            f"--noise_key is empty: write {KEY_PLACES}, or leave it out for fresh randomness"
        )
    kind, _, name = place.partition(":")
    if kind not in _KEY_KINDS or not name:
        raise ConfigurationError(
            f"--noise_key is not the key but its place: write {KEY_PLACES}; a key that was written "
            "there has been seen by others, so make a new one"
        )
    return place


def _later_key(text: str, slots: Slots | None) -> tuple[int, str]:
    place, at, start = text.rpartition("@")
    _key_place(place if at else text)
    if not at:
        raise ConfigurationError(
            f"--noise_key: from when on is {text} the key? Write {text}@TIME; a comma parts two "
            "places, so there can be none in a path"
        )
    if _SLOT.fullmatch(start):
        return int(start), place
    try:
        time = parse_time(start)
    except ConfigurationError as error:
        raise ConfigurationError(f"--noise_key: {place}@{start}: {error}; or a slot") from None
    if slots is None:
        raise ConfigurationError(
            f"--noise_key: {place}@{start} is from a slot on, and there are none: give their "
            "length (--slot), or one key alone"
        )
    return slots.index(time - 1) + 1, place


def default_requirement_of(text: str | None) -> tuple[Requirement, int | None] | None:
    """The requirement of users outside the table, and how many of them are expected, if it says so.

    Raises ConfigurationError.
    """
    if text is None:
        return None
    try:
        window, epsilon, *more = (float(part) for part in text.split(","))
        users = int(more[0]) if more else None
        if len(more) > 1 or users != (more[0] if more else None):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"--default_requirement={text} is not WINDOW,EPSILON or WINDOW,EPSILON,USERS: write "
            "for example 7,1.0 for epsilon 1 over 7 slots, or 7,1.0,5000 if about 5000 users are "
            "expected"
        ) from None
    try:
        requirement = Requirement(window, epsilon)  # type: ignore[arg-type]
        check_shares([requirement])
        return requirement, users
    except ConfigurationError as error:
        raise ConfigurationError(f"--default_requirement={text}: {error}") from None


def requirement_columns_of(text: str | None) -> tuple[str, ...]:
    """Names of the columns of users, windows and epsilons, and perhaps of that of limits.

    Raises ConfigurationError.
    """
    names = tuple((text or "user,window,epsilon").split(","))
    if not all(names) or len(names) not in (3, 4) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"--requirement_columns={text} are not the names of three columns, or of four: write "
            "USER,WINDOW,EPSILON, such as id,days,eps, or with the limits of presence "
            "USER,WINDOW,EPSILON,MAX_SLOTS"
        )
    return names


def budget_for_ever(given: Any) -> Lifetime:
    """The one budget of all users where it is forever, and nothing is about windows.

    Raises ConfigurationError.
    """
    for name in (*TABLE_OPTIONS, "requirement_changes", "longest_window"):
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"--{name}={getattr(given, name)} is about windows: leave it out with "
                f"--guarantee={given.guarantee}, where everybody has the budget --epsilon forever"
            )
    epsilons = epsilons_of(given.epsilon)
    if len(epsilons) > 1:
        raise ConfigurationError(
            f"--epsilon={given.epsilon} are several budgets: a release has one, which all share"
        )
    return Lifetime(epsilons[0])


def limit_of(text: str) -> Limit | Auto:
    """In how many slots a user counts, as on a command line. Raises ConfigurationError."""
    try:
        most, comma, parts = text.partition(",")
        kind, colon, rate = most.partition(":")
        blocks = int(parts) if comma else BLOCKS
        slots = None if kind == AUTO else int(most)
        known = float(rate) if colon else None
    except ValueError:
        raise ConfigurationError(
            f"--max_slots={text} is not M, M,BLOCKS or {AUTO}: write for example 3 for the first 3 "
            f"slots of each of {BLOCKS} parts of the window, or 3,4 for those of each of 4; or "
            f"{AUTO}, or {AUTO}:0.05 where users are there in 5 % of the slots"
        ) from None
    try:
        return Auto(known, blocks) if slots is None else Limit(slots, blocks)
    except ConfigurationError as error:
        raise ConfigurationError(f"--max_slots={text}: {error}") from None


def life_limit_of(text: str | None) -> Limit:
    """In how many slots of a life a user counts, with --guarantee=user.

    Raises ConfigurationError.
    """
    if text is None:
        raise ConfigurationError(
            f"--max_slots is missing: --guarantee={USER} needs in how many slots of their lives "
            "users count, such as --max_slots=5"
        )
    try:
        in_life = int(text)
    except ValueError:
        raise ConfigurationError(
            f"--max_slots={text} is not M: with --guarantee={USER} write for example 5 for the "
            "first 5 slots of a user's life; there are no parts of a window"
        ) from None
    try:
        return Limit(None, in_life=in_life)
    except ConfigurationError as error:
        raise ConfigurationError(f"--max_slots={text}: {error}") from None


def check_revisions(given: Any, mechanism: str, *, local: bool = False) -> None:
    """Refuse a lag without a place for what is revised, or the other way round, and what cannot.

    Raises ConfigurationError.
    """
    lag, place = given.revise, given.revisions
    if lag is None and place:
        raise ConfigurationError(
            f"--revisions={place} needs the slots after which a slot is revised: give --revise, "
            "such as --revise=7"
        )
    if lag is None:
        return
    whole("revise", lag)
    check_revise(mechanism, lag, local=local)
    if not place:
        raise ConfigurationError(
            f"--revise={lag} needs a place for the revised rows: give --revisions"
        )


def check_revisions_apart(output: str, revisions: str | None) -> None:
    """Refuse revisions in the stream of the releases, whose readers would take them for releases.

    In a folder they have names of their own. Raises ConfigurationError.
    """
    if output == revisions and is_stream(output) and not output.startswith("folder:"):
        raise ConfigurationError(
            f"--output and --revisions are both {output}: name them apart, or readers would take "
            "a revision for a release"
        )


def check_summary(path: str | None) -> None:
    """Refuse, before anything runs, a place where no summary can be written.

    Raises ConfigurationError.
    """
    if path is None:
        return
    if is_stream(path):
        raise ConfigurationError(f"--summary={path} is no file: name one, such as sum.json")
    if "://" in path:
        return  # its filesystem, which needs Beam, is asked later
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ConfigurationError(f"--summary={path} is a folder: name a file, such as sum.json")
    if not may_hold_files(folder):
        raise ConfigurationError(
            f"--summary={path}: {folder} is not a folder of this machine where a file may be "
            "written: create it, or choose another path"
        )


def check_apart(given: Any) -> None:
    """Refuse a summary or a card, which replace what is there, in the place of another file.

    What a pattern of the input takes in is refused in `overlaps.py`.

    Raises ConfigurationError that names the other option.
    """
    for own in ("summary", "card"):
        path = getattr(given, own)
        for name, value in vars(given).items():
            if path and name != own and isinstance(value, str) and _is_same_file(path, value):
                raise ConfigurationError(
                    f"--{own}={path} is the file of --{name}={value} too, and would be replaced: "
                    "choose another name"
                )


def _is_same_file(path: str, value: str) -> bool:
    """Whether a path is the one that an option may name, whatever that is."""
    at = {
        text if "://" in text else os.path.realpath(text)
        for text in (path, value.removeprefix("file:").removeprefix("watch:"))
    }
    return bool(value) and len(at) == 1


def check_formats(given: Any, outputs: Sequence[str]) -> None:
    """Refuse files whose names do not say a format that is known. Raises ConfigurationError.

    Args:
        given: the options.
        outputs: the names of those for outputs.
    """
    named = not (is_stream(given.input) or _NOT_A_PLAIN_PATH.match(given.input))
    if named and not os.path.isdir(given.input):
        format_of(given.input, dialect_of(given))
    for name in outputs:
        path = getattr(given, name)
        if path and not is_stream(path):
            output_format_of(path)


def check_folder(path: str) -> None:
    """Refuse as a folder of answers what is named as a file is. Raises ConfigurationError."""
    if not is_stream(path) and path.lower().endswith(tuple(EXTENSIONS)):
        raise ConfigurationError(
            f"--output={path}: the answers to --questions go to files of a folder, one for each "
            "question: name a folder, such as --output=answers"
        )


def check_files(given: Any, there: Sequence[str], new: Sequence[str]) -> None:
    """Refuse plain paths of this machine: inputs that are missing, outputs that are there already.

    Args:
        given: the options.
        there: the names of the options for inputs.
        new: the names of the options for outputs.

    Raises:
        ConfigurationError: that names the option.
    """
    for name in there:
        path = getattr(given, name)
        if path and not _NOT_A_PLAIN_PATH.match(path) and not os.path.exists(path):
            raise ConfigurationError(
                f"--{name}: no file matches {path!r}: check the path, and that this machine may "
                "read it"
            )
    for name in new:
        path = getattr(given, name)
        if path and not _NOT_A_PLAIN_PATH.match(path) and os.path.exists(path):
            raise ConfigurationError(
                f"--{name}={path}: the output exists already and is never overwritten: delete it, "
                "or choose another name"
            )


def check_page(path: str | None) -> None:
    """Refuse a page that could not be written, before anything runs. Raises ConfigurationError."""
    if not path:
        return
    if not path.endswith(".html") or _NOT_A_PLAIN_PATH.match(path):
        raise ConfigurationError(
            f"--page={path}: name a file of this machine that ends in .html, such as answers.html"
        )
    if not all(map(find_spec, ("jinja2", "matplotlib"))):
        raise ConfigurationError(f"--page needs jinja2 and matplotlib: {install_line('demo')}")

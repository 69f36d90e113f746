"""What the values of options say, read and checked without Beam: a wrong one is refused at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamveil.io.formats import EXTENSIONS, CsvDialect, format_of, output_format_of
from streamveil.io.places import EXISTS, is_stream, may_hold_files
from streamveil.mechanisms.core.budget_text import budget_parts, requirement_of_budget
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
from streamveil.mechanisms.core.local_days import (
    CalendarMonths,
    CalendarSlots,
    shown,
    zone_of,
)
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
from streamveil.mechanisms.core.wording import help_of, opt
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import BLOCKS, Limit
from streamveil.mechanisms.registry import check_revise
from streamveil.pipelines.options.declarations import (
    KEY_PLACES,
    METRICS_OPTIONS,
    REQUIRED,
    TABLE_OPTIONS,
)
from streamveil.pipelines.options.guarantees import USER, epsilons_of
from streamveil.pipelines.pages.document import check_pages

_DAY = MICROSECONDS["d"]
_FILE = "file:"

AUTO = "auto"
_INSTEAD_OF_TABLE = {"release": ("budget", "1/7d"), "plan": ("default_requirement", "7,1,5000")}
"""By command, what says without a table what users require."""

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
    instead = ""
    if command in _INSTEAD_OF_TABLE:
        name, value = _INSTEAD_OF_TABLE[command]
        instead = f"{opt[name]}={value}"
    if missing == ["requirements"]:
        remedy = "give the table of users"
        if instead:
            remedy += f", or the same for everyone, such as {instead}"
        raise ConfigurationError(f"{opt.requirements} is missing: {remedy}")
    first, *others = (opt[name] for name in missing)
    message = f"{first} is missing"
    if others:
        if others[-1] == opt.requirements and instead:
            others[-1] += f" (or {instead})"
        *some, last = others
        message += (
            f", and so {'are' if some else 'is'} {', '.join(some)}{' and ' if some else ''}{last}"
        )
    if command == "release" and missing == ["value_column", "domain"]:
        raise ConfigurationError(
            f"{message}: name the bins, or count all events in one with a query that has no value "
            f"({opt.queries})"
        )
    raise ConfigurationError(f"{message}: {help_of(command)}")


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
    known = given.default_requirement or getattr(given, "budget", None)
    return () if known else ("requirements",)


def range_of(given: Any) -> tuple[Slots, int | None, int | None]:
    """How time is cut, and the first and the last slot, None where not given.

    Without an origin a slot begins at the start, unless it is of calendar months; slot numbers are
    as if 1970-01-01 were the origin.

    Raises ConfigurationError.
    """
    return _range_of(given, Slots.of(given.slot), aligned=True)


def base_range_of(given: Any, base: Slots) -> tuple[Slots, int | None, int | None]:
    """The same of a query set, whose slots have a length and an origin, which may be moved.

    Raises ConfigurationError.
    """
    return _range_of(given, base, aligned=False)


def _range_of(given: Any, usual: Slots, *, aligned: bool) -> tuple[Slots, int | None, int | None]:
    """The same of slots such as `usual`; `aligned` if one begins at the start."""
    zone = given.slot_zone or zone_of(usual)
    if zone is not None:
        check_zone(zone, opt.slot_zone)
    start, end, origin = (
        None if text is None else _time(name, text, zone)
        for name, text in (("start", given.start), ("end", given.end), ("origin", given.origin))
    )
    first = start if aligned else None
    slots: Slots
    if isinstance(usual, CalendarMonths):
        if origin is not None:
            raise ConfigurationError(
                f"{opt.origin}={given.origin}: slots of {usual.text} are counted from January 1970 "
                f"on: leave it out, or choose slots of days or weeks"
            )
        slots = CalendarMonths(months=usual.months, zone=zone or "UTC")
    elif zone is None:
        # Beam's windows count in milliseconds.
        first = None if first is None else first // 1000 * 1000
        slots = Slots(usual.length, _origin(usual, origin, first))
    else:
        first = None if first is None else shown(first, zone) // _DAY * _DAY
        origin = None if origin is None else shown(origin, zone)
        slots = CalendarSlots(usual.length, _origin(usual, origin, first), zone)
    return (
        slots,
        None if start is None else slots.index(start),
        None if end is None else slots.index(end - 1),
    )


def _origin(usual: Slots, origin: int | None, start: int | None) -> int:
    """What is asked for; or else the first time from 1970 on that has a slot begin at the start."""
    if origin is not None:
        return origin
    return usual.origin if start is None else start % usual.length


def _time(option: str, text: str, zone: str | None = None) -> int:
    try:
        return parse_time(text, zone or "UTC")
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt[option]}: {error}") from None


def duration_of(name: str, text: str, least: int = 0) -> int:
    """Microseconds of an option that is a length of time. Raises ConfigurationError."""
    micros = parse_duration(text)
    if micros is None or micros < least:
        above = " above 0" if least else ""
        raise ConfigurationError(
            f"{opt[name]}={text} is not a whole number{above} with a unit: write 10s, 5m or 2h"
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
                f"{opt[name]}={value} and {opt.sql} exclude each other, since the SELECT says what "
                f"is read and how: leave one out"
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
            f"{opt.sql}={_FILE}{path} cannot be read ({why}): name a file of this machine with one "
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
    resume = given.resume
    if given.test_mode and given.state:
        raise ConfigurationError(
            f"{opt.state}={given.state} stores what users have spent, and with {opt.test_mode} "
            "nothing is private or spent: leave one of them out"
        )
    page_address_of(given)
    if given.restart_budget is not None:
        if not resume:
            raise ConfigurationError(
                f"{opt.restart_budget} is for a stream that resumes: give {opt.state} and "
                f"{opt.resume}"
            )
        whole("restart_budget", given.restart_budget)
    if not given.state:
        for name in _OF_STATE:
            if getattr(given, name) is not None:
                raise ConfigurationError(f"{opt[name]} needs a folder for the state: {opt.state}")
        if resume:
            raise ConfigurationError(f"{opt.resume} needs the folder of the state: {opt.state}")
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
    raise ConfigurationError(f"{opt.close_by}={text} is incomplete: write {_CLOSE_FORMS}")


def address_of(given: Any) -> tuple[str, int] | None:
    """Host and port where Prometheus may fetch figures. Raises ConfigurationError."""
    text = given.metrics_port
    if given.metrics is not None and not (text or given.otlp_endpoint):
        raise ConfigurationError(
            f"{opt.metrics}={given.metrics} selects metrics but not where to send them: give "
            f"{opt.metrics_port} or {opt.otlp_endpoint} as well, or leave it out"
        )
    if text is None:
        return None
    if given.follow is None:
        raise ConfigurationError(
            f"{opt.metrics_port}={text} is for a run with {opt.follow}: a single pass ends "
            f"before its metrics are read; give {opt.follow}, or send them to {opt.otlp_endpoint}"
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
            f"{opt.serve}={text} is for a run with {opt.follow}: a single pass ends before its "
            f"page is opened; give {opt.follow}, or leave it out"
        )
    return _address("serve", text, 0, "8080")


def _address(option: str, text: str, least: int, example: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not least <= int(port) <= 0xFFFF:
        raise ConfigurationError(
            f"{opt[option]}={text} is not a port: write for example {example}, for this machine "
            f"only, or 0.0.0.0:{example} for every machine that can reach it"
        )
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


def endpoint_of(given: Any) -> str | None:
    """URL of a collector of OpenTelemetry. Raises ConfigurationError."""
    url: str | None = given.otlp_endpoint
    if url is not None and not _URL.fullmatch(url):
        raise ConfigurationError(
            f"{opt.otlp_endpoint}={url} is not a URL: write one such as http://localhost:4318"
        )
    return url


def key_places(text: str, slots: Slots | None) -> list[tuple[int, str]]:
    """Where noise keys are, and the slot from which on each is used: of the first it means nothing.

    Args:
        text: `PLACE`, or `PLACE,PLACE@SLOT,...`.
        slots: how time is cut, which tells the slot of a time; None where it is not.

    Raises:
        ConfigurationError: for a text that does not name a place. The message never
            contains the text, which may be the key itself.
    """
    first, *others = text.split(",")
    return [(0, _key_place(first)), *(_later_key(each, slots) for each in others)]


def _key_place(place: str) -> str:
    if not place:
        raise ConfigurationError(
            f"{opt.noise_key} is empty: write {KEY_PLACES}, or leave it out for fresh randomness"
        )
    kind, _, name = place.partition(":")
    if kind not in _KEY_KINDS or not name:
        raise ConfigurationError(
            f"{opt.noise_key} is not the key but its place: write {KEY_PLACES}; a key on the "
            "command line may have been seen by others, so make a new one"
        )
    return place


def _later_key(text: str, slots: Slots | None) -> tuple[int, str]:
    place, at, start = text.rpartition("@")
    _key_place(place if at else text)
    if not at:
        raise ConfigurationError(
            f"{opt.noise_key}: from when on is {text} the key? Write {text}@TIME; a comma parts "
            f"two places, so there can be none in a path"
        )
    if _SLOT.fullmatch(start):
        return int(start), place
    try:
        time = parse_time(start)
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.noise_key}: {place}@{start}: {error}; or a slot") from None
    if slots is None:
        raise ConfigurationError(
            f"{opt.noise_key}: {place}@{start} is from a slot on, and there are none: give their "
            f"length ({opt.slot}), or one key alone"
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
            f"{opt.default_requirement}={text} is not WINDOW,EPSILON or WINDOW,EPSILON,USERS: "
            f"write for example 7,1.0 for epsilon 1 over 7 slots, or 7,1.0,5000 if about 5000 "
            f"users are expected"
        ) from None
    try:
        requirement = Requirement(window, epsilon)  # type: ignore[arg-type]
        check_shares([requirement])
        return requirement, users
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.default_requirement}={text}: {error}") from None


def check_requirements(given: Any) -> None:
    """Refuse invalid requirements in any of the options. Raises ConfigurationError."""
    check_budget(given)
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)


def check_budget(given: Any) -> None:
    """Refuse a budget of everyone that is none, or beside other requirements.

    Raises ConfigurationError.
    """
    if given.budget is None:
        return
    with of_option("budget"):
        budget_parts(given.budget)
    for name in TABLE_OPTIONS:
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"{opt.budget}={given.budget} is the requirement of every user: leave {opt[name]} "
                f"out, or leave {opt.budget} out"
            )


def budget_of(text: str, slots: Slots) -> Requirement:
    """The requirement that a budget such as 1/7d is, in slots of so long.

    Raises ConfigurationError.
    """
    with of_option("budget"):
        return requirement_of_budget(text, slots)


@contextmanager
def of_option(name: str) -> Iterator[None]:
    """Let errors that begin with the name of an argument begin with that of its option."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt[name]}{str(error).removeprefix(name)}") from None


def requirement_columns_of(text: str | None) -> tuple[str, ...]:
    """Names of the columns of users, windows and epsilons, and perhaps of that of limits.

    Raises ConfigurationError.
    """
    names = tuple((text or "user,window,epsilon").split(","))
    if not all(names) or len(names) not in (3, 4) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"{opt.requirement_columns}={text} are not the names of three columns, or of four: "
            f"write USER,WINDOW,EPSILON, such as id,days,eps, or with participation limits USER"
            ",WINDOW,EPSILON,MAX_SLOTS"
        )
    return names


def budget_for_ever(given: Any) -> Lifetime:
    """The one budget of all users where it is forever, and nothing is about windows.

    Raises ConfigurationError.
    """
    for name in (*TABLE_OPTIONS, "budget", "requirement_changes", "longest_window"):
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"{opt[name]}={getattr(given, name)} applies to windows: leave it out with "
                f"{opt.guarantee}={given.guarantee}, where every user has the lifetime budget "
                f"{opt.epsilon}"
            )
    epsilons = epsilons_of(given.epsilon)
    if len(epsilons) > 1:
        raise ConfigurationError(
            f"{opt.epsilon}={given.epsilon} names several budgets: a release has one, for all users"
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
            f"{opt.max_slots}={text} is not M, M,BLOCKS or {AUTO}: write for example 3 for the "
            f"first 3 slots of each of {BLOCKS} parts of the window, or 3,4 for those of each of "
            f"4; or {AUTO}, or {AUTO}:0.05 for users with events in 5 % of the slots"
        ) from None
    try:
        return Auto(known, blocks) if slots is None else Limit(slots, blocks)
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.max_slots}={text}: {error}") from None


def life_limit_of(text: str | None) -> Limit:
    """In how many slots of a life a user counts, with --guarantee=user.

    Raises ConfigurationError.
    """
    if text is None:
        raise ConfigurationError(
            f"{opt.max_slots} is missing: {opt.guarantee}={USER} needs the number of slots to "
            f"which each user contributes in a lifetime, such as {opt.max_slots}=5"
        )
    try:
        in_life = int(text)
    except ValueError:
        raise ConfigurationError(
            f"{opt.max_slots}={text} is not M: with {opt.guarantee}={USER} write for example 5 for "
            f"the first 5 slots of a user's lifetime, which has no parts"
        ) from None
    try:
        return Limit(None, in_life=in_life)
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.max_slots}={text}: {error}") from None


def check_revisions(given: Any, mechanism: str | None, *, local: bool = False) -> None:
    """Refuse a lag without a place for what is revised, or the other way round, and what cannot.

    Queries have no `mechanism` in common: each is looked at with its own.

    Raises ConfigurationError.
    """
    lag, place = given.revise, given.revisions
    if lag is None and place:
        raise ConfigurationError(
            f"{opt.revisions}={place} needs the slots after which a slot is revised: give "
            f"{opt.revise}, such as {opt.revise}=7"
        )
    if lag is None:
        return
    whole("revise", lag)
    if mechanism is not None:
        check_revise(mechanism, lag, local=local)
    if not place:
        raise ConfigurationError(
            f"{opt.revise}={lag} needs a place for the revised rows: give {opt.revisions}"
        )


def check_revisions_apart(output: str, revisions: str | None) -> None:
    """Refuse revisions in the stream of the releases, whose readers would take them for releases.

    In a folder they have names of their own. Raises ConfigurationError.
    """
    if output == revisions and is_stream(output) and not output.startswith("folder:"):
        raise ConfigurationError(
            f"{opt.output} and {opt.revisions} are both {output}: give them different names, or "
            "readers would mistake a revision for a release"
        )


def check_summary(path: str | None) -> None:
    """Refuse, before anything runs, a place where no summary can be written.

    Raises ConfigurationError.
    """
    if path is None:
        return
    if is_stream(path):
        raise ConfigurationError(f"{opt.summary}={path} is not a file: name one, such as sum.json")
    if "://" in path:
        return  # its filesystem, which needs Beam, is asked later
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ConfigurationError(f"{opt.summary}={path} is a folder: name a file, such as sum.json")
    if not may_hold_files(folder):
        raise ConfigurationError(
            f"{opt.summary}={path}: {folder} is not a folder of this machine where a file may be "
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
                    f"{opt[own]}={path} is the file of {opt[name]}={value} too, and would be "
                    "overwritten: choose another name"
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
            f"{opt.output}={path}: the results of {opt.queries} go to files in a folder, one for "
            f"each query: name a folder, such as {opt.output}=answers"
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
                f"{opt[name]}: no file matches {path!r}: check the path, and that this machine may "
                "read it"
            )
    for name in new:
        path = getattr(given, name)
        if path and not _NOT_A_PLAIN_PATH.match(path) and os.path.exists(path):
            raise ConfigurationError(f"{opt[name]}={path}: {EXISTS}")


def check_page(path: str | None) -> None:
    """Refuse a page that could not be written, before anything runs. Raises ConfigurationError."""
    if not path:
        return
    if not path.endswith(".html") or _NOT_A_PLAIN_PATH.match(path):
        raise ConfigurationError(
            f"{opt.page}={path}: name a file of this machine that ends in .html, such as "
            f"answers.html"
        )
    check_pages()

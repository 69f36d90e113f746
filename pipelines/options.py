"""What options there are, as argparse declares them, without Beam: help and errors do not wait.

Every command that reads events has those of :func:`add_event_options`, every one that makes
histograms those of :func:`add_histogram_options` as well, each with one meaning. Each option
stands in a section of the help, which says what it is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from streamveil.io.places import SINK_FORMS, SOURCE_FORMS, TABLE_FORM
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import ADD_REMOVE, KEEPS, REPLACE, UNIFORM, UNITS
from streamveil.mechanisms.presence.limits import BLOCKS
from streamveil.mechanisms.registry import (
    DEFAULT,
    DEFAULTS,
    DYNAMIC_MECHANISMS,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_DEFAULT,
    LOCAL_MECHANISMS,
    MECHANISMS,
    PER_RECORD_MECHANISMS,
)
from streamveil.pipelines.guarantees import USER, add_guarantee_options
from streamveil.pipelines.sections import (
    ASSUMED,
    BINS,
    EVENTS,
    GOING_ON,
    OPERATOR,
    PRIVACY,
    RESULTS,
    STATISTIC,
    TIME,
    WORK,
    section,
)

REQUIRED = ("user_column", "value_column", "time_column", "slot", "domain")

ENVIRONMENT = "STREAMVEIL_NOISE_KEY"
KEY_PLACES = "file:PATH, env:VARIABLE or secret:projects/P/secrets/S/versions/N"

TABLE = "table:"
BUDGET_FORMS = "inverse:SCALE (SCALE / v), sqrt:SCALE (SCALE / sqrt v), log:SCALE or \
log:SCALE:POWER (SCALE / ln(v)**POWER, POWER 4)"

COUNT, RUNNING_COUNT = "count", "running-count"
STATISTICS = (COUNT, "sum", "max", "distinct", RUNNING_COUNT, "running-sum")

# As `streamveil.io` writes them; it needs Beam.
LAYOUTS = ("rows", "tidy")

LOG_FORMATS = ("text", "json")
METRICS = ("public", "raw")

TABLE_OPTIONS = ("requirements", "requirement_columns", "default_requirement")
REVISE_OPTIONS = ("revise", "revisions")
LIMIT_OPTIONS = ("max_slots",)
CHANGE_OPTIONS = ("requirement_changes", "longest_window")
METRICS_OPTIONS = ("metrics_port", "otlp_endpoint", "metrics")
QUESTION_OPTIONS = ("questions", "page")
FOLLOW_OPTIONS = (
    *("state", "resume", "restart_budget", "follow", "clock_file", "close_by"),
    *("missing_input", "slots_per_pass", "serve", *METRICS_OPTIONS),
)
MISSING_INPUT = ("stop", "wait", "ignore")
SLOTS_PER_PASS = 10_000
DEMO_LAG = 7

# Of each command, names that options had before, which help and hints do not show.
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "evaluate": {"--stream": "--streams", "--mechanism": "--mechanisms"},
    "demo": {"--output_dir": "--output", "--demo_mechanism": "--mechanism"},
}

# By statistic, the default first.
PER_RECORD_NAMES = "; ".join(
    f"{kind}: {', '.join(sorted(known, key=lambda name: name != DEFAULTS[kind]))}"
    for kind, known in PER_RECORD_MECHANISMS.items()
)

EVENT_FILES = (
    "events: a file, folder or glob of .parquet, .avro, .csv or .jsonl (text also compressed), on "
    "any filesystem of Beam"
)

Parser = argparse.ArgumentParser


class _OneEachLine(argparse.Action):
    """Keeps all values of an option that may be given several times: a text, one in each line."""

    def __call__(
        self,
        parser: Parser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add a value."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before}\n{values}")


def add_event_options(parser: Parser) -> None:
    """Add the options that say where events come from and when they happened."""
    add = section(parser, EVENTS)
    add(
        "--input",
        metavar="FILES",
        help=f"{EVENT_FILES}; {TABLE_FORM}; or a stream: {SOURCE_FORMS}",
    )
    add(
        "--sql",
        metavar="SELECT",
        help="columns that are computed of each record, in place of --input: SELECT user, "
        "day, TRY_CAST(fare AS DOUBLE) / 100 AS dollars FROM read_csv('trips/*.csv'), or "
        "file:PATH with such a text; takes the extra sql",
    )
    add(
        "--delimiter",
        metavar="CHARACTER",
        help="what parts the fields of CSV files: ; or | or another character, or the word tab "
        "(default: a comma). With it, or --columns, files of any other name are CSV",
    )
    add(
        "--columns",
        metavar="NAMES",
        help="names of all columns of CSV files without a header, in order: user,place,time "
        "(default: line 1 names them)",
    )
    add(
        "--value_column",
        metavar="NAME",
        help="column of the value, or LONGITUDE,LATITUDE columns for a grid",
    )
    add("--time_column", metavar="NAME", help="column of the event time")
    add(
        "--time_zone",
        metavar="ZONE",
        help="zone of times without an offset (default UTC)",
    )
    add(
        "--time_unit",
        choices=UNITS,
        help="unit of times given as numbers; excel for serial dates of spreadsheets",
    )
    add(
        "--time_format",
        metavar="FORMAT",
        action=_OneEachLine,
        help="how times are written as text, in codes of strptime such as %%d.%%m.%%Y %%H:%%M; "
        "several times for several forms, of which one may be iso (default: ISO 8601, RFC 2822)",
    )
    add = section(parser, TIME)
    add("--slot", metavar="LENGTH", help="length of a slot: 1w, 1d, 1h, 5m, 60s")
    add(
        "--slot_zone",
        metavar="ZONE",
        help="cut days and weeks by the calendar of this zone, with its 23- and 25-hour days; "
        "--origin, --start and --end are then in it unless they have an offset",
    )
    add(
        "--origin",
        metavar="TIME",
        help="start of slot 0 (default: the first time from 1970-01-01T00:00:00Z on that has a "
        "slot begin at --start; without that 1970-01-01, of weeks the Monday after it)",
    )
    add(
        "--start",
        metavar="TIME",
        help="release from the slot that holds this time; events "
        "before it are rejected (default: from the first slot with an event)",
    )
    add(
        "--end",
        metavar="TIME",
        help="release up to the slot before this time; events after "
        "it are rejected (default: to the last slot with an event)",
    )


def add_histogram_options(parser: Parser) -> None:
    """Add the options that say whose events are counted, and in what bins.

    Of these and those of :func:`add_event_options`, what `REQUIRED` names has no default.
    """
    section(parser, EVENTS)("--user_column", metavar="NAME", help="column of the user id")
    section(parser, BINS)(
        "--domain",
        metavar="BINS",
        help="a file with one value a line, a list A,B,C, "
        "edges:0,10,20 for numbers, or grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS",
    )
    section(parser, BINS)(
        "--other",
        metavar="NAME",
        help="count what is outside the domain in one more bin of this name, the last",
    )
    section(parser, BINS)(
        "--null",
        metavar="NAME",
        help="count null values, which are missing or empty text, in one more bin of this name, "
        "the last; otherwise they are dead letters",
    )
    add_requirement_options(parser)
    add = section(parser, PRIVACY)
    add(
        "--max_contributions",
        type=int,
        default=1,
        metavar="N",
        help="events of a user that count in a slot (default 1)",
    )
    add(
        "--keep",
        choices=KEEPS,
        default=UNIFORM,
        help="which events count of a user who has more in a slot: drawn, all as likely (uniform, "
        "the default), or those in different bins before repeats of a bin (distinct)",
    )
    _add_adjacency(parser)
    section(parser, RESULTS)(
        "--rejected",
        metavar="FILE",
        help="dead letters: the raw record, why, and where it "
        "stood; raw data, never to be published",
    )


def add_requirement_options(parser: Parser) -> None:
    """Add the options that say who asks for what protection."""
    add = section(parser, PRIVACY)
    add(
        "--requirements",
        metavar="FILE",
        help="table with the columns user, window, epsilon, and perhaps max_slots",
    )
    add(
        "--requirement_columns",
        metavar="USER,WINDOW,EPSILON[,MAX_SLOTS]",
        help="names of these columns of --requirements (default: user,window,epsilon, and "
        "max_slots where it is there)",
    )
    add(
        "--default_requirement",
        metavar="WINDOW,EPSILON[,USERS]",
        help="requirement of users outside the table, and a public guess of how many they are, "
        "which bounds no count and may be left out",
    )


def _add_adjacency(parser: Parser) -> None:
    add = section(parser, PRIVACY)
    add(
        "--adjacency",
        choices=(ADD_REMOVE, REPLACE),
        default=ADD_REMOVE,
        help="what one user may change in a window: all of that user's events added or "
        "removed (add_remove, the default), or any of them replaced (replace, twice the noise)",
    )


def add_plan_options(parser: Parser) -> None:
    """Add the options of `streamveil plan`."""
    from streamveil.mechanisms.portfolio.expected import DRIFT, RATE

    section(parser, EVENTS)(
        "--questions",
        metavar="FILE",
        help="YAML: base_slot, and a list of questions; windows of requirements are in base slots",
    )
    add = section(parser, ASSUMED)
    add(
        "--rate",
        metavar="EVENTS[,QUESTION:EVENTS...]",
        help="events of all users in a base slot, and of single questions those that meet their "
        f"conditions (default {RATE:g} for each user)",
    )
    add(
        "--drift",
        metavar="PART[,QUESTION:PART...]",
        help="by what part of itself a count changes from one slot of its question to the next, "
        f"but for chance (default {DRIFT:g})",
    )
    add(
        "--long_drift",
        metavar="PART[,QUESTION:PART...]",
        help="the same over the longest window (default: as if each change was by itself)",
    )
    add(
        "--chance",
        metavar="PART[,QUESTION:PART...]",
        help="variance of a count by chance in parts of the count, from 0 (a timetable, or the "
        "same users each time) to 1 (default: users choose anew in each slot)",
    )
    add(
        "--wanted",
        metavar="QUESTION:ERROR[,...]",
        help="tell which epsilon gives this question an error of so much",
    )
    add_requirement_options(parser)
    _add_adjacency(parser)


def add_job_options(parser: Parser) -> None:
    """Add those of :func:`add_histogram_options` and what else a job with slots has."""
    add_histogram_options(parser)
    add = section(parser, RESULTS)
    add(
        "--ledger",
        metavar="FILE",
        help="what every slot cost every class of users: a file, or bigquery:PROJECT.DATASET.TABLE",
    )
    add(
        "--layout",
        choices=LAYOUTS,
        default=LAYOUTS[0],
        help="of a file of releases: a row for each slot (rows, the default), or for each slot and "
        "bin, with an interval of 90 %% around the count (tidy)",
    )
    section(parser, RESULTS)(
        "--summary",
        metavar="FILE",
        help="a JSON file for tools, replaced by each run: events read, rejected by reason, "
        "beyond the bound, late and counted, and slots; raw figures, never to be published",
    )
    section(parser, EVENTS)(
        "--max_rejected",
        type=float,
        default=MAX_REJECTED,
        metavar="SHARE",
        help="of an input with an end: fail, with exit code 3 and nothing released, if more than "
        f"this share of the events is rejected or late (default {MAX_REJECTED:g}), or none is "
        "counted; 1 releases whatever is left",
    )
    section(parser, WORK)(
        "--shards",
        type=int,
        default=1,
        metavar="N",
        help="split the users of a busy slot among so many workers (default 1)",
    )


def add_output_options(parser: Parser) -> None:
    """Add the options that say where releases go and how they are made."""
    section(parser, RESULTS)(
        "--output",
        metavar="PLACE",
        help=f"releases: a file, .parquet, .avro, .jsonl or .csv; {SINK_FORMS}",
    )
    section(parser, RESULTS)(
        "--card",
        metavar="FILE",
        help="where the card goes, what is promised as JSON, on any filesystem of Beam: of a "
        "stream from the launch on, else when releases are whole (default: beside releases in "
        "files, else beside the ledger, else nowhere)",
    )
    add = section(parser, PRIVACY)
    add(
        "--mechanism",
        metavar="NAME",
        help=f"of release: {', '.join(MECHANISMS)} (default {DEFAULT}), where requirements change "
        f"{', '.join(DYNAMIC_MECHANISMS)}, with one budget forever "
        f"{', '.join(INFINITE_MECHANISMS)} (default {INFINITE_DEFAULT}); of collect: "
        f"{', '.join(LOCAL_MECHANISMS)} (default "
        f"{LOCAL_DEFAULT}); of per-record: {PER_RECORD_NAMES}",
    )
    add(
        "--noise_key",
        metavar="PLACE",
        help=f"where 32 or more secret bytes are: {KEY_PLACES}; the same key on the same input "
        "gives the same releases; PLACE,PLACE@TIME takes another key from the slot on that starts "
        f"then (default: the variable {ENVIRONMENT}, or else fresh randomness)",
    )
    section(parser, TIME)(
        "--allowed_lateness",
        default="0s",
        metavar="LENGTH",
        help="how long a slot stays open for late events where time closes it: 30s, 10m, 2h "
        "(default 0s)",
    )


def add_shared_options(parser: Parser) -> None:
    """Add what all commands share that make releases of events."""
    add_event_options(parser)
    add_output_options(parser)


def add_dry_run(parser: Parser) -> None:
    """Add --dry_run, which Beam has too, with another meaning: it is not handed on."""
    add_switch(
        section(parser, WORK),
        "--dry_run",
        "read a sample, tell the operator what a run would read, count and write, and stop; "
        "nothing is released or spent",
    )


def add_log_options(parser: Parser) -> None:
    """Add the form of what a run says; it is read first, and not handed on to Beam."""
    section(parser, OPERATOR)(
        "--log_format",
        choices=LOG_FORMATS,
        help="say everything on stderr, line by line with time and level: as text, or as JSON "
        "(default: bare lines for a person)",
    )


def add_release_options(parser: Parser) -> None:
    """Add what only `streamveil release` can, and in part `collect`."""
    section(parser, BINS)(
        "--questions",
        metavar="FILE",
        help="many questions about the events, answered from one budget: a YAML file with "
        "base_slot and questions, in place of --value_column, --domain and --slot; windows of "
        "requirements are then in base slots, and --output is a folder, with a file for each "
        "question",
    )
    add = section(parser, RESULTS)
    add(
        "--page",
        metavar="FILE",
        help="of --questions: a page with the answers, the budget and what was lost: .html",
    )
    add(
        "--revise",
        type=int,
        metavar="LAG",
        help="revise every slot once, so many slots later, by what was learnt since; costs no "
        "budget, and its release stays as it is; of mechanisms adaptive can, of local ones "
        "rotation (default: never)",
    )
    add(
        "--revisions",
        metavar="PLACE",
        help="with --revise: the revised rows, to a place as of --output",
    )
    add = section(parser, PRIVACY)
    add(
        "--max_slots",
        metavar="M[,BLOCKS]|auto[:RATE]",
        help="count a user in the first M slots with events of each of BLOCKS parts of the window "
        f"(default {BLOCKS}), each user with a calendar of their own: each may then cost more, and "
        "counts are scaled by the share that is kept, which is estimated privately; auto chooses M "
        "by a private look at an input that ends, or by a public share of the slots in which users "
        "are there, such as auto:0.05 (default: users count in all slots, but where the table says "
        f"max_slots); with --guarantee={USER} M alone: the first M slots of a life",
    )
    add(
        "--requirement_changes",
        metavar="PLACE",
        help="changes of requirements, from files or a stream as --input: columns user, slot "
        "or time, window_backward, epsilon_backward, window_forward, epsilon_forward; without "
        "the four figures the user leaves",
    )
    add(
        "--longest_window",
        type=int,
        metavar="N",
        help="longest window, in slots, that a change may ask for; public (default: the "
        "longest of the requirements)",
    )
    add_guarantee_options(parser)
    add_follow_options(parser)


def add_switch(add: Callable[..., Any], name: str, help: str) -> None:
    """Add an option that is on or off: alone it is on, and templates give it a value."""
    add(name, nargs="?", const="true", default="false", metavar="true|false", help=help)


def add_follow_options(parser: Parser) -> None:
    """Add the options of a run that keeps its state."""
    add = section(parser, GOING_ON)
    add(
        "--state",
        metavar="FOLDER",
        help="release the slots that have closed, keep the state in this folder, and write "
        "results to numbered files beside the names of the outputs",
    )
    add_switch(add, "--resume", "go on from the state in the folder")
    add(
        "--restart_budget",
        type=int,
        nargs="?",
        const=1,
        metavar="N",
        help="with --resume and --guarantee=infinite: grant the whole budget once more, for the "
        "Nth time (1 if N is left out), from the next slot on; users lose epsilon AGAIN, and "
        "every later release says `restarts`; given again, N grants nothing",
    )
    add(
        "--follow",
        metavar="INTERVAL",
        help="with --state: release each slot as it closes, up to --end or Ctrl-C; look for what "
        "it waits for besides, such as a marker, after so long (10s, 1m)",
    )
    add(
        "--clock_file",
        metavar="FILE",
        help="with --state: take the time that closes slots from this file, ISO 8601, in place "
        "of the machine's clock",
    )
    add(
        "--close_by",
        metavar="RULE",
        help="with --state: what closes a slot whose time is over: clock (the default), "
        "marker:PATTERN when its marker is there, or files:PATTERN when a file of a later slot is; "
        "with the codes of strftime for the start of a slot in UTC, or in the zone of its "
        "calendar, such as marker:drops/%%Y-%%m-%%d.done",
    )
    add(
        "--missing_input",
        choices=MISSING_INPUT,
        help="with --state: what to do where slots have closed and no file matches the input, its "
        "disk is not mounted, a file is gone whose events wait, or a subscription cannot be read: "
        "stop (the default), wait until it is there, or ignore it and release without",
    )
    add(
        "--slots_per_pass",
        type=int,
        metavar="N",
        help="with --state: release at most so many slots before they are committed "
        f"(default {SLOTS_PER_PASS})",
    )
    add = section(parser, OPERATOR)
    add(
        "--serve",
        metavar="[ADDRESS:]PORT",
        help="with --follow: show the last releases, the budget, the lag and what became of events "
        "on a page for operators, on this machine alone unless ADDRESS says more, without a "
        "password; port 0 takes a free one",
    )
    add(
        "--metrics_port",
        metavar="[ADDRESS:]PORT",
        help="with --follow: let Prometheus fetch figures of the stream here, on this machine "
        "alone unless ADDRESS says more; takes the extra ops",
    )
    add(
        "--otlp_endpoint",
        metavar="URL",
        help="with --state: send the figures to this collector of OpenTelemetry, by OTLP over HTTP "
        "(http://localhost:4318); takes the extra ops",
    )
    add(
        "--metrics",
        choices=METRICS,
        help=f"which figures: those that follow from the releases and the ledger "
        f"(default {METRICS[0]}), or also raw ones, of events, which are never for publication "
        f"({METRICS[1]})",
    )


def add_budget_options(parser: Parser, table: str = "") -> None:
    """Add the options that say what protection a record gets."""
    add = section(parser, STATISTIC)
    add(
        "--budget",
        metavar="FUNCTION",
        help=f"epsilon of a record of value v: {BUDGET_FORMS}{table}; public",
    )
    add(
        "--value_max",
        type=float,
        metavar="V",
        help="largest value of any record, public; values start at 0",
    )
    add(
        "--epsilon_max",
        type=float,
        metavar="E",
        help="largest budget that is used, public; a larger one is taken as this",
    )


def add_per_record_options(parser: Parser) -> None:
    """Add what only `streamveil per-record` can."""
    add = section(parser, STATISTIC)
    add("--statistic", metavar="NAME", help=f"{', '.join(STATISTICS)}")
    add_budget_options(parser, f"; or {TABLE}FILE, a table with the columns category and epsilon")
    add(
        "--budget_column",
        metavar="NAME",
        help="column that the budget is a function of (default: --value_column)",
    )
    add(
        "--epsilon_min",
        type=float,
        metavar="E",
        help=f"with --budget={TABLE}FILE: smallest budget that counts, public (default: the "
        "smallest of the table)",
    )
    section(parser, TIME)(
        "--window",
        type=int,
        default=1,
        metavar="SLOTS",
        help="release a window of so many slots with every slot; each record still pays once "
        "(default 1)",
    )
    add("--key_column", metavar="NAME", help="column of keys: a statistic for each")
    add(
        "--keys",
        metavar="KEYS",
        help="all keys, public: A,B,C or a file as of --domain; records of others count nowhere",
    )
    add(
        "--beta",
        type=float,
        metavar="P",
        help="probability that a dropped_bound may fail (default: the mechanism's)",
    )
    add(
        "--max_records_per_user",
        type=int,
        default=1,
        metavar="N",
        help="records of one person at most, which you must see to: budgets are divided by it "
        "(default 1)",
    )


def add_card_options(parser: Parser) -> None:
    """Add the options of `streamveil card`."""
    add = section(parser, EVENTS)
    add("file", nargs="?", metavar="CARD", help=argparse.SUPPRESS)
    add(
        "--card",
        metavar="FILE",
        help="the card, which a run writes beside its output: releases.csv.card.json, or card.json "
        "in the folder of the answers; the option's name may be left out",
    )
    add(
        "--check",
        action="store_true",
        help="recompute what every window cost, and compare card, ledger and releases; exit code 1 "
        "and a line for each fault, if there are any",
    )
    add(
        "--ledger",
        metavar="FILE",
        help="with --check: the ledger, of passes by the name that --ledger of the run had "
        "(default: as the card names it, beside the card)",
    )
    add(
        "--releases",
        metavar="PLACE",
        help="with --check: the file of releases, or the folder of answers; of passes by the name "
        "that --output had (default: as the card names it, beside the card); of a stream the file "
        "of exported rows, or the folder of --output=folder:",
    )
    add(
        "--revisions",
        metavar="PLACE",
        help="with --check: the same of revisions that went to a stream",
    )


def add_demo_options(parser: Parser) -> None:
    """Add the options of `streamveil demo`."""
    add = section(parser, RESULTS)
    add(
        "--output",
        default="streamveil-demo",
        metavar="FOLDER",
        help="where releases, ledger and page go (default streamveil-demo); "
        "an earlier demo there is replaced",
    )
    add(
        "--revise",
        type=int,
        metavar="LAG",
        help=f"revise every slot so many slots later, of mechanisms that can (default {DEMO_LAG})",
    )
    add("--picture", metavar="FILE", help="also draw the README's picture (.png or .svg)")
    add_switch(section(parser, TIME), "--hourly", "slots of an hour instead of a day")
    add = section(parser, PRIVACY)
    add(
        "--mechanism",
        metavar="NAME",
        help=f"mechanism (default {DEFAULT}), of hours {DEFAULT}:cycle=auto",
    )

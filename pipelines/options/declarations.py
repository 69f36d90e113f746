"""The options of the commands, each declared once.

Options of `evaluate` and `audit` only are in `evaluate_options.py` and `audit_options.py`. A name
that means something else in another command is a second option. No Beam is imported here, so that
help and error messages are fast.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from streamveil.io.places import SINK_FORMS, SOURCE_FORMS, TABLE_FORM
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import ADD_REMOVE, KEEPS, REPLACE, UNIFORM, UNITS
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence.limits import BLOCKS
from streamveil.mechanisms.queries.expected import DRIFT, RATE
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
from streamveil.pipelines.console.logs import LOG_FORMATS
from streamveil.pipelines.options.guarantees import CENTRAL, INFINITE, USER, WINDOWS
from streamveil.pipelines.options.option import (
    ASSUMED,
    AUDIT,
    BINS,
    CARD,
    COLLECT,
    DEMO,
    EVALUATE,
    EVENTS,
    FLEX,
    GOING_ON,
    OPERATOR,
    PER_RECORD,
    PLAN,
    PRIVACY,
    QUERIES,
    RELEASE,
    RESULTS,
    STATISTIC,
    TIME,
    WORK,
    Option,
)

REQUIRED = ("user_column", "value_column", "time_column", "slot", "domain")

ENVIRONMENT = "STREAMVEIL_NOISE_KEY"
KEY_PLACES = "file:PATH, env:VARIABLE or secret:projects/P/secrets/S/versions/N"

TABLE = "table:"
BUDGET_FORMS = "inverse:SCALE (SCALE / v), sqrt:SCALE (SCALE / sqrt(v)), log:SCALE or \
log:SCALE:POWER (SCALE / ln(v)**POWER, where POWER is 4 by default)"

COUNT, RUNNING_COUNT = "count", "running-count"
STATISTICS = (COUNT, "sum", "max", "distinct", RUNNING_COUNT, "running-sum")

# As `streamveil.io` writes them; it needs Beam.
LAYOUTS = ("tidy", "rows")

METRICS = ("public", "raw")
MISSING_INPUT = ("stop", "wait", "ignore")
SLOTS_PER_PASS = 10_000
DEMO_LAG = 7

TABLE_OPTIONS = ("requirements", "requirement_columns", "default_requirement")
METRICS_OPTIONS = ("metrics_port", "otlp_endpoint", "metrics")
HOW = ("dry_run", "log_format")
"""Options about how a command runs, which no service offers."""

# By statistic, the default first.
PER_RECORD_NAMES = "; ".join(
    f"{kind}: {', '.join(sorted(known, key=lambda name: name != DEFAULTS[kind]))}"
    for kind, known in PER_RECORD_MECHANISMS.items()
)

EVENT_FILES = (
    "events to read: a file, a folder or a glob of .parquet, .avro, .csv or .jsonl files, on any "
    "Beam filesystem (.csv and .jsonl files may be compressed)"
)

# Commands that read events, that count events of users, that release, and that release counts.
_READING = (RELEASE, COLLECT, PER_RECORD, EVALUATE, AUDIT)
_COUNTING = (RELEASE, COLLECT, EVALUATE, AUDIT)
_RELEASING = (RELEASE, COLLECT, PER_RECORD)
_JOBS = (RELEASE, COLLECT)

_SILENT = "records that cannot be used are dropped silently, because a report would reveal them"
_OF_RECORD = "each record has its own budget, which --budget gives"
_RECORDS_PER_USER = "use --max_records_per_user"
_NO_BINS = "statistics of records have no bins"
_OF_QUERY = "each query has its own"
_LIST_EVERY_USER = (
    "the server must know which users it can request reports from, so list every user"
)
_SAME = "does not change the noise or the privacy cost"
_OF_RUN = f"it matters in real runs only, and {_SAME}"
_NO_STATE = {
    PER_RECORD: "its runs save no state for a later run",
    AUDIT: f"it controls how a run resumes, and {_SAME}",
}
_LIFETIME = {PER_RECORD: _OF_RECORD, COLLECT: "local mechanisms support budgets over windows only"}
_CHANGES = {PER_RECORD: "records have no requirements that could change"}
_REVISIONS = {
    PER_RECORD: "no mechanism for records can revise its results",
    AUDIT: "revisions are computed from releases alone, so they spend no budget",
}

# Shared arguments of the options of one section.
_read = partial(Option, section=EVENTS, commands=_READING)
_time = partial(Option, section=TIME, commands=_READING)
_bin = partial(Option, section=BINS, commands=_COUNTING)
_protect = partial(Option, section=PRIVACY, commands=(RELEASE, EVALUATE, AUDIT))
_write = partial(Option, section=RESULTS, commands=_JOBS)
_go_on = partial(Option, section=GOING_ON, commands=_JOBS, refused=_NO_STATE, fronts=())
_operate = partial(_go_on, section=OPERATOR)
_record = partial(Option, section=STATISTIC, commands=(PER_RECORD, AUDIT))
_assume = partial(Option, section=ASSUMED, commands=(PLAN,))
_of_card = partial(Option, section=EVENTS, commands=(CARD,))
_of_demo = partial(Option, section=RESULTS, commands=(DEMO,))

# Patterns that a whole value must match, in the syntax that Python, Java and RE2 share.
FILE = r"[a-z][a-z0-9]*://.+"
_KAFKA = r"kafka:[^/?]+:[0-9]+/.+"
STREAM = rf"pubsub:projects/[^/]+/(subscriptions|topics)/.+|{_KAFKA}|watch:{FILE}"
_TABLE = "bigquery:[^.]+[.][^.]+[.][^.]+"
SINK = rf"{_TABLE}|pubsub:projects/[^/]+/topics/.+|{_KAFKA}|folder:{FILE}"
NUMBER = r"[0-9]*[.]?[0-9]+([eE][+-]?[0-9]+)?"
_LENGTH = r"[0-9]+(ms|s|m|h|d|w)"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?([zZ]|[+-][0-9:]+)?"
_SECRET = r"secret:projects/[^/,@]+/secrets/[^/,@]+/versions/[0-9]+"

_EVENTS = (
    _read(
        "input",
        "FILES",
        f"{EVENT_FILES}; a BigQuery table or query, written {TABLE_FORM}; or a stream, written "
        f"{SOURCE_FORMS}",
        meanings=dict.fromkeys((EVALUATE, AUDIT), EVENT_FILES),
        brief="events: files, a folder, a glob, a table or a stream",
        fronts=(FLEX,),
        pattern=f"{FILE}|{STREAM}|bigquery:.+",
    ),
    _read(
        "sql",
        "SELECT",
        "instead of --input: an SQL query that computes the columns of each event, for example "
        "SELECT user, day, TRY_CAST(fare AS DOUBLE) / 100 AS dollars FROM "
        "read_csv('trips/*.csv'); or file:PATH, where PATH is a file that contains the SQL "
        "query. This option needs the extra `sql`",
        fronts=(),  # DuckDB is not in the image
    ),
    _read(
        "delimiter",
        "CHARACTER",
        "character that separates the fields of CSV files, for example ; or |, or the word tab "
        "(default: a comma). If you give this option or --columns, files whose names do not show "
        "a format are read as CSV",
        fronts=(FLEX,),
    ),
    _read(
        "columns",
        "NAMES",
        "names of all columns, in order, for CSV files that have no header line, for example "
        "user,place,time (default: the first line of each file has the names)",
        fronts=(FLEX,),
    ),
    _read(
        "user_column",
        "NAME",
        "name of the column that contains the user ids",
        commands=_COUNTING,
        refused={PER_RECORD: f"the privacy unit is the record; {_RECORDS_PER_USER}"},
        brief="name of the column of user ids",
    ),
    _read(
        "value_column",
        "NAME",
        "name of the column to count by; to count by the cells of a map grid, the names of two "
        "columns, LONGITUDE,LATITUDE",
        refused={QUERIES: _OF_QUERY},
        meanings={
            PER_RECORD: "name of the column that contains the numbers; a record is dropped if its "
            "number is not from 0 to --value_max"
        },
        brief="name of the column to count by",
    ),
    _read(
        "time_column",
        "NAME",
        "name of the column that contains the event times",
        brief="name of the column of event times",
    ),
    _read(
        "time_zone",
        "ZONE",
        "time zone of event times that have no UTC offset (default UTC)",
        brief="time zone of event times that have no UTC offset (default UTC)",
    ),
    _read(
        "time_unit",
        "",
        "unit of event times that are numbers; excel means the serial dates that spreadsheets use",
        choices=UNITS,
    ),
    _read(
        "time_format",
        "FORMAT",
        "format of event times that are text, as strptime codes such as %d.%m.%Y %H:%M. Repeat "
        "the option to accept several formats. The word iso stands for the default formats "
        "(default: ISO 8601 and RFC 2822)",
        several=True,
    ),
    _read(
        "max_rejected",
        "SHARE",
        "release nothing and end with exit code 3 if more than this fraction of the events of a "
        f"bounded input is rejected or late (default {MAX_REJECTED:g}), or if no event is kept; "
        "with 1, results are released from whatever events are left",
        commands=_JOBS,
        kind=float,
        default=MAX_REJECTED,
        refused={AUDIT: _OF_RUN, PER_RECORD: _SILENT},
    ),
)

_TIMES = (
    _time(
        "slot",
        "LENGTH",
        "length of a slot (a tumbling window), for example 1mo, 1w, 1d, 1h, 5m or 60s",
        refused={QUERIES: "the file sets the slot, and each query may set a longer one (every)"},
        meanings={
            PER_RECORD: "length of a slot, for example 1d, 1h, 5m or 60s (default: one result "
            "for all times)"
        },
        brief="length of a slot, for example 1w, 1d, 1h or 60s",
        pattern=_LENGTH,
    ),
    _time(
        "slot_zone",
        "ZONE",
        "time zone whose calendar days, weeks and months are used as slots, so a slot of a day "
        "may have 23 or 25 hours. If --origin, --start or --end has no UTC offset, it is in this "
        "time zone too",
    ),
    _time(
        "origin",
        "TIME",
        "start of slot 0. If slots are months, slot 0 is always January 1970. Default with "
        "--start: the first time at or after 1970-01-01T00:00:00Z from which slots can be "
        "counted so that one of them begins at --start. Default without --start: 1970-01-01, or "
        "for weeks the Monday after it",
        pattern=_MOMENT,
    ),
    _time(
        "start",
        "TIME",
        "a time in the first slot to release; events in earlier slots are rejected (default: the "
        "first slot that has an event)",
        meanings={
            PER_RECORD: "a time in the first slot to release; for a bounded input, give all of "
            "--slot, --start and --end, or none of them"
        },
        brief="time in the first slot to release",
        pattern=_MOMENT,
    ),
    _time(
        "end",
        "TIME",
        "release only the slots that end at or before this time; events after these slots are "
        "rejected (default: the last slot that has an event is the last slot to release)",
        meanings={PER_RECORD: "release only the slots that end at or before this time"},
        brief="release the slots that end by this time",
        pattern=_MOMENT,
    ),
    _time(
        "allowed_lateness",
        "LENGTH",
        "how long after its end a slot of an unbounded stream stays open for late events, for "
        "example 30s, 10m or 2h (default 0s)",
        commands=_RELEASING,
        default="0s",
        pattern=_LENGTH,
        refused={AUDIT: _OF_RUN},
    ),
)

_BINS = (
    _bin(
        "domain",
        "BINS",
        "the public values to count: a list A,B,C; a file with one value per line; edges:0,10,20 "
        "for ranges of numbers; or grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS for map cells",
        refused={
            PER_RECORD: f"{_NO_BINS}; public groups are --key_column and --keys",
            QUERIES: _OF_QUERY,
        },
        brief="the public values to count: A,B,C, or a file",
    ),
    _bin(
        "other",
        "NAME",
        "name of an additional last bin, which counts the events with values outside --domain; "
        "without this option, these events are rejected",
        refused={PER_RECORD: _NO_BINS, QUERIES: _OF_QUERY},
    ),
    _bin(
        "null",
        "NAME",
        "name of an additional last bin, which counts the events with null values (missing "
        "values and empty text); without this option, these events are rejected",
        refused={PER_RECORD: _NO_BINS, QUERIES: _OF_QUERY},
    ),
    _bin(
        "queries",
        "FILE",
        "YAML file with a base slot and a list of queries that share one budget. Use it instead "
        "of --value_column, --domain and --slot. The windows of requirements are then counted in "
        "base slots, and --output is a folder with one file per query",
        commands=(RELEASE,),
        refused={
            COLLECT: "a device answers a single query",
            PER_RECORD: "a per-record run has a single --statistic",
        },
        brief="several queries (a YAML file), instead of one count",
        fronts=(FLEX,),
    ),
)

_PRIVACY = (
    _protect(
        "requirements",
        "FILE",
        "requirements table with the columns user, window (in slots) and epsilon, and optionally "
        "max_slots",
        commands=(*_COUNTING, PLAN),
        refused={PER_RECORD: _OF_RECORD},
        meanings={
            RELEASE: "requirements table with the columns user, window (in slots) and epsilon. "
            "Instead of a table, you can give --budget, --default_requirement, or "
            f"--guarantee={INFINITE} or {USER} with --epsilon",
            COLLECT: "requirements table that lists all users, with the columns user, window (in "
            "slots) and epsilon",
        },
        brief="budgets: a table with user, window and epsilon",
        pattern=FILE,
    ),
    _protect(
        "requirement_columns",
        "USER,WINDOW,EPSILON[,MAX_SLOTS]",
        "names of the columns of --requirements that contain users, windows, epsilons and "
        "participation limits (default: user,window,epsilon, and max_slots if there is such a "
        "column)",
        commands=(*_COUNTING, PLAN),
        refused={PER_RECORD: _OF_RECORD},
    ),
    _protect(
        "default_requirement",
        "WINDOW,EPSILON[,USERS]",
        "window (in slots) and epsilon of users who are not in the requirements table. You may "
        "add the assumed number of these users, which is public. This number does not limit how "
        "many of these users are counted",
        commands=(RELEASE, EVALUATE, AUDIT, PLAN),
        refused={COLLECT: _LIST_EVERY_USER, PER_RECORD: _OF_RECORD},
        pattern=rf"[0-9]+,{NUMBER}(,[0-9]+)?",
    ),
    _protect(
        "budget",
        "EPSILON/PERIOD",
        "one privacy budget for every user, instead of a requirements table. For example, 1/7d "
        "means epsilon 1 over any consecutive slots that together last 7 days",
        commands=(RELEASE,),
        refused={COLLECT: _LIST_EVERY_USER},
        brief="or one budget for all users: 1/7d is ε 1 in 7 days",
        pattern=rf"{NUMBER}/{_LENGTH}",
    ),
    _protect(
        "max_contributions",
        "N",
        "contribution bound: at most N events of each user are kept per slot (default 1)",
        kind=int,
        default=1,
        refused={
            COLLECT: "a device reports one value per slot",
            PER_RECORD: _RECORDS_PER_USER,
            QUERIES: _OF_QUERY,
        },
        brief="events kept per user and slot (default 1)",
    ),
    _protect(
        "keep",
        "",
        "which events to keep if a user has more than --max_contributions events in a slot: "
        "uniform keeps a uniform random sample (the default), distinct prefers events in "
        "different bins",
        commands=_COUNTING,
        default=UNIFORM,
        choices=KEEPS,
        refused={PER_RECORD: _RECORDS_PER_USER, QUERIES: _OF_QUERY},
    ),
    _protect(
        "adjacency",
        "",
        "how neighbouring inputs differ within a window: all of one user's events are added or "
        "removed (add_remove, the default), or any of them are replaced (replace, which needs "
        "twice the noise)",
        commands=(RELEASE, EVALUATE, AUDIT, PLAN),
        default=ADD_REMOVE,
        choices=(ADD_REMOVE, REPLACE),
        refused={
            COLLECT: "its guarantee always covers events that are added, removed or replaced",
            PER_RECORD: "neighbouring inputs differ in one record",
        },
    ),
    _protect(
        "mechanism",
        "NAME",
        f"mechanism to use, one of: {', '.join(MECHANISMS)} (default {DEFAULT}). If requirements "
        f"change, one of: {', '.join(DYNAMIC_MECHANISMS)}. With --guarantee={INFINITE}, one of: "
        f"{', '.join(INFINITE_MECHANISMS)} (default {INFINITE_DEFAULT})",
        commands=_RELEASING,
        refused={QUERIES: _OF_QUERY},
        meanings={
            COLLECT: f"mechanism to use, one of: {', '.join(LOCAL_MECHANISMS)} (default "
            f"{LOCAL_DEFAULT})",
            PER_RECORD: "mechanism to use. The choices for each statistic, of which the first is "
            f"the default, are: {PER_RECORD_NAMES}",
        },
        pattern=r"[a-z][a-z+-]*(:.+)?",
    ),
    _protect(
        "max_slots",
        "M[,BLOCKS]|auto[:RATE]",
        f"participation limit: a window has BLOCKS parts (default {BLOCKS}), which start at "
        "different slots for different users. In each part, a user contributes only to the first "
        "M slots in which this user has events, so each slot may spend more and needs less "
        "noise. Counts are rescaled by a private estimate of the fraction of events kept. auto "
        "chooses M by a private estimate from a bounded input. auto:0.05 chooses M for users who "
        f"have events in 5 % of the slots. With --guarantee={USER}, give M alone, which then "
        "limits the slots of a lifetime (default: the column max_slots of the requirements "
        "table, or no limit)",
        commands=(RELEASE,),
        refused={
            COLLECT: "devices limit their own reports; for users who appear rarely, use "
            "--mechanism=rotation:turns=20",
            PER_RECORD: f"the privacy unit is the record; {_RECORDS_PER_USER}",
        },
        pattern=r"([0-9]+|auto(:0?\.[0-9]+)?)(,[0-9]+)?",
    ),
    _protect(
        "guarantee",
        "",
        f"{WINDOWS} (the default): each user's budget holds over any window of slots, as the "
        f"requirements say; {INFINITE}: user-level privacy with one lifetime budget, --epsilon, "
        f"which is spread over all slots; {USER}: user-level privacy with one lifetime budget, "
        "--epsilon, where a user contributes only to the first --max_slots slots in which this "
        "user has events",
        choices=CENTRAL,
        refused=_LIFETIME,
    ),
    _protect(
        "epsilon",
        "E",
        f"with --guarantee={INFINITE} or {USER}: lifetime budget (epsilon) of each user",
        refused=_LIFETIME,
        pattern=NUMBER,
    ),
    _protect(
        "requirement_changes",
        "PLACE",
        "changes of requirements, read from files or from a stream, named as for --input. The "
        "columns are user, slot or time, window_backward, epsilon_backward, window_forward and "
        "epsilon_forward. A user leaves if the last four columns of the user's row are empty",
        commands=(RELEASE,),
        refused={
            **_CHANGES,
            COLLECT: "requirements change when you edit the table between runs with --state",
        },
        fronts=(FLEX,),
        pattern=f"{FILE}|{STREAM}",
    ),
    _protect(
        "longest_window",
        "N",
        "longest window, in slots, that a change of requirements may set. This number is public "
        "(default: the longest window in the requirements table)",
        commands=_JOBS,
        kind=int,
        refused=_CHANGES,
        meanings={
            COLLECT: "with --state: longest window, in slots, that a later requirements table may "
            "set. This number is public (default: the longest window in the requirements tables "
            "before and after the first change)",
        },
        fronts=(FLEX,),
    ),
    _protect(
        "noise_key",
        "PLACE",
        "place of the noise key, a secret of at least 32 bytes from which the noise is derived: "
        f"{KEY_PLACES}. If two runs have equal keys and inputs, they give equal releases. "
        "PLACE,PLACE@TIME changes to the second key at the slot that starts at TIME (default: "
        f"the environment variable {ENVIRONMENT}, or fresh randomness if it is not set)",
        commands=_RELEASING,
        refused={AUDIT: "an audit draws its own keys and never uses the key of a release"},
        brief="file:PATH with a secret, for repeatable noise",
        pattern=rf"{_SECRET}(,{_SECRET}@[^,@]+)*",
    ),
)

_RESULTS = (
    _write(
        "output",
        "PLACE",
        "where to write the releases: a .parquet, .avro, .jsonl or .csv file, or one of "
        f"{SINK_FORMS}",
        commands=_RELEASING,
        meanings={
            PER_RECORD: "where to write the results, with one row per window and key: a .parquet, "
            f".avro, .jsonl or .csv file, or one of {SINK_FORMS}"
        },
        brief="results: a file, a table or a stream",
        fronts=(FLEX,),
        pattern=f"{FILE}|{SINK}",
        refused={AUDIT: _OF_RUN},
    ),
    _write(
        "card",
        "FILE",
        "where to write the card, a JSON file that states the guarantee of the run, on any Beam "
        "filesystem. Runs on unbounded streams write the card when they start. Other runs write "
        "it when all releases are written. By default, the card is written next to the releases "
        "if these are files. Otherwise, it is written next to the ledger if the ledger is a file. "
        "If neither is a file, no card is written",
        commands=_RELEASING,
        fronts=(FLEX,),
        pattern=FILE,
        refused={AUDIT: _OF_RUN},
    ),
    _write(
        "ledger",
        "FILE",
        "where to write the ledger, which lists the privacy cost of every slot for every "
        "requirement class: a file, or bigquery:PROJECT.DATASET.TABLE",
        refused={
            AUDIT: _OF_RUN,
            PER_RECORD: "each record spends at most its budget, once, and the amount is secret",
        },
        fronts=(FLEX,),
        pattern=f"{FILE}|{_TABLE}",
    ),
    _write(
        "rejected",
        "FILE",
        "where to write the dead letters, which are the rejected events, each with the reason "
        "and its place in the input. Dead letters are not private, so never publish them",
        commands=_COUNTING,
        refused={PER_RECORD: _SILENT},
        brief="dead letters: rejected events, with the reason",
        fronts=(FLEX,),
        pattern=FILE,
    ),
    _write(
        "layout",
        "",
        "layout of releases and revisions: tidy has one row per slot and bin, with a 90 % "
        "confidence interval (the default); rows has one row per slot, with a list of counts and "
        "diagnostics",
        choices=LAYOUTS,
        refused={
            AUDIT: _OF_RUN,
            PER_RECORD: "results always have one row per key and window",
            QUERIES: "results always have one row per slot, key and statistic",
        },
        fronts=(FLEX,),
    ),
    _write(
        "summary",
        "FILE",
        "JSON file for monitoring tools. Each run overwrites the file. It has the number of "
        "slots and the numbers of events that were read, kept, late, rejected (by reason) and "
        "dropped by contribution bounding. The file is not private, so never publish it",
        refused={AUDIT: _OF_RUN, PER_RECORD: _SILENT},
        fronts=(),
    ),
    _write(
        "page",
        "FILE",
        "HTML page to write (.html), with the results, the budget spent and the number of lost "
        "events",
        refused={PER_RECORD: "the page shows counts and query results only"},
        brief="an HTML page with results, budget and losses",
        fronts=(),
    ),
    _write(
        "revise",
        "LAG",
        "also write a smoothed estimate of every slot (a revision) LAG slots later. For a query, "
        "LAG counts the slots of that query. Revisions spend no budget and do not change the "
        "first release. Only the mechanisms adaptive and rotation support revisions (default: no "
        "revisions)",
        kind=int,
        refused=_REVISIONS,
    ),
    _write(
        "revisions",
        "PLACE",
        "with --revise: where to write the revisions, which is a file, table or stream as for "
        "--output. With --queries, the revisions of all queries are written to one file",
        refused=_REVISIONS,
        fronts=(FLEX,),
        pattern=f"{FILE}|{SINK}",
    ),
)

_STATE = (
    _go_on(
        "state",
        "FOLDER",
        "folder in which the state of a stream is saved. A run releases the slots that have "
        "closed, and saves the state, from which the next run resumes. Results are written to "
        "numbered files, such as releases-00000001.csv",
        brief="folder with the state between runs",
    ),
    _go_on(
        "resume",
        "true|false",
        "resume from the state that is saved in the folder --state",
        brief="resume from the state in that folder",
        kind=bool,
    ),
    _go_on(
        "restart_budget",
        "N",
        "with --resume and --guarantee=infinite: grant the whole lifetime budget AGAIN from the "
        "next slot on. N is 1 for the first restart (the default), 2 for the second restart, and "
        "so on. If you repeat an earlier N, nothing is granted. With each restart, users can "
        "lose epsilon once more, and every later release states the number of restarts in "
        "`restarts`",
        commands=(RELEASE,),
        kind=int,
        alone="1",
        refused={
            **_NO_STATE,
            AUDIT: "each restart grants the budget again by design",
            COLLECT: "budgets over windows renew by themselves",
            QUERIES: "it works only for the single count of --guarantee=infinite",
        },
    ),
    _go_on(
        "follow",
        "INTERVAL",
        "with --state: keep running and release each slot as it closes, until --end or Ctrl-C. "
        "INTERVAL says how often to check for new files and markers, for example 10s or 1m",
        brief="with --state: keep running, check this often (10s)",
    ),
    _go_on(
        "clock_file",
        "FILE",
        "with --state: file that contains the current time in ISO 8601; the run uses this time "
        "instead of the system clock",
    ),
    _go_on(
        "close_by",
        "RULE",
        "with --state: rule by which a slot closes. clock (the default): as soon as the clock "
        "passes the end of the slot; marker:PATTERN: when the marker file of the slot exists; "
        "files:PATTERN: when a file of a later slot exists. PATTERN has strftime codes for the "
        "start of the slot, in UTC or in --slot_zone, for example marker:drops/%Y-%m-%d.done",
    ),
    _go_on(
        "missing_input",
        "",
        "with --state: what to do if a slot has closed but its input is missing (no file "
        "matches, the disk is not mounted, a file with events of open slots was removed, or a "
        "subscription cannot be read). stop (the default): stop the run; wait: wait for the "
        "input; ignore: release without the missing input",
        choices=MISSING_INPUT,
    ),
    _go_on(
        "slots_per_pass",
        "N",
        f"with --state: largest number of slots that one pass commits (default {SLOTS_PER_PASS})",
        kind=int,
    ),
)

_RUNNING = (
    Option(
        "shards",
        "N",
        "number of parts into which users are split, so that several workers can share a busy "
        "slot (default 1)",
        section=WORK,
        commands=_JOBS,
        kind=int,
        default=1,
        refused={
            AUDIT: _OF_RUN,
            PER_RECORD: "records are not grouped by user, so workers share them anyway",
        },
    ),
    Option(
        "test_mode",
        "true|false",
        "for pipelines under development: release exact results, with the status `test`, instead "
        "of private results. The exact results are NOT private, so never publish them. A test "
        "run writes no card, and cannot be combined with --state",
        section=WORK,
        commands=(RELEASE,),
        refused={
            AUDIT: "only private releases are audited",
            COLLECT: "devices never report without noise",
            PER_RECORD: "records are never released without noise",
        },
        kind=bool,
    ),
    Option(
        "dry_run",
        "true|false",
        "read a sample, show what a run would read, count and write, and then stop. Nothing is "
        "released, and no budget is spent",
        section=WORK,
        commands=_RELEASING,
        brief="show what a run would do, and spend no budget",
        fronts=(),
        kind=bool,
    ),
    _operate(
        "serve",
        "[ADDRESS:]PORT",
        "with --follow: serve a web page for operators, with the latest releases, the budget, "
        "the lag and the event accounting. The page has no password. It can be opened only on "
        "this machine, unless you give another ADDRESS. With port 0, a free port is chosen",
    ),
    _operate(
        "metrics_port",
        "[ADDRESS:]PORT",
        "with --follow: serve metrics of the stream to Prometheus. They can be read only on this "
        "machine, unless you give another ADDRESS. This option needs the extra `ops`",
    ),
    _operate(
        "otlp_endpoint",
        "URL",
        "with --state: send metrics by OTLP over HTTP to the OpenTelemetry collector at this "
        "URL, for example http://localhost:4318. This option needs the extra `ops`",
    ),
    _operate(
        "metrics",
        "",
        f"metrics to serve or send. {METRICS[0]} (the default): only metrics that are computed "
        f"from the releases and the ledger; {METRICS[1]}: also metrics of the events, which are "
        "not private and must not be published",
        choices=METRICS,
    ),
    _operate(
        "log_format",
        "",
        "format of the log on stderr: text or JSON, with one line per message and with time and "
        "level (default: messages without time and level)",
        commands=(*_RELEASING, PLAN, CARD),
        choices=LOG_FORMATS,
    ),
)

_STATISTIC = (
    _record(
        "statistic",
        "NAME",
        f"statistic to release, one of: {', '.join(STATISTICS)}",
        commands=(PER_RECORD,),
    ),
    _record(
        "budget",
        "FUNCTION",
        f"public function that gives the epsilon of a record with value v: {BUDGET_FORMS}; or "
        f"{TABLE}FILE, where FILE is a public table with the columns category and epsilon",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        meanings={
            EVALUATE: "public function that gives the epsilon of a record with value v: "
            f"{BUDGET_FORMS}"
        },
        pattern=rf"(inverse|sqrt|log):{NUMBER}(:{NUMBER})?|table:{FILE}",
    ),
    _record(
        "value_max",
        "V",
        "largest value that a record may have, which is public; the smallest possible value is 0",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        kind=float,
    ),
    _record(
        "epsilon_max",
        "E",
        "largest epsilon that a record may have, which is public; larger budgets are clamped to "
        "this epsilon",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        kind=float,
    ),
    _record(
        "budget_column",
        "NAME",
        "name of the column from which --budget computes the budget (default: --value_column)",
    ),
    _record(
        "epsilon_min",
        "E",
        f"with --budget={TABLE}FILE: smallest epsilon that a record may have, which is public; "
        "records with a smaller budget are dropped (default: the smallest budget in the table)",
        kind=float,
    ),
    Option(
        "window",
        "SLOTS",
        "length of the sliding window, in slots: after every slot, the statistic is computed "
        "over the last SLOTS slots and released; each record still spends its budget only once "
        "(default 1)",
        section=TIME,
        commands=(PER_RECORD,),
        kind=int,
        default=1,
    ),
    _record(
        "key_column",
        "NAME",
        "name of the column to group by; the statistic is computed for each key in --keys",
        commands=(PER_RECORD,),
    ),
    _record(
        "keys",
        "KEYS",
        "all public keys, which are values of --key_column: a list A,B,C, or a file as for "
        "--domain; records with other keys are dropped",
        commands=(PER_RECORD,),
    ),
    _record(
        "beta",
        "P",
        "largest probability with which the reported `dropped_bound` may be wrong (default: "
        "depends on the mechanism)",
        kind=float,
    ),
    _record(
        "max_records_per_user",
        "N",
        "largest number of records that one person has; you must make sure that no person has "
        "more. The budget of each record is divided by this number (default 1)",
        kind=int,
        default=1,
    ),
)

_PLAN = (
    Option(
        "queries",
        "FILE",
        "YAML file with a base slot and a list of queries. The windows of requirements are then "
        "counted in base slots",
        section=EVENTS,
        commands=(PLAN,),
    ),
    _assume(
        "rate",
        "EVENTS[,QUERY:EVENTS...]",
        f"assumed number of events in a base slot, of all users together (default {RATE:g} per "
        "user). With QUERY:EVENTS, the assumed number of events that match the filter of that "
        "query",
    ),
    _assume(
        "drift",
        "PART[,QUERY:PART...]",
        "assumed relative change of a count from one slot of its query to the next, without "
        f"random variation (default {DRIFT:g}). QUERY:PART sets the assumption for one query",
    ),
    _assume(
        "long_drift",
        "PART[,QUERY:PART...]",
        "assumed relative change of a count over the longest window, without random variation. "
        "QUERY:PART sets the assumption for one query (default: the change that results if the "
        "changes between slots are independent)",
    ),
    _assume(
        "chance",
        "PART[,QUERY:PART...]",
        "assumed variance of the random variation of a count, as a fraction of the count. 0: no "
        "random variation, for example flights of a timetable, or users who are present in every "
        "slot; 1 (the default): each user decides anew in every slot",
    ),
    _assume(
        "wanted", "QUERY:ERROR[,...]", "compute the epsilon that QUERY needs for the error ERROR"
    ),
)

_CARD = (
    _of_card(
        "card",
        "FILE",
        "card to read. A run writes it next to its output, as releases.csv.card.json, or as "
        "card.json in the folder of the results. You may write FILE alone, without --card=",
    ),
    _of_card(
        "check",
        "true|false",
        "check the run: recompute the privacy cost of every window from the ledger, and compare "
        "the card, the ledger and the releases. If there are faults, each is printed on a line, "
        "and the exit code is 1",
        kind=bool,
        bare=True,
    ),
    _of_card(
        "ledger",
        "FILE",
        "with --check: the ledger file. If the runs had --state, give the value of their "
        "--ledger (default: the file that the card names, in the folder of the card)",
    ),
    _of_card(
        "releases",
        "PLACE",
        "with --check: where the releases are. Runs without --state: the file of releases, or "
        "the folder of results. Runs with --state: the value of their --output. Runs with "
        "--output=folder:PATH: that folder. Releases in a stream or a table: a file of rows that "
        "you exported from it (default: the file that the card names, in the folder of the card)",
    ),
    _of_card(
        "revisions",
        "PLACE",
        "with --check, if the run wrote its revisions to a stream or a folder: the file of "
        "revisions that you exported from the stream, or the folder PATH of "
        "--revisions=folder:PATH",
    ),
)

_DEMO = (
    _of_demo(
        "output",
        "FOLDER",
        "folder for the releases, the ledger and the page (default streamveil-demo). If it has "
        "files of an earlier demo, these are overwritten",
        default="streamveil-demo",
        aliases=("output_dir",),
    ),
    _of_demo(
        "revise",
        "LAG",
        "also write a smoothed estimate of every slot LAG slots later, if the mechanism supports "
        f"revisions (default {DEMO_LAG})",
        kind=int,
    ),
    _of_demo(
        "picture",
        "FILE",
        "image file to write (.png or .svg). It has the picture that the README shows",
    ),
    Option(
        "hourly",
        "true|false",
        "use slots of one hour instead of slots of one day",
        section=TIME,
        commands=(DEMO,),
        kind=bool,
    ),
    Option(
        "mechanism",
        "NAME",
        f"mechanism to use (default {DEFAULT}; with --hourly, {DEFAULT}:cycle=auto)",
        section=PRIVACY,
        commands=(DEMO,),
        aliases=("demo_mechanism",),
    ),
)

OPTIONS = (
    *(*_EVENTS, *_TIMES, *_BINS, *_PRIVACY, *_RESULTS, *_STATE, *_RUNNING, *_STATISTIC),
    *(*_PLAN, *_CARD, *_DEMO),
)


def shown_by(command: str) -> dict[str, Option]:
    """The options of this table that a command takes, by name."""
    return {option.name: option for option in OPTIONS if command in option.commands}


def known_to(command: str) -> dict[str, Option]:
    """The same with those that it refuses."""
    others = {option.name: option for option in OPTIONS if command in option.refused}
    return {**others, **shown_by(command)}


def saying(case: str) -> str:
    """What stands between an option that a command, or a form of one, refuses and the reason."""
    return {
        COLLECT: "is for streamveil release, not for streamveil collect:",
        PER_RECORD: "is not for per-record:",
        QUERIES: f"is not for {opt.queries}:",
        AUDIT: "cannot be audited:",
    }.get(case, "is refused:")


def reasons(case: str, names: Collection[str] | None = None) -> dict[str, str]:
    """Why a command, or a form of one, refuses options: all that it does, or these."""
    refused = {option.name: option.refused[case] for option in OPTIONS if case in option.refused}
    return refused if names is None else {name: refused[name] for name in names}

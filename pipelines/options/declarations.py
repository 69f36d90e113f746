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
    "events to read. Give a file, a folder or a glob of .parquet, .avro, .csv or .jsonl files, on "
    "this machine or in cloud storage (.csv and .jsonl files may be compressed)"
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
_OF_PLAN = "it reads no events, and the bins and slots of each query are in the file of --queries"
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
        f"{EVENT_FILES}. Or give a BigQuery table or query in the form {TABLE_FORM}. Or give a "
        f"stream in one of these forms: {SOURCE_FORMS}",
        refused={PLAN: _OF_PLAN},
        meanings=dict.fromkeys((EVALUATE, AUDIT), EVENT_FILES),
        brief="events: files, a folder, a glob, a table or a stream",
        fronts=(FLEX,),
        pattern=f"{FILE}|{STREAM}|bigquery:.+",
    ),
    _read(
        "sql",
        "SELECT",
        "SQL query that reads files and computes the columns of each event, instead of --input. "
        "For example: SELECT user, day, TRY_CAST(fare AS DOUBLE) / 100 AS dollars FROM "
        "read_csv('trips/*.csv'). Write file:PATH if the query is in a file. This option needs "
        "the extra `sql`",
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
        refused={
            PER_RECORD: f"the privacy unit is the record; {_RECORDS_PER_USER}",
            PLAN: _OF_PLAN,
        },
        brief="name of the column of user ids",
    ),
    _read(
        "value_column",
        "NAME",
        "name of the column whose values are counted, for example the column of places. To count "
        "by the cells of a map grid, give two columns, LONGITUDE,LATITUDE",
        refused={QUERIES: _OF_QUERY, PLAN: _OF_PLAN},
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
        refused={PLAN: _OF_PLAN},
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
        "unit of event times that are numbers. excel means serial dates, as spreadsheets use them",
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
        "largest fraction of the events of a bounded input that may be rejected or late (default "
        f"{MAX_REJECTED:g}). If more events are lost, or if no event is kept, the run releases "
        "nothing and ends with exit code 3. With 1, results are released however many events are "
        "lost",
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
        "length of a slot (a fixed, tumbling time window) for which a result is released, for "
        "example 1mo, 1w, 1d, 1h, 5m or 60s",
        refused={
            QUERIES: "the file sets the slot, and each query may set a longer one (every)",
            PLAN: _OF_PLAN,
        },
        meanings={
            PER_RECORD: "length of a slot (a fixed time window), for example 1d, 1h, 5m or 60s "
            "(default: one result for all times)"
        },
        brief="length of a slot, for example 1w, 1d, 1h or 60s",
        pattern=_LENGTH,
    ),
    _time(
        "slot_zone",
        "ZONE",
        "time zone in which slots of days, weeks or months follow the calendar. A slot of a day "
        "may then have 23 or 25 hours. If --origin, --start or --end has no UTC offset, it is in "
        "this time zone too",
    ),
    _time(
        "origin",
        "TIME",
        "time from which slots are counted, which is the start of slot 0. Slots of months are "
        "always counted from January 1970. With --start, slots are by default counted so that one "
        "of them begins at --start. Without --start, they are by default counted from 1970-01-01, "
        "or for weeks from the Monday after it",
        pattern=_MOMENT,
    ),
    _time(
        "start",
        "TIME",
        "the first slot to release is the slot that contains this time. Events in earlier slots "
        "are rejected (default: the first slot that has an event)",
        meanings={
            PER_RECORD: "the first slot to release is the slot that contains this time. For a "
            "bounded input, give all of --slot, --start and --end, or none of them"
        },
        brief="time in the first slot to release",
        pattern=_MOMENT,
    ),
    _time(
        "end",
        "TIME",
        "release only the slots that end at or before this time. Later events are rejected "
        "(default: release all slots up to the last slot that has an event)",
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
        "the values of --value_column for which counts are released (the bins). The list is "
        "public. Write A,B,C (text with a comma is always a list); a file with one value per "
        "line; file:NAME if the name of the file has a comma; edges:0,10,20 for ranges of "
        "numbers; or grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS for map cells",
        refused={
            PER_RECORD: f"{_NO_BINS}; public groups are --key_column and --keys",
            QUERIES: _OF_QUERY,
            PLAN: _OF_PLAN,
        },
        brief="the public values to count: A,B,C, or a file",
    ),
    _bin(
        "other",
        "NAME",
        "name of an additional last bin, in which events with values outside --domain are "
        "counted. Without this option, these events are rejected",
        refused={PER_RECORD: _NO_BINS, QUERIES: _OF_QUERY},
    ),
    _bin(
        "null",
        "NAME",
        "name of an additional last bin, in which events with null values (missing values and "
        "empty text) are counted. Without this option, these events are rejected",
        refused={PER_RECORD: _NO_BINS, QUERIES: _OF_QUERY},
    ),
    _bin(
        "queries",
        "FILE",
        "YAML file with a list of queries that share one budget. The file also gives the length of "
        "the base slots, and the length of a window is a number of base slots. Use the file "
        "instead of --value_column, --domain and --slot. --output is then a folder with one file "
        "per query",
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
        "file with the privacy budget of each user, called the requirements table. Its columns "
        "are user, window (in slots), epsilon and optionally max_slots and delta",
        commands=(*_COUNTING, PLAN),
        refused={PER_RECORD: _OF_RECORD},
        meanings={
            RELEASE: "file with the privacy budget of each user, called the requirements table. "
            "Its columns are user, window (in slots) and epsilon. Instead of the table, you can "
            f"give one of these: --budget; --default_requirement; --guarantee={INFINITE} with "
            f"--epsilon; --guarantee={USER} with --epsilon",
            COLLECT: "file with the privacy budget of each user, called the requirements table. "
            "Its columns are user, window (in slots) and epsilon, and it must list every user",
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
        "add the number of such users that you expect. This number is public, and it does not "
        "limit how many of these users are counted",
        commands=(RELEASE, EVALUATE, AUDIT, PLAN),
        refused={COLLECT: _LIST_EVERY_USER, PER_RECORD: _OF_RECORD},
        pattern=rf"[0-9]+,{NUMBER}(,[0-9]+)?",
    ),
    _protect(
        "budget",
        "EPSILON/PERIOD",
        "one privacy budget for every user, instead of a requirements table. For example, 1/7d "
        "means epsilon 1 over any 7 consecutive days",
        commands=(RELEASE, PLAN),
        refused={COLLECT: _LIST_EVERY_USER},
        brief="or one budget for all users: 1/7d is ε 1 in 7 days",
        pattern=rf"{NUMBER}/{_LENGTH}",
    ),
    _protect(
        "max_contributions",
        "N",
        "largest number of events of each user that are kept in each slot, called the "
        "contribution bound (default 1)",
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
        "how to choose the events that are kept if a user has more than --max_contributions "
        "events in a slot. uniform (the default) keeps a random sample, and distinct prefers "
        "events in different bins",
        commands=_COUNTING,
        default=UNIFORM,
        choices=KEEPS,
        refused={PER_RECORD: _RECORDS_PER_USER, QUERIES: _OF_QUERY},
    ),
    _protect(
        "adjacency",
        "",
        "how two inputs differ that the guarantee makes hard to distinguish. With add_remove (the "
        "default), all of one user's events in a window are added or removed. With replace, any "
        "of these events are replaced by other events, which needs twice the noise",
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
        f"mechanism (algorithm) that adds the noise, one of: {', '.join(MECHANISMS)} (default "
        f"{DEFAULT}). If requirements change, one of: {', '.join(DYNAMIC_MECHANISMS)}. With "
        f"--guarantee={INFINITE}, one of: {', '.join(INFINITE_MECHANISMS)} (default "
        f"{INFINITE_DEFAULT})",
        commands=_RELEASING,
        refused={QUERIES: _OF_QUERY},
        meanings={
            COLLECT: "mechanism (algorithm) with which devices add noise, one of: "
            f"{', '.join(LOCAL_MECHANISMS)} (default {LOCAL_DEFAULT})",
            PER_RECORD: "mechanism (algorithm) that adds the noise. The choices for each statistic "
            f"are as follows, and the first choice is the default: {PER_RECORD_NAMES}",
        },
        pattern=r"[a-z][a-z+-]*(:.+)?",
    ),
    _protect(
        "max_slots",
        "M[,BLOCKS]|auto[:RATE]",
        "participation limit, which reduces the noise if users have events in few slots. Each "
        f"window is divided into BLOCKS parts (default {BLOCKS}). In each part, a user "
        "contributes only to the first M slots in which this user has events. Counts are rescaled "
        "by a private estimate of the fraction of events kept. With auto, a private estimate "
        "from a bounded input chooses M. With auto:0.05, M is chosen without an estimate, for "
        f"users who have events in 5 % of the slots. With --guarantee={USER}, M alone limits the "
        "slots of the whole stream (default: the column max_slots of the requirements table, or "
        "no limit)",
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
        f"kind of guarantee. {WINDOWS} (the default): each user has a budget for any window of "
        f"consecutive slots, as the requirements table says. {INFINITE}: each user has one budget "
        f"for the whole stream (--epsilon), which is spread over all slots. {USER}: each user has "
        "one budget for the whole stream (--epsilon), and contributes only to the first "
        "--max_slots slots in which this user has events",
        choices=CENTRAL,
        refused=_LIFETIME,
    ),
    _protect(
        "epsilon",
        "E",
        f"with --guarantee={INFINITE} or --guarantee={USER}: privacy budget (epsilon) of each user "
        "for the whole stream",
        refused=_LIFETIME,
        pattern=NUMBER,
    ),
    _protect(
        "delta",
        "D",
        "with --queries whose keys are discovered (keys: discover): the probability with which "
        "the discovery may fail to protect a user, over any window, for example 1e-9. A user may "
        "have another one, in the column delta of the requirements table",
        commands=(RELEASE, EVALUATE, PLAN),
        kind=float,
        refused={
            COLLECT: "local mechanisms discover no keys",
            PER_RECORD: "statistics of records discover no keys",
        },
    ),
    _protect(
        "requirement_changes",
        "PLACE",
        "files or a stream, named as for --input, with changes of users' requirements. The "
        "columns are user, slot or time, window_backward, epsilon_backward, window_forward and "
        "epsilon_forward. If the last four columns of a row are empty, the user leaves",
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
        "longest window, in slots, that a user may have after a change of requirements. This "
        "number is public (default: the longest window in the requirements table)",
        commands=_JOBS,
        kind=int,
        refused=_CHANGES,
        meanings={
            COLLECT: "with --state: longest window, in slots, that a user may have in a later "
            "requirements table. This number is public (default: the longest window in the "
            "two requirements tables before and after the first change)",
        },
        fronts=(FLEX,),
    ),
    _protect(
        "noise_key",
        "PLACE",
        "where the noise key is stored. The key is a secret of at least 32 bytes, and the noise is "
        f"generated from the key. Write {KEY_PLACES}. Two runs with the same key and the same "
        "input give the same releases. With PLACE,PLACE@TIME, the stream changes to the second key "
        f"at the slot that starts at TIME (default: the environment variable {ENVIRONMENT}, or a "
        "fresh random key if this variable is not set)",
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
        "where to write the releases. Give a .parquet, .avro, .jsonl or .csv file, or one of "
        f"{SINK_FORMS}",
        commands=_RELEASING,
        meanings={
            PER_RECORD: "where to write the results, with one row per window and key. Give a "
            f".parquet, .avro, .jsonl or .csv file, or one of {SINK_FORMS}"
        },
        brief="results: a file, a table or a stream",
        fronts=(FLEX,),
        pattern=f"{FILE}|{SINK}",
        refused={AUDIT: _OF_RUN},
    ),
    _write(
        "card",
        "FILE",
        "where to write the card, a JSON file that states the guarantee of the run. Runs on "
        "unbounded streams write the card when they start. Other runs write it when all releases "
        "are written (default: next to the releases if the releases are files; otherwise next to "
        "the ledger if the ledger is a file; otherwise no card is written)",
        commands=_RELEASING,
        fronts=(FLEX,),
        pattern=FILE,
        refused={AUDIT: _OF_RUN},
    ),
    _write(
        "ledger",
        "FILE",
        "where to write the ledger, which lists how much budget each slot spent for each group of "
        "users with the same requirement. Give a file, or bigquery:PROJECT.DATASET.TABLE",
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
        "layout of the releases. tidy (the default) has one row per slot and bin, with a 90 % "
        "confidence interval. rows has one row per slot, with a list of counts and with "
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
        "where to write a JSON file for monitoring tools, with the number of slots and the "
        "numbers of events that were read, kept, late, rejected (by reason) and dropped by "
        "contribution bounding. Each run overwrites the file. The file is not private, so never "
        "publish it",
        refused={AUDIT: _OF_RUN, PER_RECORD: _SILENT},
        fronts=(),
    ),
    _write(
        "page",
        "FILE",
        "where to write an HTML page (.html) with the results, the budget spent and the number of "
        "lost events",
        refused={PER_RECORD: "the page shows counts and query results only"},
        brief="an HTML page with results, budget and losses",
        fronts=(),
    ),
    _write(
        "revise",
        "LAG",
        "number of slots after which a smoothed estimate of each slot (a revision) is also "
        "written. For a query, LAG counts the slots of that query. Revisions spend no budget and "
        "do not change the first release. Only the mechanisms adaptive and rotation support "
        "revisions (default: no revisions)",
        kind=int,
        refused=_REVISIONS,
    ),
    _write(
        "revisions",
        "PLACE",
        "with --revise: where to write the revisions. Give a file, table or stream, as for "
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
        "folder in which the state of a stream is saved, so that you can release the stream in "
        "several runs. Each run releases the slots that are over, and saves the state for the "
        "next run. Results are written to numbered files, such as releases-00000001.csv",
        brief="folder with the state between runs",
    ),
    _go_on(
        "resume",
        "true|false",
        "continue the stream from the state that an earlier run saved in the folder --state",
        brief="resume from the state in that folder",
        kind=bool,
    ),
    _go_on(
        "restart_budget",
        "N",
        "with --resume and --guarantee=infinite: grant every user the whole budget AGAIN for the "
        "slots that follow. Each restart increases the possible privacy loss by epsilon. N is the "
        "number of the restart, so it is 1 for the first restart (the default) and 2 for the "
        "second. If you repeat a number that was already used, no budget is granted. Every later "
        "release states the number of restarts in `restarts`",
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
        "with --state: keep running and release each slot when it closes, until --end or Ctrl-C. "
        "INTERVAL says how often the run looks for new files, for example 10s or 1m",
        brief="with --state: keep running, check this often (10s)",
    ),
    _go_on(
        "clock_file",
        "FILE",
        "with --state: file that contains a time in ISO 8601. The run uses this time as the "
        "current time, instead of the system clock",
    ),
    _go_on(
        "close_by",
        "RULE",
        "with --state: the rule that decides when a slot closes, so that it can be released. With "
        "clock (the default), a slot closes when its end has passed. With marker:PATTERN, a "
        "marker file for the slot must also exist. With files:PATTERN, a file of a later slot "
        "must also exist. In PATTERN, strftime codes stand for the start of the slot, in UTC or "
        "in --slot_zone, for example marker:drops/%Y-%m-%d.done",
    ),
    _go_on(
        "missing_input",
        "",
        "with --state: what to do if a slot is closed but input is missing, for example because "
        "no file matches, a disk is not mounted, a file with unreleased events was removed, or a "
        "subscription cannot be read. stop (the default) ends the run, wait waits for the input, "
        "and ignore releases the slot without the missing input",
        choices=MISSING_INPUT,
    ),
    _go_on(
        "slots_per_pass",
        "N",
        "with --state: largest number of slots that are released and saved in one step (default "
        f"{SLOTS_PER_PASS})",
        kind=int,
    ),
)

_RUNNING = (
    Option(
        "shards",
        "N",
        "number of groups into which users are divided, so that several workers can share the "
        "counting of a slot with many events (default 1)",
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
        "release exact results with the status `test` instead of private results, to test a "
        "pipeline. The exact results are NOT private, so never publish them. A test run writes no "
        "card, and cannot be combined with --state",
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
        "read a sample of the input, show what a run would read, count and write, and then stop. "
        "Nothing is released, and no budget is spent",
        section=WORK,
        commands=_RELEASING,
        brief="show what a run would do, and spend no budget",
        fronts=(),
        kind=bool,
    ),
    _operate(
        "serve",
        "[ADDRESS:]PORT",
        "with --follow: serve a web page for operators, with the latest releases, the spent "
        "budget, the delay of the run and the numbers of kept and lost events. The page has no "
        "password. It can be opened only on this machine, unless you give another ADDRESS. With "
        "port 0, a free port is chosen",
    ),
    _operate(
        "metrics_port",
        "[ADDRESS:]PORT",
        "with --follow: serve metrics of the stream to Prometheus. The metrics can be read only on "
        "this machine, unless you give another ADDRESS. This option needs the extra `ops`",
    ),
    _operate(
        "otlp_endpoint",
        "URL",
        "with --state: send metrics to the OpenTelemetry collector at this URL (OTLP over HTTP), "
        "for example http://localhost:4318. This option needs the extra `ops`",
    ),
    _operate(
        "metrics",
        "",
        f"which metrics to serve or send. {METRICS[0]} (the default): only metrics that are "
        f"computed from the releases and the ledger. {METRICS[1]}: also metrics that are computed "
        "from the events. These additional metrics are not private and must not be published",
        choices=METRICS,
    ),
    _operate(
        "log_format",
        "",
        "format of the log on stderr, which is text or json. With either value, each message is "
        "one line that contains its time and its level (default: messages without time and level)",
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
        "public function that computes the epsilon of a record from its value v. Write "
        f"{BUDGET_FORMS}; or {TABLE}FILE, where FILE is a public table with the columns category "
        "and epsilon",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        meanings={
            EVALUATE: "with --per_record: public function that computes the epsilon of a record "
            f"from its value v. Write {BUDGET_FORMS}. With --queries: one privacy budget for every "
            "user, such as 1/7d",
        },
        pattern=rf"(inverse|sqrt|log):{NUMBER}(:{NUMBER})?|table:{FILE}",
    ),
    _record(
        "value_max",
        "V",
        "largest value that a record may have. This bound is public. The smallest possible value "
        "is 0",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        kind=float,
    ),
    _record(
        "epsilon_max",
        "E",
        "largest epsilon that a record may have. This bound is public. A record for which --budget "
        "gives more gets this epsilon",
        commands=(PER_RECORD, AUDIT, EVALUATE),
        kind=float,
    ),
    _record(
        "budget_column",
        "NAME",
        "name of the column from which --budget computes the budget of a record (default: "
        "--value_column)",
    ),
    _record(
        "epsilon_min",
        "E",
        f"with --budget={TABLE}FILE: smallest epsilon that a record may have. This bound is "
        "public. Records with a smaller budget are dropped (default: the smallest budget in the "
        "table)",
        kind=float,
    ),
    Option(
        "window",
        "SLOTS",
        "number of slots that each result covers (a sliding window). After every slot, the "
        "statistic of the last SLOTS slots is released. Each record still spends its budget only "
        "once (default 1)",
        section=TIME,
        commands=(PER_RECORD,),
        kind=int,
        default=1,
    ),
    _record(
        "key_column",
        "NAME",
        "name of the column to group by. The statistic is computed separately for each value of "
        "this column that --keys lists",
        commands=(PER_RECORD,),
    ),
    _record(
        "keys",
        "KEYS",
        "the values of --key_column for which results are released. The list is public. Write "
        "A,B,C, or a file as for --domain. Records with other values are dropped",
        commands=(PER_RECORD,),
    ),
    _record(
        "beta",
        "P",
        "largest probability with which the field `dropped_bound` of a result may be too small. "
        "This field is an upper bound on the total of the dropped records (default: depends on "
        "the mechanism)",
        kind=float,
    ),
    _record(
        "max_records_per_user",
        "N",
        "largest number of records that belong to one person. The run does not check this number, "
        "so make sure that no person has more records. The budget of each record is divided by "
        "this number (default 1)",
        kind=int,
        default=1,
    ),
)

_PLAN = (
    Option(
        "queries",
        "FILE",
        "YAML file with a list of queries that share one budget. The file also gives the length of "
        "the base slots, and the length of a window is a number of base slots",
        section=EVENTS,
        commands=(PLAN,),
    ),
    _assume(
        "rate",
        "EVENTS[,QUERY:EVENTS...]",
        f"assumed number of events of all users together in a base slot (default {RATE:g} per "
        "user). Write QUERY:EVENTS for the number of events that match the filter of one query",
    ),
    _assume(
        "drift",
        "PART[,QUERY:PART...]",
        "assumed typical change of a count from one slot of its query to the next, as a fraction "
        f"of the count, not including random variation (default {DRIFT:g}). Write QUERY:PART to "
        "set it for one query",
    ),
    _assume(
        "long_drift",
        "PART[,QUERY:PART...]",
        "assumed typical change of a count over the longest window, as a fraction of the count, "
        "not including random variation. Write QUERY:PART to set it for one query (default: the "
        "change that results if the changes between slots are independent)",
    ),
    _assume(
        "chance",
        "PART[,QUERY:PART...]",
        "assumed random variation of a count, as its variance divided by the count. Give 0 for "
        "counts that do not vary at random, such as the number of flights in a timetable, or of "
        "users who have events in every slot. Give 1 for rare events that occur independently "
        "of each other (default: the variation of a count if each user decides at random in every "
        "slot whether to have an event, and in which bin)",
    ),
    _assume(
        "wanted",
        "QUERY:ERROR[,...]",
        "error that you want for a query. The command computes the epsilon that QUERY needs "
        "for an error of ERROR. ERROR may be a percentage of the average count, such as "
        "places:5%. If you give a percentage without a query, it applies to all counts",
    ),
)

_CARD = (
    _of_card(
        "card",
        "FILE",
        "card to read. A run writes its card next to its output, for example as "
        "releases.csv.card.json, or as card.json in the folder of the results. You may write FILE "
        "alone, without --card=",
    ),
    _of_card(
        "check",
        "true|false",
        "check the run. The command recomputes how much budget every window spent from the "
        "ledger, and compares the card, the ledger and the releases. If the command finds faults, "
        "it prints a line for each fault, and the exit code is 1",
        kind=bool,
        bare=True,
    ),
    _of_card(
        "ledger",
        "FILE",
        "with --check: the ledger file. If the runs used --state, give the same --ledger as for "
        "the runs (default: the file that the card names, in the folder of the card)",
    ),
    _of_card(
        "releases",
        "PLACE",
        "with --check: the releases to check. Give the file of releases or the folder of results. "
        "If the runs used --state, give the same --output as for the runs. If the runs used "
        "--output=folder:PATH, give that folder. If the releases are in a stream or a table, "
        "export the rows to a file and give this file (default: the file that the card names, in "
        "the folder of the card)",
    ),
    _of_card(
        "revisions",
        "PLACE",
        "with --check: the revisions of the run, if they are in a stream or a folder. Export a "
        "stream to a file and give this file. For --revisions=folder:PATH, give that folder",
    ),
)

_DEMO = (
    _of_demo(
        "output",
        "FOLDER",
        "folder to which the demo writes the releases, the ledger and the page (default "
        "streamveil-demo). Files of an earlier demo in this folder are overwritten",
        default="streamveil-demo",
        aliases=("output_dir",),
    ),
    _of_demo(
        "revise",
        "LAG",
        "number of slots after which a smoothed estimate of each slot is also written, if the "
        f"mechanism supports this (default {DEMO_LAG})",
        kind=int,
    ),
    _of_demo(
        "picture",
        "FILE",
        "image file to write (.png or .svg), with the chart that the README shows",
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
        f"mechanism (algorithm) that adds the noise (default {DEFAULT}; with --hourly, "
        f"{DEFAULT}:cycle=auto)",
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
        PLAN: "is not for streamveil plan:",
        QUERIES: f"is not for {opt.queries}:",
        AUDIT: "cannot be audited:",
    }.get(case, "is refused:")


def reasons(case: str, names: Collection[str] | None = None) -> dict[str, str]:
    """Why a command, or a form of one, refuses options: all that it does, or these."""
    refused = {option.name: option.refused[case] for option in OPTIONS if case in option.refused}
    return refused if names is None else {name: refused[name] for name in names}

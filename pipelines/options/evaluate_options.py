"""The options of `streamveil evaluate`, declared without Beam, and those that fit known data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.registry import INFINITE_MECHANISMS, MECHANISMS, PER_RECORD_MECHANISMS
from streamveil.pipelines.options.declarations import reasons
from streamveil.pipelines.options.guarantees import INFINITE
from streamveil.pipelines.options.option import (
    COMPARED,
    EVALUATE,
    EVENTS,
    QUERIES,
    RESULTS,
    STATISTIC,
    WORK,
    Option,
)
from streamveil.pipelines.sample_data.records import PER_RECORD_DATA, RECORDS
from streamveil.pipelines.sample_data.streams import INFINITE_STREAMS, REAL, STREAMS

DEFAULT_MECHANISMS = tuple(name for name, spec in MECHANISMS.items() if not spec.compared)
INFINITE_DEFAULTS = tuple(INFINITE_MECHANISMS)
DEFAULT_EPSILON = 0.6
DEFAULT_WINDOW = 120
DEFAULT_USERS = 10_000
DEFAULT_SLOTS = 3_000
DEFAULT_INFINITE_SLOTS = 1_000
DEFAULT_SEEDS = 10
DEFAULT_STATISTICS = ("count", "sum", "max")
DEFAULT_RUNS = 200
INPUT = "input"
# Published data sets, as `streamveil.io` reads them; it needs Beam.
FORMATS = ("tdrive", "foursquare")


_compare = partial(Option, section=COMPARED, commands=(EVALUATE,))
_of_records = partial(_compare, section=STATISTIC)

EVALUATE_OPTIONS = (
    _compare(
        "streams",
        "NAMES",
        "streams of events on which mechanisms are compared. The synthetic streams are "
        f"{', '.join(STREAMS)} (with --guarantee={INFINITE}: {', '.join(INFINITE_STREAMS)}). The "
        f"streams of real events are {', '.join(REAL)}",
        aliases=("stream",),
    ),
    _compare(
        "mechanisms",
        "NAMES",
        "mechanisms to compare, which may include mechanisms of local differential privacy. You "
        "may add options of a mechanism, as in NAME:OPTION=VALUE:OPTION=VALUE (default "
        f"{','.join(DEFAULT_MECHANISMS)}; with --guarantee={INFINITE} "
        f"{','.join(INFINITE_DEFAULTS)}; with --per_record, all mechanisms of the statistic)",
        aliases=("mechanism",),
    ),
    _compare(
        "epsilons",
        "NUMBERS",
        "epsilon of the users with the smallest budget. The budgets of all other users are "
        "scaled in the same proportion. If you give several values, mechanisms are compared for "
        "each of them (default: the smallest epsilon in the requirements table, or "
        f"{DEFAULT_EPSILON} if there is no table)",
    ),
    _compare(
        "windows",
        "NUMBERS",
        "longest window that users have, in slots. All shorter windows are scaled in the same "
        "proportion. If you give several values, mechanisms are compared for each of them "
        "(default: the longest window in the requirements table, or "
        f"{DEFAULT_WINDOW} if there is no table)",
    ),
    _compare(
        "users", "N", f"number of users of a synthetic stream (default {DEFAULT_USERS})", kind=int
    ),
    _compare(
        "slots", "N", f"number of slots of a synthetic stream (default {DEFAULT_SLOTS})", kind=int
    ),
    _compare(
        "seeds",
        "N",
        "number of times that each stream and its noise are drawn at random (default "
        f"{DEFAULT_SEEDS})",
        kind=int,
        default=DEFAULT_SEEDS,
    ),
    _compare(
        "events",
        "N",
        f"with --guarantee={INFINITE}: number of events per slot of a synthetic stream (default: "
        "depends on the stream)",
        kind=int,
    ),
    _compare(
        "revise",
        "LAG",
        "also show the error of revisions, which are smoothed estimates that some mechanisms make "
        "LAG slots after a release",
        kind=int,
    ),
    _compare(
        "max_slots",
        "M,M,...|auto",
        "compare participation limits on your events. With a limit M, a user contributes to at "
        "most M slots in each half of the window. Give the limits to compare, or auto for all "
        "limits that may reduce the error. The limit that streamveil release --max_slots=auto "
        "would choose is always included",
    ),
    _compare(
        "queries",
        "FILE",
        "YAML file of queries about the events in --input, as for streamveil release. The "
        "comparison shows the errors if streamveil divides the budget among the queries, and the "
        "errors if all queries get equal shares",
    ),
    _compare(
        "format",
        "",
        "name of the published data set from which the files in --input come. The columns, the "
        "slot and the domain are then set for you",
        section=EVENTS,
        choices=FORMATS,
    ),
    _compare(
        "name",
        "NAME",
        "name that the output shows for --input (default: the name of the input file)",
        section=EVENTS,
    ),
    _of_records(
        "per_record",
        "DATA",
        "compare mechanisms of per-record privacy on a data set. Give one of "
        f"{', '.join(PER_RECORD_DATA)}. Or give {INPUT}, which means the numbers in the "
        "--value_column of --input",
    ),
    _of_records(
        "statistics",
        "NAMES",
        "with --per_record: statistics to compare, one or several of "
        f"{', '.join(PER_RECORD_MECHANISMS)} (default {','.join(DEFAULT_STATISTICS)})",
    ),
    _of_records(
        "runs",
        "N",
        "with --per_record: number of releases that are made for each random seed (default "
        f"{DEFAULT_RUNS})",
        kind=int,
    ),
    _of_records(
        "records",
        "N",
        f"with --per_record: number of records of a synthetic data set (default {RECORDS})",
        kind=int,
    ),
    _compare(
        "output",
        "FILE",
        "file to which the table of results is written, as a .csv table for programs or an .md "
        "table for people",
        section=RESULTS,
    ),
    _compare(
        "page",
        "FILE",
        "where to write an HTML page (.html) with charts of the results",
        section=RESULTS,
    ),
    _compare(
        "processes",
        "N",
        "number of processes that run in parallel (default: one per core)",
        section=WORK,
        kind=int,
    ),
)

_EACH_QUERY = ("value_column", "domain", "other", "null", "slot", "max_contributions", "keep")


def not_of_queries() -> dict[str, str]:
    """Why options are refused where queries are compared."""
    of_records = (*("per_record", "statistics", "runs", "records", "value_max", "epsilon_max"),)
    events = f"the queries are about the events of {opt.input}"
    return {
        **reasons(QUERIES, _EACH_QUERY),
        **dict.fromkeys(("guarantee", "epsilon"), "queries are compared with budgets over windows"),
        "max_slots": "in a comparison of queries, users contribute to every slot",
        "revise": "only the first results of queries are compared",
        **dict.fromkeys(("streams", "users", "slots", "events"), events),
        "mechanisms": "each query has its own",
        **dict.fromkeys(("epsilons", "windows"), "edit the requirements table instead"),
        "format": "name the columns of the input instead",
        **dict.fromkeys(of_records, "it is for statistics of records only"),
    }


@dataclass(frozen=True)
class Preset:
    """Defaults of options, by name, and of the longest window."""

    options: dict[str, str]
    window: int
    """Slots."""


# The taxis as in Du et al.: slots of a minute, ten by ten cells around Beijing.
_TDRIVE = Preset(
    {
        "user_column": "taxi",
        "value_column": "longitude,latitude",
        "time_column": "time",
        "time_zone": "Asia/Shanghai",
        "slot": "1m",
        "domain": "grid:116,39.5,116.8,40.3,10,10",
    },
    window=120,
)
_CHECK_INS = {
    "user_column": "user",
    "value_column": "longitude,latitude",
    "time_column": "time",
    "slot": "1d",
}
# Boxes that hold the check-ins of each city.
_CITIES = {
    "NYC": "grid:-74.3,40.5,-73.6,41.0,10,10",
    "TKY": "grid:139.4,35.5,140.0,35.9,10,10",
}


def preset(dataset: str, files: str) -> Preset:
    """Defaults for a data set; which city the check-ins are from is read off the files' names."""
    if dataset == "tdrive":
        return _TDRIVE
    found = [domain for city, domain in _CITIES.items() if city in files.upper()]
    options = {**_CHECK_INS, "domain": found[0]} if len(found) == 1 else _CHECK_INS
    return Preset(options, window=30)

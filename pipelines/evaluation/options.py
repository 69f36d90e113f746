"""The options of `streamveil evaluate`, declared without Beam, and those that fit known data."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from streamveil.mechanisms.registry import INFINITE_MECHANISMS, MECHANISMS, PER_RECORD_MECHANISMS
from streamveil.pipelines.evaluation.per_record import PER_RECORD_DATA, RECORDS
from streamveil.pipelines.evaluation.streams import INFINITE_STREAMS, REAL, STREAMS
from streamveil.pipelines.guarantees import INFINITE, add_guarantee_options
from streamveil.pipelines.options import (
    add_budget_options,
    add_event_options,
    add_histogram_options,
)
from streamveil.pipelines.sections import COMPARED, EVENTS, RESULTS, STATISTIC, WORK, section

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


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `streamveil evaluate`."""
    add = section(parser, COMPARED)
    add(
        "--streams",
        metavar="NAMES",
        help=f"synthetic streams: {', '.join(STREAMS)} (with --guarantee={INFINITE} "
        f"{', '.join(INFINITE_STREAMS)}); or real ones: {', '.join(REAL)}",
    )
    add(
        "--mechanisms",
        metavar="NAMES",
        help="mechanisms, local ones too, with options as NAME:OPTION=VALUE:OPTION=VALUE "
        f"(default {','.join(DEFAULT_MECHANISMS)}; with --guarantee={INFINITE} "
        f"{','.join(INFINITE_DEFAULTS)}; with --per_record all)",
    )
    add(
        "--epsilons",
        metavar="NUMBERS",
        help="budgets E of the strictest users (default: those of the table of requirements, or "
        f"{DEFAULT_EPSILON})",
    )
    add(
        "--windows",
        metavar="NUMBERS",
        help="longest windows w in slots (default: that of the table of requirements, or "
        f"{DEFAULT_WINDOW})",
    )
    add(
        "--users",
        type=int,
        metavar="N",
        help=f"users of a synthetic stream (default {DEFAULT_USERS})",
    )
    add(
        "--slots",
        type=int,
        metavar="N",
        help=f"slots of a synthetic stream (default {DEFAULT_SLOTS})",
    )
    add(
        "--seeds",
        type=int,
        default=DEFAULT_SEEDS,
        metavar="N",
        help=f"draws of each stream and its noise (default {DEFAULT_SEEDS})",
    )
    add(
        "--revise",
        type=int,
        metavar="LAG",
        help="show the error of revisions as well, of each slot so many slots later, of mechanisms "
        "that can revise",
    )
    add(
        "--max_slots",
        metavar="M,M,...|auto",
        help="compare limits on the slots of each half of the window in which a user counts, on "
        "events: these, or all that may pay; and what release --max_slots=auto makes of them",
    )
    add(
        "--questions",
        metavar="FILE",
        help="score answers to many questions about --input instead, with planned and with even "
        "shares of one budget: a YAML file as of streamveil release",
    )
    section(parser, WORK)(
        "--processes", type=int, metavar="N", help="how many run at a time (default: every core)"
    )
    add = section(parser, RESULTS)
    add("--output", metavar="FILE", help="the table with all figures: .csv, or .md for people")
    add("--page", metavar="FILE", help="a page with plots: .html")
    add = section(parser, EVENTS)
    add(
        "--format",
        choices=FORMATS,
        help="published data set that the input is; its columns, slot and domain are then known",
    )
    add("--name", metavar="NAME", help="what the input is called in tables (default: its file)")
    _add_infinite_options(parser)
    _add_per_record_options(parser)
    add_event_options(parser)
    add_histogram_options(parser)


def _add_infinite_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this form of the command."""
    add_guarantee_options(parser)
    section(parser, COMPARED)(
        "--events",
        type=int,
        metavar="N",
        help=f"with --guarantee={INFINITE}: events of a slot of a synthetic stream (default: each "
        "stream's own)",
    )


def _add_per_record_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this form of the command."""
    add = section(parser, STATISTIC)
    add(
        "--per_record",
        metavar="DATA",
        help="compare statistics under per-record privacy instead, on: "
        f"{', '.join(PER_RECORD_DATA)}, or {INPUT}, the --value_column of --input",
    )
    add(
        "--statistics",
        metavar="NAMES",
        help=f"with --per_record: of {', '.join(PER_RECORD_MECHANISMS)} (default "
        f"{','.join(DEFAULT_STATISTICS)})",
    )
    add(
        "--runs",
        type=int,
        metavar="N",
        help=f"with --per_record: releases of each draw (default {DEFAULT_RUNS})",
    )
    add(
        "--records",
        type=int,
        metavar="N",
        help=f"with --per_record: records of the synthetic data (default {RECORDS})",
    )
    add_budget_options(parser)


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

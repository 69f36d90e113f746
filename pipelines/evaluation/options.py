"""The options of `streamveil evaluate`, declared without Beam."""

from __future__ import annotations

import argparse

from streamveil.mechanisms.registry import MECHANISMS, PER_RECORD_MECHANISMS
from streamveil.pipelines.evaluation.infinite import DEFAULT_MECHANISMS as INFINITE_DEFAULTS
from streamveil.pipelines.evaluation.infinite_streams import INFINITE_STREAMS
from streamveil.pipelines.evaluation.presets import FORMATS
from streamveil.pipelines.evaluation.records import PER_RECORD_DATA, RECORDS
from streamveil.pipelines.evaluation.streams import REAL, STREAMS
from streamveil.pipelines.guarantees import INFINITE, add_guarantee_options
from streamveil.pipelines.options import (
    add_budget_options,
    add_event_options,
    add_histogram_options,
)
from streamveil.pipelines.sections import COMPARED, EVENTS, RESULTS, STATISTIC, WORK, section

DEFAULT_MECHANISMS = tuple(name for name, spec in MECHANISMS.items() if not spec.compared)
DEFAULT_EPSILON = 0.6
DEFAULT_WINDOW = 120
DEFAULT_USERS = 10_000
DEFAULT_SLOTS = 3_000
DEFAULT_SEEDS = 10
DEFAULT_STATISTICS = ("count", "sum", "max")
DEFAULT_RUNS = 200
INPUT = "input"


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

"""`streamveil per-record`: records in, statistics out that protect each by its own budget."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import (
    check_events,
    check_outputs,
    is_stream,
    per_record_sink_of,
    read_domain,
    source_of,
)
from streamveil.mechanisms.domains import Categories
from streamveil.mechanisms.records import ConfigurationError
from streamveil.pipelines.budgets import TABLE, add_budget_options, budget_of, lookup_of
from streamveil.pipelines.follow import FOLLOW_OPTIONS
from streamveil.pipelines.inputs import range_of
from streamveil.pipelines.jobs import (
    HANDED_OVER,
    EventOptions,
    JobOptions,
    check_required,
    given_by,
    in_time,
    refuse_options,
    run_whole,
)
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.release import ReleaseOptions
from streamveil.transforms.per_record import (
    Budget,
    CategoryBudget,
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
    ValueBudget,
)

COUNT, RUNNING_COUNT = "count", "running-count"
STATISTICS: Mapping[str, Callable[..., beam.PTransform]] = {
    COUNT: PerRecordCount,
    "sum": PerRecordSum,
    "max": PerRecordMax,
    "distinct": PerRecordDistinctCount,
    RUNNING_COUNT: PerRecordRunningTotal,
    "running-sum": PerRecordRunningTotal,
}
_WITHOUT_VALUE = (COUNT, RUNNING_COUNT)
_WITHOUT_WINDOW = {
    "distinct": "distinct counts of panes do not add up to one of several",
    **dict.fromkeys((RUNNING_COUNT, "running-sum"), "a running total is from the first slot on"),
}

# Options of other commands that have no meaning here, and why.
_SILENT = "bad records leave no trace: telling of one would cost it all of its protection"
_REFUSED: dict[type[PipelineOptions], dict[str, str]] = {
    JobOptions: {
        "rejected": _SILENT,
        "ledger": "every record pays its budget at most once, and what it is is secret",
        "user_column": "the unit is the record; say --max_records_per_user",
        "requirements": "a record's budget is --budget of the record",
        "default_requirement": "a record's budget is --budget of the record",
        "domain": "there are no bins; public groups are --key_column and --keys",
        "max_contributions": "say --max_records_per_user",
        "adjacency": "neighbouring inputs differ in one record",
        "shards": "records need not be gathered by user",
    },
    ReleaseOptions: {
        **dict.fromkeys(("requirement_changes", "longest_window"), "there are no requirements"),
        **dict.fromkeys(("guarantee", "epsilon"), "a record's budget is --budget of the record"),
        **dict.fromkeys(FOLLOW_OPTIONS, "a run keeps no state for a later one"),
    },
}


class PerRecordOptions(PipelineOptions):
    """Statistics that protect each record by a budget of its own, a public function of the record.

    There is no --rejected: a record that cannot be read or used counts nowhere and is told of
    nowhere, for whatever told of it would cost it all of its protection. There is no --ledger: what
    a record pays is secret, and at most its budget.
    """

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--statistic", metavar="NAME", help=f"{', '.join(STATISTICS)}")
        add_budget_options(
            parser, f"; or {TABLE}FILE, a table with the columns category and epsilon"
        )
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
        add(
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
            help="all keys, public: A,B,C or a file as of --domain; records of others count "
            "nowhere",
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


@dataclass(frozen=True)
class PerRecordJob:
    """What to read, what to compute of it, where to write."""

    input: str
    output: str
    columns: tuple[str, ...]
    transform: beam.PTransform

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        self._source()
        per_record_sink_of(self.output)
        if not is_stream(self.input):
            check_outputs(self._files)
            check_events(self.input, self.columns, silent=True)
        elif self._files:
            raise ConfigurationError(
                f"--output={self.output}: a file is written when the input has ended, and --input="
                f"{self.input} does not end: write to a stream"
            )

    @property
    def _files(self) -> list[str]:
        return [] if is_stream(self.output) else [self.output]

    def _source(self) -> beam.PTransform:
        return source_of(self.input, self.columns, silent=True)

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sink."""
        events = pipeline | "ReadEvents" >> self._source()
        rows = events.batches | type(self.transform).__name__ >> self.transform
        _ = rows | "WriteRows" >> per_record_sink_of(self.output)

    def run(self, options: PipelineOptions) -> str:
        """Run to the end; what to tell the operator."""
        summary = run_whole(self.build, options, "streamveil per-record", self._files)
        return HANDED_OVER if summary.handed_over else f"{self.summary}\nwrote {self.output}"

    @property
    def summary(self) -> str:
        """What was released: public, whatever the records were."""
        made = self.transform
        slots, keys = "one window of all times", f"{len(made.keys):,} keys" if made.keys else ""
        if made.slots is not None and None not in (made.first_slot, made.last_slot):
            number = made.last_slot - made.first_slot + 2 - getattr(made, "sliding", 1)
            slots = f"{number:,} windows"
        elif made.slots is not None:
            slots = "a window with every slot"
        shared = made.max_records_per_user
        share = "" if shared == 1 else f", divided by {shared} records of one person"
        return (
            f"released: {' for each of '.join(filter(None, (slots, keys)))}\n"
            f"budget:   each record paid its own at most, once{share}"
        )


def job_of(options: PipelineOptions) -> PerRecordJob:
    """Read and check all options; nothing is run yet. Raises ConfigurationError."""
    refuse_options(options, _REFUSED, "is not for per-record:")
    given = given_by(options, EventOptions, PerRecordOptions)
    check_required("per-record", given, ("input", "output"))
    transform = transform_of(given)
    job = PerRecordJob(given.input, given.output, columns_of(given), transform)
    job.check()
    return in_time(job, options)


def columns_of(given: Any) -> tuple[str, ...]:
    """The columns that are read, each once."""
    columns = (given.value_column, given.budget_column, given.key_column, given.time_column)
    return tuple(dict.fromkeys(column for column in columns if column))


def transform_of(given: Any) -> beam.PTransform:
    """The transform that these options ask for, whatever is read and written.

    Raises ConfigurationError.
    """
    check_required("per-record", given, ("statistic", "budget"))
    kind = given.statistic
    if kind not in STATISTICS:
        raise ConfigurationError(
            f"--statistic={kind} is unknown: choose of {', '.join(STATISTICS)}"
        )
    times = _times(given)
    arguments: dict[str, Any] = {
        "mechanism": given.mechanism,
        "beta": given.beta,
        "max_records_per_user": given.max_records_per_user,
        "noise_key": noise_key(given.noise_key, times.get("slots")),
        "allowed_lateness": given.allowed_lateness,
        **times,
        **_keys(given),
    }
    if kind not in _WITHOUT_VALUE:
        if not given.value_column:
            raise ConfigurationError(f"--value_column is missing: --statistic={kind} is of one")
        arguments |= {"value": given.value_column, "value_max": given.value_max}
    if kind not in _WITHOUT_WINDOW:
        arguments["sliding"] = given.window
    elif given.window != 1:
        raise ConfigurationError(f"--window={given.window}: {_WITHOUT_WINDOW[kind]}")
    return STATISTICS[kind](_budget_of(given), **arguments)


def _budget_of(given: Any) -> Budget:
    if given.budget.startswith(TABLE):
        if not given.budget_column:
            raise ConfigurationError(
                f"--budget_column is missing: name the column to look up in {given.budget}"
            )
        path = given.budget.removeprefix(TABLE)
        lookup = lookup_of(path, given.epsilon_min, given.epsilon_max)
        return CategoryBudget(given.budget_column, lookup)
    column = given.budget_column or given.value_column
    if not column:
        raise ConfigurationError(
            f"--budget_column is missing: name the column that --budget={given.budget} is of"
        )
    if given.epsilon_min is not None:
        raise ConfigurationError(
            f"--epsilon_min={given.epsilon_min:g} is for --budget={TABLE}FILE: of "
            f"--budget={given.budget} it is the budget of --value_max"
        )
    for name in ("value_max", "epsilon_max"):
        if getattr(given, name) is None:
            raise ConfigurationError(f"--{name} is missing: --budget={given.budget} needs it")
    return ValueBudget(column, budget_of(given.budget, given.value_max, given.epsilon_max))


def _times(given: Any) -> dict[str, Any]:
    """Arguments that say how time is cut. Raises ConfigurationError."""
    usual = PipelineOptions([]).view_as(EventOptions)
    if not given.slot:
        for name in ("time_column", "time_zone", "time_unit", "origin", "start", "end"):
            if getattr(given, name) != getattr(usual, name):
                raise ConfigurationError(
                    f"--{name}={getattr(given, name)} is about slots of time: give --slot as well"
                )
        if given.window != 1 or given.statistic.startswith("running") or _ends(given) is False:
            raise ConfigurationError(
                "--slot is missing: sliding windows, running totals and inputs without end go by "
                "time"
            )
        return {}
    if not given.time_column:
        raise ConfigurationError(f"--time_column is missing: --slot={given.slot} is a cut of it")
    slots, first, last = range_of(given)
    if _ends(given) and None in (first, last):
        raise ConfigurationError(
            "--start and --end are missing: which slots there are is public, so it must not come "
            "from the records"
        )
    return {
        "time": given.time_column,
        "time_zone": "UTC" if given.time_zone is None else given.time_zone,
        "time_unit": given.time_unit,
        "slots": slots,
        "first_slot": first,
        "last_slot": last,
    }


def _ends(given: Any) -> bool | None:
    """Whether the input has an end; None where only the transform will see."""
    return None if given.input is None else not is_stream(given.input)


def _keys(given: Any) -> dict[str, Any]:
    """Arguments that say which keys there are. Raises ConfigurationError."""
    if bool(given.key_column) != bool(given.keys):
        lacking, other = ("key_column", "keys") if given.keys else ("keys", "key_column")
        raise ConfigurationError(
            f"--{lacking} is missing: --{other}={getattr(given, other)} needs it; keys are public, "
            "so they must not come from the records"
        )
    if not given.keys:
        return {}
    try:
        found = read_domain(given.keys)
    except ConfigurationError as error:
        raise ConfigurationError(f"--keys={given.keys}: {error}") from None
    if not isinstance(found, Categories):
        raise ConfigurationError(f"--keys={given.keys}: give a list A,B,C or a file of keys")
    return {"key": given.key_column, "keys": found.values}


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    print(job_of(options).run(options))
    return 0

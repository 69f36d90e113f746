"""`streamveil per-record`: records in, statistics out that protect each by its own budget."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import (
    CsvDialect,
    check_events,
    check_outputs,
    check_sinks,
    is_endless,
    is_stream,
    per_record_sink_of,
    read_domain,
    source_of,
)
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.budgets import budget_of, lookup_of
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.statement import Statement
from streamveil.pipelines.dry_run import preview_per_record
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.foreign import (
    NOT_PER_RECORD,
    NOT_PER_RECORD_RELEASE,
    PER_RECORD_SAYING,
)
from streamveil.pipelines.jobs import (
    HANDED_OVER,
    EventOptions,
    JobOptions,
    check_card_apart,
    given_by,
    in_time,
    refuse_options,
    run_with_card,
    telling_of_tables,
)
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.logs import tell
from streamveil.pipelines.options import (
    COUNT,
    RUNNING_COUNT,
    TABLE,
    add_per_record_options,
)
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.release import ReleaseOptions
from streamveil.pipelines.statistics import WITHOUT_VALUE, WITHOUT_WINDOW, check_statistic
from streamveil.pipelines.values import check_required, dialect_of, range_of
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

STATISTICS: Mapping[str, Callable[..., beam.PTransform]] = {
    COUNT: PerRecordCount,
    "sum": PerRecordSum,
    "max": PerRecordMax,
    "distinct": PerRecordDistinctCount,
    RUNNING_COUNT: PerRecordRunningTotal,
    "running-sum": PerRecordRunningTotal,
}
_REFUSED: dict[type[PipelineOptions], Mapping[str, str]] = {
    JobOptions: NOT_PER_RECORD,
    ReleaseOptions: NOT_PER_RECORD_RELEASE,
}


class PerRecordOptions(PipelineOptions):
    """What only this command can, beside `EventOptions`."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_per_record_options(parser)


@dataclass(frozen=True)
class PerRecordJob:
    """What to read, what to compute of it, where to write."""

    input: str
    output: str
    columns: tuple[str, ...]
    transform: beam.PTransform
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    card_place: str | None = None
    """Where the user wants the card."""

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        self._source()
        sink = per_record_sink_of(self.output)
        if not is_endless(self.input):
            check_outputs(self._files)
            check_events(self.input, self.columns, silent=True, dialect=self.dialect)
        elif self._files:
            raise ConfigurationError(
                f"--output={self.output}: a file is written when the input has ended, and --input="
                f"{self.input} does not end: write to a stream"
            )
        check_card_apart(self.card.path, self._files)
        self.card.check()
        refuse_in_input([self.input], [self.output, self.card.path])
        check_sinks([sink])

    @property
    def _files(self) -> list[str]:
        return [] if is_stream(self.output) else [self.output]

    @property
    def card(self) -> Statement:
        """What is promised, and where the card of it goes."""
        return Statement(
            "per-record",
            self.transform,
            self.output,
            {"releases": self.output},
            is_endless(self.input),
            self.card_place,
            card_beside(self.output),
        )

    def _source(self) -> beam.PTransform:
        return source_of(self.input, self.columns, silent=True, dialect=self.dialect)

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sink."""
        events = pipeline | "ReadEvents" >> self._source()
        rows = events.batches | type(self.transform).__name__ >> self.transform
        if self._files:
            number = [self.transform.number_of_rows]
            rows = (rows, pipeline | "Number" >> beam.Create(number, reshuffle=False))
        _ = rows | "WriteRows" >> per_record_sink_of(self.output)

    def run(self, options: PipelineOptions) -> str:
        """Run to the end; what to tell the operator."""
        title = "streamveil per-record"
        with telling_of_tables(self.output):
            summary = run_with_card(self.build, options, title, self._files, self.card)
        if summary.handed_over:
            return HANDED_OVER
        written = [f"wrote {path}" for path in (self.output, self.card.path) if path]
        return "\n".join([summary_of(self.transform), *written])


def job_of(options: PipelineOptions) -> PerRecordJob:
    """Read and check all options; nothing is run yet. Raises ConfigurationError."""
    refuse_options(options, _REFUSED, PER_RECORD_SAYING)
    given = given_by(options, EventOptions, PerRecordOptions)
    check_required("per-record", given, ("input", "output"))
    transform = transform_of(given)
    columns, dialect = columns_of(given), dialect_of(given)
    job = PerRecordJob(given.input, given.output, columns, transform, dialect, given.card)
    job.check()
    return in_time(job, options)


def summary_of(made: Any) -> str:
    """What a transform releases: public, whatever the records are."""
    slots = "one window of all times"
    keys = number_of(len(made.keys), "key") if made.keys else ""
    if made.slots is not None and None not in (made.first_slot, made.last_slot):
        number = made.last_slot - made.first_slot + 2 - getattr(made, "sliding", 1)
        slots = number_of(number, "window")
    elif made.slots is not None:
        slots = "a window with every slot"
    shared = made.max_records_per_user
    share = "" if shared == 1 else f", divided by {shared} records of one person"
    return (
        f"released: {' for each of '.join(filter(None, (slots, keys)))}\n"
        f"budget:   each record paid its own at most, once{share}"
    )


def columns_of(given: Any) -> tuple[str, ...]:
    """The columns that are read, each once."""
    columns = (given.value_column, given.budget_column, given.key_column, given.time_column)
    return tuple(dict.fromkeys(column for column in columns if column))


def transform_of(given: Any) -> beam.PTransform:
    """The transform that these options ask for, whatever is read and written.

    Raises ConfigurationError.
    """
    check_statistic(given)
    kind = given.statistic
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
    if kind not in WITHOUT_VALUE:
        arguments |= {"value": given.value_column, "value_max": given.value_max}
    if kind not in WITHOUT_WINDOW:
        arguments["sliding"] = given.window
    return STATISTICS[kind](_budget_of(given), **arguments)


def _budget_of(given: Any) -> Budget:
    if given.budget.startswith(TABLE):
        path = given.budget.removeprefix(TABLE)
        lookup = lookup_of(path, given.epsilon_min, given.epsilon_max)
        return CategoryBudget(given.budget_column, lookup)
    column = given.budget_column or given.value_column
    return ValueBudget(column, budget_of(given.budget, given.value_max, given.epsilon_max))


def _times(given: Any) -> dict[str, Any]:
    """Arguments that say how time is cut."""
    if not given.slot:
        return {}
    slots, first, last = range_of(given)
    return {
        "time": given.time_column,
        "time_zone": "UTC" if given.time_zone is None else given.time_zone,
        "time_unit": given.time_unit,
        "time_format": given.time_format,
        "slots": slots,
        "first_slot": first,
        "last_slot": last,
    }


def _keys(given: Any) -> dict[str, Any]:
    """Arguments that say which keys there are. Raises ConfigurationError."""
    if not given.keys:
        return {}
    try:
        found = read_domain(given.keys, given.key_column)
    except ConfigurationError as error:
        raise ConfigurationError(f"--keys={given.keys}: {error}") from None
    if not isinstance(found, Categories):
        raise ConfigurationError(f"--keys={given.keys}: give a list A,B,C or a file of keys")
    return {"key": given.key_column, "keys": found.values}


def main(options: PipelineOptions, dry: str = "false") -> int:
    """Run the command, or if `dry` only tell what it would do; returns the exit code."""
    job = job_of(options)
    if is_true("dry_run", dry):
        card = job.card.plan
        preview_per_record(job.input, job.columns, job.transform, job.output, job.dialect, card)
    else:
        tell(job.run(options))
    return 0

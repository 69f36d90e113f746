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
    source_of,
)
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.statement import Statement
from streamveil.pipelines.dry_run import preview_per_record
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.foreign import NOT_PER_RECORD, NOT_PER_RECORD_RELEASE, PER_RECORD_SAYING
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
from streamveil.pipelines.logs import tell
from streamveil.pipelines.options import COUNT, RUNNING_COUNT, add_per_record_options
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.plan_texts import about_records
from streamveil.pipelines.plans import columns_of, records_plan_of
from streamveil.pipelines.release import ReleaseOptions
from streamveil.pipelines.values import check_required, dialect_of
from streamveil.transforms.per_record import (
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
)
from streamveil.transforms.per_record.statistics import PerRecord

STATISTICS: Mapping[str, Callable[..., PerRecord]] = {
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
        return "\n".join([about_records(self.transform), *written])


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


def transform_of(given: Any) -> PerRecord:
    """The transform that these options ask for. Raises ConfigurationError."""
    return records_plan_of(given, STATISTICS, allowed_lateness=given.allowed_lateness)


def main(options: PipelineOptions, dry: str = "false") -> int:
    """Run the command, or if `dry` only tell what it would do; returns the exit code."""
    job = job_of(options)
    if is_true("dry_run", dry):
        card = job.card.plan
        preview_per_record(job.input, job.columns, job.transform, job.output, job.dialect, card)
    else:
        tell(job.run(options))
    return 0

"""`streamveil per-record`: records in, statistics out that protect each by its own budget."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamveil.io import (
    CsvDialect,
    check_events,
    check_outputs,
    is_endless,
    is_stream,
)
from streamveil.io.events import file_outputs
from streamveil.io.per_record import PER_RECORD_FORM
from streamveil.io.result_files import ResultFile
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.statement import Statement
from streamveil.pipelines.dry_run import preview_per_record
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.jobs import (
    HANDED_OVER,
    Written,
    check_card_apart,
    check_streams,
    in_time,
    kind_of,
    run_with_card,
    telling_of_tables,
    written_here,
)
from streamveil.pipelines.local_run import run_here
from streamveil.pipelines.logs import tell
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.plan_texts import about_records
from streamveil.pipelines.progress import progress
from streamveil.pipelines.record_plans import RECORD_PLANS, columns_of, records_plan_of
from streamveil.pipelines.summary import Summary
from streamveil.pipelines.values import check_required, dialect_of

if TYPE_CHECKING:
    import apache_beam as beam


@dataclass(frozen=True)
class PerRecordJob:
    """What to read, what to compute of it, where to write."""

    input: str
    output: str
    columns: tuple[str, ...]
    plan: Any
    """A `RecordsPlan`, or on a runner the transform that is one."""
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    card_place: str | None = None
    """Where the user wants the card."""

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        sink = self.written.check()
        if not is_endless(self.input):
            check_outputs(self._files)
            check_events(self.input, self.columns, silent=True, dialect=self.dialect)
        else:
            self._check_source()
        if is_endless(self.input) and self._files:
            raise ConfigurationError(
                f"--output={self.output}: a file is written when the input has ended, and --input="
                f"{self.input} does not end: write to a stream"
            )
        check_card_apart(self.card.path, self._files)
        self.card.check()
        refuse_in_input([self.input], [self.output, self.card.path])
        check_streams([sink])

    def _check_source(self) -> None:
        from streamveil.io import source_of  # Beam comes with it

        source_of(self.input, self.columns, silent=True, dialect=self.dialect)

    @property
    def _files(self) -> list[str]:
        return [] if is_stream(self.output) else [self.output]

    @property
    def card(self) -> Statement:
        """What is promised, and where the card of it goes."""
        return Statement(
            "per-record",
            self.plan,
            self.output,
            {"releases": self.output},
            is_endless(self.input),
            self.card_place,
            card_beside(self.output),
        )

    @property
    def written(self) -> Written:
        """The rows that are released, and where they go."""
        return Written(
            "WriteRows",
            self.output,
            partial(ResultFile, self.output, PER_RECORD_FORM),
            self._sink,
        )

    def _sink(self) -> beam.PTransform:
        from streamveil.io import per_record_sink_of

        return per_record_sink_of(self.output)

    def run(self, execution: Execution) -> str:
        """Run to the end; what to tell the operator."""
        run = self._run_here if execution.here else self._run_on_runner
        with telling_of_tables(self.output):
            summary = run_with_card(
                partial(run, execution, "streamveil per-record"), self._files, self.card
            )
        if summary.handed_over:
            return HANDED_OVER
        written = [f"wrote {path}" for path in (self.output, self.card.path) if path]
        return "\n".join([about_records(self.plan), *written])

    def _run_on_runner(self, execution: Execution, title: str) -> Summary:
        from streamveil.pipelines.graphs import build_per_record
        from streamveil.pipelines.launch import run

        return run(partial(build_per_record, self), execution.options, title)

    def _run_here(self, execution: Execution, title: str) -> Summary:
        records = file_outputs(self.input, self.columns, silent=True, dialect=self.dialect)
        files, streams = written_here({None: self.written}, execution, title)
        with progress(title):
            return run_here(self.plan, [records], files, streams)


def job_of(given: Namespace, execution: Execution) -> PerRecordJob:
    """Read and check all options; nothing is run yet. Raises ConfigurationError."""
    check_required("per-record", given, ("input", "output"))
    lateness = given.allowed_lateness
    kinds = {
        name: kind_of(kind, execution, allowed_lateness=lateness)
        for name, kind in RECORD_PLANS.items()
    }
    plan = records_plan_of(given, kinds)
    columns, dialect = columns_of(given), dialect_of(given)
    job = PerRecordJob(given.input, given.output, columns, plan, dialect, given.card)
    job.check()
    return in_time(job, execution)


def main(given: Namespace, execution: Execution) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    job = job_of(given, execution)
    if is_true("dry_run", given.dry_run):
        card = job.card.plan
        preview_per_record(job.input, job.columns, job.plan, job.output, job.dialect, card)
    else:
        tell(job.run(execution))
    return 0

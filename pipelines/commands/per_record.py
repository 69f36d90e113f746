"""`streamveil per-record`: records in, statistics out that protect each by its own budget."""

from __future__ import annotations

from argparse import Namespace

from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.jobs.dry_run import preview_per_record
from streamveil.pipelines.jobs.record_job import PerRecordJob
from streamveil.pipelines.jobs.run import in_time, run_records
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.parsers import check_required, dialect_of
from streamveil.pipelines.plans.record_plans import RECORD_PLANS, columns_of, records_plan_of
from streamveil.pipelines.plans.user_plans import kind_of


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
    if given.dry_run:
        card = job.card.plan
        preview_per_record(job.input, job.columns, job.plan, job.output, job.dialect, card)
    else:
        tell(run_records(job, execution))
    return 0

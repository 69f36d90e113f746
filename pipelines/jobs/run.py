"""How jobs are run: here, in this process, or on a runner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamveil.engine.count.loss_limit import tally_in
from streamveil.engine.messages import REJECTED
from streamveil.io import change_columns, is_endless, is_stream
from streamveil.io.events import REJECTED_FORM, file_outputs
from streamveil.io.files import is_there
from streamveil.io.result_files import Files, ResultFile
from streamveil.mechanisms.core.records import InputLost, MachineFault
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.run_card import Statement
from streamveil.pipelines.console.errors import reason_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.jobs.endless import never_ends
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.jobs.released_keys import with_released_keys
from streamveil.pipelines.jobs.run_with_card import (
    run_with_card,
    telling_of_tables,
    telling_what_is_whole,
)
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.outputs.outputs import Written
from streamveil.pipelines.reports.plan_texts import about_discovered, about_records
from streamveil.pipelines.reports.summary import Summary, write_summary
from streamveil.pipelines.runners.local_run import Source, count_letters, run_here

if TYPE_CHECKING:
    from streamveil.pipelines.jobs.record_job import PerRecordJob
    from streamveil.pipelines.runners.publishing import Published

HANDED_OVER = "handed over: the job runs when it is submitted to Dataflow"

J = TypeVar("J", bound=Any)


def run_and_tell(job: Job[Any], execution: Execution, title: str) -> None:
    """Run the job of a command and tell the operator what came of it."""
    try:
        job, summary = run_job(job, execution, title)
    except InputLost as error:
        lost = replace(Summary.of_tally(tally_in(str(error))), test_mode=job.plan.test_mode)
        write_summary(job.summary, lost.figures())
        letters = job.rejected and is_there(job.rejected)
        message = (
            f"{error}. Dead letters: {job.rejected}; before the next run, move or delete this "
            f"file, or give {opt.rejected} another name"
        )
        raise InputLost(message if letters else error) from error
    if summary.handed_over:
        tell(HANDED_OVER)
        return
    summary = summary.for_plan(job.plan)
    written = write_summary(job.summary, summary.figures())
    tell(summary.text(dead_letters=job.rejected))
    for path in (*job.written, *([job.summary] if written else [])):
        tell(f"wrote {path}")
    for text, level in about_discovered(job.plan):  # only when there are results
        tell(text, level)


def run_job(job: J, execution: Execution, title: str) -> tuple[J, Summary]:
    """Run the job to its end, and write the card of it, and the page.

    Returns the job with the keys that a runner discovered, and a summary.

    Raises as :func:`run_with_card` and :func:`telling_of_tables`.
    """
    run = _run_here if execution.here else _run_on_runner
    ended: Any = job

    def card_at_end() -> Statement:
        nonlocal ended
        ended = with_released_keys(job)
        return ended.card

    with telling_of_tables(job.output, job.revisions, job.ledger):
        whole = partial(run, job, execution, title)
        summary = run_with_card(whole, job.files, job.card, card_at_end)
    job = ended
    if job.page and not summary.handed_over:
        from streamveil.pipelines.reports.page import write_page

        with telling_what_is_whole(job.page, job.files):
            write_page(job.page, job.outputs.report(job.tables(), summary))
    return job, summary


def _run_on_runner(job: Job[Any], execution: Execution, title: str) -> Summary:
    from streamveil.pipelines.jobs import graphs
    from streamveil.pipelines.runners.launch import run

    return run(partial(graphs.build, job), execution.options, title)


def _run_here(job: Job[Any], execution: Execution, title: str) -> Summary:
    files, streams = _written_here(job.results, execution, title)
    letters = None
    if job.rejected:
        letters = ResultFile(job.rejected, REJECTED_FORM, private=True)
        files[REJECTED] = letters
    try:
        with progress(title):
            return run_here(job.plan, _sources(job), files, streams)
    except InputLost:
        if letters is not None:
            _write_letters(letters)
        raise


def events_of(job: Job[Any]) -> Source:
    """What reads the events of a job."""
    return file_outputs(job.input, job.plan.columns.names, dialect=job.dialect)


def _sources(job: Job[Any]) -> list[Source]:
    """What is read: events, and perhaps changes of requirements."""
    sources = [events_of(job)]
    if job.requirement_changes:
        names = change_columns(job.requirement_changes)
        sources.append(file_outputs(job.requirement_changes, names))
    return [count_letters(source) for source in sources]


def _write_letters(letters: ResultFile) -> None:
    """Write the dead letters of an input that is lost, if there are any. That it fails is said."""
    if letters.empty:
        return
    try:
        with ExitStack() as block:
            letters.write(block)
    except (OSError, MachineFault) as error:
        tell(f"warning: the dead letters are not written: {reason_of(error)}", logging.WARNING)


def run_records(job: PerRecordJob, execution: Execution) -> str:
    """Run statistics of records to their end; gives what to tell the operator.

    Raises as :func:`run_with_card` and :func:`telling_of_tables`.
    """
    run = _run_records_here if execution.here else _run_records_on_runner
    with telling_of_tables(job.output):
        summary = run_with_card(
            partial(run, job, execution, "streamveil per-record"), job.files, job.card
        )
    if summary.handed_over:
        return HANDED_OVER
    written = [f"wrote {path}" for path in (job.output, job.card.path) if path]
    return "\n".join([about_records(job.plan), *written])


def _run_records_on_runner(job: PerRecordJob, execution: Execution, title: str) -> Summary:
    from streamveil.pipelines.jobs.graphs import build_per_record
    from streamveil.pipelines.runners.launch import run

    return run(partial(build_per_record, job), execution.options, title)


def _run_records_here(job: PerRecordJob, execution: Execution, title: str) -> Summary:
    records = file_outputs(job.input, job.columns, silent=True, dialect=job.dialect)
    files, streams = _written_here({None: job.written}, execution, title)
    with progress(title):
        return run_here(job.plan, [records], files, streams)


def _written_here(
    results: Mapping[str | None, Written], execution: Execution, title: str
) -> tuple[dict[str | None, Files], dict[str | None, Published]]:
    """What takes results in this process, by tag: files, and streams."""
    files = {tag: one.file() for tag, one in results.items() if not is_stream(one.place)}
    to_streams = {tag: one for tag, one in results.items() if is_stream(one.place)}
    if not to_streams:
        return files, {}
    from streamveil.pipelines.runners.publishing import Published  # Beam comes with it

    return files, {
        tag: Published(one.sink(), one.place, execution, title) for tag, one in to_streams.items()
    }


def in_time(job: J, execution: Execution) -> J:
    """The job as it runs: where its input does not end, it streams, and slots settle.

    Raises ConfigurationError where nothing would stream, or might release a slot twice.
    """
    if not is_endless(job.input) or getattr(job, "in_passes", False):
        return job
    if execution.here:
        raise never_ends(job)
    from streamveil.pipelines.jobs.graphs import streaming

    return streaming(job, execution.options)

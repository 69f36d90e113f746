"""`streamveil demo`: a year of real flights released privately, and a page that shows it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq

from streamveil.engine.count.unprotected import exact_counts
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.io import read_ledger, read_releases, read_requirements, read_revisions
from streamveil.mechanisms.adaptive.cycle import AUTO
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import ConfigurationError, Slots, parse_time
from streamveil.mechanisms.registry import DEFAULT, can_revise, check_revise, with_options
from streamveil.pipelines import demo_questions
from streamveil.pipelines.answers_page import context
from streamveil.pipelines.answers_report import AnswersReport
from streamveil.pipelines.demo_questions import DELAYS, FLIGHTS, LATE
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.flights import (
    CONTRIBUTIONS,
    DESTINATIONS,
    TIME,
    USER,
    VALUE,
    YEAR,
    airport_names,
    write_demo_input,
)
from streamveil.pipelines.jobs import kind_of
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.options import DEMO_LAG
from streamveil.pipelines.page import write_page, write_picture
from streamveil.pipelines.release import ReleaseJob
from streamveil.pipelines.report import Report
from streamveil.pipelines.summary import Summary
from streamveil.pipelines.sums import all_sums, longest

# Of hours: nights are quiet.
CYCLIC = with_options(DEFAULT, {"cycle": AUTO})
_OUTPUTS = (
    *("releases.parquet", "revisions.parquet", "ledger.parquet"),
    *("rejected.jsonl", "index.html", "answers-ledger.parquet"),
    *("releases.parquet.card.json", "answers/card.json"),
    *(f"answers/{name}.parquet" for name in (FLIGHTS, DELAYS, LATE)),
)


def main(given: argparse.Namespace, execution: Execution) -> int:
    """Run the command, here or on a runner; returns the exit code."""
    hourly = is_true("hourly", given.hourly)
    mechanism = given.mechanism or (CYCLIC if hourly else DEFAULT)
    lag = _lag(mechanism, given.revise)
    folder = Path(given.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--output={folder} cannot be made a folder: {error}") from None
    for name in _OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    events, requirements = write_demo_input(folder, hourly)
    slots = Slots.of("1h" if hourly else "1d")
    kind = kind_of(HistogramPlan, execution)
    job = ReleaseJob(
        input=str(events),
        output=str(folder / "releases.parquet"),
        plan=kind(
            registry=read_requirements(str(requirements)),
            domain=Categories(DESTINATIONS),
            slots=slots,
            columns=Columns(USER, (VALUE,), TIME),
            mechanism=mechanism,
            max_contributions=CONTRIBUTIONS["hour" if hourly else "day"],
            noise_key=noise_key(None),
            first_slot=slots.index(parse_time(YEAR[0])),
            last_slot=slots.index(parse_time(YEAR[1])),
            revise=lag,
        ),
        ledger=str(folder / "ledger.parquet"),
        rejected=str(folder / "rejected.jsonl"),
        revisions=str(folder / "revisions.parquet") if lag else None,
    )
    job.check()
    summary = job.run(execution, "streamveil demo")
    report = _report(job, summary, hourly)
    asked = None if hourly else demo_questions.answer(folder, events, requirements, execution)
    more = context(asked, demo_questions.wordings(), charts=2) if asked else None
    write_page(report, str(folder / "index.html"), more)
    if given.picture:
        write_picture(report, given.picture)
    print(summary.text(dead_letters=job.rejected))
    print(
        f"error:    {report.relative_error:.1%} of all flights (L1), "
        f"{report.mean_error:.2f} per airport and {report.slot_name}: "
        f"{report.uncounted_error:.2f} by flights that do not count, "
        f"{report.noise_error:.2f} by noise"
    )
    if span := longest(report):
        each, together = (rows[-1] for rows in all_sums(report)[-2:])
        print(
            f"sums:     {each.share:.1%} of the flights to an airport in a {span[0]}, "
            f"{together.share:.1%} of all of them"
        )
    if lag:
        print(
            f"revised:  {report.revised_relative_error:.1%} of all flights (L1), "
            f"{number_of(lag, report.slot_name)} later"
        )
    if asked:
        _tell(asked)
    print(f"look at   {folder / 'index.html'}")
    return 0


def _tell(asked: AnswersReport) -> None:
    words = demo_questions.wordings()
    for name, told in asked.figures.items():
        errors = ", ".join(
            f"{output} {error:.3g}" for output, error in zip(told.outputs, told.error, strict=True)
        )
        print(
            f"question: {name}, from {asked.shares[name]:.0%} of the budget: typical error "
            f"{errors} {words[name].unit}, {told.covered:.0%} of the intervals of 90% hold what "
            "is true"
        )


def _lag(mechanism: str, asked: int | None) -> int:
    """How many slots later slots are revised; 0 for never. Raises ConfigurationError."""
    if asked is None:
        return DEMO_LAG if can_revise(mechanism) else 0
    check_revise(mechanism, whole("revise", asked))
    return asked


def _report(job: ReleaseJob, summary: Summary, hourly: bool) -> Report:
    releases = read_releases(job.output)
    flights = pq.read_table(job.input)
    counted, events = exact_counts(
        job.plan, flights.to_batches(), [release.slot for release in releases]
    )
    facts = dict(line.split(":", 1) for line in summary.text(job.rejected).splitlines())
    return Report(
        title="Where New York's aircraft flew in 2013, without following any of them",
        subject="Flights leaving New York, by destination",
        labels=DESTINATIONS,
        label_names=airport_names(),
        slots=job.plan.slots,
        slot_name="hour" if hourly else "day",
        user_name="aircraft",
        releases=releases,
        ledger=read_ledger(job.ledger or ""),
        true_counts=events,
        counted=counted,
        facts={name.strip(): text.strip() for name, text in facts.items()},
        bin_name="airport",
        event_name="flight",
        revisions=read_revisions(job.revisions) if job.revisions else (),
        repeat="streamveil demo" + (" --hourly" if hourly else ""),
    )

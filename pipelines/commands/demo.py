"""`streamveil demo`: a year of real flights released privately, and a page that shows it.

One run releases a count by airport. Of slots of a day another one answers three queries from one
budget.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from streamveil.engine.count.unprotected import exact_counts
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.engine.stream.unprotected_queries import exact_answers
from streamveil.io import read_releases, read_requirements
from streamveil.io.tidy import ROWS
from streamveil.mechanisms.adaptive.cycle import AUTO
from streamveil.mechanisms.core.domains import Categories, WithOther
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    COUNT,
    MICROSECONDS,
    MONDAY,
    ConfigurationError,
    Slots,
    parse_time,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Mean, Quantiles
from streamveil.mechanisms.registry import DEFAULT, can_revise, check_revise, with_options
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.jobs.run import run_job
from streamveil.pipelines.options.declarations import DEMO_LAG
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.noise_keys import noise_key
from streamveil.pipelines.plans.user_plans import kind_of
from streamveil.pipelines.reports.labels import Wording, slot_name
from streamveil.pipelines.reports.page import write_page, write_picture
from streamveil.pipelines.reports.report import Report
from streamveil.pipelines.reports.summary import Summary
from streamveil.pipelines.sample_data.flights import (
    CARRIER,
    CONTRIBUTIONS,
    DELAY,
    DESTINATIONS,
    TIME,
    USER,
    VALUE,
    YEAR,
    airline_names,
    airport_names,
    write_demo_input,
)

# Of hours: nights are quiet.
CYCLIC = with_options(DEFAULT, {"cycle": AUTO})
FLIGHTS, DELAYS, LATE = "flights", "delay", "late"
# Whole weeks, from Monday to Sunday.
WEEKS = ("2012-12-31", "2013-12-30")
# The others fly from New York a few times a day.
CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ")
QUANTILES = (0.5, 0.9)
_OTHERS = "others"
# Flights of an aircraft that are kept in a week: 18 % of them are beyond four.
_IN_A_WEEK = 4
# Delays are whole minutes: between edges halfway each stands for itself.
_EDGES = (-29.5, -9.5, -4.5, 0.5, 10.5, 30.5, 60.5, 120.5, 240.5)
_EARLIEST, _LATEST = -20, 120
_TITLE = "New York's flights in 2013, with no aircraft followed"
_HOURLY = "All flights that left New York, by airport and hour."
_DAILY = (
    "Delays and destinations of all flights that left New York, released together under one "
    "privacy budget. At the end, the destinations are released once more with a budget of their "
    "own."
)
_OUTPUTS = (
    *("releases.parquet", "revisions.parquet", "ledger.parquet"),
    *("rejected.jsonl", "index.html", "answers-ledger.parquet"),
    *("releases.parquet.card.json", "answers/card.json"),
    *(f"answers/{name}.parquet" for name in (FLIGHTS, DELAYS, LATE)),
)


def main(given: argparse.Namespace, execution: Execution) -> int:
    """Run the command, here or on a runner; returns the exit code."""
    hourly = given.hourly
    mechanism = given.mechanism or (CYCLIC if hourly else DEFAULT)
    lag = _lag(mechanism, given.revise)
    folder = Path(given.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{opt.output}={folder} cannot be made a folder: {error}"
        ) from None
    for name in _OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    events, requirements = write_demo_input(folder, hourly)
    slots = Slots.of("1h" if hourly else "1d")
    job = Job(
        input=str(events),
        output=str(folder / "releases.parquet"),
        plan=kind_of(HistogramPlan, execution)(
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
        layout=ROWS,  # the page shows what tidy rows do not tell
        revisions=str(folder / "revisions.parquet") if lag else None,
    )
    job.check()
    _, summary = run_job(job, execution, "streamveil demo")
    count = _count_report(job, summary, hourly)
    queries = [] if hourly else [_query_report(folder, events, requirements, execution)]
    first, *others = [*queries, count]
    about = _HOURLY if hourly else _DAILY
    repeat = "streamveil demo" + (f" {opt.hourly}" if hourly else "")
    first = replace(first, title=_TITLE, about=about, repeat=repeat)
    write_page(str(folder / "index.html"), first, *others)
    if given.picture:
        write_picture(count, next(iter(count.query_set)), given.picture)
    print(summary.text(dead_letters=job.rejected))
    _print_accuracy(count)
    for report in queries:
        _print_queries(report)
    print(f"look at   {folder / 'index.html'}")
    return 0


def _print_accuracy(report: Report) -> None:
    flights = report.figures[COUNT]
    known, slot = flights.accuracy, slot_name(flights.slots)
    assert known is not None
    print(
        f"error:    {known.relative_error:.1%} of all flights (L1), "
        f"{np.abs(known.released - known.true).mean():.2f} per airport and {slot}: "
        f"{np.abs(known.kept - known.true).mean():.2f} from dropped flights alone, "
        f"{np.abs(known.released - known.kept).mean():.2f} from noise alone"
    )
    if span := known.longest:
        each, together = (rows[-1] for rows in known.sums("airport")[-2:])
        print(
            f"sums:     error of {each.share:.1%} of the flights to an airport in a {span[0]}, "
            f"and of {together.share:.1%} of all flights in a {span[0]}"
        )
    if flights.lag:
        print(
            f"revised:  {known.revised_relative_error:.1%} of all flights (L1), "
            f"{number_of(flights.lag, slot)} later"
        )


def _print_queries(report: Report) -> None:
    for name, figures in report.figures.items():
        errors = ", ".join(
            f"{output} {error:.3g}"
            for output, error in zip(figures.outputs, figures.error, strict=True)
        )
        print(
            f"query: {name}, from {report.shares[name]:.0%} of the budget: typical error "
            f"{errors} {report.words[name].unit}, {figures.covered:.0%} of the 90% intervals "
            "contain the true value"
        )


def _lag(mechanism: str, asked: int | None) -> int:
    """How many slots later slots are revised; 0 for never. Raises ConfigurationError."""
    if asked is None:
        return DEMO_LAG if can_revise(mechanism) else 0
    check_revise(mechanism, whole("revise", asked))
    return asked


def _count_report(job: Job[HistogramPlan], summary: Summary, hourly: bool) -> Report:
    """The count as a query set of one, with the true counts."""
    plan, releases = job.plan, read_releases(job.output)
    report = job.outputs.report(job.tables(), summary)
    flights = pq.read_table(job.input)
    kept, true = exact_counts(plan, flights.to_batches(), [one.slot for one in releases])
    figures = replace(
        report.figures[COUNT],
        true=true[..., None].astype(np.float64),
        kept=kept[..., None].astype(np.float64),
        believed=float(np.mean([one.diagnostics.get("believed", 1.0) for one in releases])),
        alarms=sum(one.alarm for one in releases),
    )
    most = f"{plan.max_contributions} of an aircraft in {'an hour' if hourly else 'a day'}"
    words = Wording(
        "Flights leaving New York, by destination",
        "How many flights leave for each airport.",
        "flights",
        airport_names(),
        "airport",
        f"beyond {most}, or without a tail number",
    )
    return replace(
        report,
        figures={COUNT: figures},
        words={COUNT: words},
        title="One query from a whole budget",
        about="The same flights, counted by airport and day from all of the budget.",
        user="aircraft",
    )


def _query_set() -> QuerySet:
    """Quantiles of weeks, counts and means of days."""
    # Flights that were cancelled have no delay.
    left = Condition(DELAY, low=-1000)
    return QuerySet(
        Slots(MICROSECONDS["d"], MONDAY),
        (
            Query(
                LATE,
                slots=7,
                statistic=Quantiles(DELAY, _EDGES, QUANTILES),
                where=(left,),
                max_contributions=_IN_A_WEEK,
                share=0.4,
            ),
            Query(
                DELAYS,
                value=(CARRIER,),
                domain=WithOther(Categories(CARRIERS), _OTHERS),
                statistic=Mean(DELAY, _EARLIEST, _LATEST),
                where=(left,),
                max_contributions=CONTRIBUTIONS["day"],
                share=0.25,
            ),
            Query(
                FLIGHTS,
                value=(VALUE,),
                domain=Categories(DESTINATIONS),
                max_contributions=CONTRIBUTIONS["day"],
                share=0.35,
            ),
        ),
    )


def _wordings() -> dict[str, Wording]:
    """The queries as people would ask them."""
    return {
        FLIGHTS: Wording(
            "How many flights go to each airport, day by day?",
            "This query has about a third of the budget. The true figures are of all flights, the "
            "released ones of those that the contribution bound keeps.",
            "flights",
            airport_names(),
            "airport",
        ),
        DELAYS: Wording(
            "How late does each airline leave, day by day?",
            "The mean delay at departure, of all flights that left. Delays are clamped to between "
            f"{-_EARLIEST} minutes early and {_LATEST} minutes late, so that no single flight can "
            "change a mean by much; the intervals allow for the clamped delays.",
            "minutes",
            airline_names(),
            "airline",
        ),
        LATE: Wording(
            "How late are most flights, week by week?",
            "Half of the flights of a week leave with less delay than p50, and nine in ten with "
            "less delay than p90.",
            "minutes",
        ),
    }


def _query_report(folder: Path, events: Path, requirements: Path, execution: Execution) -> Report:
    """Answer the queries into files of the folder; gives the results and the true values."""
    asked = _query_set()
    first, end = (asked.base.index(parse_time(day)) for day in WEEKS)
    job = Job(
        input=str(events),
        output=str(folder / "answers"),
        plan=kind_of(QueryPlan, execution)(
            asked,
            read_requirements(str(requirements)),
            columns_for(asked, USER, TIME),
            noise_key=noise_key(None),
            first_slot=first,
            last_slot=end - 1,
        ),
        ledger=str(folder / "answers-ledger.parquet"),
    )
    job.check()
    _, summary = run_job(job, execution, "streamveil demo, queries")
    report = job.outputs.report(job.tables(), summary)
    _, exact = exact_answers(job.plan, pq.read_table(events).to_batches())
    results = zip(report.figures.items(), exact, strict=True)
    return replace(
        report,
        figures={name: replace(figures, true=known.figures) for (name, figures), known in results},
        words=_wordings(),
        user="aircraft",
    )

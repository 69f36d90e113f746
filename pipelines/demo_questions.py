"""The demo's three questions about one year of flights, answered from one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.io import read_requirements
from streamveil.mechanisms.core.domains import Categories, WithOther
from streamveil.mechanisms.core.records import MICROSECONDS, MONDAY, Slots, parse_time
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.statistics import Mean, Quantiles
from streamveil.pipelines.answers_report import AnswersReport, Floats
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flights import (
    CARRIER,
    CONTRIBUTIONS,
    DELAY,
    DESTINATIONS,
    TIME,
    USER,
    VALUE,
    airline_names,
    airport_names,
)
from streamveil.pipelines.jobs import kind_of
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.questions import QuestionsJob
from streamveil.pipelines.wording import Wording

FLIGHTS, DELAYS, LATE = "flights", "delay", "late"
# Whole weeks, from Monday to Sunday.
WEEKS = ("2012-12-31", "2013-12-30")
# The others fly from New York a few times a day.
CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ")
QUANTILES = (0.5, 0.9)
_OTHERS = "others"
# Flights of an aircraft that count in a week: 18 % of them are beyond four.
_IN_A_WEEK = 4
# Delays are whole minutes: between edges halfway each stands for itself.
_EDGES = (-29.5, -9.5, -4.5, 0.5, 10.5, 30.5, 60.5, 120.5, 240.5)
_EARLIEST, _LATEST = -20, 120


def portfolio() -> Portfolio:
    """What is asked: counts and means of days, quantiles of weeks."""
    # Flights that were cancelled have no delay.
    left = Condition(DELAY, low=-1000)
    return Portfolio(
        Slots(MICROSECONDS["d"], MONDAY),
        (
            Question(
                FLIGHTS,
                value=(VALUE,),
                domain=Categories(DESTINATIONS),
                max_contributions=CONTRIBUTIONS["day"],
                share=0.35,
            ),
            Question(
                DELAYS,
                value=(CARRIER,),
                domain=WithOther(Categories(CARRIERS), _OTHERS),
                statistic=Mean(DELAY, _EARLIEST, _LATEST),
                where=(left,),
                max_contributions=CONTRIBUTIONS["day"],
                share=0.25,
            ),
            Question(
                LATE,
                slots=7,
                statistic=Quantiles(DELAY, _EDGES, QUANTILES),
                where=(left,),
                max_contributions=_IN_A_WEEK,
                share=0.4,
            ),
        ),
    )


def wordings() -> dict[str, Wording]:
    """The questions as people would ask them."""
    return {
        FLIGHTS: Wording(
            "How many flights go to each airport, day by day?",
            "The same question as above, from about a third of the budget: so its answers are less "
            "sure.",
            "flights",
            airport_names(),
        ),
        DELAYS: Wording(
            "How late does each airline leave, day by day?",
            "The mean delay at departure, of all flights that left. A flight that is more than "
            f"{-_EARLIEST} minutes early or {_LATEST} minutes late counts as just that, so that "
            "no single flight can move a mean by much; the intervals allow for what this hides.",
            "minutes",
            airline_names(),
        ),
        LATE: Wording(
            "How late are most flights, week by week?",
            "Half of the flights of a week leave with less delay than p50, and nine in ten with "
            "less than p90.",
            "minutes",
        ),
    }


def answer(folder: Path, events: Path, requirements: Path, execution: Execution) -> AnswersReport:
    """Answer the questions into files of the folder; gives these beside what is true.

    Args:
        folder: for a file of each question, and the ledger `answers-ledger.parquet`.
        events: the flights, as `write_demo_input` writes them.
        requirements: of the aircraft, windows in days.
        execution: here, or on a runner.
    """
    asked = portfolio()
    first, end = (asked.base.index(parse_time(day)) for day in WEEKS)
    job = QuestionsJob(
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
    summary = job.run(execution, "streamveil demo, questions")
    return job.report(summary, _true(asked, pq.read_table(events)))


def _true(asked: Portfolio, flights: pa.Table) -> Mapping[str, Floats]:
    """The true answers, of all flights: arrays of shape (slots, bins, figures)."""
    left = flights.filter(pc.is_valid(flights[DELAY]))
    late = left[DELAY].to_numpy().astype(np.float64)
    counts, delays, quantiles = asked
    cells, by_airport = _cells(asked, counts, flights, VALUE)
    number = np.bincount(cells[cells >= 0], minlength=math.prod(by_airport))
    cells, by_carrier = _cells(asked, delays, left, CARRIER)
    inside, size = cells >= 0, math.prod(by_carrier)
    with np.errstate(invalid="ignore"):
        sums = np.bincount(cells[inside], late[inside], minlength=size)
        means = sums / np.bincount(cells[inside], minlength=size)
    week, (weeks, _) = _cells(asked, quantiles, left, None)
    return {
        FLIGHTS: number.reshape(*by_airport, 1).astype(np.float64),
        DELAYS: means.reshape(*by_carrier, 1),
        LATE: np.array([[np.quantile(late[week == one], QUANTILES)] for one in range(weeks)]),
    }


def _cells(
    asked: Portfolio, question: Question, flights: pa.Table, column: str | None
) -> tuple[npt.NDArray[np.int64], tuple[int, int]]:
    """The number slot * bins + bin of each flight, or -1 outside; slots and bins."""
    slots = asked.slots_of(question)
    first, end = (slots.index(parse_time(day)) for day in WEEKS)
    times = flights[TIME].cast(pa.int64()).to_numpy()
    slot = (times - slots.origin) // slots.length - first
    labels = question.domain.labels
    found = np.zeros(len(times), np.int64)
    if column is not None:
        last = len(labels) - 1 if _OTHERS in labels else -1
        known = pc.index_in(flights[column], value_set=pa.array(labels))
        found = pc.fill_null(known, last).to_numpy().astype(np.int64)
    cells = np.where(found >= 0, slot * len(labels) + found, -1)
    cells[(slot < 0) | (slot >= end - first)] = -1
    return cells, (end - first, len(labels))

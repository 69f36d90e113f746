"""The first screen of a page: one chart of what was released, and three tiles below it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import Lifetime, Requirement, Slots
from streamveil.mechanisms.queries.queries import Query
from streamveil.pipelines.pages.sheet import chart, shorten
from streamveil.pipelines.pages.templates import decimal, percent
from streamveil.pipelines.reports.accuracy import Accuracy
from streamveil.pipelines.reports.charts import draw_figures, draw_sums, shown_slots, shows_revised
from streamveil.pipelines.reports.labels import Wording, slot_name, so_many
from streamveil.pipelines.reports.report import QueryFigures, Report

_BINS = 3
# A share of a budget above it is too much: sums of the ledger's decimals are not exact.
LIMIT = 1.000001
_SIZES: Any = {"wide": (1100, 280), "narrow": (350, 230)}


class Tile(NamedTuple):
    """One number, its name, and a sentence about it."""

    name: str
    number: str
    about: str


class Lead(NamedTuple):
    """What the first screen shows."""

    title: str
    chart: Markup
    caption: str
    tiles: Sequence[Tile]


def lead_of(reports: Sequence[Report]) -> Lead | None:
    """The first screen; None where nothing was released.

    Args:
        reports: of all runs on the page. If the true counts of a query are known, the chart
            compares their totals with the released ones; else it shows the first query.
    """
    for report in reports:
        for query in report.query_set:
            if known := report.figures[query.name].accuracy:
                return _of_errors(known, report, query, reports)
    query = next(iter(reports[0].query_set))
    return _of_results(reports[0], query) if len(reports[0].figures[query.name].values) else None


def _of_errors(known: Accuracy, report: Report, query: Query, reports: Sequence[Report]) -> Lead:
    """Of a demonstration: all bins together, true and released, and how far off results are."""
    words = report.wording(query)
    span, size = known.longest or (slot_name(known.slots), 1)
    bins = range(known.true.shape[1])
    each, *together = [kind[-1] for kind in known.sums(words.bin)[-2:]][-len(bins) :]
    tiles = [
        Tile(
            f"Average error of {row.of}, {span} by {span}",
            percent(row.share),
            f"{decimal(row.error)} {words.unit}, where the average is {decimal(row.true)}",
        )
        for row in (*together, each)
    ]
    tiles[1:1] = _errors_of_numbers(reports)
    caption = "The closer the released line is to the true one, the better."
    if known.dropped_share > 0:
        caption += (
            f" The orange area, {percent(known.dropped_share)} of the {words.unit}, is dropped "
            "before noise is added; the rest of the error comes from noise."
        )
    if report is not reports[0]:
        caption += " These totals are of the second run below."
    return Lead(
        f"All {words.unit}, {span} by {span}",
        chart(
            f"All {words.unit} by {span}: {spoken_ranges(known.totals_of(bins, size).items())}",
            partial(
                draw_sums,
                accuracy=replace(known, revised=None),
                bins=bins,
                size=size,
                unit=f"{words.unit} per {span}",
                note=True,
            ),
            **_SIZES,
        ),
        caption,
        [*tiles[:2], _budget_tile(reports)],
    )


def _errors_of_numbers(reports: Sequence[Report]) -> list[Tile]:
    """How far off the last figure is of each query that does not count."""
    return [
        Tile(
            f"Typical error of {series.outputs[-1]}",
            f"{decimal(series.error[-1])} {report.wording(series.query).unit}",
            f"{report.wording(series.query).title} Half of the results have at most this error",
        )
        for report in reports
        for series in report.figures.values()
        if series.true is not None and not series.are_counts
    ]


def _of_results(report: Report, query: Query) -> Lead:
    """Of a run: the largest bins of the first query, with their intervals."""
    series, words = report.figures[query.name], report.wording(query)
    slots, part = len(series.values), shown_slots(series)
    bins = series.best[:_BINS]
    half = (series.high - series.low)[..., 0] / 2
    known = half[np.isfinite(half)]
    days = " to ".join(dict.fromkeys(dates_of(series)))
    tiles = [
        Tile(
            "Results",
            so_many(slots, series.slots),
            f"{days}, {number_of(len(series.labels), words.bin)} each"
            if len(series.labels) > 1
            else days,
        )
    ]
    if len(known):
        tiles.append(
            Tile(
                "Typical uncertainty",
                f"± {decimal(float(np.median(known)))} {words.unit}",
                "half the width of the median interval of 90%",
            )
        )
    caption = "" if report.is_test else "The bands are intervals of 90%."
    if len(bins) < len(series.labels):
        which = "largest" if series.are_counts else "with the narrowest intervals"
        caption = f"The {len(bins)} {words.bin}s that are {which}. {caption}"
    span = slot_name(series.slots)
    return Lead(
        words.title if len(report.figures) > 1 else f"What was released, {span} by {span}",
        chart(
            "; ".join(spoken(series, words, j, part) for j in bins),
            partial(
                draw_figures,
                series=series,
                bins=bins,
                part=part,
                unit=axis_unit(series, words),
                note=True,
            ),
            **_SIZES,
        ),
        caption,
        [*tiles, _budget_tile([report])],
    )


def _budget_tile(reports: Sequence[Report]) -> Tile:
    """What users were promised, and whether it was kept."""
    first = reports[0]
    if first.is_test:
        return Tile("Privacy", "none", "test mode adds no noise and keeps no budget")
    uses = [use for report in reports for use in report.largest_use.items()]
    if not uses:
        query = next(iter(first.query_set))
        span = slot_name(first.query_set.slots_of(query))
        most = number_of(query.max_contributions, "event")
        return Tile(f"Kept of each {first.user}", most, f"per {span}, at most")
    users = f"none of {number_of(first.users, 'budget')}" if first.users else "no budget"
    largest = max(share for _, share in uses)
    return Tile(
        f"Privacy budget of each {first.user}",
        f"ε = {_range(sorted(one.epsilon for one, _ in uses))}"
        + (f", δ = {first.delta:g}" if first.delta else ""),
        f"over {_period([one for one, _ in uses], first.query_set.base)}; "
        + (
            f"{users} was exceeded"
            if largest <= LIMIT
            else f"exceeded: {percent(largest)} was spent"
        ),
    )


def _period(requirements: Sequence[Requirement], base: Slots) -> str:
    """Over how long requirements are, in words."""
    if any(isinstance(one, Lifetime) for one in requirements):
        return "the whole stream"
    windows = [one.window for one in requirements]
    shortest, longest = min(windows), max(windows)
    several = "" if shortest == longest else f"{shortest:,} to "
    return f"any {several}{so_many(longest, base)}"


def _range(values: Sequence[float]) -> str:
    low, high = values[0], values[-1]
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def axis_unit(series: QueryFigures, words: Wording) -> str:
    """What an axis of figures says."""
    return f"{words.unit} per {slot_name(series.slots)}" if series.are_counts else words.unit


def date_of(series: QueryFigures, i: int) -> str:
    """When a slot begins, in words."""
    time = series.edges[i].item()
    hour = f", {time:%H:%M} UTC" if not series.slots.of_days else ""
    return f"{_day(time)}{hour}"


def dates_of(series: QueryFigures) -> list[str]:
    """The first and the last day, or for shorter slots the starts of the first and last slot."""
    if not series.slots.of_days:
        return [date_of(series, i) for i in (0, -2)]
    return [date_of(series, 0), _day((series.edges[-1] - np.timedelta64(1, "D")).item())]


def _day(time: dt.datetime) -> str:
    return f"{time.day} {time:%b %Y}"


def spoken(series: QueryFigures, words: Wording, j: int, part: slice) -> str:
    """What a chart of a bin shows, for those who do not see it."""
    figures = [
        (f"{kind} {output}", some[part, j, o])
        for kind, some in (
            ("true", series.true),
            ("released", series.values),
            ("revised", series.revised if shows_revised(series) else None),
        )
        if some is not None
        for o, output in enumerate(series.outputs)
    ]
    name = shorten(words.full_name(series.labels[j]), 60)
    return f"{name} by {slot_name(series.slots)}, with intervals of 90%: {spoken_ranges(figures)}"


def spoken_ranges(figures: Iterable[tuple[str, Floats]]) -> str:
    """The least, the largest and the mean of each, where any is known."""
    known = [(name, some[np.isfinite(some)]) for name, some in figures]
    return "; ".join(
        f"{name} from {decimal(some.min())} to {decimal(some.max())}, {decimal(some.mean())} on "
        "average"
        for name, some in known
        if len(some)
    )

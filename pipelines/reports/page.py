"""The page of a release: a section for each query, and one for the budget that they share.

A single count is a query set of one.

The page is one HTML file that needs nothing else: its charts are inline SVG, and it holds no script
and no address. All of it may be published but for its last section, on what the run lost, and for
true figures, which only demonstrations on public data have.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    NO_NOISE,
    PUBLISHED,
    Lifetime,
    Requirement,
    Slots,
)
from streamveil.mechanisms.queries.bounds import looks_at
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.queries import Query
from streamveil.mechanisms.queries.statistics import TopK
from streamveil.pipelines.pages.document import document, stylesheet
from streamveil.pipelines.pages.palette import OTHERS, SERIES
from streamveil.pipelines.pages.sheet import chart, shorten
from streamveil.pipelines.pages.templates import decimal, percent, template
from streamveil.pipelines.reports.accuracy import BUSIEST, TURN, Accuracy
from streamveil.pipelines.reports.charts import (
    READABLE_SLOTS,
    draw_budget,
    draw_error,
    draw_figures,
    draw_scatter,
    draw_sums,
    on_scale,
    picture,
    shown_slots,
    shows_revised,
)
from streamveil.pipelines.reports.labels import Wording, slot_name, slot_names, so_many
from streamveil.pipelines.reports.lead import (
    LIMIT,
    axis_unit,
    date_of,
    dates_of,
    lead_of,
    spoken,
    spoken_ranges,
)
from streamveil.pipelines.reports.report import QueryFigures, Report, meets_parts

CHARTS = 4
"""Of the bins of a query."""
# Places, in the order of true totals, of the bins whose sums are drawn: rare ones too.
SUMMED = (1, 10, 30, 60)
ROWS = 10
# Slots that can be distinguished in a panel, which is half as wide as a page.
_IN_A_PANEL = 200
# Rows of the budget table; of more classes those are shown that came nearest the limit.
CLASS_ROWS = 40

_HERE = Path(__file__).parent


def write_page(path: str, *reports: Report) -> None:
    """Write the page as one HTML file that needs no other.

    Args:
        path: file to write.
        reports: what to show; of several runs the first is the main one.
    """
    runs = [context(report, f"run{i}-" if i else "") for i, report in enumerate(reports)]
    body = template(_HERE / "page.html.jinja").render(runs=runs, lead=lead_of(reports), limit=LIMIT)
    html = document(runs[0]["title"], stylesheet(_HERE / "page.css"), body)
    Path(path).write_text(html, encoding="utf-8")


def write_picture(report: Report, query: Query, path: str) -> None:
    """Write one picture, twice as wide as high: three busy bins, true against released.

    Args:
        report: with a query whose accuracy is known.
        query: that one.
        path: file to write; its ending chooses the format (`.png` or `.svg`).
    """
    picture(report, query).write(path)


def context(report: Report, prefix: str = "") -> dict[str, Any]:
    """What the template shows of a run; ids of its sections begin with the prefix."""
    return {
        "id": prefix,
        "report": report,
        "title": _title(report),
        "base": slot_names(report.query_set.base),
        "lost": report.lost,
        "queries": [_section(report, query) for query in report.query_set],
        "budget": None if report.is_test else _budget(report),
    }


def _title(report: Report) -> str:
    """The headline of a run."""
    queries = list(report.query_set)
    if report.title:
        return report.title
    if report.is_test:
        return f"Test mode: {number_of(len(queries), 'query')} without noise"
    if len(queries) > 1:
        return f"{number_of(len(queries), 'query')}, one budget"
    return report.wording(queries[0]).title


def _section(report: Report, query: Query) -> dict[str, Any]:
    series, words = report.figures[query.name], report.wording(query)
    slots, span = len(series.values), slot_name(series.slots)
    part, bins = shown_slots(series, _IN_A_PANEL), series.best[:CHARTS]
    unit = axis_unit(series, words)
    return {
        "name": query.name,
        "heading": words.title if words.title != _title(report) else "Results",
        "words": words,
        "series": series,
        "span": span,
        "slots": slots,
        "range": dates_of(series) if slots else [],
        "shown": part.stop - part.start,
        "share": report.shares[query.name],
        "most": query.max_contributions,
        "mechanism": NO_NOISE if report.is_test else report.mechanism or query.mechanism,
        "once": query.statistic.once,
        "parts": meets_parts(query) and not (report.forever or report.is_test),
        "statuses": Counter(series.statuses),
        "gaps": _gaps(series),
        "revised": shows_revised(series),
        "errors": list(zip(series.outputs, series.error.tolist(), strict=True)),
        "panels": [
            {
                "label": series.labels[j],
                "name": words.names.get(series.labels[j], ""),
                "chart": chart(
                    spoken(series, words, j, part),
                    partial(draw_figures, series=series, bins=[j], part=part, unit=unit),
                    wide=(540, 220) if len(bins) > 1 else (1100, 260),
                    narrow=(350, 195),
                ),
            }
            for j in (bins if slots else ())
        ],
        "newest": [
            {
                "span": slot_name(one.slots),
                "last": date_of(one, len(one.values) - 1),
                "rows": _last_figures(one),
            }
            for one in (series, *report.longer.get(query.name, ()))
            if len(one.values)
        ],
        "bins": len(series.labels),
        "accuracy": series.accuracy and _accuracy(series.accuracy, series, words),
    }


def _gaps(series: QueryFigures) -> dict[str, int] | None:
    """Slots from one publication to the next, in the median and at most; None without two."""
    between = np.diff([i for i, status in enumerate(series.statuses) if status == PUBLISHED])
    if not len(between):
        return None
    return {"median": int(np.median(between)), "longest": int(between.max())}


def _last_figures(series: QueryFigures) -> list[tuple[str, list[str]]]:
    """Of the newest slot, bin by bin: each figure with its interval. `top` ranks this slot."""
    rows, best = [], series.best
    if isinstance(series.query.statistic, TopK):
        best = np.argsort(-series.values[-1, :, 0], kind="stable").tolist()
    for j in best[:ROWS]:
        figures = zip(series.values[-1, j], series.low[-1, j], series.high[-1, j], strict=True)
        rows.append((series.labels[j], [_figure(*map(float, each)) for each in figures]))
    return rows


def _figure(value: float, low: float, high: float) -> str:
    interval = f" ({decimal(low)} to {decimal(high)})" if np.isfinite([low, high]).all() else ""
    return f"{decimal(value)}{interval}"


def _accuracy(known: Accuracy, series: QueryFigures, words: Wording) -> dict[str, Any]:
    """What the template shows of counts whose true ones are known."""
    sums, group, noun = known.sums(words.bin), _group(known), shorten(words.bin, 30)
    each, *together = sums[-2:] if known.true.shape[1] > 1 else sums
    rows, unit = _rows(known, series, words), f"{words.unit} per {slot_name(series.slots)}"
    return {
        "known": known,
        "bins": known.true.shape[1],
        "mean_true": float(known.true.mean()),
        "mean_error": float(known.absolute_error.mean()),
        "sums": [row for kind in sums for row in kind],
        "cards": dict.fromkeys([each[0], each[-1], *(one[-1] for one in together)]),
        **_spans(known, series, words),
        "rows": rows,
        "found": sum(row.rank <= len(rows) for row in rows),
        "hidden": int((~on_scale(known)).sum()),
        "scatter": chart(
            f"Released against true total of every {noun} over the whole period",
            partial(draw_scatter, accuracy=known, labels=series.labels, unit=words.unit),
            wide=(540, 500),
            narrow=(350, 350),
        ),
        "group": group,
        "error": chart(
            f"Mean absolute error per {noun} over time, and the standard error as released",
            partial(draw_error, accuracy=known, group=group, unit=unit),
            wide=(1100, 230),
            narrow=(350, 210),
        ),
    }


def _spans(known: Accuracy, series: QueryFigures, words: Wording) -> dict[str, Any]:
    """What the template shows of sums over the longest span, if there is one."""
    if known.longest is None:
        return {"span_panels": []}
    span, size = known.longest
    bins = [known.busiest[min(place, len(known.busiest)) - 1] for place in SUMMED]
    return {
        "span": span,
        "busiest": min(BUSIEST, len(known.busiest)),
        "turn": TURN,
        "turns": known.turns(size),
        "span_panels": [
            {
                "label": series.labels[j],
                "name": words.names.get(series.labels[j], ""),
                "chart": chart(
                    f"{words.full_name(series.labels[j])} by {span}: "
                    + spoken_ranges(known.totals_of([j], size).items()),
                    partial(
                        draw_sums,
                        accuracy=known,
                        bins=[j],
                        size=size,
                        unit=f"{words.unit} per {span}",
                    ),
                    wide=(540, 220),
                    narrow=(350, 195),
                ),
            }
            for j in dict.fromkeys(bins)
        ],
    }


class _Row(NamedTuple):
    """One bin over the whole period."""

    label: str
    name: str
    true: float
    released: float
    rank: int


def _rows(known: Accuracy, series: QueryFigures, words: Wording) -> list[_Row]:
    """The busiest bins with their place in the order of released totals, from 1."""
    true, released = known.true_totals, known.released_totals
    place = np.empty(len(true), dtype=np.int64)
    place[np.argsort(-released, kind="stable")] = np.arange(1, len(true) + 1)
    return [
        _Row(
            series.labels[j],
            words.names.get(series.labels[j], ""),
            float(true[j]),
            float(released[j]),
            int(place[j]),
        )
        for j in known.busiest[:ROWS]
    ]


def _group(known: Accuracy) -> int:
    """Slots per point of a chart of the whole period: whole hours, days or weeks if they fit."""
    least = -(-len(known.true) // READABLE_SLOTS)
    units = (MICROSECONDS["h"], 6 * MICROSECONDS["h"], MICROSECONDS["d"], 7 * MICROSECONDS["d"])
    sizes = [unit // known.slots.length for unit in units if unit % known.slots.length == 0]
    return least if least == 1 else next((size for size in sizes if size >= least), least)


class _Budget(NamedTuple):
    """One row of the budget table."""

    window: str
    epsilon: float
    users: int
    largest: float
    mean: float
    strip: Markup


def _aside_text(report: Report) -> str:
    """What a part of the budget is set aside for."""
    bounds = "the private estimate of bounds"
    if not discovering(report.query_set):
        return bounds
    keys = "the discovery of keys"
    return f"{keys} and {bounds}" if looks_at(report.query_set) else keys


def _budget(report: Report) -> dict[str, Any] | None:
    """What the template shows of the budget; None without a ledger."""
    if not report.largest_use:
        return None
    base = report.query_set.base
    uses = [report.use_of(requirement) for requirement in list(report.largest_use)[:CLASS_ROWS]]
    fullest = max(uses, key=lambda use: (use.together.mean(), use.requirement))
    edges = report.base_edges
    # A step is the fullest window of some base slots in a row.
    size = -(-fullest.by_query.shape[1] // READABLE_SLOTS)
    starts = np.arange(0, fullest.by_query.shape[1], size)
    ends = np.append(starts[1:], fullest.by_query.shape[1])
    at = [
        begin + int(fullest.together[begin:end].argmax())
        for begin, end in zip(starts, ends, strict=True)
    ]
    by_query = fullest.by_query[:, at]
    order = np.argsort(-by_query.mean(axis=1), kind="stable")
    names = [report.wording(query).title for query in report.query_set]
    stacked = [(color, [names[q]], by_query[q]) for color, q in zip(SERIES, order, strict=False)]
    rest = order[len(SERIES) :]
    look = [_aside_text(report)] if fullest.aside else []
    if len(rest) or look:
        shares = by_query[rest].sum(axis=0) + fullest.aside
        stacked.append((OTHERS, [*(names[q] for q in rest), *look], shares))
    window = _window(fullest.requirement, base)
    return {
        "fullest": fullest.requirement,
        "users": fullest.users,
        "window": window,
        "grouped": size > 1,
        "queries": [
            (color, ", ".join(those), float(shares.mean())) for color, those, shares in stacked
        ],
        "chart": chart(
            f"Share of the budget that each query had spent over {window}, stacked, over time",
            partial(
                draw_budget,
                edges=np.append(edges[:-1:size], edges[-1:]),
                slots=base,
                stacked=[(color, shares) for color, _, shares in stacked],
            ),
            wide=(1100, 290),
            narrow=(350, 230),
        ),
        "largest": max(report.largest_use.values()),
        "classes": len(report.largest_use),
        "rows": [
            _budget_row(use.requirement, use.users, use.together, base)
            for use in sorted(uses, key=lambda use: use.requirement)
        ],
    }


def _budget_row(requirement: Requirement, users: int, use: Floats, base: Slots) -> _Budget:
    """The requirement of a class, and the share of it used in the window of every slot."""
    window, strip = _window(requirement, base), _use_strip(requirement, use)
    return _Budget(window, requirement.epsilon, users, float(use.max()), float(use.mean()), strip)


def _window(requirement: Requirement, base: Slots) -> str:
    """Over how long a requirement is, in words."""
    if isinstance(requirement, Lifetime):
        return "the whole stream"
    return so_many(requirement.window, base)


def _use_strip(requirement: Requirement, use: Floats) -> Markup:
    """Draw the use over time as a small area that stretches with its table cell."""
    size = -(-len(use) // READABLE_SLOTS)
    peaks = np.maximum.reduceat(use, np.arange(0, len(use), size))
    top = max(1.15, float(peaks.max()))
    heights = [f"V{100 * (1 - peak / top):.1f}h1" for peak in peaks]
    limit = f"{100 * (1 - 1 / top):.1f}"
    forever = isinstance(requirement, Lifetime)
    over = "over the whole stream" if forever else f"in every window of {requirement.window}"
    title = (
        f"Share of the budget used {over} at epsilon {requirement.epsilon:g}: "
        f"{percent(float(use.max()))} at most"
    )
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 100" '
        'preserveAspectRatio="none"><title>{}</title><path class="area" d="M0,100{}V100Z"/>'
        '<path class="limit" d="M0,{}H{}"/></svg>'
    ).format(title, len(peaks), title, "".join(heights), limit, len(peaks))

"""A page for people: released against true counts, error, and what every requirement paid.

The page is one HTML file that needs nothing else: its charts are inline SVG, and it holds no script
and no address. It shows the TRUE counts, so it is a page for a demonstration on public data. Never
make one of data that must stay private.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.figure import Figure

from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS, PUBLISHED, STATUSES, Requirement
from streamveil.pipelines.charts import (
    PALETTE,
    STYLE,
    chart,
    draw_error,
    draw_panel,
    draw_scatter,
    draw_sums,
    draw_total,
    on_scale,
    picture,
    shorten,
    span_picture,
    whole,
)
from streamveil.pipelines.html import percent, template
from streamveil.pipelines.report import Report
from streamveil.pipelines.sums import BUSIEST, TURN, all_sums, in_spans, longest, turns

# More slots than this in one small chart cannot be told apart: a window of them is drawn instead.
READABLE_SLOTS = 500
BUSIEST_CHARTS = 4
# Places, in the order of true totals, of the bins whose sums are drawn: rare ones too.
SUMMED = (1, 10, 30, 60)
BUSIEST_ROWS = 10
# Rows of the budget table; a registry with more classes shows those that came nearest the limit.
CLASS_ROWS = 40


def write_page(report: Report, path: str, more: Mapping[str, Any] | None = None) -> None:
    """Write the page as one HTML file that needs no other.

    Args:
        report: what to show.
        path: file to write.
        more: of questions that were answered besides, as `answers_page.context` gives it.
    """
    page = template(Path(__file__).parent / "page.html.jinja")
    with matplotlib.rc_context(STYLE):
        html = page.render({**_context(report), **(more or {})})
    Path(path).write_text(html, encoding="utf-8")


def write_picture(report: Report, path: str) -> None:
    """Write one picture, twice as wide as high: three busy bins, true against released.

    Slots of a day and shorter spans are drawn as they are, and two weeks of days or more as weeks.

    Args:
        report: what to show.
        path: file to write; its ending chooses the format (`.png` or `.svg`).
    """
    with matplotlib.rc_context(STYLE | {"font.size": 9.5}):
        # No date in the file: the same run gives the same bytes.
        stamp = {"Date": None} if path.lower().endswith(".svg") else None
        span = longest(report)
        if span and report.slot_name == "day":
            drawn = span_picture(report, *span)
        else:
            drawn = picture(report, _readable(report))
        drawn.savefig(path, dpi=200, metadata=stamp)


def _context(report: Report) -> dict[str, Any]:
    """Everything the template asks for."""
    part, group = _readable(report), _group(report)
    slots = len(report.releases)
    noun = shorten(report.bin_name, 30)
    rows = _rows(report)
    return {
        "report": report,
        "palette": PALETTE,
        "mechanism": report.releases[0].mechanism,
        "slots": slots,
        "bins": len(report.labels),
        "first": _date(report, 0),
        "last": _date(report, slots - 1),
        "statuses": {s: report.slots_with(s) for s in STATUSES},
        "alarms": sum(release.alarm for release in report.releases),
        "believed": _believed(report),
        "gaps": _gaps(report),
        "mean_true": float(report.true_counts.mean()),
        "uncounted": report.uncounted_share > 0,
        **_sums(report),
        "panels": _panels(report, part),
        "part": {
            "slots": part.stop - part.start,
            "first": _date(report, part.start),
            "last": _date(report, part.stop - 1),
        },
        "rows": rows,
        "found": sum(row.rank <= len(rows) for row in rows),
        "hidden": int((~on_scale(report)).sum()),
        "scatter": chart(
            "who",
            f"Released against true total of every {noun} over the whole period",
            partial(draw_scatter, report=report),
            wide=(540, 500),
            narrow=(350, 350),
        ),
        "group": group,
        "total": chart(
            "total",
            f"Count of all {noun}s together, true and released, over time",
            partial(draw_total, report=report, group=group),
            wide=(1100, 230),
            narrow=(350, 190),
        ),
        "errors": chart(
            "error",
            f"Mean absolute error per {noun} over time, and the standard error as released",
            partial(draw_error, report=report, group=group),
            wide=(1100, 200),
            narrow=(350, 180),
        ),
        "budgets": _budgets(report),
        "classes": len(report.budget_use),
    }


def _believed(report: Report) -> float:
    """Share of its estimates that the mechanism told, on average; 1 if it says nothing of it."""
    return float(np.mean([one.diagnostics.get("believed", 1.0) for one in report.releases]))


def _gaps(report: Report) -> dict[str, int] | None:
    """Slots from one publication to the next, in the median and at most; None without two."""
    at = [i for i, release in enumerate(report.releases) if release.status == PUBLISHED]
    between = np.diff(at)
    if not len(between):
        return None
    return {"median": int(np.median(between)), "longest": int(between.max())}


def _sums(report: Report) -> dict[str, Any]:
    """What the template shows of counts added up over slots and bins."""
    rows = all_sums(report)
    each, *together = rows[-2:] if len(report.labels) > 1 else rows
    shown: dict[str, Any] = {
        "sums": [row for kind in rows for row in kind],
        "cards": dict.fromkeys([each[0], each[-1], *(one[-1] for one in together)]),
        "sum_panels": [],
    }
    if span := longest(report):
        name, size = span
        places = dict.fromkeys(min(place, len(report.labels)) for place in SUMMED)
        shown |= {
            "span": name,
            "busiest": BUSIEST,
            "turn": TURN,
            "turns": turns(report, size),
            "sum_panels": [
                _panel(
                    report,
                    report.busiest[place - 1],
                    f"sums{place}",
                    (name, size, slice(None)),
                    partial(draw_sums, report=report, j=report.busiest[place - 1], size=size),
                )
                for place in places
            ],
        }
    return shown


def _panels(report: Report, part: slice) -> list[dict[str, Any]]:
    """The busiest bins, each with its chart."""
    return [
        _panel(
            report,
            j,
            f"bin{i}",
            (report.slot_name, 1, part),
            partial(draw_panel, report=report, j=j, part=part),
        )
        for i, j in enumerate(report.busiest[:BUSIEST_CHARTS])
    ]


def _panel(
    report: Report,
    j: int,
    name: str,
    shown: tuple[str, int, slice],
    draw: Callable[[Figure], None],
) -> dict[str, Any]:
    """A bin with its chart; `shown` are the span, its slots, and the part of all slots."""
    return {
        "label": report.labels[j],
        "name": report.label_names.get(report.labels[j], ""),
        "chart": chart(name, _told(report, j, *shown), draw, wide=(540, 190), narrow=(350, 165)),
    }


def _told(report: Report, j: int, span: str, size: int, part: slice) -> str:
    """What a chart of a bin shows, for those who do not see it."""
    ranges = [
        f"{name} from {whole(sums.min())} to {whole(sums.max())}, {whole(sums.mean())} in the mean"
        for name, sums in (
            ("true", in_spans(report.true_counts[part, [j]], size)),
            ("released", in_spans(report.released[part, [j]], size)),
        )
    ]
    return f"Counts of {report.full_name(j)} by {span}: {'; '.join(ranges)}"


def _readable(report: Report) -> slice:
    """All slots, or the middle four weeks of very many; a week if they are shorter than a day."""
    slots = len(report.releases)
    if slots <= READABLE_SLOTS:
        return slice(0, slots)
    days = 28 if report.slots.length >= MICROSECONDS["d"] else 7
    some = round(days * MICROSECONDS["d"] / report.slots.length)
    size = max(1, min(slots, some, 2 * READABLE_SLOTS))
    start = (slots - size) // 2
    return slice(start, start + size)


def _group(report: Report) -> int:
    """Slots per point of a chart of the whole period: whole hours, days or weeks if they fit."""
    least = -(-len(report.releases) // READABLE_SLOTS)
    units = (MICROSECONDS["h"], 6 * MICROSECONDS["h"], MICROSECONDS["d"], 7 * MICROSECONDS["d"])
    sizes = [unit // report.slots.length for unit in units if unit % report.slots.length == 0]
    return least if least == 1 else next((size for size in sizes if size >= least), least)


class _Row(NamedTuple):
    """One bin over the whole period."""

    label: str
    name: str
    true: int
    released: int
    rank: int


class _Budget(NamedTuple):
    """One row of a budget table."""

    window: str
    epsilon: float
    users: int
    largest: float
    mean: float
    strip: Markup


def _rows(report: Report) -> list[_Row]:
    """The busiest bins with their place in the order of released totals, from 1."""
    true, released = report.true_totals, report.released_totals
    place = np.empty(len(true), dtype=np.int64)
    place[np.argsort(-released, kind="stable")] = np.arange(1, len(true) + 1)
    return [
        _Row(
            report.labels[j],
            report.label_names.get(report.labels[j], ""),
            int(true[j]),
            int(released[j]),
            int(place[j]),
        )
        for j in report.busiest[:BUSIEST_ROWS]
    ]


def _budgets(report: Report) -> list[_Budget]:
    """Rows of the budget table, sorted by requirement."""
    near = sorted(report.budget_use.items(), key=lambda item: -item[1][1].max())[:CLASS_ROWS]
    return [
        budget_row(requirement, users, use, number_of(requirement.window, report.slot_name))
        for requirement, (users, use) in sorted(near, key=lambda item: item[0])
    ]


def budget_row(
    requirement: Requirement, users: int, use: npt.NDArray[np.float64], window: str
) -> _Budget:
    """What a class asked for, and the share of it used in the window of every slot."""
    strip = _use_strip(requirement, use)
    return _Budget(window, requirement.epsilon, users, float(use.max()), float(use.mean()), strip)


def _use_strip(requirement: Requirement, use: npt.NDArray[np.float64]) -> Markup:
    """Draw the use over time as a small area that stretches with its table cell."""
    size = -(-len(use) // READABLE_SLOTS)
    peaks = np.maximum.reduceat(use, np.arange(0, len(use), size))
    top = max(1.15, float(peaks.max()))
    heights = [f"V{100 * (1 - peak / top):.1f}h1" for peak in peaks]
    limit = f"{100 * (1 - 1 / top):.1f}"
    title = (
        f"Share of the budget used in every window of {requirement.window} at epsilon "
        f"{requirement.epsilon:g}: {percent(float(use.max()))} at most"
    )
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 100" '
        'preserveAspectRatio="none"><title>{}</title><path class="area" d="M0,100{}V100Z"/>'
        '<path class="limit" d="M0,{}H{}"/></svg>'
    ).format(title, len(peaks), title, "".join(heights), limit, len(peaks))


def _date(report: Report, i: int) -> str:
    """When a slot starts, in words."""
    time: dt.datetime = report.edges[i].item()
    hour = f", {time:%H:%M} UTC" if report.slots.length % MICROSECONDS["d"] else ""
    return f"{time.day} {time:%b %Y}{hour}"

"""A page for people: released against true counts, error, and what every requirement paid.

The page is one HTML file that needs nothing else: its charts are inline SVG, and it holds no script
and no address. It shows the TRUE counts, so it is a page for a demonstration on public data. Never
make one of data that must stay private.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from streamveil.mechanisms.core.records import MICROSECONDS, STATUSES, Requirement
from streamveil.pipelines.charts import (
    PALETTE,
    STYLE,
    chart,
    draw_error,
    draw_panel,
    draw_scatter,
    draw_total,
    on_scale,
    picture,
    shorten,
)
from streamveil.pipelines.html import percent, template
from streamveil.pipelines.report import Report

# More slots than this in one small chart cannot be told apart: a window of them is drawn instead.
READABLE_SLOTS = 500
BUSIEST_CHARTS = 6
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
    """Write one picture, twice as wide as high: the three busiest bins, true against released.

    Args:
        report: what to show.
        path: file to write; its ending chooses the format (`.png` or `.svg`).
    """
    with matplotlib.rc_context(STYLE | {"font.size": 9.5}):
        # No date in the file: the same run gives the same bytes.
        stamp = {"Date": None} if path.lower().endswith(".svg") else None
        picture(report, _readable(report)).savefig(path, dpi=200, metadata=stamp)


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
        "mean_true": float(report.true_counts.mean()),
        "uncounted": report.uncounted_share > 0,
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


def _panels(report: Report, part: slice) -> list[dict[str, Any]]:
    """The busiest bins, each with its chart."""
    return [
        {
            "label": report.labels[j],
            "name": report.label_names.get(report.labels[j], ""),
            "chart": chart(
                f"bin{i}",
                f"True and released counts of {report.full_name(j)} by {report.slot_name}",
                partial(draw_panel, report=report, j=j, part=part),
                wide=(540, 190),
                narrow=(350, 165),
            ),
        }
        for i, j in enumerate(report.busiest[:BUSIEST_CHARTS])
    ]


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
    """One row of the budget table."""

    requirement: Requirement
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
        _Budget(
            requirement, users, float(use.max()), float(use.mean()), use_strip(requirement, use)
        )
        for requirement, (users, use) in sorted(near, key=lambda item: item[0])
    ]


def use_strip(requirement: Requirement, use: npt.NDArray[np.float64]) -> Markup:
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

"""A page for people: released against true counts, error, and what every requirement paid.

The page is one HTML file that needs nothing else: its charts are inline SVG whose colours are CSS
variables, so they follow the reader's light or dark scheme, and it holds no script and no address.
It compares with the TRUE counts, so it is a page for a demonstration on public data. Never make
one of data that must stay private.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import matplotlib
import matplotlib.dates
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from streamveil.mechanisms.records import (
    MICROSECONDS,
    NULLIFIED,
    PUBLISHED,
    SKIPPED,
    ConfigurationError,
    LedgerEntry,
    Release,
    Requirement,
    Slots,
)

# This module of matplotlib has no types, and its versions differ in which dates axes are typed
# to take: hence also the `Any` of the times below.
dates: Any = matplotlib.dates

# More slots than this in one small chart cannot be told apart: a window of them is drawn instead.
READABLE_SLOTS = 500
BUSIEST_CHARTS = 6
BUSIEST_ROWS = 10
# Rows of the budget table; a registry with more classes shows those that came nearest the limit.
CLASS_ROWS = 40

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"

# Names of CSS variables and their light values. In the SVG every value is replaced by its
# variable; the dark values stand in the template. Blue and orange are Okabe and Ito's.
PALETTE = {
    "ink": "#1c2329",
    "muted": "#5b6670",
    "rule": "#d9dee2",
    "released": "#0072b2",
    "error": "#c25100",
}

# Text stays text (small, selectable, in the reader's own font), and `$` in a label is a dollar.
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "streamveil",
    "text.parse_math": False,
    "font.size": 11,
    "text.color": PALETTE["ink"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.edgecolor": PALETTE["rule"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.8,
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "ytick.major.size": 0,
    "lines.solid_joinstyle": "round",
}


@dataclass(frozen=True, eq=False)
class Report:
    """Everything the page shows, and the figures computed from it.

    Raises ConfigurationError when there is no release or the shapes disagree.
    """

    title: str
    """Headline of the page."""
    subject: str
    """What was counted, such as `flights from New York, 2013`."""
    labels: Sequence[str]
    """Name of each bin, length bins."""
    label_names: Mapping[str, str]
    """A longer name for some of the labels."""
    slots: Slots
    """How time was cut."""
    slot_name: str
    """What one slot is called: `day` or `hour`."""
    user_name: str
    """What one protected user is called, in the singular: `aircraft`."""
    releases: Sequence[Release]
    """The releases in slot order, length T, one or more."""
    ledger: Sequence[LedgerEntry]
    """What every slot cost every class, in slot order."""
    true_counts: npt.NDArray[np.int64]
    """The counts before any protection, shape (T, bins), aligned with `releases`."""
    facts: Mapping[str, str]
    """Lines of the footer, such as events read and rejected."""
    bin_name: str = "bin"
    """What one bin is called, in the singular: `airport`."""
    repeat: str = ""
    """A shell command that makes the page again, or nothing."""

    def __post_init__(self) -> None:
        """Check the shapes."""
        if not self.releases:
            raise ConfigurationError("a report needs at least one release")
        shape, expected = np.shape(self.true_counts), (len(self.releases), len(self.labels))
        if shape != expected:
            raise ConfigurationError(
                f"true counts have shape {shape}, but there are {expected[0]} releases of "
                f"{expected[1]} labels"
            )
        for release in self.releases:
            if release.counts.shape != expected[1:]:
                raise ConfigurationError(
                    f"the release of slot {release.slot} has {release.counts.shape} counts, but "
                    f"there are {expected[1]} labels"
                )

    @cached_property
    def released(self) -> npt.NDArray[np.int64]:
        """Released counts, shape (T, bins)."""
        return np.stack([release.counts for release in self.releases]).astype(np.int64)

    @cached_property
    def stderr(self) -> npt.NDArray[np.float64]:
        """Standard error of each released count, shape (T, bins); NaN before a publication."""
        rows = [
            np.broadcast_to(np.nan if r.published_slot is None else r.stderr, r.counts.shape)
            for r in self.releases
        ]
        stderr = np.stack(rows).astype(np.float64)
        return np.where(np.isfinite(stderr), stderr, np.nan)

    @cached_property
    def edges(self) -> npt.NDArray[np.datetime64]:
        """Start of every slot and the end of the last one, shape (T + 1,).

        Slots of whole days start at the nearest midnight in UTC: the dates on the page are then
        those of the time zone that the origin of the slots was chosen for.
        """
        times = [release.start for release in self.releases] + [self.releases[-1].end]
        edges = np.array(times, dtype="datetime64[us]")
        if self.slots.length % MICROSECONDS["d"]:
            return edges
        return (edges + np.timedelta64(12, "h")).astype("datetime64[D]").astype(edges.dtype)

    @property
    def absolute_error(self) -> npt.NDArray[np.int64]:
        """Distance of every released count from the true one, shape (T, bins)."""
        error: npt.NDArray[np.int64] = np.abs(self.released - self.true_counts)
        return error

    @property
    def relative_error(self) -> float:
        """Sum of absolute errors over the sum of true counts; NaN when nothing was counted."""
        total = int(self.true_counts.sum())
        return float(self.absolute_error.sum()) / total if total else math.nan

    @property
    def mean_error(self) -> float:
        """Mean absolute error per bin and slot."""
        return float(self.absolute_error.mean())

    def slots_with(self, status: str) -> int:
        """Count the slots with this status."""
        return sum(release.status == status for release in self.releases)

    @cached_property
    def busiest(self) -> list[int]:
        """All bins by falling true total; equal ones in their own order."""
        return [int(j) for j in np.argsort(-self.true_counts.sum(axis=0), kind="stable")]

    @property
    def users(self) -> int:
        """Public number of users, over all classes."""
        return int(self.ledger[-1].users.sum()) if self.ledger else 0

    @cached_property
    def budget_use(self) -> dict[Requirement, tuple[int, npt.NDArray[np.float64]]]:
        """Users of each class and the share of its budget used in the window of every slot."""
        users: dict[Requirement, int] = {}
        shares: dict[Requirement, npt.NDArray[np.float64]] = {}
        for i, entry in enumerate(self.ledger):
            for k, requirement in enumerate(entry.classes):
                users[requirement] = int(entry.users[k])
                series = shares.setdefault(requirement, np.zeros(len(self.ledger)))
                series[i] = entry.spent_in_window[k] / requirement.epsilon
        return {requirement: (users[requirement], shares[requirement]) for requirement in users}

    @property
    def largest_use(self) -> float:
        """Largest share of its budget that any class used in any window; 0 without a ledger."""
        return max((float(use.max()) for _, use in self.budget_use.values()), default=0.0)


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


def write_page(report: Report, path: str) -> None:
    """Write the page as one HTML file that needs no other.

    Args:
        report: what to show.
        path: file to write.
    """
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        whole=_whole, decimal=_decimal, percent=_percent, signed=_signed, several=_several
    )
    template = environment.get_template("report.html.jinja")
    with matplotlib.rc_context(STYLE):
        html = template.render(_page(report))
    Path(path).write_text(html, encoding="utf-8")


def write_picture(report: Report, path: str) -> None:
    """Write one picture, twice as wide as high: the three busiest bins, true against released.

    Args:
        report: what to show.
        path: file to write; its ending chooses the format (`.png` or `.svg`).
    """
    part = _readable(report)
    bins = report.busiest[:3]
    with matplotlib.rc_context(STYLE | {"font.size": 9.5}):
        figure = Figure(figsize=(8, 4), facecolor="white")
        axes = figure.subplots(len(bins), 1, sharex=True, squeeze=False)[:, 0]
        figure.subplots_adjust(left=0.058, right=0.975, top=0.79, bottom=0.075, hspace=0.45)
        for a, j in zip(axes, bins, strict=True):
            _draw_bin(a, report, j, part, spread=0.55)
            a.set_title(_shorten(_name(report, j), 60), loc="left", fontsize=10.5, pad=4)
        figure.text(0.012, 0.938, _shorten(report.subject, 60), fontsize=13, weight="bold")
        keys: list[Any] = [
            Line2D([], [], color=PALETTE["ink"], linewidth=1.1, label="true"),
            Line2D([], [], color=PALETTE["released"], linewidth=2, label="released"),
            Patch(color=PALETTE["released"], alpha=0.2, linewidth=0, label="± 2 standard errors"),
            Line2D([], [], color=PALETTE["error"], marker="|", linestyle="", label="publication"),
        ]
        figure.legend(
            handles=keys,
            loc="upper left",
            bbox_to_anchor=(0.002, 0.935),
            ncols=4,
            columnspacing=1.6,
            handlelength=1.6,
            frameon=False,
        )
        # No date in the file: the same run gives the same bytes.
        stamp = {"Date": None} if path.lower().endswith(".svg") else None
        figure.savefig(path, dpi=200, metadata=stamp)


def _page(report: Report) -> dict[str, Any]:
    """Everything the template asks for."""
    part, group = _readable(report), _group(report)
    slots, bins, true = len(report.releases), len(report.labels), _totals(report)
    noun = _shorten(report.bin_name, 30)
    panels = [
        {
            "label": report.labels[j],
            "name": report.label_names.get(report.labels[j], ""),
            "chart": _chart(
                f"bin{i}",
                f"True and released counts of {_name(report, j)} by {report.slot_name}",
                partial(_draw_panel, report=report, j=j, part=part),
                wide=(540, 190),
                narrow=(350, 165),
            ),
        }
        for i, j in enumerate(report.busiest[:BUSIEST_CHARTS])
    ]
    rows = _rows(report)
    found = sum(row.rank <= len(rows) for row in rows)
    return {
        "report": report,
        "palette": PALETTE,
        "mechanism": report.releases[0].mechanism,
        "slots": slots,
        "bins": bins,
        "first": _date(report, 0),
        "last": _date(report, slots - 1),
        "statuses": {s: report.slots_with(s) for s in (PUBLISHED, SKIPPED, NULLIFIED)},
        "mean_true": float(report.true_counts.mean()),
        "panels": panels,
        "part": None
        if part == slice(0, slots)
        else {
            "slots": part.stop - part.start,
            "first": _date(report, part.start),
            "last": _date(report, part.stop - 1),
        },
        "rows": rows,
        "found": found,
        "hidden": int((np.minimum(report.released.sum(axis=0), true) <= _scale(report)[0]).sum()),
        "scatter": _chart(
            "who",
            f"Released against true total of every {noun} over the whole period",
            lambda figure: _draw_totals(figure, report),
            wide=(540, 500),
            narrow=(350, 350),
        ),
        "group": group,
        "total": _chart(
            "total",
            f"Count of all {noun}s together, true and released, over time",
            lambda figure: _draw_total(_axes(figure), report, group),
            wide=(1100, 230),
            narrow=(350, 190),
        ),
        "errors": _chart(
            "error",
            f"Mean absolute error per {noun} over time, and the standard error as released",
            lambda figure: _draw_error(_axes(figure), report, group),
            wide=(1100, 200),
            narrow=(350, 180),
        ),
        "budgets": _budgets(report),
        "classes": len(report.budget_use),
    }


def _rows(report: Report) -> list[_Row]:
    """The busiest bins with their place in the order of released totals, from 1."""
    true, released = _totals(report), report.released.sum(axis=0)
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
        _Budget(requirement, users, float(use.max()), float(use.mean()), _strip(requirement, use))
        for requirement, (users, use) in sorted(near, key=lambda item: item[0])
    ]


def _strip(requirement: Requirement, use: npt.NDArray[np.float64]) -> Markup:
    """Draw the use over time as a small area that stretches with its table cell."""
    size = -(-len(use) // READABLE_SLOTS)
    peaks = np.maximum.reduceat(use, np.arange(0, len(use), size))
    top = max(1.15, float(peaks.max()))
    heights = [f"V{100 * (1 - peak / top):.1f}h1" for peak in peaks]
    limit = f"{100 * (1 - 1 / top):.1f}"
    title = (
        f"Share of the budget used in every window of {requirement.window} at epsilon "
        f"{requirement.epsilon:g}: {_percent(float(use.max()))} at most"
    )
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 100" '
        'preserveAspectRatio="none"><title>{}</title><path class="area" d="M0,100{}V100Z"/>'
        '<path class="limit" d="M0,{}H{}"/></svg>'
    ).format(title, len(peaks), title, "".join(heights), limit, len(peaks))


def _chart(
    name: str,
    title: str,
    draw: Callable[[Figure], None],
    *,
    wide: tuple[int, int],
    narrow: tuple[int, int],
) -> Markup:
    """Draw a chart for wide screens and again for phones, so that text keeps its size in both."""
    drawn = []
    for kind, (width, height) in {"wide": wide, "narrow": narrow}.items():
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure)
        drawn.append(_svg(figure, f"{name}-{kind}", kind, title))
    return Markup("").join(drawn)


def _svg(figure: Figure, prefix: str, kind: str, title: str) -> Markup:
    """Make SVG to stand inside HTML: no prologue, no namespaces, colours by name, own ids."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    body = text[text.index("</metadata>") + len("</metadata>") :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.S)
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href=", "href=")
    body = re.sub(r'((?:id|href)="#?|url\(#)', rf"\g<1>{prefix}-", body)
    names = {value: f"var(--{key})" for key, value in PALETTE.items()}
    body = re.sub(
        r"((?:fill|stroke): )(#[0-9a-f]{6})", lambda m: m[1] + names.get(m[2], m[2]), body
    )
    body = re.sub(r' d="([^"]*)"', lambda m: f' d="{_short_path(m[1])}"', body)
    width, height = figure.get_size_inches() * 72
    return Markup('<svg class="{}" role="img" aria-label="{}" viewBox="0 0 {} {}">{}{}').format(
        kind,
        title,
        f"{width:g}",
        f"{height:g}",
        Markup("<title>{}</title>").format(title),
        Markup(body),
    )


def _short_path(path: str) -> str:
    """Cut coordinates to hundredths of a pixel and join the lines: a third of the bytes."""
    path = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), path)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", path)


def _axes(figure: Figure, left: int = 46, bottom: int = 24) -> Axes:
    """One chart with margins in points, the same in all charts: they line up on the page."""
    width, height = figure.get_size_inches() * 72
    return figure.add_axes(
        (left / width, bottom / height, 1 - (left + 10) / width, 1 - (bottom + 10) / height)
    )


def _over_time(axes: Axes, edges: Any) -> None:
    """Dates along the bottom, whole numbers with separators up the side."""
    narrow = axes.get_window_extent().width < 400
    locator = dates.AutoDateLocator(minticks=3, maxticks=5 if narrow else 14)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _whole(value)))
    axes.set_xlim(edges[0], edges[-1])


def _step(axes: Axes, edges: Any, values: npt.NDArray[Any], **style: Any) -> None:
    axes.step(edges, np.append(values, values[-1]), where="post", **style)


def _lines(
    axes: Axes,
    edges: Any,
    true: npt.NDArray[Any],
    released: npt.NDArray[Any],
) -> None:
    """Released steps, and over them the true line through the middles of the slots."""
    crowded = len(true) > axes.get_window_extent().width
    _step(axes, edges, released, color=PALETTE["released"], linewidth=1.2 if crowded else 1.8)
    axes.plot(
        _middles(edges),
        true,
        color=PALETTE["ink"],
        linewidth=0.6 if crowded else 0.9,
        marker="o" if len(true) < 3 else "",
        markersize=4,
    )


def _middles(edges: Any) -> Any:
    return edges[:-1] + np.diff(edges) // 2


def _draw_bin(axes: Axes, report: Report, j: int, part: slice, spread: float = 0.75) -> None:
    """True line, released steps with their band, and a tick under every publication."""
    edges: Any = report.edges[part.start : part.stop + 1]
    true, released = report.true_counts[part, j], report.released[part, j]
    error = 2 * report.stderr[part, j]
    low, high = (np.append(band, band[-1]) for band in (released - error, released + error))
    axes.fill_between(
        edges,
        low,
        high,
        step="post",
        color=PALETTE["released"],
        alpha=0.2,
        linewidth=0,
    )
    _lines(axes, edges, true, released)
    published = [r.status == PUBLISHED for r in report.releases[part]]
    _over_time(axes, edges)
    # The lines set the scale; of the bands only the common ones, or one wide band flattens all.
    spans: list[npt.NDArray[Any]] = [true, released]
    if np.isfinite(error).any():
        spans.append(np.nanquantile(released - error, 1 - spread, keepdims=True))
        spans.append(np.nanquantile(released + error, spread, keepdims=True))
    bottom, top = min(s.min() for s in spans), max(s.max() for s in spans)
    room = 0.06 * max(top - bottom, 1)
    axes.set_ylim(bottom - 3 * room, top + room)
    # One path for all ticks; a marker for each would be most of the page.
    ticks = np.repeat(dates.date2num(_middles(edges)[published]), 3)
    heights = np.tile([0.0, 0.045, np.nan], sum(published))
    style: Any = {"color": PALETTE["error"], "linewidth": 1, "solid_capstyle": "butt"}
    axes.plot(ticks, heights, transform=axes.get_xaxis_transform(), **style)


def _draw_panel(figure: Figure, report: Report, j: int, part: slice) -> None:
    _draw_bin(_axes(figure), report, j, part)


def _draw_totals(figure: Figure, report: Report) -> None:
    """Released against true total of every bin, both on a logarithmic scale."""
    axes = _axes(figure, left=62, bottom=44)
    true, released = _totals(report), report.released.sum(axis=0)
    low, high = _scale(report)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 300 * low else (1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _whole(value)))
    axes.grid(True, axis="both")
    axes.plot([low, high], [low, high], color=PALETTE["muted"], linewidth=1, dashes=(4, 3))
    shown = (true > low) & (released > low)
    style: Any = {"linestyle": "", "color": PALETTE["released"], "clip_on": False}
    axes.plot(true[shown], released[shown], marker="o", markersize=5, alpha=0.7, mew=0, **style)
    edge = 1.12 * low
    axes.plot(
        np.maximum(true, edge)[~shown],
        np.maximum(released, edge)[~shown],
        marker="v",
        markersize=5.5,
        markerfacecolor="none",
        **style,
    )
    axes.set_xlabel("true total")
    axes.set_ylabel("released total")
    miss = np.abs(np.log(np.maximum(released, edge) / np.maximum(true, edge)))
    worst = [int(j) for j in np.argsort(-miss, kind="stable") if shown[j]][:3]
    named = [j for j in dict.fromkeys([*report.busiest[:12], *worst]) if shown[j]]
    points = np.column_stack([true, released]).astype(np.float64)
    _name_points(axes, [(_shorten(report.labels[j], 12), points[j]) for j in named], points[shown])


def _scale(report: Report) -> tuple[float, float]:
    """Ends of both logarithmic scales: noise near zero must not push the others into a corner."""
    true, released = _totals(report), report.released.sum(axis=0)
    least_true = float(true[true > 0].min()) if true.any() else 1.0
    least = float(released[released > 0].min()) if (released > 0).any() else least_true
    high = max(float(true.max()), float(released.max()), 10.0)
    return 0.6 * min(least_true, max(least, least_true / 30)), 1.9 * high


def _name_points(
    axes: Axes,
    names: Sequence[tuple[str, npt.NDArray[np.float64]]],
    points: npt.NDArray[np.float64],
) -> None:
    """Write names beside their points, above or below, where that hides nothing."""
    # What is in the way, in pixels: all points, and the middles of the letters written so far.
    taken = axes.transData.transform(points)
    for name, point in names:
        width = 6.5 * len(name)
        for dx, dy, align in ((-7, 5, "right"), (7, -6, "left")):
            x, y = axes.transData.transform(point) + np.array([dx, dy])
            middles = (x - width if align == "right" else x) + np.arange(3, width, 6.5)
            letters = np.column_stack([middles, np.full(len(middles), y)])
            gaps = np.abs(taken[:, None] - letters)
            if not ((gaps[..., 0] < 6) & (gaps[..., 1] < 10)).any():
                break
        else:
            continue
        taken = np.vstack([taken, letters])
        axes.annotate(
            name,
            tuple(point),
            (dx, dy),
            textcoords="offset points",
            ha=align,
            va="center_baseline",
            fontsize=10,
        )


def _draw_total(axes: Axes, report: Report, group: int) -> None:
    """All bins together, a mean for every group of slots."""
    edges = _grouped_edges(report, group)
    true = _grouped(report.true_counts.sum(axis=1), group)
    released = _grouped(report.released.sum(axis=1), group)
    _lines(axes, edges, true, released)
    _over_time(axes, edges)
    axes.set_ylim(bottom=min(0.0, 1.05 * float(released.min())))


def _draw_error(axes: Axes, report: Report, group: int) -> None:
    """Mean absolute error per bin, and the standard error that noise alone explains."""
    edges = _grouped_edges(report, group)
    error = _grouped(report.absolute_error.mean(axis=1), group)
    known: Any = np.isfinite(report.stderr).any(axis=1)
    noise = np.full(len(report.releases), np.nan)
    noise[known] = np.nanmean(report.stderr[known], axis=1)
    noise = _grouped(noise, group)
    axes.fill_between(
        edges,
        np.append(error, error[-1]),
        step="post",
        color=PALETTE["error"],
        alpha=0.25,
        linewidth=0,
    )
    _step(axes, edges, error, color=PALETTE["error"], linewidth=1.2)
    _step(axes, edges, noise, color=PALETTE["muted"], linewidth=1, linestyle=(0, (3, 2)))
    _over_time(axes, edges)
    axes.set_ylim(bottom=0)


def _readable(report: Report) -> slice:
    """All slots, or the middle four weeks of very many (fewer still when slots are short)."""
    slots = len(report.releases)
    if slots <= READABLE_SLOTS:
        return slice(0, slots)
    weeks = round(28 * MICROSECONDS["d"] / report.slots.length)
    size = max(1, min(slots, weeks, 2 * READABLE_SLOTS))
    start = (slots - size) // 2
    return slice(start, start + size)


def _group(report: Report) -> int:
    """Slots per point of a chart of the whole period: whole hours, days or weeks if they fit."""
    least = -(-len(report.releases) // READABLE_SLOTS)
    units = (MICROSECONDS["h"], 6 * MICROSECONDS["h"], MICROSECONDS["d"], 7 * MICROSECONDS["d"])
    sizes = [unit // report.slots.length for unit in units if unit % report.slots.length == 0]
    return least if least == 1 else next((size for size in sizes if size >= least), least)


def _grouped(values: npt.NDArray[Any], group: int) -> npt.NDArray[np.float64]:
    starts = np.arange(0, len(values), group)
    sizes = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(values.astype(np.float64), starts) / sizes


def _grouped_edges(report: Report, group: int) -> Any:
    return np.append(report.edges[:-1:group], report.edges[-1:])


def _totals(report: Report) -> npt.NDArray[np.int64]:
    totals: npt.NDArray[np.int64] = report.true_counts.sum(axis=0)
    return totals


def _name(report: Report, j: int) -> str:
    label = report.labels[j]
    return f"{label}, {report.label_names[label]}" if label in report.label_names else label


def _date(report: Report, i: int) -> str:
    """When a slot starts, in words."""
    time: dt.datetime = report.edges[i].item()
    hour = f", {time:%H:%M} UTC" if report.slots.length % MICROSECONDS["d"] else ""
    return f"{time.day} {time:%b %Y}{hour}"


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace("-", MINUS)


def _decimal(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return _whole(value) if abs(value) >= 100 else f"{value:,.3g}".replace("-", MINUS)


def _percent(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{100 * value:,.1f}%"


def _signed(value: float) -> str:
    return f"{100 * value:+,.1f}%".replace("-", MINUS)


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

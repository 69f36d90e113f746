"""The charts: a report drawn with matplotlib, as SVG for the page or as one picture.

The SVG stands inside HTML: its colours are CSS variables, so they follow the reader's light or
dark scheme. Whoever draws or saves a chart does it with `STYLE` in force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any

import matplotlib.dates
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from streamveil.pipelines.report import Report
from streamveil.pipelines.sums import BUSIEST, in_spans

# This module of matplotlib has no types, and its versions differ in which dates axes are typed
# to take: hence also the `Any` of the times below.
dates: Any = matplotlib.dates

MINUS = "\N{MINUS SIGN}"

# Names of CSS variables and their light values. In the SVG every value is replaced by its
# variable; the dark values stand in the template. Blue and orange are Okabe and Ito's.
PALETTE = {
    "ink": "#1c2329",
    "muted": "#5b6670",
    "rule": "#d9dee2",
    "released": "#0072b2",
    "revised": "#00805e",
    "error": "#c25100",
}

# Text stays text (small, selectable, in the reader's own font), and `$` in a label is a dollar.
_COUNTED: Any = {"color": "#5b6670", "linewidth": 0.9, "dashes": (3, 2)}
_LOST: Any = {"color": PALETTE["error"], "alpha": 0.3, "linewidth": 0}
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


def chart(
    name: str,
    title: str,
    draw: Callable[[Figure], None],
    *,
    wide: tuple[int, int],
    narrow: tuple[int, int],
    palette: Mapping[str, str] = PALETTE,
) -> Markup:
    """Draw a chart for wide screens and again for phones, so that text keeps its size in both.

    The colours of `palette` become CSS variables of their names.
    """
    drawn = []
    for kind, (width, height) in {"wide": wide, "narrow": narrow}.items():
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure)
        drawn.append(_svg(figure, f"{name}-{kind}", kind, title, palette))
    return Markup("").join(drawn)


def _svg(figure: Figure, prefix: str, kind: str, title: str, palette: Mapping[str, str]) -> Markup:
    """Make SVG to stand inside HTML: no prologue, no namespaces, colours by name, own ids."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    body = text[text.index("</metadata>") + len("</metadata>") :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.S)
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href=", "href=")
    body = re.sub(r'((?:id|href)="#?|url\(#)', rf"\g<1>{prefix}-", body)
    names = {value: f"var(--{key})" for key, value in palette.items()}
    body = re.sub(
        r"((?:fill|stroke): )(#[0-9a-f]{6})", lambda m: m[1] + names.get(m[2], m[2]), body
    )
    body = re.sub(r' d="([^"]*)"', lambda m: f' d="{_short_path(m[1])}"', body)
    width, height = figure.get_size_inches() * 72
    return Markup(
        '<svg class="{}" role="img" aria-label="{}" viewBox="0 0 {:g} {:g}"><title>{}</title>{}'
    ).format(kind, title, width, height, title, Markup(body))


def _short_path(path: str) -> str:
    """Cut coordinates to hundredths of a pixel and join the lines: a third of the bytes."""
    path = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), path)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", path)


def picture(report: Report, part: slice) -> Figure:
    """Draw three busy bins above one another, with a headline and a key to the lines."""
    bins = _telling(report)
    figure = Figure(figsize=(8, 4), facecolor="white")
    axes = figure.subplots(len(bins), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.058, right=0.975, top=0.79, bottom=0.075, hspace=0.45)
    for a, j in zip(axes, bins, strict=True):
        _draw_bin(a, report, j, part, spread=0.55)
        a.set_title(shorten(report.full_name(j), 60), loc="left", fontsize=10.5, pad=4)
    figure.text(0.012, 0.938, shorten(report.subject, 60), fontsize=13, weight="bold")
    keys: list[Any] = [
        Line2D([], [], color=PALETTE["ink"], linewidth=1.1, label="true"),
        *(_counted_keys() if report.uncounted_share > 0 else []),
        Line2D([], [], color=PALETTE["released"], linewidth=2, label="released"),
        Patch(color=PALETTE["released"], alpha=0.2, linewidth=0, label="± 2 standard errors"),
    ]
    figure.legend(
        handles=keys,
        loc="upper left",
        bbox_to_anchor=(0.002, 0.935),
        ncols=len(keys),
        columnspacing=1.3,
        handlelength=1.6,
        frameon=False,
    )
    return figure


def span_picture(report: Report, name: str, size: int) -> Figure:
    """Draw totals of three busy bins over spans of slots, such as weeks, each line with its label.

    Args:
        report: what to show, of two spans at least.
        name: of a span, such as `week`.
        size: slots of a span.
    """
    bins = _telling(report)
    figure = Figure(figsize=(8, 4), facecolor="white")
    axes = figure.subplots(len(bins), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.058, right=0.86, top=0.86, bottom=0.075, hspace=0.45)
    edges: Any = report.edges[::size][: len(report.releases) // size + 1]
    for a, j in zip(axes, bins, strict=True):
        true, counted, released = (
            in_spans(counts[:, [j]], size)[:, 0]
            for counts in (report.true_counts, report.counted, report.released)
        )
        _lines(a, edges, true, counted, released)
        over_time(a, edges)
        _from_zero(a, [true, counted, released])
        a.set_title(shorten(report.full_name(j), 60), loc="left", fontsize=10.5, pad=4)
        ends = {
            "true": (true[-1], PALETTE["ink"]),
            "released": (released[-1], PALETTE["released"]),
        }
        if _misses_much(true, counted):
            ends["kept"] = (counted[-1], _COUNTED["color"])
        _label_ends(a, ends)
    figure.text(
        0.012,
        0.938,
        shorten(f"{report.subject}, per {name}", 70),
        fontsize=13,
        weight="bold",
    )
    return figure


def _misses_much(true: npt.NDArray[Any], counted: npt.NDArray[Any]) -> bool:
    """Whether contribution bounding drops so much that its line stands apart from the true one."""
    return float(counted.sum()) < 0.95 * float(true.sum())


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write the name of each line behind its end, lowest first, with room between the names."""
    bottom, top = axes.get_ylim()
    least = bottom
    for name, (value, color) in sorted(ends.items(), key=lambda end: end[1][0]):
        least = max(float(value), least)
        axes.annotate(
            name,
            (1, (least - bottom) / (top - bottom)),
            (5, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=color,
            va="center",
            annotation_clip=False,
        )
        least += 0.24 * (top - bottom)


def _counted_keys() -> list[Any]:
    return [Line2D([], [], label="counted", **_COUNTED), Patch(label="not counted", **_LOST)]


def _telling(report: Report) -> list[int]:
    """The two busiest bins, and of the other busy ones that of which least counts."""
    two, others = report.busiest[:2], report.busiest[2:BUSIEST]
    kept = report.counted.sum(axis=0) / np.maximum(report.true_totals, 1)
    return two + sorted(others, key=lambda j: float(kept[j]))[:1]


def draw_panel(figure: Figure, report: Report, j: int, part: slice) -> None:
    """One bin, true against released, over a part of the slots."""
    _draw_bin(plain_axes(figure), report, j, part)


def draw_sums(figure: Figure, report: Report, j: int, size: int) -> None:
    """One bin, sums of so many slots in a row: true, counted, released, and as revised."""
    axes = plain_axes(figure)
    edges: Any = report.edges[::size][: len(report.releases) // size + 1]
    true, counted, released = (
        in_spans(counts[:, [j]], size)[:, 0]
        for counts in (report.true_counts, report.counted, report.released)
    )
    _lines(axes, edges, true, counted, released)
    shown = [true, counted, released]
    if report.revisions:
        shown.append(in_spans(report.revised[:, [j]], size)[:, 0])
        step(axes, edges, shown[-1], color=PALETTE["revised"], linewidth=1.2)
    over_time(axes, edges)
    _from_zero(axes, shown)


def _draw_bin(axes: Axes, report: Report, j: int, part: slice, spread: float = 0.75) -> None:
    """True line and released steps with their band, from 0 up.

    Where not all events count, a dashed line shows what is left of them.
    """
    edges: Any = report.edges[part.start : part.stop + 1]
    true, released = report.true_counts[part, j], report.released[part, j]
    counted = report.counted[part, j]
    error = 2 * report.stderr[part, j]
    # No count is below 0, so no band need be, but round a released count that is.
    low, high = np.fmax(released - error, np.minimum(released, 0)), released + error
    low[~np.isfinite(error)] = np.nan
    axes.fill_between(
        edges,
        held(low),
        held(high),
        step="post",
        color=PALETTE["released"],
        alpha=0.2,
        linewidth=0,
    )
    _lines(axes, edges, true, counted, released)
    over_time(axes, edges)
    # The lines set the scale; of the bands only the common ones, or one wide band flattens all.
    common = [np.nanquantile(high, spread, keepdims=True)] if np.isfinite(error).any() else []
    _from_zero(axes, [true, released, *common])


def _from_zero(axes: Axes, shown: Sequence[npt.NDArray[Any]]) -> None:
    """A scale of counts from 0, or from the lowest of those that noise made negative."""
    bottom = min(0.0, *(float(one.min()) for one in shown))
    top = max(1.0, *(float(one.max()) for one in shown))
    room = 0.06 * (top - bottom)
    axes.set_ylim(bottom - room if bottom < 0 else 0, top + room)


def draw_scatter(figure: Figure, report: Report) -> None:
    """Released against true total of every bin, both on a logarithmic scale."""
    axes = plain_axes(figure, left=62, bottom=44)
    true, released = report.true_totals, report.released_totals
    low, high = _scale(report)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 300 * low else (1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(_whole_tick)
    axes.grid(True, axis="both")
    axes.plot([low, high], [low, high], color=PALETTE["muted"], linewidth=1, dashes=(4, 3))
    shown = on_scale(report)
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
    _name_points(axes, [(shorten(report.labels[j], 12), points[j]) for j in named], points[shown])


def on_scale(report: Report) -> npt.NDArray[np.bool_]:
    """Which bins have both totals on the logarithmic scales, not too near zero; shape (bins,)."""
    low, _ = _scale(report)
    return (report.true_totals > low) & (report.released_totals > low)


def _scale(report: Report) -> tuple[float, float]:
    """Ends of both logarithmic scales: noise near zero must not push the others into a corner."""
    true, released = report.true_totals, report.released_totals
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
            hidden = ((gaps[..., 0] < 6) & (gaps[..., 1] < 10)).any()
            if not hidden and middles[0] > axes.bbox.x0:  # left of it are the numbers of the scale
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


def draw_total(figure: Figure, report: Report, group: int) -> None:
    """All bins together, a mean for every group of slots."""
    axes, edges = plain_axes(figure), _grouped_edges(report, group)
    true, counted, released = (
        _grouped(counts.sum(axis=1), group)
        for counts in (report.true_counts, report.counted, report.released)
    )
    _lines(axes, edges, true, counted, released)
    over_time(axes, edges)
    _from_zero(axes, [true, released])


def draw_error(figure: Figure, report: Report, group: int) -> None:
    """Mean absolute error per bin, and the standard error that noise alone explains."""
    axes, edges = plain_axes(figure), _grouped_edges(report, group)
    error = _grouped(report.absolute_error.mean(axis=1), group)
    known: Any = np.isfinite(report.stderr).any(axis=1)
    noise = np.full(len(report.releases), np.nan)
    noise[known] = np.nanmean(report.stderr[known], axis=1)
    noise = _grouped(noise, group)
    axes.fill_between(
        edges, held(error), step="post", color=PALETTE["error"], alpha=0.25, linewidth=0
    )
    step(axes, edges, error, color=PALETTE["error"], linewidth=1.2)
    step(axes, edges, noise, color=PALETTE["muted"], linewidth=1, linestyle=(0, (3, 2)))
    over_time(axes, edges)
    axes.set_ylim(bottom=0)


def plain_axes(figure: Figure, left: int = 46, bottom: int = 24) -> Axes:
    """One chart with margins in points, the same in all charts: they line up on the page."""
    width, height = figure.get_size_inches() * 72
    return figure.add_axes(
        (left / width, bottom / height, 1 - (left + 10) / width, 1 - (bottom + 10) / height)
    )


def over_time(axes: Axes, edges: Any) -> None:
    """Dates along the bottom, whole numbers with separators up the side."""
    narrow = axes.get_window_extent().width < 400
    locator = dates.AutoDateLocator(minticks=3, maxticks=5 if narrow else 14)
    axes.xaxis.set_major_locator(locator)
    formatter = dates.ConciseDateFormatter(locator, show_offset=False)
    if edges[0].astype("datetime64[M]") == edges[-1].astype("datetime64[M]"):
        formatter.formats[2] = "%d %b"  # or no tick would say which month it is
    axes.xaxis.set_major_formatter(formatter)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(_whole_tick)
    axes.set_xlim(edges[0], edges[-1])


def _lines(
    axes: Axes,
    edges: Any,
    true: npt.NDArray[Any],
    counted: npt.NDArray[Any],
    released: npt.NDArray[Any],
) -> None:
    """Released steps, and over them the true line through the middles of the slots.

    Between them, dashed, what counts of the true events, if that is not all, and what is lost by
    that as an area.
    """
    crowded = len(true) > axes.get_window_extent().width
    step(axes, edges, released, color=PALETTE["released"], linewidth=1.2 if crowded else 1.8)
    if (counted != true).any():
        axes.fill_between(middles(edges), counted, true, **_LOST)
        axes.plot(middles(edges), counted, **_COUNTED)
    axes.plot(
        middles(edges),
        true,
        color=PALETTE["ink"],
        linewidth=0.6 if crowded else 0.9,
        marker="o" if len(true) < 3 else "",
        markersize=4,
    )


def step(axes: Axes, edges: Any, values: npt.NDArray[Any], **style: Any) -> None:
    """Draw a value for each slot, level over all of it."""
    axes.step(edges, held(values), where="post", **style)


def held(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One value for every edge: the last one holds to the end of its slot."""
    return np.append(values, values[-1])


def middles(edges: Any) -> Any:
    """Of the slots between edges."""
    return edges[:-1] + np.diff(edges) // 2


def _grouped(values: npt.NDArray[Any], group: int) -> npt.NDArray[np.float64]:
    starts = np.arange(0, len(values), group)
    sizes = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(values.astype(np.float64), starts) / sizes


def _grouped_edges(report: Report, group: int) -> Any:
    return np.append(report.edges[:-1:group], report.edges[-1:])


def shorten(text: str, most: int) -> str:
    """Cut a text to so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def whole(value: float) -> str:
    """A number without decimals, with separators and a true minus sign."""
    return f"{value:,.0f}".replace("-", MINUS)


def _whole_tick(value: float, _: object) -> str:
    return whole(value)

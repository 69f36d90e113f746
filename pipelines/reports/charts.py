"""The charts of results, budgets and errors, each drawn on a sheet for a page or for a picture.

Released figures and true ones are drawn alike, as steps: a slot has one figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.pipelines.pages.axes import (
    Axis,
    Box,
    Plot,
    linear_axis,
    log_axis,
    shown,
    time_axis,
    whole,
)
from streamveil.pipelines.pages.palette import FIGURES, SERIES
from streamveil.pipelines.pages.sheet import (
    TEXT,
    Label,
    Path,
    Sheet,
    shorten,
    sign,
    text_width,
)
from streamveil.pipelines.reports.accuracy import BUSIEST, in_spans
from streamveil.pipelines.reports.labels import slot_name

if TYPE_CHECKING:
    from streamveil.mechanisms.core.arrays import Floats
    from streamveil.mechanisms.core.records import Slots
    from streamveil.mechanisms.queries.queries import Query
    from streamveil.pipelines.reports.accuracy import Accuracy
    from streamveil.pipelines.reports.report import QueryFigures, Report

READABLE_SLOTS, SHOWN_SLOTS = 500, 168
"""More slots than can be distinguished in a chart; how many of these are drawn instead."""

# Intervals wider than most do not set the scale: one would flatten all the rest.
_SET_THE_SCALE = 0.75
# Wider ones are shown whole where the chart then grows by no more than this fraction.
_ROOM_FOR_BANDS = 0.3

_KEPT: Any = {"colour": "muted", "width": 1.1, "dashes": (3, 2)}
_DROPPED: Any = {"colour": "error", "opacity": 0.3}
_PICTURE = (800, 400)
_NAMES = 62  # pixels right of a chart, for the names of its lines
_GAP = 12  # around them
# Names of bins may have so many letters in any chart, and more in a wide one: so much of its width.
_LETTERS, _WIDTH_OF_NAMES = 9, 0.15


def picture(report: Report, query: Query) -> Sheet:
    """Draw three busy bins above one another, with a headline and names of the lines.

    Two are those whose true counts change most from span to span, so that the picture shows whether
    releases follow. The third is the bin that loses most to contribution bounding.

    Slots of a day are added up to weeks, and shorter ones are drawn as they are, the last of very
    many.

    Args:
        report: with a query whose accuracy is known.
        query: that one.
    """
    series, words = report.figures[query.name], report.wording(query)
    assert series.accuracy is not None
    accuracy = replace(series.accuracy, revised=None)
    span = accuracy.longest if slot_name(series.slots) == "day" else None
    bins, sheet = _three_bins(accuracy), Sheet(*_PICTURE)
    title = f"{words.title}, per {span[0]}" if span else words.title
    sheet.add(Label(10, 26, shorten(title, 70), colour="ink", size=18, bold=True))
    top = 62.0
    height = (sheet.height - 42 - top) / len(bins)
    for i, j in enumerate(bins):
        box = Box(56, top + i * height, 690, top + (i + 1) * height - 26)
        unit, last = "", i == len(bins) - 1
        if span:
            draw_sums(sheet, accuracy, [j], span[1], unit, box, dates=last)
        else:
            draw_figures(sheet, series, [j], shown_slots(series), unit, box, dates=last)
        name = shorten(words.full_name(series.labels[j]), 60)
        if i == 0:
            name = f"{name}: {words.unit} per {span[0] if span else slot_name(series.slots)}"
        sheet.add(Label(box.left - 40, box.top - 8, name, colour="ink", size=13))
    return sheet


def shown_slots(series: QueryFigures, most: int = READABLE_SLOTS) -> slice:
    """All slots of a query, or the last ones of more than can be distinguished in one chart."""
    slots = len(series.values)
    return slice(0 if slots <= most else slots - SHOWN_SLOTS, slots)


def _three_bins(accuracy: Accuracy) -> list[int]:
    """Of the busy bins the two that change most, and of the others the one of which least is kept.

    A bin's change is the standard deviation of its true sums over the longest span.
    """
    busy = accuracy.busiest[:BUSIEST]
    size = accuracy.longest[1] if accuracy.longest else 1
    change = dict(zip(busy, in_spans(accuracy.true[:, busy], size).std(axis=0), strict=True))
    two = sorted(busy, key=lambda j: -float(change[j]))[:2]
    kept = accuracy.kept.sum(axis=0) / np.maximum(accuracy.true_totals, 1)
    others = [j for j in busy if j not in two]
    return two + sorted(others, key=lambda j: float(kept[j]))[:1]


def draw_figures(
    sheet: Sheet,
    series: QueryFigures,
    bins: Sequence[int],
    part: slice,
    unit: str,
    box: Box | None = None,
    *,
    dates: bool = True,
    note: bool = False,
) -> Plot:
    """The figures of bins over some slots, in their intervals, and the true ones over them.

    Of one bin all figures are drawn, of several the first of each, without revisions. Lines have
    their names at their ends.

    Args:
        sheet: where to draw.
        series: the query.
        bins: which bins, the largest first.
        part: which slots.
        unit: of its figures.
        box: where on the sheet; all of it if None.
        dates: whether these are below the chart.
        note: whether to point out the highest figure of the first bin.
    """
    edges: Any = series.edges[part.start : part.stop + 1]
    lines = _lines(series, bins, part, _most_letters(sheet))
    over: list[Floats] = []
    for line in lines:
        over += [one for one in (line.true, line.revised, line.values) if one is not None]
        if np.isfinite(line.low).any() and np.isfinite(line.high).any():
            over.append(np.nanquantile(line.low, 1 - _SET_THE_SCALE, keepdims=True))
            over.append(np.nanquantile(line.high, _SET_THE_SCALE, keepdims=True))
    over += _highs_with_room(lines, over)
    y = _y_axis(unit, over, whole_numbers=series.are_counts, from_zero=series.from_zero)
    place, text = _place_of(sheet, box, [line.name for line in lines])
    plot = _over_time(sheet, place, edges, series.slots, y, dates=dates)
    ends: list[tuple[str, Floats, str]] = []
    for line in lines:
        if line.true is not None:
            _add_dropped(plot, edges, line.true, line.kept)
        plot.band(edges, line.low, line.high, line.colour)
        _add_released(plot, edges, line.values, line.colour)
        ends.append((line.name, line.values, line.colour))
        if line.revised is not None:
            plot.steps(edges, line.revised, line.colour, width=1.6, dashes=(3, 2))
            ends.append(("revised", line.revised, line.colour))
        if line.true is not None:
            _add_true(plot, edges, line.true, line.kept)
            ends.append(("true", line.true, "ink"))
            if line.kept is not None and _shows_kept(line.true, line.kept):
                ends.append(("kept", line.kept, "muted"))
    plot.name_ends(ends, text)
    if note:
        _note_highest(plot, edges, lines[0], whole if series.are_counts else shown)
    return plot


def _place_of(sheet: Sheet, box: Box | None, names: Sequence[str] = ()) -> tuple[Box, float]:
    """Where a chart goes, and the size of the names at the ends of its lines."""
    if box:
        return box, 13.0
    longest = max(map(text_width, names), default=0.0)
    return _box(sheet, right=max(_NAMES, longest + _GAP)), TEXT


def _most_letters(sheet: Sheet) -> int:
    """How many letters the name of a bin may have at the end of its line."""
    return max(_LETTERS, int(_WIDTH_OF_NAMES * sheet.width / text_width("x")))


def _highs_with_room(lines: Sequence[_Line], over: Sequence[Floats]) -> list[Floats]:
    """Upper ends of intervals that fit on the chart without making the rest much smaller."""
    shown = np.concatenate([one[np.isfinite(one)] for one in over] or [np.zeros(0)])
    if not shown.size:
        return []
    low, high = float(shown.min()), float(shown.max())
    most = high + _ROOM_FOR_BANDS * (high - low)
    return [line.high[line.high <= most] for line in lines]


class _Line(NamedTuple):
    """One figure of a bin over some slots."""

    name: str
    colour: str
    values: Floats
    low: Floats
    high: Floats
    true: Floats | None
    kept: Floats | None
    revised: Floats | None


def _lines(
    series: QueryFigures, bins: Sequence[int], part: slice, most_letters: int
) -> list[_Line]:
    """All figures of one bin, or the first of each of several."""
    several = len(bins) > 1
    outputs = range(1 if several else len(series.outputs))
    colours = SERIES if several else FIGURES
    found: list[_Line] = []
    for j, o in itertools.product(bins, outputs):
        if several:
            name = shorten(series.labels[j], most_letters)
        else:
            name = series.outputs[o] if len(outputs) > 1 else "released"
        low, high, values = (one[part, j, o] for one in (series.low, series.high, series.values))
        true, kept = (
            None if one is None else one[part, j, o] for one in (series.true, series.kept)
        )
        revised = None
        if series.revised is not None and shows_revised(series) and not several:
            revised = series.revised[part, j, o]
        colour = colours[len(found) % len(colours)]
        found.append(_Line(name, colour, values, low, high, true, kept, revised))
    return found


def _note_highest(plot: Plot, edges: Any, line: _Line, write: Callable[[float], str]) -> None:
    """Point out the highest figure, with its interval."""
    if not np.isfinite(line.values).any():
        return
    i = int(np.nanargmax(line.values))
    ends = line.low[i], line.high[i]
    interval = f" ({write(ends[0])} to {write(ends[1])})" if ends[0] < ends[1] else ""
    text = f"highest: {write(round(line.values[i], 3))}{interval}, {_when(edges, i)}"
    _note(plot, edges, i, line.values[i], text)


def _note(plot: Plot, edges: Any, i: int, value: float, text: str) -> None:
    """Mark the figure of a slot, and write above the axes what it is, where there is room."""
    middle = edges[i] + (edges[i + 1] - edges[i]) // 2
    ((x, y),) = plot.at(np.array([float(middle.astype(np.int64))]), np.array([value])).tolist()
    box, width = plot.box, text_width(text)
    least = max(box.left - 40, 0) + text_width(plot.y.title) + 12
    left = min(max(x - width / 2, least), plot.sheet.width - width)
    if left < least:
        return
    bend = min(max(x, left), left + width)
    ends = [(bend, box.top - 5), (x, box.top + 6), (x, y - 3)]
    plot.sheet.add(Path(np.array(ends), "muted", 0.8), sign((x, y), "ink", filled=False))
    plot.sheet.add(Label(left, box.top - 9, text, colour="ink"))


def _when(edges: Any, i: int) -> str:
    """The start of a slot, in words."""
    start = edges[i].item()
    date = f"{start.day} {start:%b}"
    return date if (start.hour, start.minute) == (0, 0) else f"{date} {start:%H:%M}"


def shows_revised(series: QueryFigures) -> bool:
    """Whether charts of bins show what slots were revised to: where they do not show the truth."""
    return series.revised is not None and series.true is None


def draw_sums(
    sheet: Sheet,
    accuracy: Accuracy,
    bins: Sequence[int],
    size: int,
    unit: str,
    box: Box | None = None,
    *,
    dates: bool = True,
    note: bool = False,
) -> Plot:
    """Sums of bins over `size` slots in a row: true, kept, released, and as revised.

    Lines have their names at their ends. Arguments are as of :func:`draw_figures`, but that `note`
    points out the largest error.
    """
    lines = accuracy.totals_of(bins, size)
    true, kept, released = (lines[name] for name in ("true", "kept", "released"))
    edges: Any = accuracy.edges[::size][: len(true) + 1]
    place, text = _place_of(sheet, box)
    y = _y_axis(unit, list(lines.values()))
    plot = _over_time(sheet, place, edges, accuracy.slots, y, dates=dates)
    _add_dropped(plot, edges, true, kept)
    _add_released(plot, edges, released)
    if "revised" in lines:
        plot.steps(edges, lines["revised"], "revised", width=1.6)
    _add_true(plot, edges, true, kept)
    colours = {"true": "ink", "kept": "muted"}
    if not _shows_kept(true, kept):
        del lines["kept"]
    ends = [(name, line, colours.get(name, name)) for name, line in lines.items()]
    plot.name_ends(ends, text)
    if note:
        i = int(np.abs(released - true).argmax())
        error = abs(released[i] - true[i])
        share = f" ({error / true[i]:.0%})" if true[i] else ""
        text_of_note = f"largest error: {whole(error)}{share}, {_when(edges, i)}"
        _note(plot, edges, i, released[i], text_of_note)
    return plot


def draw_scatter(sheet: Sheet, accuracy: Accuracy, labels: Sequence[str], unit: str) -> Plot:
    """Released against true total of every bin, both on a logarithmic scale."""
    true, released = accuracy.true_totals, accuracy.released_totals
    low, high = _scale(accuracy)
    x, y = (log_axis(f"{kind} total, {unit}", low, high, whole) for kind in ("true", "released"))
    plot = Plot(sheet, _box(sheet, 56), x, y, grid="xy")
    ends = np.array([low, high])
    plot.line(ends, ends, "muted", dashes=(4, 3))
    on, edge = on_scale(accuracy), 1.12 * low
    plot.signs(true[on], released[on], "released", opacity=0.7)
    beside = np.maximum(true, edge)[~on], np.maximum(released, edge)[~on]
    plot.signs(*beside, "released", shape="v", filled=False)
    miss = np.abs(np.log(np.maximum(released, edge) / np.maximum(true, edge)))
    worst = [int(j) for j in np.argsort(-miss, kind="stable") if on[j]][:3]
    named = [j for j in dict.fromkeys([*accuracy.busiest[:12], *worst]) if on[j]]
    places = plot.at(true, released)
    _name_points(plot, [(shorten(labels[j], 12), places[j]) for j in named], places[on])
    return plot


def on_scale(accuracy: Accuracy) -> npt.NDArray[np.bool_]:
    """Which bins have both totals on the logarithmic scales, not too near zero; shape (bins,)."""
    low, _ = _scale(accuracy)
    return (accuracy.true_totals > low) & (accuracy.released_totals > low)


def _scale(accuracy: Accuracy) -> tuple[float, float]:
    """Ends of both logarithmic scales: noise near zero must not push the others into a corner."""
    true, released = accuracy.true_totals, accuracy.released_totals
    least_true = float(true[true > 0].min()) if true.any() else 1.0
    least = float(released[released > 0].min()) if (released > 0).any() else least_true
    high = max(float(true.max()), float(released.max()), 10.0)
    return 0.6 * min(least_true, max(least, least_true / 30)), 1.9 * high


def _name_points(plot: Plot, names: Sequence[tuple[str, Floats]], points: Floats) -> None:
    """Write names beside their points, above or below, where that hides nothing."""
    # What is in the way: all points, and the middles of the letters written so far.
    taken = points
    for name, point in names:
        width = text_width(name)
        for dx, dy, anchor in ((-6, -3, "end"), (6, 10, "start")):
            x, y = point + np.array([dx, dy])
            middles = (x - width if anchor == "end" else x) + np.arange(3, width, 6.5)
            letters = np.column_stack([middles, np.full(len(middles), y - 4)])
            gaps = np.abs(taken[:, None] - letters)
            hidden = ((gaps[..., 0] < 6) & (gaps[..., 1] < 10)).any()
            if not hidden and middles[0] > plot.box.left:  # left of it are the numbers of the scale
                break
        else:
            continue
        taken = np.vstack([taken, letters])
        plot.sheet.add(Label(float(x), float(y), name, anchor, "ink", 10))


def draw_error(sheet: Sheet, accuracy: Accuracy, group: int, unit: str) -> Plot:
    """Mean absolute error per bin, and the standard error that noise alone explains."""
    edges = np.append(accuracy.edges[:-1:group], accuracy.edges[-1:])
    error = _grouped(accuracy.absolute_error.mean(axis=1), group)
    known: Any = np.isfinite(accuracy.stderr).any(axis=1)
    noise = np.full(len(accuracy.true), np.nan)
    noise[known] = np.nanmean(accuracy.stderr[known], axis=1)
    noise = _grouped(noise, group)
    y = _y_axis(unit, [error, noise], whole_numbers=False)
    plot = _over_time(sheet, _box(sheet, right=_NAMES), edges, accuracy.slots, y)
    plot.band(edges, np.zeros(len(error)), error, "error", 0.25)
    plot.steps(edges, error, "error", width=1.6)
    plot.steps(edges, noise, "muted", width=1.3, dashes=(3, 2))
    plot.name_ends([("error", error, "error"), ("expected", noise, "muted")])
    return plot


def draw_budget(
    sheet: Sheet, edges: Any, slots: Slots, stacked: Sequence[tuple[str, Floats]]
) -> Plot:
    """Shares of a budget on top of one another, with the limit.

    Args:
        sheet: where to draw.
        edges: of the slots, one more than there are.
        slots: how time is cut.
        stacked: names of colours and shares by slot, from the bottom on.
    """
    floors = np.cumsum([np.zeros(len(edges) - 1), *(shares for _, shares in stacked)], axis=0)
    high = max(1.1, 1.05 * float(floors.max()))
    y = linear_axis("share of the budget", 0, high, tick=lambda share: f"{share:.0%}")
    plot = _over_time(sheet, _box(sheet), edges, slots, y)
    for (colour, _), floor, ceiling in zip(stacked, floors, floors[1:], strict=False):
        plot.band(edges, floor, ceiling, colour, 0.75)
    plot.level(1, "error", width=2, dashes=(5, 3))
    return plot


def _box(sheet: Sheet, left: float = 50, right: float = 10) -> Box:
    """Where a chart is that has a sheet to itself: the same margins line charts up on a page."""
    return Box(left, 22, sheet.width - right, sheet.height - 38)


def _over_time(
    sheet: Sheet, box: Box, edges: Any, slots: Slots, y: Axis, *, dates: bool = True
) -> Plot:
    """Axes over slots; without `dates`, those are below another chart of the same slots."""
    x = time_axis(edges, box.right - box.left, of_days=slots.of_days)
    return Plot(sheet, box, x if dates else x._replace(ticks=(), title=""), y)


def _y_axis(
    title: str,
    over: Sequence[Floats],
    *,
    whole_numbers: bool = True,
    from_zero: bool = True,
) -> Axis:
    """Room for all figures; of counts from 0, or from those that noise made negative."""
    known = np.concatenate([one[np.isfinite(one)] for one in over])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if from_zero:
        low, high = min(0.0, low), max(high, low + 1e-9)
    room = 0.06 * (high - low or 1)
    low, high = low - (room if low < 0 or not from_zero else 0), high + room
    write = whole if whole_numbers else shown
    return linear_axis(title, low, high, integer=whole_numbers, tick=write)


def _add_released(plot: Plot, edges: Any, values: Floats, colour: str = "released") -> None:
    plot.steps(edges, values, colour, width=_width(plot, values, 0.5, 1.0, 2.4))


def _add_dropped(plot: Plot, edges: Any, true: Floats, kept: Floats | None) -> None:
    """The area of the dropped events, below the lines; nothing where all are kept."""
    if kept is not None and (kept != true).any():
        plot.band(edges, kept, true, **_DROPPED)


def _add_true(plot: Plot, edges: Any, true: Floats, kept: Floats | None) -> None:
    """The true figures over the released ones, and those of the kept events, dashed, if fewer."""
    if kept is not None and (kept != true).any():
        plot.steps(edges, kept, **_KEPT)
    plot.steps(edges, true, "ink", width=_width(plot, true, 0.25, 0.6, 1.2))


def _shows_kept(true: Floats, kept: Floats) -> bool:
    """Whether the line of the kept events has a name: not where it is one with the true one."""
    return bool(kept.sum() < 0.95 * true.sum())


def _width(plot: Plot, values: Floats, part: float, least: float, most: float) -> float:
    """Of a line: a part of what a slot has, within bounds."""
    return min(max(part * plot.width / len(values), least), most)


def _grouped(values: npt.NDArray[Any], group: int) -> Floats:
    starts = np.arange(0, len(values), group)
    sizes = np.diff(np.append(starts, len(values)))
    means: Floats = np.add.reduceat(values.astype(np.float64), starts) / sizes
    return means

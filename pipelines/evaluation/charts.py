"""The charts of a comparison, drawn with matplotlib in the style of all pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from streamveil.mechanisms.registry import is_comparator
from streamveil.pipelines.charts import PALETTE, shorten
from streamveil.pipelines.evaluation.comparison import Column, Floats, Row, number

# Colours of the mechanisms in order, for light and dark pages; shapes tell them apart as well.
SERIES = (
    *(("#0072b2", "#56b4e9"), ("#c25100", "#f0964b"), ("#00805e", "#3ecfa4")),
    *(("#a3448a", "#e08ac6"), ("#7a6a00", "#d9c54a"), ("#444c9c", "#9aa3f0")),
    *(("#8b4a2b", "#d59a7b"), ("#2f7d8c", "#6fcbd9")),
)
SERIES_PALETTE = {f"series{i}": light for i, (light, _) in enumerate(SERIES)}
# Matplotlib's names of the shapes and the characters that look like them.
_SHAPES = (("o", "●", "○"), ("s", "■", "□"), ("^", "▲", "△"), ("D", "◆", "◇"), ("v", "▼", "▽"))

ROW_HEIGHT, LABEL_HEIGHT, LANE_HEIGHT, AXIS_HEIGHT = 14, 15, 8, 34
_NARROW = 450


class Look(NamedTuple):
    """How a mechanism is drawn."""

    name: str
    colour: int
    """Place in `SERIES`."""
    shape: str
    sign: str
    """A character like the shape, for the key."""
    filled: bool
    """Comparators are hollow."""


def looks(mechanisms: Sequence[str]) -> dict[str, Look]:
    """A look for each mechanism."""
    found = {}
    for i, name in enumerate(mechanisms):
        shape, full, hollow = _SHAPES[(i + i // len(SERIES)) % len(_SHAPES)]
        filled = not is_comparator(name)
        found[name] = Look(name, i % len(SERIES), shape, full if filled else hollow, filled)
    return found


@dataclass(frozen=True)
class Dots:
    """One figure of every case and mechanism: a row for each case, a dot for each mechanism."""

    rows: Sequence[Row]
    labels: Mapping[Any, str]
    """What each case is called, in order from above."""
    looks: Mapping[str, Look]
    measure: str
    """Its name."""
    log: bool = False
    limit: float | None = None
    """A value to mark: what the figure should be, or must not exceed."""

    def height(self, width: int) -> int:
        """Points that the chart needs at a width."""
        return AXIS_HEIGHT + len(self.labels) * self._row(width)

    def _row(self, width: int) -> int:
        label = LABEL_HEIGHT if width < _NARROW else 0
        return ROW_HEIGHT + LANE_HEIGHT * len(self.looks) + label

    def draw(self, figure: Figure) -> None:
        """Draw it over the whole figure."""
        width, height = (float(size) for size in figure.get_size_inches() * 72)
        narrow = width < _NARROW
        longest = max(len(label) for label in self.labels.values())
        left = 8 if narrow else min(16 + 6.3 * min(longest, 34), 0.4 * width)
        axes = figure.add_axes(
            (left / width, 26 / height, 1 - (left + 18) / width, 1 - AXIS_HEIGHT / height)
        )
        row = self._row(int(width))
        lanes = list(self.looks)
        places = {case: i * row for i, case in enumerate(self.labels)}
        for one in self.rows:
            middle = lanes.index(one.mechanism) - (len(lanes) - 1) / 2
            label = LABEL_HEIGHT if narrow else 0
            y = places[one.case] + (row + label) / 2 + LANE_HEIGHT * middle
            self._dot(axes, one, y)
        axes.set_ylim(len(places) * row, 0)
        self._scale(axes, narrow)
        axes.set_yticks([])
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        for case, y in places.items():
            if y:
                axes.axhline(y, color=PALETTE["rule"], linewidth=0.8)
            self._label(axes, shorten(self.labels[case], 34), y, row, narrow)

    def _dot(self, axes: Axes, row: Row, y: float) -> None:
        mean, error = row.means[self.measure], row.errors[self.measure]
        if not math.isfinite(mean) or (self.log and mean <= 0):
            return
        look = self.looks[row.mechanism]
        colour = SERIES[look.colour][0]
        if error > 0:
            low, high = mean - 2 * error, mean + 2 * error
            ends = (max(low, mean / 20) if self.log else max(low, 0.0), high)
            axes.plot(ends, (y, y), color=colour, linewidth=1.6, solid_capstyle="butt")
        style: Any = {"color": colour, "marker": look.shape, "markersize": 5.5, "linestyle": ""}
        face: Any = {} if look.filled else {"markerfacecolor": "none"}
        axes.plot([mean], [y], clip_on=False, zorder=3, **style, **face)

    def _label(self, axes: Axes, text: str, y: float, row: int, narrow: bool) -> None:
        place: Any = {"textcoords": "offset points", "xycoords": axes.get_yaxis_transform()}
        if narrow:
            axes.annotate(text, (0, y), (0, -4), ha="left", va="top", fontsize=10, **place)
        else:
            middle = (0, y + row / 2)
            axes.annotate(text, middle, (-8, 0), ha="right", va="center", **place)

    def _scale(self, axes: Axes, narrow: bool) -> None:
        if self.log:
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            axes.set_xlim(low / 1.15, high * 1.15)
            several = 5 if narrow and high > 1e6 * low else None
            _log_ticks(axes.xaxis, low, high, most=20 if narrow else 300, ticks=several)
        else:
            top = axes.get_xlim()[1]
            if self.limit is not None:
                top = max(top, 1.1 * self.limit)
            axes.set_xlim(0, top)
            axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 8, steps=[1, 2, 5, 10]))
            axes.xaxis.set_major_formatter(_tick)
        if self.limit is not None:
            axes.axvline(self.limit, color=PALETTE["ink"], linewidth=1, dashes=(4, 3))


def draw_trend(
    figure: Figure, rows: Sequence[Row], looks: Mapping[str, Look], over: Column, measure: str
) -> None:
    """One figure of each mechanism over a number of the setting, both scales logarithmic.

    Args:
        figure: to draw on.
        rows: that differ in `over` and the mechanism only.
        looks: of the mechanisms.
        over: such as the budget.
        measure: its name.
    """
    axes = _line_axes(figure)
    axes.set_xscale("log")
    for name, look in looks.items():
        mine = [row for row in rows if row.mechanism == name and row.means[measure] > 0]
        mine.sort(key=lambda row: float(row.facts[over.name]))
        xs = [row.facts[over.name] for row in mine]
        axes.plot(xs, [row.means[measure] for row in mine], linewidth=1.6, **_line_style(look))
        for x, row in zip(xs, mine, strict=True):
            mean, error = row.means[measure], row.errors[measure]
            if error > 0:
                ends = (max(mean - 2 * error, mean / 20), mean + 2 * error)
                axes.plot((x, x), ends, color=SERIES[look.colour][0], linewidth=1.6)
    _log_ticks(axes.yaxis, *axes.get_ylim())
    axes.xaxis.set_major_locator(
        FixedLocator(sorted({float(row.facts[over.name]) for row in rows}))
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_tick)
    axes.set_xlabel(f"{over.title} in slots" if over.kind is int else over.title)


def draw_course(
    figure: Figure, courses: Mapping[str, Floats], looks: Mapping[str, Look], stretch: int
) -> None:
    """One figure of each mechanism over the slots, on a logarithmic scale.

    Args:
        figure: to draw on.
        courses: by mechanism, means of so many slots each, NaN where there is none.
        looks: of the mechanisms.
        stretch: slots that a mean is of.
    """
    axes = _line_axes(figure)
    for i, (name, look) in enumerate(looks.items()):
        course = np.where(courses[name] > 0, courses[name], np.nan)
        middles = (np.arange(len(course)) + 0.5) * stretch
        # Lines that lie on each other have their signs at different places.
        every = (2 * i, 2 * len(looks))
        axes.plot(middles, course, linewidth=1.4, markevery=every, **_line_style(look))
    _log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xlim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(_tick)
    axes.set_xlabel("slot")


def _line_axes(figure: Figure) -> Axes:
    width, height = figure.get_size_inches() * 72
    axes = figure.add_axes((58 / width, 40 / height, 1 - 74 / width, 1 - 50 / height))
    axes.set_yscale("log")
    return axes


def _line_style(look: Look) -> Any:
    """A dashed line with hollow signs for comparators."""
    style = {"color": SERIES[look.colour][0], "marker": look.shape, "markersize": 5.5}
    return style if look.filled else style | {"markerfacecolor": "none", "dashes": (4, 2)}


def _log_ticks(
    axis: Any, low: float, high: float, most: float = 300, ticks: int | None = None
) -> None:
    """Ticks at 1, 2 and 5 on a scale that spans less than a factor `most`, else at powers of 10.

    Of these, as many as `ticks`, or as fit if None.
    """
    subs = (1, 2, 5) if high < most * low else (1,)
    axis.set_major_locator(LogLocator(10, subs=subs, numticks=ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_tick)
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float, _: object) -> str:
    return number(value)

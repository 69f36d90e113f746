"""The charts of a comparison, drawn with the page kit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.registry import is_comparator
from streamveil.pipelines.evaluation.comparison_table import Case, Column, Measure, Row, number
from streamveil.pipelines.pages.axes import Axis, Box, Plot, linear_axis, log_axis
from streamveil.pipelines.pages.palette import SERIES
from streamveil.pipelines.pages.sheet import Label, Path, Sheet, shorten, text_width

# Names of the shapes and the characters that look like them.
_SHAPES = (("o", "●", "○"), ("s", "■", "□"), ("^", "▲", "△"), ("D", "◆", "◇"), ("v", "▼", "▽"))
ROW_HEIGHT, LABEL_HEIGHT, LANE_HEIGHT, AXIS_HEIGHT = 14, 15, 8, 62
_NARROW = 450
_MOST_LETTERS = 34
# Letters of the names at the ends of lines, and the pixels for them.
_NAME_LETTERS, _NAMES = 11, 80


class Look(NamedTuple):
    """How a mechanism is drawn."""

    name: str
    colour: str
    """One of `SERIES`."""
    shape: str
    sign: str
    """A character like the shape, for the key."""
    filled: bool
    """Comparators are hollow."""

    @property
    def line(self) -> dict[str, Any]:
        """The style of its line: dashed for comparators."""
        return {"colour": self.colour, "width": 2, "dashes": None if self.filled else (4, 2)}

    @property
    def signs(self) -> dict[str, Any]:
        """The style of its signs."""
        return {"colour": self.colour, "shape": self.shape, "size": 7, "filled": self.filled}


def looks(mechanisms: Sequence[str]) -> dict[str, Look]:
    """A look for each mechanism."""
    found = {}
    for i, name in enumerate(mechanisms):
        shape, full, hollow = _SHAPES[(i + i // len(SERIES)) % len(_SHAPES)]
        filled = not is_comparator(name)
        colour = SERIES[i % len(SERIES)]
        found[name] = Look(name, colour, shape, full if filled else hollow, filled)
    return found


@dataclass(frozen=True)
class Dots:
    """One figure of every case and mechanism: a row for each case, a dot for each mechanism."""

    rows: Sequence[Row]
    labels: Mapping[Case, str]
    """What each case is called, in order from above."""
    looks: Mapping[str, Look]
    measure: Measure
    cases: str
    """What labels say."""
    log: bool = False
    limit: float | None = None
    """A value to mark: what the figure should be, or must not exceed."""

    def height(self, width: int) -> int:
        """Pixels that the chart needs at a width."""
        return AXIS_HEIGHT + len(self.labels) * self._row(width)

    def _row(self, width: float) -> int:
        label = LABEL_HEIGHT if width < _NARROW else 0
        return ROW_HEIGHT + LANE_HEIGHT * len(self.looks) + label

    def draw(self, sheet: Sheet) -> Plot:
        """Draw it over the whole sheet."""
        narrow, row = sheet.width < _NARROW, self._row(sheet.width)
        names = {case: shorten(label, _MOST_LETTERS) for case, label in self.labels.items()}
        longest = max(map(text_width, names.values()))
        left = 8 if narrow else min(18 + longest, 0.4 * sheet.width)
        box = Box(left, 22, sheet.width - 18, sheet.height - 40)
        cases = Axis("", len(names) * row, 0, ())
        plot = Plot(sheet, box, self._scale(narrow), cases, grid="x")
        sheet.add(Label(0, box.top - 9, self.cases))
        places = {case: i * row for i, case in enumerate(names)}
        for case, y in places.items():
            top = box.top + y
            if y:
                sheet.add(Path(np.array([(box.left, top), (box.right, top)]), "rule"))
            if narrow:
                sheet.add(Label(box.left, top + 13, names[case], colour="ink"))
            else:
                middle = top + row / 2 + 4
                sheet.add(Label(box.left - 8, middle, names[case], "end", "ink"))
        if self.limit is not None:
            ends = np.array([cases.low, cases.high])
            plot.line(np.array([self.limit] * 2), ends, "ink", dashes=(4, 3))
        lanes = list(self.looks)
        for one in self.rows:
            middle = lanes.index(one.mechanism) - (len(lanes) - 1) / 2
            label = LABEL_HEIGHT if narrow else 0
            self._dot(plot, one, places[one.case] + (row + label) / 2 + LANE_HEIGHT * middle)
        return plot

    def _dot(self, plot: Plot, row: Row, y: float) -> None:
        if not self._is_drawn(row):
            return
        look, mean = self.looks[row.mechanism], row.means[self.measure.name]
        ends = _bar(row, self.measure.name, log=self.log)
        plot.line(np.array(ends), np.array([y, y]), look.colour, width=2)
        plot.signs(np.array([mean]), np.array([y]), **look.signs)

    def _is_drawn(self, row: Row) -> bool:
        mean = row.means[self.measure.name]
        return math.isfinite(mean) and (mean > 0 or not self.log)

    def _scale(self, narrow: bool) -> Axis:
        drawn = filter(self._is_drawn, self.rows)
        ends = [end for row in drawn for end in _bar(row, self.measure.name, log=self.log)]
        if self.log:
            low, high = (min(ends) / 1.15, max(ends) * 1.15) if ends else (1.0, 10.0)
            return log_axis(self.measure.axis, low, high, number, 5 if narrow else 10)
        high = max([*ends, 1.1 * (self.limit or 0)]) or 1.0
        title, most = self.measure.axis, 4 if narrow else 8
        return linear_axis(title, 0, 1.03 * high, most=most, tick=number)


def _bar(row: Row, measure: str, *, log: bool) -> tuple[float, float]:
    """Two standard errors to either side of a mean, as far as the scale goes."""
    mean, error = row.means[measure], np.nan_to_num(row.errors[measure])
    low = mean - 2 * error
    return (max(low, mean / 20) if log else max(low, min(mean, 0.0))), mean + 2 * error


def draw_trend(
    sheet: Sheet, rows: Sequence[Row], looks: Mapping[str, Look], over: Column, measure: Measure
) -> Plot | None:
    """One figure of each mechanism over a number of the setting, both scales logarithmic.

    Args:
        sheet: to draw on.
        rows: that differ in `over` and the mechanism only.
        looks: of the mechanisms.
        over: such as the budget.
        measure: which figure.
    """
    drawn = sorted(
        (row for row in rows if row.means[measure.name] > 0),
        key=lambda row: float(row.facts[over.name]),
    )
    ends = [end for row in drawn for end in _bar(row, measure.name, log=True)]
    xs = sorted({float(row.facts[over.name]) for row in rows})
    x = Axis(
        over.axis, xs[0] / 1.08, xs[-1] * 1.08, [(value, number(value)) for value in xs], log=True
    )
    plot, lines = _lines_plot(sheet, x, measure, ends), []
    for name, look in looks.items():
        mine = [row for row in drawn if row.mechanism == name]
        at = np.array([float(row.facts[over.name]) for row in mine])
        means = np.array([row.means[measure.name] for row in mine])
        plot.line(at, means, **look.line)
        for place, row in zip(at, mine, strict=True):
            bar = np.array(_bar(row, measure.name, log=True))
            plot.line(np.array([place, place]), bar, look.colour, width=2)
        plot.signs(at, means, **look.signs)
        lines.append((shorten(name, _NAME_LETTERS), means, look.colour))
    plot.name_ends(lines)
    return plot


def draw_course(
    sheet: Sheet,
    courses: Mapping[str, Floats],
    looks: Mapping[str, Look],
    stretch: int,
    measure: Measure,
) -> Plot:
    """One figure of each mechanism over the slots, on a logarithmic scale.

    Args:
        sheet: to draw on.
        courses: by mechanism, means of so many slots each, NaN where there is none.
        looks: of the mechanisms.
        stretch: slots that a mean is of.
        measure: which figure.
    """
    drawn = {name: np.where(course > 0, course, np.nan) for name, course in courses.items()}
    known = np.concatenate([course[np.isfinite(course)] for course in drawn.values()]).tolist()
    slots = max(map(len, drawn.values())) * stretch
    x = linear_axis("number of the slot", 0, slots, most=5, integer=True, tick=number)
    plot = _lines_plot(sheet, x, measure, known)
    for i, (name, look) in enumerate(looks.items()):
        middles = (np.arange(len(drawn[name])) + 0.5) * stretch
        plot.line(middles, drawn[name], **look.line)
        # Lines that lie on each other have their signs at different places.
        some = slice(2 * i, None, 2 * len(looks))
        plot.signs(middles[some], drawn[name][some], **look.signs)
    plot.name_ends(
        [(shorten(name, _NAME_LETTERS), drawn[name], look.colour) for name, look in looks.items()]
    )
    return plot


def _lines_plot(sheet: Sheet, x: Axis, measure: Measure, values: Sequence[float]) -> Plot:
    """Axes whose y is logarithmic."""
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    y = log_axis(measure.axis, low / 1.15, high * 1.15, number)
    return Plot(sheet, Box(58, 22, sheet.width - _NAMES, sheet.height - 40), x, y)

"""Two axes with titles on a part of a sheet, and what is drawn between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.pipelines.pages.sheet import (
    TEXT,
    Label,
    Path,
    Points,
    Sheet,
    area,
    sign,
    text_width,
)

Values = npt.NDArray[Any]

MINUS = "\N{MINUS SIGN}"
# From one tick of a time to the next: a unit of NumPy, and how many of it.
_TIMES = (
    *(("s", 1), ("s", 5), ("s", 15), ("s", 30), ("m", 1), ("m", 5), ("m", 15), ("m", 30)),
    *(("h", 1), ("h", 3), ("h", 6), ("h", 12), ("D", 1), ("D", 2), ("D", 7), ("D", 14)),
    *(("M", 1), ("M", 2), ("M", 3), ("M", 6), ("Y", 1), ("Y", 2), ("Y", 5), ("Y", 10), ("Y", 50)),
)
# Days are counted from a Monday.
_MONDAY = np.datetime64("1970-01-05", "D")
_TICK_GAP = 52  # pixels from one time to the next, at least


class Axis(NamedTuple):
    """One axis."""

    title: str
    """What is on it, and in which unit."""
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, values: Values) -> Values:
        """How far along the axis values are, from 0 to 1."""
        low, high, along = self.low, self.high, np.asarray(values, np.float64)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                low, high, along = math.log(low), math.log(high), np.log(along)
        shares: Values = (along - low) / ((high - low) or 1.0)
        return shares


class Box(NamedTuple):
    """A part of a sheet, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Plot:
    """Axes on a sheet, with their grid, ticks and titles: that of y above it, that of x below."""

    def __init__(self, sheet: Sheet, box: Box, x: Axis, y: Axis, grid: str = "y") -> None:
        """Draw the axes.

        Args:
            sheet: to draw on.
            box: where x and y go from their lows to their highs.
            x: the axis at the bottom.
            y: the axis at the left.
            grid: `x`, `y` or both: which ticks have lines.
        """
        self.sheet, self.box, self.x, self.y = sheet, box, x, y
        for value, text in x.ticks:
            place = self._across(value)
            if "x" in grid:
                sheet.add(Path(np.array([(place, box.top), (place, box.bottom)]), "rule"))
            else:
                sheet.add(Path(np.array([(place, box.bottom), (place, box.bottom + 4)]), "rule"))
            half = text_width(text) / 2
            place = min(max(place, half), sheet.width - half)
            sheet.add(Label(place, box.bottom + 16, text, "middle"))
        for value, text in y.ticks:
            place = self._up(value)
            if "y" in grid:
                sheet.add(Path(np.array([(box.left, place), (box.right, place)]), "rule"))
            sheet.add(Label(box.left - 7, place + 4, text, "end"))
        sheet.add(Path(np.array([(box.left, box.bottom), (box.right, box.bottom)]), "muted", 0.8))
        if y.title:
            sheet.add(Label(max(box.left - 40, 0), box.top - 9, y.title))
        if x.title:
            sheet.add(Label(box.right, box.bottom + 31, x.title, "end"))

    @property
    def width(self) -> float:
        """Pixels from the low of x to its high."""
        return self.box.right - self.box.left

    def at(self, xs: Values, ys: Values) -> Points:
        """Places of values; beyond the ends of an axis at its end."""
        return np.column_stack([self._across(xs), self._up(ys)])

    def _across(self, values: Any) -> Any:
        return self.box.left + np.clip(self.x.share(values), 0, 1) * self.width

    def _up(self, values: Any) -> Any:
        share = np.clip(self.y.share(values), 0, 1)
        return self.box.bottom - share * (self.box.bottom - self.box.top)

    def steps(self, edges: Values, values: Values, colour: str, **style: Any) -> None:
        """A value for each slot between edges, level over all of it."""
        self.sheet.add(Path(self._level(edges, values), colour, **style))

    def band(
        self, edges: Values, low: Values, high: Values, colour: str, opacity: float = 0.2
    ) -> None:
        """The area between two values of each slot, where both are known."""
        known = np.isfinite(low) & np.isfinite(high)
        starts = np.flatnonzero(known & ~np.append(False, known[:-1]))
        ends = np.flatnonzero(known & ~np.append(known[1:], False)) + 1
        for start, end in zip(starts, ends, strict=True):
            part = slice(start, end)
            over = edges[start : end + 1]
            above, below = self._level(over, high[part]), self._level(over, low[part])
            self.sheet.add(area(np.concatenate([above, below[::-1]]), colour, opacity))

    def line(self, xs: Values, ys: Values, colour: str, **style: Any) -> None:
        """A line through values."""
        self.sheet.add(Path(self.at(xs, ys), colour, **style))

    def signs(self, xs: Values, ys: Values, colour: str, **style: Any) -> None:
        """A sign for each pair of values."""
        for x, y in self.at(xs, ys).tolist():
            if math.isfinite(x) and math.isfinite(y):
                self.sheet.add(sign((x, y), colour, **style))

    def level(self, value: float, colour: str, **style: Any) -> None:
        """A line all along x."""
        self.line(np.array([self.x.low, self.x.high]), np.array([value] * 2), colour, **style)

    def name_ends(self, ends: Sequence[tuple[str, Values, str]], size: float = TEXT) -> None:
        """Write the name of each line right of the axes, at the height of its last known value.

        Args:
            ends: name, values and colour of each line.
            size: of the text.
        """
        known = [(name, line[np.isfinite(line)], colour) for name, line, colour in ends]
        lowest_first = sorted((line[-1], name, colour) for name, line, colour in known if len(line))
        place = self.box.bottom + 4
        for value, name, colour in lowest_first:
            place = min(float(self._up(value)) + 4, place)
            self.sheet.add(Label(self.box.right + 7, place, name, colour=colour, size=size))
            place -= size + 2

    def _level(self, edges: Values, values: Values) -> Points:
        return self.at(np.repeat(edges, 2)[1:-1].astype(np.float64), np.repeat(values, 2))


def whole(value: float) -> str:
    """A number without decimals, with separators and a true minus sign."""
    return f"{value:,.0f}".replace("-", MINUS)


def shown(value: float) -> str:
    """A number with its decimals."""
    return f"{value:,.6g}".replace("-", MINUS)


def linear_axis(
    title: str,
    low: float,
    high: float,
    *,
    most: int = 5,
    integer: bool = False,
    tick: Callable[[float], str] | None = None,
) -> Axis:
    """An axis with ticks at round numbers.

    Args:
        title: what is on it, and in which unit.
        low: where it begins.
        high: where it ends.
        most: ticks, but for one.
        integer: whether only whole numbers are ticks.
        tick: writes a number beside one.
    """
    step = round_step(max((high - low) / most, 1.0 if integer else 0.0))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    write = tick or (whole if integer else shown)
    ticks = [round(k * step, 12) for k in range(first, last + 1)]
    return Axis(title, low, high, [(value, write(value)) for value in ticks])


def round_step(least: float) -> float:
    """The least of 1, 2, 2.5 and 5, times a power of 10, not below a number; whole ones from 1 on.

    It is 1 of a number that is not above 0.
    """
    if not least > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    steps = (1, 2, 5, 10) if power == 1 else (1, 2, 2.5, 5, 10)
    return next(k * power for k in steps if k * power >= least * (1 - 1e-9))


def log_axis(
    title: str, low: float, high: float, tick: Callable[[float], str], most: int = 8
) -> Axis:
    """A logarithmic axis: ticks at 1 to 9, at 1, 2 and 5, or at powers of 10, as many as `most`."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for values in (
        [k * 10.0**power for power in range(first, last + 1) for k in range(1, 10)],
        [k * 10.0**power for power in range(first, last + 1) for k in (1, 2, 5)],
        *(
            [10.0**power for power in range(first, last + 1, apart)]
            for apart in range(1, last - first + 2)
        ),
    ):
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) <= most:
            break
    return Axis(title, low, high, [(value, tick(value)) for value in ticks], log=True)


def time_axis(edges: Values, width: float, *, of_days: bool) -> Axis:
    """An axis from the first edge of slots to the last.

    Args:
        edges: times, microseconds of NumPy.
        width: pixels that it has.
        of_days: whether slots are of whole days, in the time zone of their origin.
    """
    first, last = edges[0], edges[-1]
    most = max(int(width // _TICK_GAP), 2)
    for unit, step in _TIMES:
        ticks = _times(first, last, unit, step)
        if len(ticks) <= most:
            break
    title = "date" if of_days else "time, UTC"
    years = [first.astype("M8[Y]"), (last - np.timedelta64(1, "us")).astype("M8[Y]")]
    of_year = unit != "Y" and (years[0] == years[1] or unit != "M")
    if of_year:
        title += f", {years[0]}" if years[0] == years[1] else f", {years[0]} to {years[1]}"
    low, high = (float(edge.astype(np.int64)) for edge in (first, last))
    texts = [(float(time.astype(np.int64)), _time_text(time, unit, of_year)) for time in ticks]
    return Axis(title, low, high, texts)


def _times(first: Any, last: Any, unit: str, step: int) -> list[Any]:
    """Times at round numbers of a unit."""
    if unit in "YM":
        size = step * (12 if unit == "Y" else 1)
        begin = first.astype("M8[M]").astype(np.int64) // size * size
        end = last.astype("M8[M]").astype(np.int64) + 1
        every = np.arange(begin, end, size).astype("M8[M]").astype("M8[us]")
    else:
        origin: Any = _MONDAY.astype("M8[us]")
        apart: Any = np.array(step, f"m8[{unit}]")[()]
        since = origin + (first - origin) // apart * apart
        if (last - since) / apart > 1000:  # far too many
            return [since] * 1000
        every = np.arange(since, last + np.timedelta64(1, "us"), apart)
    return [time for time in every if first <= time < last]


def _time_text(time: Any, unit: str, of_year: bool) -> str:
    """A tick; of months the first says the year, but where the title does (`of_year`)."""
    moment = time.item()
    if unit == "Y" or (unit == "M" and moment.month == 1 and not of_year):
        return f"{moment.year}"
    if unit == "M":
        return f"{moment:%b}"
    if unit == "D" or (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M:%S}" if unit == "s" else f"{moment:%H:%M}"

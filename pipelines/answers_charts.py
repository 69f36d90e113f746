"""The charts of a portfolio: answers with their intervals, and what all questions together spent.

Whoever draws or saves them does it with `STYLE` in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from streamveil.pipelines.answers_report import QuestionFigures
from streamveil.pipelines.charts import MINUS, PALETTE, held, middles, over_time, plain_axes, step

LINES = ("released", "error", "revised")
"""Names of colours of the figures of a question, such as p50 and p90, over and over."""

# Okabe and Ito's, of the questions from the bottom of the stack on; the last is for all others.
STACK: Mapping[str, str] = {
    "ask1": "#0173b3",
    "ask2": "#e69f00",
    "ask3": "#009e73",
    "ask4": "#cc79a7",
    "ask5": "#56b4e9",
    "ask6": "#d55e00",
    "others": "#8a949c",
}
# Intervals wider than most do not set the scale: one would flatten all the rest.
_SET_THE_SCALE = 0.9


def draw_answer(figure: Figure, told: QuestionFigures, j: int, part: slice) -> None:
    """The figures of a bin over some slots: steps in their intervals, and what is true as a line.

    Counts, and all that cannot be negative, are drawn from 0.
    """
    axes = plain_axes(figure)
    edges = told.edges[part.start : part.stop + 1]
    spans: list[npt.NDArray[np.float64]] = []
    for o in range(len(told.outputs)):
        color = PALETTE[LINES[o % len(LINES)]]
        values, low, high = (of[part, j, o] for of in (told.values, told.low, told.high))
        if told.counts:  # no count is below 0, so no interval need be
            low = np.fmax(low, np.minimum(values, 0))
        band = {"color": color, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(edges, held(low), held(high), step="post", **band)  # type: ignore[arg-type]
        step(axes, edges, values, color=color, linewidth=1.6)
        spans.append(values)
        if np.isfinite(low).any() and np.isfinite(high).any():
            spans.append(np.nanquantile(low, 1 - _SET_THE_SCALE, keepdims=True))
            spans.append(np.nanquantile(high, _SET_THE_SCALE, keepdims=True))
        if told.true is not None:
            line = told.true[part, j, o]
            axes.plot(middles(edges), line, color=PALETTE["ink"], linewidth=0.9)
            spans.append(line)
    over_time(axes, edges)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}".replace("-", MINUS))
    shown = np.concatenate([span[np.isfinite(span)] for span in spans])
    bottom, top = (shown.min(), shown.max()) if len(shown) else (0.0, 1.0)
    if told.from_zero:
        bottom = min(0.0, bottom)
    room = 0.06 * (top - bottom or 1)
    axes.set_ylim(bottom - (room if bottom < 0 or not told.from_zero else 0), top + room)


def draw_budget(
    figure: Figure,
    edges: npt.NDArray[np.datetime64],
    stacked: Sequence[tuple[str, npt.NDArray[np.float64]]],
) -> None:
    """Shares of a budget on top of one another, with the limit.

    Args:
        figure: where to draw.
        edges: of the slots, one more than there are.
        stacked: names of colours, as in STACK, and shares by slot, from the bottom on.
    """
    axes = plain_axes(figure)
    floor = np.zeros(len(edges) - 1)
    for name, shares in stacked:
        ceiling = floor + shares
        area = {"color": STACK[name], "alpha": 0.75, "linewidth": 0}
        axes.fill_between(edges, held(floor), held(ceiling), step="post", **area)  # type: ignore[arg-type]
        floor = ceiling
    axes.axhline(1, color=PALETTE["error"], linewidth=1.5, dashes=(5, 3))
    over_time(axes, edges)
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(0, max(1.1, 1.05 * float(floor.max())))

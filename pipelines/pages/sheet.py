"""A sheet of shapes: what a chart consists of, as SVG to stand in a page, or as a file of its own.

Places are in pixels from the upper left corner, colours are names of the palette.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from streamveil.pipelines.pages.palette import COLOURS

Points = npt.NDArray[np.float64]
"""Places, shape (n, 2); NaN where a line has a gap."""

TEXT = 11
"""Size of text in pixels."""
# How wide a letter is on average, as a fraction of the size of the text.
_LETTER = 0.56
# Corners of signs around their middle, of size 1.
_CORNERS: Mapping[str, Sequence[tuple[float, float]]] = {
    "o": [(math.cos(math.tau * k / 16) / 2, math.sin(math.tau * k / 16) / 2) for k in range(16)],
    "s": ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)),
    "^": ((0, -0.6), (0.55, 0.45), (-0.55, 0.45)),
    "v": ((0, 0.6), (-0.55, -0.45), (0.55, -0.45)),
    "D": ((0, -0.65), (0.65, 0), (0, 0.65), (-0.65, 0)),
}
_PNG_SCALE = 2


class Path(NamedTuple):
    """A line through places; where it is filled, it goes back to where it began."""

    points: Points
    colour: str
    width: float = 1.0
    """Of the line; 0 for none."""
    dashes: tuple[float, float] | None = None
    fill: str | None = None
    """Colour of the inside."""
    opacity: float = 1.0

    def svg(self) -> Markup:
        """The shape as SVG."""
        style = f"fill:{'none' if self.fill is None else f'var(--{self.fill})'}"
        if self.opacity < 1:
            style += f";opacity:{self.opacity:g}"
        if self.width:
            style += f";stroke:var(--{self.colour});stroke-width:{self.width:g}"
        if self.dashes:
            style += ";stroke-dasharray:{:g} {:g}".format(*self.dashes)
        end = "" if self.fill is None else "Z"
        return Markup('<path style="{}" d="{}{}"/>').format(style, _path(self.points), end)

    def draw(self, axes: Any) -> Any:
        """Draw it on axes of matplotlib that have the places of the sheet; gives the artist."""
        given: dict[str, Any] = {"linewidth": 0.75 * self.width, "alpha": self.opacity}
        given["linestyle"] = "-" if self.dashes is None else (0, self.dashes)
        colour = COLOURS[self.colour].light
        if self.fill is None:
            return axes.plot(*self.points.T, color=colour, **given)[0]
        edge = colour if self.width else "none"
        return axes.fill(*self.points.T, fc=COLOURS[self.fill].light, ec=edge, **given)[0]


def area(points: Points, colour: str, opacity: float = 1.0) -> Path:
    """The inside of a line, without the line."""
    return Path(points, colour, 0, fill=colour, opacity=opacity)


def sign(
    place: tuple[float, float],
    colour: str,
    shape: str = "o",
    size: float = 5.5,
    filled: bool = True,
    opacity: float = 1.0,
) -> Path:
    """A small sign around a place: `o`, a circle, or another name of corners."""
    points = np.array(place) + size * np.array(_CORNERS[shape])
    return Path(points, colour, fill=colour if filled else "page", opacity=opacity)


class Label(NamedTuple):
    """A text that begins, ends or has its middle at a place, on whose line it stands."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = "muted"
    size: float = TEXT
    bold: bool = False

    def svg(self) -> Markup:
        """The shape as SVG."""
        style = f"fill:var(--{self.colour});font-size:{self.size:g}px;text-anchor:{self.anchor}"
        style += ";font-weight:650" if self.bold else ""
        text = Markup('<text style="{}" x="{}" y="{}">{}</text>')
        return text.format(style, _number(self.x), _number(self.y), self.text)

    def draw(self, axes: Any) -> Any:
        """Draw it with matplotlib, as a path."""
        sides = {"start": "left", "middle": "center", "end": "right"}
        style = {"ha": sides[self.anchor], "va": "baseline", "fontsize": 0.75 * self.size}
        style |= {"weight": "bold" if self.bold else "normal", "parse_math": False}
        return axes.text(self.x, self.y, self.text, color=COLOURS[self.colour].light, **style)


@dataclass
class Sheet:
    """Shapes, of which later ones are on top."""

    width: float
    height: float
    shapes: list[Path | Label] = field(default_factory=list)

    def add(self, *shapes: Path | Label) -> None:
        """Put shapes on top."""
        self.shapes += shapes

    def svg(self, kind: str, title: str) -> Markup:
        """The sheet as SVG that stands inside HTML.

        Args:
            kind: class of the element.
            title: for those who do not see it.
        """
        return Markup(
            '<svg class="{}" role="img" aria-label="{}" viewBox="0 0 {:g} {:g}"><title>{}</title>'
            "{}</svg>"
        ).format(kind, title, self.width, self.height, title, self._shapes())

    def write(self, path: str) -> None:
        """Write the sheet on a white ground; the ending of the name chooses `.svg` or `.png`.

        The same shapes give the same bytes.
        """
        if path.lower().endswith(".svg"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(self._file())
        else:
            self._write_png(path)

    def _shapes(self) -> Markup:
        return Markup("").join(shape.svg() for shape in self.shapes)

    def _file(self) -> str:
        """As a file of its own, light whatever the reader's scheme."""
        colours = "".join(f"--{name}:{colour.light};" for name, colour in COLOURS.items())
        return Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:g} {1:g}" width="{0:g}" '
            'height="{1:g}" font-family="system-ui, sans-serif" style="{2}"><rect width="{0:g}" '
            'height="{1:g}" fill="#ffffff"/>{3}</svg>\n'
        ).format(self.width, self.height, colours, self._shapes())

    def _write_png(self, path: str) -> None:
        import matplotlib  # pages do without it
        from matplotlib.figure import Figure

        with matplotlib.rc_context({"font.family": "sans-serif"}):
            figure = Figure((self.width / 96, self.height / 96), facecolor="white")
            axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
            axes.set_axis_off()
            for order, shape in enumerate(self.shapes):
                shape.draw(axes).set_zorder(order)
            figure.savefig(path, dpi=96 * _PNG_SCALE)


def chart(
    title: str,
    draw: Callable[[Sheet], object],
    *,
    wide: tuple[int, int],
    narrow: tuple[int, int],
) -> Markup:
    """Draw a chart for wide screens and again for phones, so that text keeps its size in both."""
    drawn = []
    for kind, size in {"wide": wide, "narrow": narrow}.items():
        sheet = Sheet(*size)
        draw(sheet)
        drawn.append(sheet.svg(kind, title))
    return Markup("").join(drawn)


def text_width(text: str, size: float = TEXT) -> float:
    """About how wide a text is."""
    return _LETTER * size * len(text)


def shorten(text: str, most: int) -> str:
    """Cut a text to so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _path(points: Points) -> str:
    """Places joined by lines, in tenths of a pixel; steps take a third of the bytes."""
    return "".join(_moves(points))


def _moves(points: Points) -> Iterator[str]:
    last: tuple[str, str] | None = None
    for x, y in points.tolist():
        if not (math.isfinite(x) and math.isfinite(y)):
            last = None
            continue
        at = _number(x), _number(y)
        if last is None:
            yield f"M{at[0]},{at[1]}"
        elif at[1] == last[1]:
            yield f"H{at[0]}"
        elif at[0] == last[0]:
            yield f"V{at[1]}"
        else:
            yield f"L{at[0]},{at[1]}"
        last = at


def _number(value: float) -> str:
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text

"""A page for people: which mechanism errs least, how sure that is, and all figures.

One HTML file that needs nothing else: charts are inline SVG, there is no script and no address.
Its figures are computed from TRUE counts, so it is as raw as the data it was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup

from streamveil.mechanisms.core.words import number_of
from streamveil.mechanisms.registry import is_comparator
from streamveil.pipelines.charts import PALETTE, STYLE, chart
from streamveil.pipelines.evaluation.charts import (
    SERIES,
    SERIES_PALETTE,
    Dots,
    Look,
    draw_trend,
    looks,
)
from streamveil.pipelines.evaluation.choose import (
    Choice,
    caveats,
    choose,
    choose_overall,
    errors_by_case,
)
from streamveil.pipelines.evaluation.compare import Run
from streamveil.pipelines.evaluation.measures import MEASURES
from streamveil.pipelines.evaluation.tables import Row, figure, rows_of
from streamveil.pipelines.html import template

Case = tuple[str, float, int]
# More charts of the same kind than this are not read: the table has the rest.
MOST_TRENDS = 12
# Measures on a logarithmic scale, and values that a measure should have or must not exceed.
_LOG = ("amre", "amse", "relative_error", "ajsd", "seconds")
_LIMITS = {"window_use": 1.0, "coverage": 0.9}


class _Advice(NamedTuple):
    """A line of the table of choices."""

    label: str
    choice: Choice
    next_best: tuple[str, float] | None
    """The best mechanism that is not advised, and how many times the error it has."""


def page_of(runs: Sequence[Run], command: str = "", bounds: Sequence[str] = ()) -> str:
    """The page as HTML.

    Args:
        runs: one or more, of the same mechanisms and seeds in every case.
        command: what to run to make the page again.
        bounds: what the users' bound leaves out, and which one to choose: lines of text.
    """
    with matplotlib.rc_context(STYLE):
        context = {**_context(runs, command), "bounds": bounds}
    return template(Path(__file__).parent / "evaluation.html.jinja").render(context)


def _context(runs: Sequence[Run], command: str) -> dict[str, Any]:
    rows = rows_of(runs)
    names = list(dict.fromkeys(row.mechanism for row in rows))
    styles = looks(names)
    labels = _labels(rows)
    cases = errors_by_case(runs)
    main, *others = MEASURES
    return {
        "palette": PALETTE | SERIES_PALETTE,
        "dark": {f"series{i}": dark for i, (_, dark) in enumerate(SERIES)},
        "looks": styles,
        "streams": list(dict.fromkeys(row.stream for row in rows)),
        "requirements": list(dict.fromkeys((row.epsilon, row.window) for row in rows)),
        "seeds": len({run.seed for run in runs}),
        "advice": [_advised(labels[case], choose(errors)) for case, errors in cases.items()],
        "overall": _advised("overall", choose_overall(list(cases.values()))),
        "comparators": [name for name in names if is_comparator(name)],
        "caveats": caveats(runs),
        "largest_use": max(run.measured.window_use for run in runs),
        "main": _dots(rows, labels, styles, main.name, main.title, 1100),
        "trends": list(_trends(rows, styles)),
        "measures": MEASURES,
        "others": [(m, _dots(rows, labels, styles, m.name, m.title, 540)) for m in others],
        "limits": _LIMITS,
        "rows": [
            (
                row,
                labels[row.case],
                [figure(row.means[m.name], row.errors[m.name]) for m in MEASURES],
            )
            for row in rows
        ],
        "facts": _facts(rows),
        "version": version("streamveil"),
        "command": command,
    }


def _advised(label: str, choice: Choice) -> _Advice:
    rest = {
        name: ratio
        for name, ratio in choice.ratios.items()
        if name not in choice.advised and not is_comparator(name)
    }
    nearest = min(rest, key=lambda name: rest[name]) if rest else None
    return _Advice(label, choice, (nearest, rest[nearest]) if nearest else None)


def _labels(rows: Sequence[Row]) -> dict[Case, str]:
    """A short name for each case: the stream, and of E and w what differs."""
    epsilons, windows = {row.epsilon for row in rows}, {row.window for row in rows}
    labels = {}
    for row in rows:
        parts = [row.stream]
        parts += [f"E {row.epsilon:g}"] * (len(epsilons) > 1)
        parts += [f"w {row.window:,}"] * (len(windows) > 1)
        labels[row.case] = ", ".join(parts)
    return labels


def _dots(
    rows: Sequence[Row],
    labels: dict[Case, str],
    styles: dict[str, Look],
    name: str,
    title: str,
    width: int,
) -> Markup:
    dots = Dots(rows, labels, styles, name, name in _LOG, _LIMITS.get(name))
    return chart(
        name,
        f"{title} of each mechanism, by stream",
        dots.draw,
        wide=(width, dots.height(width)),
        narrow=(350, dots.height(350)),
        palette=PALETTE | SERIES_PALETTE,
    )


def _trends(rows: Sequence[Row], styles: dict[str, Look]) -> Iterator[tuple[str, Markup]]:
    """AMRE over E and over w, for each stream, where several were run."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for over, fixed in (("epsilon", "window"), ("window", "epsilon")):
        for row in rows:
            kept = f"w = {row.window:,}" if fixed == "window" else f"E = {row.epsilon:g}"
            groups.setdefault((over, f"{row.stream}, {kept}"), []).append(row)
    several = {
        key: group for key, group in groups.items() if len({getattr(r, key[0]) for r in group}) > 1
    }
    for i, ((over, title), group) in enumerate(list(several.items())[:MOST_TRENDS]):
        what = "E" if over == "epsilon" else "w"
        yield (
            title,
            chart(
                f"trend{i}",
                f"AMRE over {what} on {title}",
                partial(draw_trend, rows=group, looks=styles, over=over, measure="amre"),
                wide=(540, 230),
                narrow=(350, 210),
                palette=PALETTE | SERIES_PALETTE,
            ),
        )


def _facts(rows: Sequence[Row]) -> dict[str, str]:
    """Size of each stream."""
    return {
        row.stream: ", ".join(
            number_of(size, noun)
            for size, noun in ((row.users, "user"), (row.slots, "slot"), (row.bins, "bin"))
        )
        for row in rows
    }

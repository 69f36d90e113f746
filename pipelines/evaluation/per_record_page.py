"""A page for people: statistics under per-record privacy, how far each mechanism is from the truth.

One HTML file that needs nothing else. Its figures are computed from TRUE values, so it is as raw
as the data it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import matplotlib

from streamveil.pipelines.charts import PALETTE, STYLE, chart
from streamveil.pipelines.evaluation.charts import SERIES, SERIES_PALETTE, Dots, looks
from streamveil.pipelines.evaluation.per_record import MEASURES, PerRecordResult
from streamveil.pipelines.evaluation.tables import figures_of
from streamveil.pipelines.html import template

_DRAWN = ("trimmed", "error")


def page_of(results: Sequence[PerRecordResult], data: Mapping[str, str], command: str = "") -> str:
    """The page as HTML.

    Args:
        results: one or more.
        data: what each data set is, by name.
        command: what to run to make the page again.
    """
    styles = looks(list(dict.fromkeys(one.mechanism for one in results)))
    labels = {one.case: f"{one.data}, {one.statistic}" for one in results}
    with matplotlib.rc_context(STYLE):
        drawn = []
        for measure in (m for m in MEASURES if m.name in _DRAWN):
            dots = Dots(results, labels, styles, measure.name, log=True)
            svg = chart(
                measure.name,
                f"{measure.title} of each mechanism, by data and statistic",
                dots.draw,
                wide=(1100, dots.height(1100)),
                narrow=(350, dots.height(350)),
                palette=PALETTE | SERIES_PALETTE,
            )
            drawn.append((measure, svg))
    return template(Path(__file__).parent / "per_record.html.jinja").render(
        palette=PALETTE | SERIES_PALETTE,
        dark={f"series{i}": dark for i, (_, dark) in enumerate(SERIES)},
        looks=styles,
        charts=drawn,
        measures=MEASURES,
        seeds=results[0].seeds,
        runs=results[0].runs,
        rows=[(one, labels[one.case], figures_of(one, MEASURES)) for one in results],
        facts=dict(data),
        records={one.data: one.records for one in results},
        version=version("streamveil"),
        command=command,
    )

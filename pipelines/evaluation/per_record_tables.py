"""The table of a comparison under per-record privacy, as CSV or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamveil.pipelines.evaluation.per_record import MEASURES, PerRecordResult
from streamveil.pipelines.evaluation.tables import aligned, figures_of, schema_of

SCHEMA = schema_of(
    {
        "data": pa.string(),
        "statistic": pa.string(),
        "mechanism": pa.string(),
        "records": pa.int64(),
        "seeds": pa.int64(),
        "runs": pa.int64(),
    },
    MEASURES,
)


def markdown(results: Sequence[PerRecordResult]) -> str:
    """A table for people, aligned, with the figures rounded to what their noise allows."""
    texts = ("data", "statistic", "mechanism")
    titles = [*texts, *(measure.title for measure in MEASURES)]
    cells = [
        [one.data, one.statistic, one.mechanism, *figures_of(one, MEASURES)] for one in results
    ]
    return aligned(titles, cells, texts)

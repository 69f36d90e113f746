"""Releases and revisions as rows, one for each slot and bin: what plots, tables and SQL take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import COUNT, Release, Revision

# Half the width of an interval that holds 90 % of a normal distribution, in standard errors.
NINETY_PERCENT = 1.645

REVISED = "revised"
"""Status of a revision there."""


def interval(counts: npt.ArrayLike, stderr: Floats) -> tuple[Floats, Floats]:
    """The lower and the upper end of each count's interval, nominally of 90 %.

    No count is below 0, so neither end is, even where noise made the released count negative.

    Args:
        counts: as released, whole or not, shape (bins,).
        stderr: expected standard errors, shape (bins,).

    Returns:
        Two arrays of shape (bins,), NaN where the standard error is not finite: nothing is known.
    """
    half: Floats = np.where(np.isfinite(stderr), NINETY_PERCENT * stderr, np.nan)
    middle = np.asarray(counts, np.float64)
    return np.maximum(middle - half, 0.0), np.maximum(middle + half, 0.0)


def tidy_columns(
    releases: Sequence[Release], labels: Sequence[str], query: str = COUNT
) -> dict[str, Any]:
    """Columns of one row for each release and bin, in the order given: n rows by name.

    Args:
        releases: of b bins each.
        labels: names of the bins, length b.
        query: its name.

    Returns:
        `query`, a list of text; `slot` int64; `start` and `end` int64, microseconds
        since 1970-01-01T00:00Z; `key`, a list of the labels; `statistic`, a list of
        `count`; `value`
        float64, not rounded; `low` and `high` float64, those of :func:`interval`, and `stderr`
        float64, NaN where the standard error is not finite; `status`, a list of text.
    """
    status = [release.status for release in releases for _ in labels]
    return {**_figures(releases, labels, query), "status": status}


def tidy_revision_columns(
    revisions: Sequence[Revision], labels: Sequence[str], query: str = COUNT
) -> dict[str, Any]:
    """The same of revisions, all with the status `revised`, and `revised_at` int64 as `start`."""
    figures = _figures(revisions, labels, query)
    at = np.repeat([revision.revised_at for revision in revisions], len(labels))
    return {**figures, "status": [REVISED] * len(at), "revised_at": at}


def _figures(
    results: Sequence[Release] | Sequence[Revision], labels: Sequence[str], query: str
) -> dict[str, Any]:
    bins = len(labels)
    ends = [interval(result.values, result.stderr) for result in results]
    stderr = np.concatenate([result.stderr for result in results])
    return {
        "query": [query] * (bins * len(results)),
        "slot": np.repeat([result.slot for result in results], bins),
        "start": np.repeat([result.start for result in results], bins),
        "end": np.repeat([result.end for result in results], bins),
        "key": list(labels) * len(results),
        "statistic": [COUNT] * (bins * len(results)),
        "value": np.concatenate([result.values for result in results]),
        "low": np.concatenate([low for low, _ in ends]),
        "high": np.concatenate([high for _, high in ends]),
        "stderr": np.where(np.isfinite(stderr), stderr, np.nan),
    }

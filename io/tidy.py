"""Releases and revisions as tidy tables: a row for each slot and bin, for plots and people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from streamveil.io.tables import UTC_MICROSECONDS
from streamveil.mechanisms.core.records import Release, Revision
from streamveil.mechanisms.core.tidy import tidy_columns, tidy_revision_columns

ROWS, TIDY = "rows", "tidy"
LAYOUTS = (ROWS, TIDY)

TIDY_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("start", UTC_MICROSECONDS, nullable=False),
        pa.field("bin", pa.string(), nullable=False),
        pa.field("count", pa.float64(), nullable=False),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("status", pa.string(), nullable=False),
    ]
)
TIDY_REVISION_SCHEMA = pa.schema(
    [*list(TIDY_SCHEMA)[:-1], pa.field("revised_at", UTC_MICROSECONDS, nullable=False)]
)

# A spreadsheet takes text that begins so for a formula, in ASCII or as wide characters; and a
# quote is doubled, so that one can be taken away again.
_FORMULA = re.compile("['=+\\-@\t\r\n＝＋－＠]")  # noqa: RUF001


def tidy_batch(
    releases: Sequence[Release], labels: Sequence[str], quoted: bool = False
) -> pa.RecordBatch:
    """One row for each release and bin, of `TIDY_SCHEMA`, in the order given.

    `low` and `high` are those of :func:`interval`, null where the standard error is not finite. If
    `quoted`, labels are as :func:`quoted_label` has them.
    """
    return _batch(tidy_columns(releases, _shown(labels, quoted)), TIDY_SCHEMA)


def tidy_revision_batch(
    revisions: Sequence[Revision], labels: Sequence[str], quoted: bool = False
) -> pa.RecordBatch:
    """The same of revisions, of `TIDY_REVISION_SCHEMA`."""
    columns = tidy_revision_columns(revisions, _shown(labels, quoted))
    return _batch(columns, TIDY_REVISION_SCHEMA)


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(columns[f.name], f.type, from_pandas=True) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _shown(labels: Sequence[str], quoted: bool) -> list[str]:
    return [quoted_label(label) if quoted else label for label in labels]


def quoted_label(label: str) -> str:
    """A label that no spreadsheet runs as a formula: with a quote before it, if it needs one.

    Of what begins with a quote, one quote is to be taken away to have the label again.
    """
    return f"'{label}" if _FORMULA.match(label) else label

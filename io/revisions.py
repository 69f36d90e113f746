"""Files and messages of revisions: what was learnt of slots after they were released."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.io.jsonlines import json_rows
from streamveil.io.releases import (
    figure_lists,
    form_of_layout,
    json_values,
    labelled,
    release_schema,
    releases_of,
)
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, read_table
from streamveil.io.tidy import TIDY, revised_schema, tidy_batch, tidy_revision_batch
from streamveil.mechanisms.core.records import COUNT, Revision, parse_time

_OF_RELEASES = ("slot", "start", "end", "counts", "stderr", "mechanism")


def revision_schema(labels: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a table of revisions. `labels` are the names of the keys."""
    slot, start, end, *figures = (release_schema().field(name) for name in _OF_RELEASES)
    revised = [
        pa.field("revised_slot", pa.int64(), nullable=False),
        pa.field("revised_at", UTC_MICROSECONDS, nullable=False),
    ]
    return labelled([slot, start, end, *revised, *figures], labels)


def revisions_to_batch(revisions: Sequence[Revision], schema: pa.Schema) -> pa.RecordBatch:
    """One row per revision, in the order given; errors that are unknown are null."""
    arrays = []
    for field in schema:
        column = [getattr(revision, field.name) for revision in revisions]
        lists = pa.types.is_list(field.type)
        arrays.append(figure_lists(column, field) if lists else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def revision_row(revision: Revision) -> dict[str, Any]:
    """The JSON object of a revision: the columns of WriteRevisions, with times as ISO 8601 text."""
    return next(json_rows(revisions_to_batch([revision], revision_schema())))


def revision_form(
    labels: Sequence[str] | None = None,
    *,
    layout: str = TIDY,
    zone: str | None = None,
    query: str = COUNT,
    quoted: bool = False,
) -> TableForm:
    """How revisions become rows: see :class:`streamveil.io.WriteRevisions`.

    Arguments and errors are those of :func:`release_form`.
    """
    rows = revision_schema(labels), revisions_to_batch
    convert = partial(tidy_revision_batch, zone=zone, query=query, quoted=quoted)
    return form_of_layout(labels, layout, rows, (revised_schema(zone), convert))


def read_revisions(path: str) -> list[Revision]:
    """Read a file of revisions that WriteRevisions wrote, in any format.

    The revisions are in the order of slots.
    """
    return revisions_of(read_table(path))


def revisions_of(table: pa.Table) -> list[Revision]:
    """Revisions of a table in the layout `rows`, in its order."""
    return [
        Revision(
            int(row["slot"]),
            np.array(json_values(row["counts"]), np.int64),
            np.array(json_values(row["stderr"]), np.float64),
            start=parse_time(row["start"]),
            end=parse_time(row["end"]),
            revised_slot=int(row["revised_slot"]),
            revised_at=parse_time(row["revised_at"]),
            mechanism=row["mechanism"],
        )
        for row in table.to_pylist()
    ]


def tidy_table(table: pa.Table, labels: Sequence[str]) -> pa.Table:
    """Releases or revisions of a count in the layout `tidy`, whichever they have."""
    if "key" in table.column_names:
        return table
    if "revised_slot" in table.column_names:
        batch = tidy_revision_batch(revisions_of(table), labels)
    else:
        batch = tidy_batch(releases_of(table), labels)
    return pa.Table.from_batches([batch])

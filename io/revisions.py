"""Files and messages of revisions: what was learnt of slots after they were released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.releases import (
    figure_lists,
    form_of_layout,
    json_values,
    labelled,
    release_schema,
)
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, read_table
from streamveil.io.tidy import ROWS, TIDY_REVISION_SCHEMA, tidy_revision_batch
from streamveil.mechanisms.core.records import Revision, parse_time

_OF_RELEASES = ("slot", "start", "end", "counts", "stderr", "mechanism")


def revision_schema(labels: Sequence[str] | None = None) -> pa.Schema:
    """Schema of a table of revisions; labels are as of :func:`release_schema`."""
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


def revision_json(revision: Revision) -> bytes:
    """The line that WriteRevisions would write to a .jsonl file, without its end."""
    return json_text(revision_row(revision)).encode()


def revision_form(
    path: str, labels: Sequence[str] | None = None, *, layout: str = ROWS
) -> TableForm:
    """How revisions become rows of a file: see :class:`streamveil.io.WriteRevisions`.

    Raises ConfigurationError for a path or layout that cannot be.
    """
    rows = revision_schema(labels), revisions_to_batch
    return form_of_layout(path, labels, layout, rows, (TIDY_REVISION_SCHEMA, tidy_revision_batch))


def read_revisions(path: str) -> list[Revision]:
    """Revisions of a file that WriteRevisions made, in slot order, from any of its formats."""
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
        for row in read_table(path).to_pylist()
    ]

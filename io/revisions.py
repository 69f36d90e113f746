"""Files and messages of revisions: what was learnt of slots after they were released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection

from streamveil.io.avro import UTC_MICROSECONDS
from streamveil.io.formats import CSV, output_format_of
from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.releases import (
    WriteItems,
    check_layout,
    figure_lists,
    json_values,
    labelled,
    release_schema,
)
from streamveil.io.tables import read_table
from streamveil.io.tidy import ROWS, TIDY, TIDY_REVISION_SCHEMA, tidy_revision_batch
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


@dataclass(eq=False)
class WriteRevisions(beam.PTransform):
    """Writes revisions to one file, sorted by slot; gives its path. See WriteTable.

    Input: revisions, or a tuple of them and of their number, as of WriteReleases.

    Columns: slot int64, start and end timestamp[us, UTC], revised_slot int64 (the last slot whose
    release is in it) and revised_at timestamp[us, UTC] (when that one ended), counts list<int64>,
    stderr list<double or null>, mechanism string. In the layout `tidy` those of releases, with
    revised_at in place of status.
    """

    path: str
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, kept in the metadata of a Parquet or Avro file."""
    layout: str = ROWS
    """As of WriteReleases."""

    def __post_init__(self) -> None:
        """Check the name and the layout."""
        super().__init__()
        self._quoted = output_format_of(self.path) == CSV
        check_layout(self.layout, self.labels)

    def expand(
        self, inputs: PCollection[Revision] | tuple[PCollection[Revision], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        convert: Callable[[Sequence[Revision]], pa.RecordBatch]
        if self.layout == TIDY:
            schema = TIDY_REVISION_SCHEMA
            labels = self.labels or ()
            convert = partial(tidy_revision_batch, labels=labels, quoted=self._quoted)
        else:
            schema = revision_schema(self.labels)
            convert = partial(revisions_to_batch, schema=schema)
        return inputs | "Write" >> WriteItems(self.path, schema, convert, "slot")


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

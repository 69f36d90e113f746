"""Results as rows with a schema: for SQL, data frames, and the sinks that Beam has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Optional

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import MillisInstant
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.core.records import COUNT, Release
from streamveil.mechanisms.core.tidy import interval
from streamveil.mechanisms.queries.slot_answers import SlotAnswer

# Beam's data frames take `float | None` for an object.
_KNOWN = Optional[float]  # noqa: UP045
# Slots are of whole milliseconds, for which Java always had a type: TIMESTAMP in SQL, timestamptz
# in Iceberg. Microseconds, Python's default, are new to both.
_FIELDS = (
    ("query", str),
    ("slot", int),
    ("start", MillisInstant),
    ("end", MillisInstant),
    ("key", str),
    ("statistic", str),
    ("value", _KNOWN),
    ("low", _KNOWN),
    ("high", _KNOWN),
    ("stderr", _KNOWN),
    ("status", str),
)


@dataclass(eq=False)
class ResultRows(beam.PTransform):
    """Convert results to Beam rows. There is a row for each slot, key and statistic.

    The input is a PCollection of releases of a count, or of results of a query set. The rows have
    the columns query, slot, start and end (both are Timestamps), key, statistic, value, low, high,
    stderr and status.
    """

    labels: Sequence[str] = ()
    """The keys of a single count, in the order of its domain."""
    query: str = COUNT
    """The name of a single count."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(
        self, results: beam.PCollection[Release] | beam.PCollection[SlotAnswer]
    ) -> beam.PCollection[beam.Row]:
        """Convert the results."""
        kind = RowTypeConstraint.from_fields(list(_FIELDS))
        return results | "ToRows" >> beam.FlatMap(
            result_rows, tuple(self.labels), self.query
        ).with_output_types(kind)


def rows_of(
    results: beam.PCollection[Release] | beam.PCollection[SlotAnswer],
    labels: Sequence[str] = (),
    query: str = COUNT,
) -> beam.PCollection[beam.Row]:
    """The results by :class:`ResultRows`; the step is added beside the one that gives them."""
    label = f"{results.producer.full_label}/Rows"
    return results | label >> ResultRows(labels, query)


def result_rows(
    result: Release | SlotAnswer, labels: Sequence[str], query: str
) -> Iterator[beam.Row]:
    """The rows of a result: see :class:`ResultRows`."""
    if isinstance(result, SlotAnswer):
        query, labels, statistics = result.query, result.labels, result.outputs
        low, high = result.interval
    else:
        statistics = (COUNT,)
        low, high = interval(result.values, result.stderr)
    start, end = Timestamp(micros=result.start), Timestamp(micros=result.end)
    columns = (some.ravel().tolist() for some in (result.values, low, high, result.stderr))
    for (key, statistic), *figures in zip(product(labels, statistics), *columns, strict=True):
        value, low_end, high_end, stderr = map(_known, figures)
        yield beam.Row(
            query=query,
            slot=result.slot,
            start=start,
            end=end,
            key=key,
            statistic=statistic,
            value=value,
            low=low_end,
            high=high_end,
            stderr=stderr,
            status=result.status,
        )


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None

"""Releases as rows with a schema: for SQL, data frames, and the sinks that Beam has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import MillisInstant
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms.core.records import Release
from streamveil.mechanisms.core.tidy import interval

# Beam's data frames take `float | None` for an object.
_KNOWN = Optional[float]  # noqa: UP045
# Slots are of whole milliseconds, for which Java always had a type: TIMESTAMP in SQL, timestamptz
# in Iceberg. Microseconds, Python's default, are new to both.
_FIELDS = (
    ("slot", int),
    ("start", MillisInstant),
    ("bin", str),
    ("count", float),
    ("low", _KNOWN),
    ("high", _KNOWN),
    ("status", str),
)


@beam.typehints.with_input_types(Release)
@dataclass(eq=False)
class ReleaseRows(beam.PTransform):
    """Makes a row for each release and bin: the columns of a tidy file of results.

    Output: beam.Row with the schema slot int64, start timestamp (a Timestamp), bin text, count
    double, low and high double or null, status text; `low` and `high` are those of `interval`.
    """

    labels: Sequence[str]
    """Names of the bins, as the domain has them."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, releases: beam.PCollection[Release]) -> beam.PCollection[beam.Row]:
        """Build the step."""
        kind = RowTypeConstraint.from_fields(list(_FIELDS))
        return releases | "ToRows" >> beam.FlatMap(_rows, tuple(self.labels)).with_output_types(
            kind
        )


def _rows(release: Release, labels: Sequence[str]) -> Iterator[beam.Row]:
    start = Timestamp(micros=release.start)
    lows, highs = interval(release.values, release.stderr)
    figures = (some.tolist() for some in (release.values, lows, highs))
    for label, count, low, high in zip(labels, *figures, strict=True):
        yield beam.Row(
            slot=release.slot,
            start=start,
            bin=label,
            count=count,
            low=low if low == low else None,
            high=high if high == high else None,
            status=release.status,
        )


class WithRows:
    """Outputs of which the releases are there as rows as well, for who asks, and their number."""

    releases: beam.PCollection[Release]
    done: beam.PCollection[int] | None = None
    """Of a bounded input one element, once all is released: how many releases there are, and as
    many entries of the ledger. Where a step failed it never comes, even if the runner goes on; None
    for an input without end."""
    _labels: Sequence[str] = ()

    def completed(self, labels: Sequence[str], done: beam.PCollection[int] | None) -> Any:
        """The same outputs, with names for the bins, and with their number."""
        self._labels, self.done = labels, done
        return self

    @cached_property
    def rows(self) -> beam.PCollection[beam.Row]:
        """The releases by :class:`ReleaseRows`: one row for each slot and bin, safe to publish.

        The step is added to the pipeline when this is first asked for.
        """
        label = f"{self.releases.producer.full_label}/Rows"
        return self.releases | label >> ReleaseRows(self._labels)

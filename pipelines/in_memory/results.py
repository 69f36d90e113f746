"""What a call releases: tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.per_record import PER_RECORD_SCHEMA, per_record_batch
from streamveil.io.releases import release_schema, releases_to_batch
from streamveil.io.revisions import revision_schema, revisions_to_batch
from streamveil.io.tidy import (
    LAYOUTS,
    RESULT_SCHEMA,
    TIDY,
    answer_schema,
    answers_batch,
    revised_answers_schema,
    revised_schema,
    tidy_batch,
    tidy_revision_batch,
)
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    NO_NOISE,
    TEST,
    ConfigurationError,
    PerRecordRow,
    Release,
    Revision,
    format_time,
)
from streamveil.mechanisms.queries.slot_answers import RevisedAnswer, SlotAnswer
from streamveil.pipelines.reports.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamveil.mechanisms.queries.queries import Query

_MOST_LINES = 8
"""Keys of a plot that names none."""


class QueryResult(Result, Sequence[Any]):
    """The results of one query, in the order of slots."""

    name: str
    keys: tuple[str, ...]
    title: str
    unit: str

    def plot(self, keys: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw a line for each key, with its 90 % interval. Needs matplotlib.

        The first statistic is drawn, without rollups. The title of the query is above the axes, and
        its unit beside them.

        Args:
            keys: the keys to draw. If None, up to 8 keys with the largest total values are drawn.
            ax: the matplotlib axes on which the chart is drawn. If None, a new figure is made.

        Returns:
            The axes.

        Raises:
            ConfigurationError: if a key is unknown.
            ImportError: if matplotlib is not installed.
        """
        from streamveil.pipelines.in_memory.plots import draw

        for key in keys or ():
            if key not in self.keys:
                raise ConfigurationError(
                    f"there is no key {key!r}: choose of {', '.join(self.keys)}"
                )
        rows = self._rows_of_slots()
        chosen = self._largest(rows) if keys is None else keys
        return draw(rows, chosen, ax, title=self.title, unit=self.unit)

    def _rows_of_slots(self) -> pa.Table:
        """The rows of the first statistic, without those of rollups."""
        table = self.to_arrow()
        if not table.num_rows:
            return table
        first = table.slice(0, 1).to_pylist()[0]
        for name in ("statistic", "length"):
            if name in table.column_names:
                table = table.filter(pc.equal(table[name], first[name]))
        return table

    def _largest(self, table: pa.Table) -> list[str]:
        """The keys whose values add up to most, in the order of all."""
        values = np.nan_to_num(table["value"].to_numpy())
        rows = table["key"].to_numpy()
        totals = {key: values[rows == key].sum() for key in self.keys}
        largest = sorted(self.keys, key=lambda key: -totals[key])[:_MOST_LINES]
        return [key for key in self.keys if key in largest]


@dataclass(frozen=True, repr=False, eq=False)
class Counts(QueryResult, Sequence[Release]):
    """The counts of one query, as a sequence with a :class:`Release` for each slot, in order."""

    name: str
    keys: tuple[str, ...]
    """The keys, in the order of the counts."""
    releases: tuple[Release, ...]
    revisions: tuple[Revision, ...] = ()
    """If `revise` was given, a smoothed estimate of every slot, in the order of slots. These
    estimates are public."""
    zone: str | None = None
    """Time zone of calendar slots, or None if slots are not calendar slots."""
    title: str = ""
    """Text to show instead of the name."""
    unit: str = ""
    """Unit of the counts."""

    def __len__(self) -> int:
        return len(self.releases)

    def __getitem__(self, index: Any) -> Any:
        return self.releases[index]

    def __iter__(self) -> Iterator[Release]:
        return iter(self.releases)

    def to_arrow(self, layout: str = TIDY) -> pa.Table:
        """Return the counts as an Arrow table.

        Args:
            layout: with `tidy`, the table has a row for each slot and key. With `rows`, it has a
                row for each slot. The columns are described in
                :class:`streamveil.io.WriteReleases`.

        Raises:
            ConfigurationError: if the layout is unknown.
        """
        if _checked(layout) == TIDY:
            batch = tidy_batch(self.releases, self.keys, query=self.name, zone=self.zone)
            return pa.Table.from_batches([batch])
        schema = release_schema(self.keys, shares=self.releases[0].shares is not None)
        return pa.Table.from_batches([releases_to_batch(self.releases, schema)], schema)

    def revisions_to_arrow(self, layout: str = TIDY) -> pa.Table:
        """Return the revisions as an Arrow table with the columns that WriteRevisions writes.

        Args:
            layout: with `tidy`, the table has a row for each slot and key. With `rows`, it has a
                row for each slot.
        """
        if _checked(layout) == TIDY:
            schema = revised_schema(self.zone)
            convert = partial(
                tidy_revision_batch, labels=self.keys, query=self.name, zone=self.zone
            )
        else:
            schema = revision_schema(self.keys)
            convert = partial(revisions_to_batch, schema=schema)
        return pa.Table.from_batches([convert(self.revisions)] if self.revisions else [], schema)

    def __str__(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        title = f" ({self.title})" if self.title else ""
        return (
            f"{self.name}{title}: count of {number_of(len(self.keys), 'key')} in "
            f"{number_of(len(self), 'slot')} by {first.mechanism}, "
            f"{_span(first.start, last.end, self.zone)}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Estimates(QueryResult, Sequence[SlotAnswer]):
    """The estimates of one query, as a sequence with a :class:`SlotAnswer` for each slot, in order.

    A rollup (a longer slot that adds up several slots) comes after the last slot that it covers.
    The field `length` of an estimate shows whether the estimate is for a slot or for a rollup.
    """

    query: Query
    answers: tuple[SlotAnswer, ...]
    zone: str | None = None
    """Time zone of calendar slots, or None if slots are not calendar slots."""
    revisions: tuple[RevisedAnswer, ...] = ()
    """If `revise` was given, a smoothed estimate of every slot, in the order of slots. These
    estimates are public. Rollups are not revised."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the query."""
        return self.query.name

    @property
    def title(self) -> str:  # type: ignore[override]
        """Text to show instead of the name."""
        return self.query.title

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Unit of the results."""
        return self.query.unit

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """The keys, and the groups of `levels`."""
        return self.answers[0].labels if self.answers else ()

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: Any) -> Any:
        return self.answers[index]

    def to_arrow(self, layout: str = TIDY) -> pa.Table:
        """Return an Arrow table with a row for each slot, key and statistic.

        The table has the columns of :meth:`Results.to_arrow`, followed by the diagnostic columns
        that are described in :class:`streamveil.io.WriteAnswers`.
        """
        return self._table(self.answers, answer_schema(self.query, self.zone), layout)

    def revisions_to_arrow(self, layout: str = TIDY) -> pa.Table:
        """Return the revisions as an Arrow table, with the columns of WriteRevisedAnswers files."""
        return self._table(self.revisions, revised_answers_schema(self.zone), layout)

    def _table(self, answers: Sequence[SlotAnswer], schema: pa.Schema, layout: str) -> pa.Table:
        if _checked(layout) != TIDY:
            raise ConfigurationError(
                f"layout {layout!r} is for a single count by key: leave it out, the diagnostics of "
                "a query are in columns of their own"
            )
        return pa.Table.from_batches([answers_batch(answers, schema)])

    def __str__(self) -> str:
        length = self.answers[0].length if self.answers else ""
        slots = [one for one in self.answers if one.length == length]
        more = len(self.answers) - len(slots)
        when = f", {_span(slots[0].start, slots[-1].end, self.zone)}" if slots else ""
        longer = f" and {number_of(more, 'rollup')}" if more else ""
        tested = f" by {NO_NOISE}" if any(one.status == TEST for one in slots) else ""
        return (
            f"{self.name}: {self.query.statistic.name} of "
            f"{number_of(self.query.domain.bins, 'key')} in {number_of(len(slots), 'slot')}"
            f"{longer}{tested}{when}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Results(Result, Mapping[str, Any]):
    """The results of a release, as a mapping from the name of each query to its results.

    You may publish the results and the attributes `ledger` and `card`. Do not publish the
    attributes `rejected`, `summary` and `text`, because they are derived from unprotected events.

        >>> result["visits"].to_pandas()  # doctest: +SKIP
    """

    queries: Mapping[str, QueryResult]
    """The results of each query, by its name."""
    ledger: pa.Table
    """The privacy budget spent by each slot and class of requirements, as `--ledger` writes it."""
    rejected: pa.Table
    """Dead letters, with the reason and the place in the input. Not private."""
    summary: Mapping[str, Any]
    """The event accounting, as `--summary` writes it. Not private."""
    text: str
    """The event accounting as text. Not private."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """The card of the run, which states its guarantee. It is public, and empty in test mode."""

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __getitem__(self, name: str) -> Any:
        if name not in self.queries:
            raise KeyError(f"there is no query {name!r}: choose of {', '.join(self)}")
        return self.queries[name]

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table with a row for each slot, key and statistic, for all queries.

        The columns are `query`, `slot`, `start`, `end`, `key`, `statistic`, `value`, `low` and
        `high` (a 90 % confidence interval), `stderr` and `status`.
        """
        return pa.concat_tables(
            [one.to_arrow().select(RESULT_SCHEMA.names) for one in self.queries.values()]
        )

    def plot(self, keys: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw the first query. See :meth:`QueryResult.plot`."""
        axes: Axes = next(iter(self.queries.values())).plot(keys, ax)
        return axes

    def __str__(self) -> str:
        queries = list(map(str, self.queries.values()))
        if self.summary.get("test_mode"):  # of which the first line of the text warns
            return "\n".join([self.text, *queries])
        return "\n".join([*queries, self.text])


def _span(start: int, end: int, zone: str | None) -> str:
    """From when to when, in the zone of calendar slots."""
    return " to ".join(format_time(time, zone or "UTC") for time in (start, end))


def _checked(layout: str) -> str:
    if layout not in LAYOUTS:
        raise ConfigurationError(f"layout {layout!r} is unknown: choose {' or '.join(LAYOUTS)}")
    return layout


@dataclass(frozen=True, repr=False, eq=False)
class Statistics(Result, Sequence[PerRecordRow]):
    """Per-record results, as a sequence with a :class:`PerRecordRow` for each window and key."""

    rows: tuple[PerRecordRow, ...]
    summary: str
    """A description of the release as text. It is public."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """The card of the run, which states its guarantee. It is public."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table with the columns that WritePerRecord writes.

        Rows are sorted by window and key.
        """
        batch = per_record_batch(self.rows)
        table = pa.Table.from_batches([batch], PER_RECORD_SCHEMA)
        return table.sort_by([(name, "ascending") for name in ("start", "end", "key")])

    def plot(self, keys: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw a chart with a line for each key and a point for each window. This needs matplotlib.

        Args:
            keys: the keys for which lines are drawn. If None, the keys with the largest estimates
                are drawn, at most 8.
            ax: the matplotlib axes on which the chart is drawn. If None, a new figure is made.

        Returns:
            The axes.

        Raises:
            ConfigurationError: if a key is unknown.
            ImportError: if matplotlib is not installed.
        """
        from streamveil.pipelines.in_memory.plots import draw_statistics

        largest: dict[str | None, float] = {}
        for row in self.rows:
            largest[row.key] = max(row.estimate, largest.get(row.key, row.estimate))
        for key in keys or ():
            if key not in largest:
                known = ", ".join(str(one) for one in largest)
                raise ConfigurationError(f"there is no key {key!r}: choose of {known}")
        chosen = sorted(largest, key=lambda key: -largest[key])[:_MOST_LINES]
        return draw_statistics(self.to_arrow(), chosen if keys is None else keys, ax)

    def __str__(self) -> str:
        return self.summary

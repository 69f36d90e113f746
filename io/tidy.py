"""Results as tidy tables: a row for each slot, key and statistic, for plots, SQL and people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.io.formats import CSV, output_format_of
from streamveil.io.tables import UTC_MICROSECONDS, TableForm
from streamveil.mechanisms.core.records import COUNT, Release, Revision, check_zone
from streamveil.mechanisms.core.tidy import tidy_columns, tidy_revision_columns

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.queries import Query
    from streamveil.mechanisms.queries.slot_answers import SlotAnswer

TIDY, ROWS = "tidy", "rows"
LAYOUTS = (TIDY, ROWS)
"""Layouts of files with one count, which have a row per slot and key, or a row per slot."""

RESULT_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("start", UTC_MICROSECONDS, nullable=False),
        pa.field("end", UTC_MICROSECONDS, nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("stderr", pa.float64()),
        pa.field("status", pa.string(), nullable=False),
    ]
)
"""Arrow schema of results, with a row for each slot, key and statistic. Unknown values are null.

`low` and `high` are the ends of the 90 % confidence interval, and `stderr` is the expected standard
error.
"""

_DIAGNOSTICS = (
    pa.field("length", pa.string(), nullable=False),
    pa.field("level", pa.int64(), nullable=False),
    pa.field("note", pa.string()),
)
_CLIPPING = pa.field("clipping", pa.float64())
_OF_TOP = (pa.field("rank", pa.int64()), pa.field("chance", pa.float64()))

ANSWERS_SCHEMA = pa.schema([*RESULT_SCHEMA, *_DIAGNOSTICS])
"""Arrow schema of a table with all queries. It has the columns of `RESULT_SCHEMA` and the
diagnostics that every query has."""

_REVISED_AT = pa.field("revised_at", UTC_MICROSECONDS, nullable=False)

# A spreadsheet takes text that begins so for a formula, in ASCII or as wide characters; and a
# quote is doubled, so that one can be taken away again.
_FORMULA = re.compile("['=+\\-@\t\r\n＝＋－＠]")  # noqa: RUF001


def result_schema(zone: str | None = None) -> pa.Schema:
    """The columns of `RESULT_SCHEMA`, with times in a zone; in UTC without one."""
    return in_zone(RESULT_SCHEMA, zone)


def revised_schema(zone: str | None = None) -> pa.Schema:
    """The columns of a table of revisions: those of results, and when each was revised."""
    return in_zone(RESULT_SCHEMA.append(_REVISED_AT), zone)


def in_zone(schema: pa.Schema, zone: str | None) -> pa.Schema:
    """The same columns, with times in a zone; as they are where that is None.

    Raises ConfigurationError for an unknown zone.
    """
    if zone is None:
        return schema
    check_zone(zone, "zone")
    local = pa.timestamp("us", tz=zone)
    return pa.schema([f.with_type(local) if f.type == UTC_MICROSECONDS else f for f in schema])


def tidy_batch(
    releases: Sequence[Release],
    labels: Sequence[str],
    *,
    query: str = COUNT,
    quoted: bool = False,
    zone: str | None = None,
) -> pa.RecordBatch:
    """One row for each release and bin, of :func:`result_schema`, in the order given.

    The statistic is `count`, the key is the label of the bin. `low` and `high` are those of
    :func:`interval`, null where the standard error is not finite.

    Args:
        releases: of b bins each.
        labels: of the bins, length b.
        query: its name.
        quoted: whether labels are as :func:`quoted_label` has them.
        zone: of the times; None is UTC.
    """
    return _batch(tidy_columns(releases, _shown(labels, quoted), query), result_schema(zone))


def tidy_revision_batch(
    revisions: Sequence[Revision],
    labels: Sequence[str],
    *,
    query: str = COUNT,
    quoted: bool = False,
    zone: str | None = None,
) -> pa.RecordBatch:
    """The same of revisions, of :func:`revised_schema`; their status is `revised`."""
    columns = tidy_revision_columns(revisions, _shown(labels, quoted), query)
    return _batch(columns, revised_schema(zone))


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(columns[f.name], f.type, from_pandas=True) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _shown(labels: Sequence[str], quoted: bool) -> list[str]:
    return [quoted_label(label) if quoted else label for label in labels]


def revised_answers_schema(zone: str | None = None) -> pa.Schema:
    """The columns of a table of revised answers to all queries: see `ANSWERS_SCHEMA`."""
    return in_zone(pa.schema([*revised_schema(), *_DIAGNOSTICS]), zone)


def answer_schema(query: Query, zone: str | None = None) -> pa.Schema:
    """Return the schema of the results of a query set. See :class:`WriteAnswers` for the columns.

    If the slots follow the calendar of a time zone, the times in the results are in this time zone.
    Otherwise, the times are in UTC.
    """
    more: tuple[pa.Field, ...] = ()
    if hasattr(query.statistic, "lower"):
        more = (_CLIPPING,)
    elif query.statistic.name == "top":
        more = _OF_TOP
    return in_zone(pa.schema([*ANSWERS_SCHEMA, *more]), zone)


def answers_batch(
    answers: Sequence[SlotAnswer], schema: pa.Schema, *, quoted: bool = False
) -> pa.RecordBatch:
    """Convert query results to rows. There is a row for each slot, key and statistic, in order.

    Unknown values become null. The confidence interval of a count never extends below 0.

    Args:
        answers: the results to convert. The `schema` determines which results are possible. With
            `ANSWERS_SCHEMA` or `RESULT_SCHEMA`, the results may be from several queries. With
            :func:`answer_schema`, all results must be from a single query. With
            :func:`revised_answers_schema`, the results must be revised results, from one or several
            queries.
        schema: the schema of the rows, such as :func:`answer_schema`.
        quoted: if true, keys that a spreadsheet would read as formulas are quoted. See
            :func:`quoted_label`.
    """
    parts = [_columns(answer, schema.names, quoted) for answer in answers]
    arrays = [
        pa.array(
            np.concatenate([part[field.name] for part in parts]) if parts else [],
            field.type,
            from_pandas=True,
        )
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def answers_form(zone: str | None = None) -> TableForm:
    """How answers to all queries become rows, with the columns that they all have.

    `zone` is of the times; None is UTC.
    """
    return _answers_form(in_zone(ANSWERS_SCHEMA, zone))


def revised_answers_form(zone: str | None = None, *, quoted: bool = False) -> TableForm:
    """The same of revised answers; `quoted` is that of :func:`answers_batch`."""
    return _answers_form(revised_answers_schema(zone), quoted)


def _answers_form(schema: pa.Schema, quoted: bool = False) -> TableForm:
    return TableForm(schema, partial(answers_batch, schema=schema, quoted=quoted), ("end", "query"))


def _columns(answer: SlotAnswer, names: Sequence[str], quoted: bool) -> dict[str, Any]:
    """Columns of an answer, of as many rows as it has bins and figures."""
    nodes, outputs = answer.values.shape
    figures = answer.figures
    low, high = answer.interval
    labels = [quoted_label(label) for label in answer.labels] if quoted else answer.labels

    def by_node(column: Any) -> Any:
        return np.repeat(column, outputs)

    made: Mapping[str, Callable[[], Any]] = {
        "key": lambda: by_node(np.array(labels, object)),
        "level": lambda: by_node(answer.levels),
        "statistic": lambda: np.tile(np.array(answer.outputs, object), nodes),
        "value": figures.values.ravel,
        "stderr": lambda: _finite(figures.stderr).ravel(),
        "low": low.ravel,
        "high": high.ravel,
        "note": lambda: [note or None for note in figures.notes.ravel().tolist()],
        "clipping": figures.clipping.ravel,
        "rank": lambda: by_node(_ranks(figures.ranks)),
        "chance": lambda: by_node(figures.chances),
    }
    return {
        name: made[name]()
        if name in made
        else np.full(nodes * outputs, getattr(answer, name), object)
        for name in names
    }


def _finite(figures: Any) -> Any:
    """What tools take for a number; an endless interval ends nowhere."""
    return np.where(np.isfinite(figures), figures, np.nan)


def _ranks(ranks: Any) -> Any:
    """Null where a bin is not among the k."""
    return np.where(ranks == 0, None, ranks.astype(object))


def is_quoted(path: str) -> bool:
    """Whether keys of a file are as :func:`quoted_label` has them: those of CSV.

    Raises ConfigurationError for a path that cannot be.
    """
    return output_format_of(path) == CSV


def quoted_label(label: str) -> str:
    """A label that no spreadsheet runs as a formula: with a quote before it, if it needs one.

    Of what begins with a quote, one quote is to be taken away to have the label again.
    """
    return f"'{label}" if _FORMULA.match(label) else label

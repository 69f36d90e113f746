"""Results as messages of a broker and as files of a folder: one of each slot and query.

A message is a JSON object. That of tidy rows has what they have in common, and a list of them:

    {"query": "count", "slot": 7, "start": ..., "end": ..., "status": "published",
     "rows": [{"key": "cafe", "statistic": "count", "value": 12.4, "low": ..., "high": ...,
               "stderr": ...}, ...]}

A slot comes whole so, or not at all, and a topic that keeps the newest message of each key keeps
the newest one of each slot. A file of a folder is whole by itself, and has the rows as they are.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.per_record import PER_RECORD_FORM
from streamveil.io.releases import release_form
from streamveil.io.revisions import revision_form
from streamveil.io.tables import TableForm
from streamveil.io.tidy import TIDY, answers_form, revised_answers_form
from streamveil.mechanisms.core.records import (
    COUNT,
    EPOCH,
    PerRecordRow,
    Release,
    Revision,
    format_time,
)
from streamveil.mechanisms.queries.slot_answers import RevisedAnswer, SlotAnswer

_IN_COMMON = ("query", "slot", "start", "end", "length", "status", "revised_at")


class ResultName(NamedTuple):
    """What a result is called where each has a message or a file."""

    key: str
    """Of a message: a later one with this key replaces it."""
    file: str
    what: str
    """The same for people."""


@dataclass(frozen=True)
class ResultMessages:
    """How a result is converted to a message for a topic, or to a file in a folder."""

    rows: TableForm
    """The form of the rows in a file."""
    form: TableForm
    """The messages."""
    name: Callable[[Any], ResultName]
    """Function that returns the message key, the file name and the slot of a result."""

    def message(self, result: Any) -> bytes:
        """The message of a result."""
        (row,) = json_rows(self.form.convert([result]))
        return json_text(row).encode()

    def record(self, result: Any) -> tuple[bytes, bytes]:
        """Key and message of a result."""
        return self.name(result).key.encode(), self.message(result)

    def file(self, result: Any) -> tuple[str, str, bytes]:
        """Return the name of the file for a result, the slot as text, and the file's content."""
        _, name, what = self.name(result)
        lines = (json_text(row) + "\n" for row in json_rows(self.rows.convert([result])))
        return name, what, "".join(lines).encode()


def release_messages(
    labels: Sequence[str] | None = None,
    *,
    layout: str = TIDY,
    shares: bool = False,
    zone: str | None = None,
    query: str = COUNT,
) -> ResultMessages:
    """Return an object that converts releases to messages, with the arguments of WriteReleases.

    Each release becomes one message. The key of the message is the slot number as decimal text. In
    the layout `tidy`, the message contains a row for each key of the count. In the layout `rows`,
    the message contains a single row.

    Raises:
        ConfigurationError: if the layout is unknown, or if the layout is `tidy` and you do not give
            the names of the keys (`labels`).
    """
    rows = release_form(labels, shares=shares, layout=layout, zone=zone, query=query)
    return _messages(rows, _release_name, tidy=layout == TIDY)


def revision_messages(
    labels: Sequence[str] | None = None,
    *,
    layout: str = TIDY,
    zone: str | None = None,
    query: str = COUNT,
) -> ResultMessages:
    """Return an object that converts revisions to messages. See :func:`release_messages`."""
    rows = revision_form(labels, layout=layout, zone=zone, query=query)
    return _messages(rows, _revision_name, tidy=layout == TIDY)


def answer_messages(zone: str | None = None) -> ResultMessages:
    """Return an object that converts the results (answers) of a query set to messages.

    The key of a message consists of the name of the query, the length of the slot and the slot
    number, for example `late/1h/7` for slot 7 of the hourly query `late`.
    """
    return _messages(answers_form(zone), _answer_name, tidy=True)


def revised_answer_messages(zone: str | None = None) -> ResultMessages:
    """Return an object that converts revised results to messages. See :func:`answer_messages`."""
    return _messages(revised_answers_form(zone), _revised_answer_name, tidy=True)


def _messages(rows: TableForm, name: Callable[[Any], ResultName], *, tidy: bool) -> ResultMessages:
    return ResultMessages(rows, _grouped(rows) if tidy else rows, name)


def _grouped(form: TableForm) -> TableForm:
    """The form with a row for each result, which has the rows of the other form in a list."""
    common = [field for field in form.schema if field.name in _IN_COMMON]
    each = pa.struct([field for field in form.schema if field.name not in _IN_COMMON])
    rows = pa.field("rows", pa.list_(pa.field("item", each, nullable=False)), nullable=False)
    schema = pa.schema([*common, rows])
    return TableForm(schema, partial(_group, form.convert, schema), form.sort_by)


def _group(
    convert: Callable[[Sequence[Any]], pa.RecordBatch], schema: pa.Schema, results: Sequence[Any]
) -> pa.RecordBatch:
    parts = [convert([one]) for one in results]
    *common, rows = schema
    fields = [*rows.type.value_type]

    def together(name: str, most: int | None = None) -> pa.Array:
        return pa.concat_arrays([part.column(name).slice(0, most) for part in parts])

    each = pa.StructArray.from_arrays([together(one.name) for one in fields], fields=fields)
    ends = np.cumsum([0, *(part.num_rows for part in parts)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(ends, each, type=rows.type)
    return pa.RecordBatch.from_arrays(
        [*(together(one.name, 1) for one in common), lists], schema=schema
    )


def _release_name(release: Release) -> ResultName:
    file = f"release-{_stamp(release.start)}.json"
    return ResultName(str(release.slot), file, f"slot {release.slot}")


def _revision_name(revision: Revision) -> ResultName:
    file = f"revision-{_stamp(revision.start)}.json"
    return ResultName(str(revision.slot), file, f"the revision of slot {revision.slot}")


def _answer_name(answer: SlotAnswer) -> ResultName:
    return ResultName(
        _answer_key(answer),
        f"{answer.query}.{answer.length}-{_stamp(answer.start)}.json",
        f"slot {answer.slot} of {answer.length} of query {answer.query!r}",
    )


def _revised_answer_name(answer: RevisedAnswer) -> ResultName:
    return ResultName(
        _answer_key(answer),
        f"revision-{_stamp(answer.start)}-{answer.query}.{answer.length}.json",
        f"the revision of slot {answer.slot} of query {answer.query!r}",
    )


def _answer_key(answer: SlotAnswer) -> str:
    return f"{answer.query}/{answer.length}/{answer.slot}"


def _row_name(row: PerRecordRow) -> ResultName:
    """Of a row under per-record privacy; the name of its file has a digest of its key."""
    key = hashlib.sha256(json_text([row.key, row.statistic]).encode()).hexdigest()[:16]
    end = None if row.end is None else format_time(row.end)
    return ResultName(
        json_text([row.key, end]),
        f"row-{_stamp(row.start)}-{_stamp(row.end)}-{key}.json",
        f"key {row.key!r} in {f'the window that ends at {end}' if end else 'all times'}",
    )


def _stamp(time: int | None) -> str:
    """A time in a file name, in UTC: sorted as text, times are in order."""
    if time is None:
        return "always"
    return f"{EPOCH + dt.timedelta(microseconds=time):%Y%m%dT%H%M%S.%fZ}"


PER_RECORD_MESSAGES = _messages(PER_RECORD_FORM, _row_name, tidy=False)
"""Of rows of statistics under per-record privacy."""

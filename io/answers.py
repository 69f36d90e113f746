"""Answers to the questions of a portfolio as tidy tables, and what they cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.io import filesystems
from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, stage_table
from streamveil.mechanisms.core.records import ConfigurationError

if TYPE_CHECKING:
    from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioEntry
    from streamveil.mechanisms.portfolio.questions import Portfolio, Question
    from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer

_FIELDS = (
    pa.field("slot", pa.int64(), nullable=False),
    pa.field("start", UTC_MICROSECONDS, nullable=False),
    pa.field("end", UTC_MICROSECONDS, nullable=False),
    pa.field("length", pa.string(), nullable=False),
    pa.field("bin", pa.string(), nullable=False),
    pa.field("level", pa.int64(), nullable=False),
    pa.field("statistic", pa.string(), nullable=False),
    pa.field("value", pa.float64()),
    pa.field("stderr", pa.float64()),
    pa.field("low", pa.float64()),
    pa.field("high", pa.float64()),
    pa.field("status", pa.string(), nullable=False),
    pa.field("note", pa.string()),
)
_CLIPPING = pa.field("clipping", pa.float64())
_OF_TOP = (pa.field("rank", pa.int64()), pa.field("chance", pa.float64()))

ANSWERS_SCHEMA = pa.schema([pa.field("question", pa.string(), nullable=False), *_FIELDS])
"""Of a table of all questions: what every question has, with its name."""

PORTFOLIO_LEDGER_SCHEMA = pa.schema(
    [
        pa.field("question", pa.string(), nullable=False),
        pa.field("first_base_slot", pa.int64(), nullable=False),
        pa.field("last_base_slot", pa.int64(), nullable=False),
        pa.field("window", pa.int64(), nullable=False),
        pa.field("epsilon", pa.float64(), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("spent", pa.float64(), nullable=False),
        pa.field("spent_in_window", pa.float64(), nullable=False),
    ]
)
_COMMON = ("question", "slot", "start", "end", "length", "status")


def answer_schema(question: Question) -> pa.Schema:
    """Columns of the table of a question: see :class:`WriteAnswers`."""
    more: tuple[pa.Field, ...] = ()
    if hasattr(question.statistic, "lower"):
        more = (_CLIPPING,)
    elif question.statistic.name == "top":
        more = _OF_TOP
    return pa.schema([*_FIELDS, *more])


def answers_batch(answers: Sequence[SlotAnswer], schema: pa.Schema) -> pa.RecordBatch:
    """A row for each slot, bin and figure, in the order given; what is not known is null.

    Args:
        answers: to one question; or to any, with `ANSWERS_SCHEMA`.
        schema: see :func:`answer_schema`.
    """
    parts = [_columns(answer, schema.names) for answer in answers]
    arrays = [
        pa.array(
            np.concatenate([part[field.name] for part in parts]) if parts else [],
            field.type,
            from_pandas=True,
        )
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(answer: SlotAnswer, names: Sequence[str]) -> dict[str, Any]:
    """Columns of an answer, of as many rows as it has bins and figures."""
    nodes, outputs = answer.values.shape
    figures = answer.figures

    def by_node(column: Any) -> Any:
        return np.repeat(column, outputs)

    made: Mapping[str, Callable[[], Any]] = {
        "bin": lambda: by_node(np.array(answer.labels, object)),
        "level": lambda: by_node(answer.levels),
        "statistic": lambda: np.tile(np.array(answer.outputs, object), nodes),
        "value": figures.values.ravel,
        "stderr": lambda: _finite(figures.stderr),
        "low": lambda: _finite(figures.low),
        "high": lambda: _finite(figures.high),
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
    return np.where(np.isfinite(figures), figures, np.nan).ravel()


def _ranks(ranks: Any) -> Any:
    """Null where a bin is not among the k."""
    return np.where(ranks == 0, None, ranks.astype(object))


def answer_object(answer: SlotAnswer) -> dict[str, Any]:
    """The JSON object of an answer, with times as ISO 8601 text and its rows in `figures`."""
    rows = list(json_rows(answers_batch([answer], ANSWERS_SCHEMA)))
    common = {name: rows[0][name] for name in _COMMON}
    figures = [{name: row[name] for name in row if name not in _COMMON} for row in rows]
    return {**common, "figures": figures}


def answer_json(answer: SlotAnswer) -> bytes:
    """The same as a line, without its end."""
    return json_text(answer_object(answer)).encode()


def portfolio_ledger_batch(entries: Sequence[PortfolioEntry]) -> pa.RecordBatch:
    """A row for each entry and class of users, in the order given."""
    rows = [
        (entry.question, entry.first_base_slot, entry.last_base_slot, asked.window, asked.epsilon)
        for entry in entries
        for asked in entry.classes
    ]
    names = PORTFOLIO_LEDGER_SCHEMA.names
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=False))
    for name in names[5:]:
        columns[name] = [figure for entry in entries for figure in getattr(entry, name).tolist()]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, ()), field.type) for field in PORTFOLIO_LEDGER_SCHEMA],
        schema=PORTFOLIO_LEDGER_SCHEMA,
    )


def portfolio_ledger_table(entries: Sequence[PortfolioEntry]) -> pa.Table:
    """The table that WritePortfolioLedger writes, in its order."""
    return PORTFOLIO_LEDGER_FORM.table(entries)


PORTFOLIO_LEDGER_FORM = TableForm(
    PORTFOLIO_LEDGER_SCHEMA,
    portfolio_ledger_batch,
    ("last_base_slot", "question", "window", "epsilon"),
)


def answer_files(folder: str, portfolio: Portfolio, prefix: str = "") -> dict[str, str]:
    """The file of each question, by its name, which `prefix` comes before."""
    return {
        question.name: filesystems.join(folder, f"{prefix}{question.name}.parquet")
        for question in portfolio
    }


def make_folder(folder: str) -> None:
    """Make the folder of answers, if it is not there.

    Raises ConfigurationError for one that cannot be made, or is a file.
    """
    if "://" not in folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: the folder of the answers cannot be made ({error.strerror}): choose "
                "another one (--output)"
            ) from None


def write_answers(
    folder: str, portfolio: Portfolio, answers: Iterable[SlotAnswer], prefix: str = ""
) -> list[str]:
    """Write a file for each question, as :class:`streamveil.io.WriteAnswers` does; gives the paths.

    Raises ConfigurationError for a folder that cannot be made.
    """
    with ExitStack() as block:
        return stage_answers(block, folder, portfolio, answers, prefix)


def stage_answers(
    block: ExitStack,
    folder: str,
    portfolio: Portfolio,
    answers: Iterable[SlotAnswer],
    prefix: str = "",
) -> list[str]:
    """The same; the files get their names when the block ends: all are whole, or none.

    Raises ConfigurationError for a folder that cannot be made.
    """
    by_question: dict[str, list[SlotAnswer]] = {question.name: [] for question in portfolio}
    for answer in answers:
        by_question[answer.question].append(answer)
    make_folder(folder)
    paths = answer_files(folder, portfolio, prefix)
    for question in portfolio:
        in_order = sorted(by_question.pop(question.name), key=lambda one: (one.end, -one.start))
        schema = answer_schema(question)
        stage_table(block, paths[question.name], schema, [answers_batch(in_order, schema)])
    return list(paths.values())

"""What a run released to a stream, read back from there: a file of rows, or a folder of results.

Kafka, Pub/Sub and BigQuery may hold a row twice, both alike, since a runner may try again; such a
row is taken once. Rows come in any order.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io import filesystems, read_table
from streamveil.io.files import list_files
from streamveil.io.formats import EXTENSIONS
from streamveil.io.tables import read_json_files
from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.cards.promises import PER_RECORD
from streamveil.pipelines.cards.read import Fault, Places, Read
from streamveil.pipelines.cards.writing import ANSWERS

Record = Mapping[str, Any]

_TIMES = ("start", "end")
_UTC = " UTC$"
"""How BigQuery ends a time in an export as text."""


def read_streams(card: Record, places: Places, read: Read, notices: list[str]) -> Read:
    """Add what the card's runs have released to streams, and a ledger that the card does not name.

    Args:
        card: whose runs name the streams.
        places: where their rows are now.
        read: the files that the card names.
        notices: gets what could not be read, or was there twice.

    Raises:
        Fault: where nobody says where releases are.
        ConfigurationError: for a file that cannot be read.
    """
    tables = {kind: list(found) for kind, found in read.tables.items()}
    for kind, where in _streams(card).items():
        place = places.revisions if kind == "revisions" else places.releases
        if place is None:
            _tell_unnamed(kind, where, notices)
            continue
        table = _once(place, _table(card, kind, place), notices)
        tables[kind] = [(place, table)] if table.num_rows else []
    named = any("ledger" in run["files"] for run in card["runs"])
    if places.ledger is not None and not named:
        tables["ledger"] = [(places.ledger, read_table(places.ledger))]
    return Read(tables)


def _streams(card: Record) -> dict[str, str]:
    """The kinds of places, by what went there."""
    found: dict[str, str] = {}
    for run in card["runs"]:
        found |= run.get("streams", {})
    return found


def _tell_unnamed(kind: str, where: str, notices: list[str]) -> None:
    if kind == "revisions":
        notices.append(
            f"revisions went to {where}, and were not compared: export them, and name the file or "
            "folder (--revisions)"
        )
        return
    raise Fault(
        f"releases went to {where}, so the card names no file of them and nothing was compared: "
        "export them, and name the file, or the folder of --output=folder: (--releases)"
    )


def _table(card: Record, kind: str, place: str) -> pa.Table:
    if place.lower().endswith(tuple(EXTENSIONS)):
        table = read_table(place)
    else:
        table = read_json_files(_results(card, kind, place))
    if kind.startswith(ANSWERS):
        table = pa.Table.from_pylist(list(_answers(table, kind.removeprefix(ANSWERS))))
    return _with_times(table)


def _results(card: Record, kind: str, folder: str) -> list[str]:
    """The files of a folder of results, in the order of time. Raises Fault where there are none."""
    name = {"releases": "release-*", "revisions": "revision-*"}.get(kind)
    if kind.startswith(ANSWERS):
        name = f"{glob.escape(kind.removeprefix(ANSWERS))}.*-*"
    elif card["promise"]["guarantee"] == PER_RECORD:
        name = "row-*"
    pattern = filesystems.join(folder, f"{name}.json")
    found = sorted(file.path for file in list_files(pattern))
    if not found:
        raise Fault(
            f"there is no file {pattern}: name the folder that --output=folder: of the run named, "
            "or a file of exported rows, of which the name ends in "
            f"{', '.join(EXTENSIONS)}"
        )
    return found


def _answers(table: pa.Table, question: str) -> Iterator[dict[str, Any]]:
    """The rows of the answers to a question, each of one bin and figure."""
    for row in table.to_pylist():
        if row.get("question") == question:
            figures = row.pop("figures")
            yield from ({**row, **one} for one in figures)


def _with_times(table: pa.Table) -> pa.Table:
    """Times as ISO 8601 where they are text of BigQuery's."""
    for name in _TIMES:
        at = table.schema.get_field_index(name)
        if at >= 0 and pa.types.is_string(table.column(name).type):
            told = pc.replace_substring_regex(table.column(name), _UTC, "Z")
            table = table.set_column(at, name, told)
    return table


def _once(place: str, table: pa.Table, notices: list[str]) -> pa.Table:
    """The rows by slot, without those that are there twice and alike."""
    rows = table.to_pylist()
    seen: dict[str, int] = {}
    for at, row in enumerate(rows):
        seen.setdefault(json.dumps(row, default=str, sort_keys=True), at)
    twice = len(rows) - len(seen)
    if twice:
        notices.append(
            f"{place}: {number_of(twice, 'row')} stood there once more, alike, as happens where a "
            "runner tries again: taken once"
        )
    kept = sorted(seen.values(), key=lambda at: _order(rows[at]))
    return table.take(pa.array(kept, pa.int64()))


def _order(row: Record) -> int:
    """The slot of a row; what is none is told of later."""
    try:
        return int(row["slot"])
    except (KeyError, TypeError, ValueError):
        return -1

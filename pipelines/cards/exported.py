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

from streamveil.engine.guarantees import PER_RECORD
from streamveil.io import filesystems, read_table
from streamveil.io.files import list_files
from streamveil.io.formats import EXTENSIONS
from streamveil.io.tables import read_json_files
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.check_input import Fault, Places, Read, refuse_tested
from streamveil.pipelines.cards.claims import ANSWERS

Record = Mapping[str, Any]

_FILE = "file"
"""The kind of place of a ledger that a pipeline wrote by itself, whole and in order."""
_TIMES = ("start", "end")
_GROUPED = "rows"
"""Column of messages that have several rows."""
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
    exported = _streams(card)
    if places.ledger is not None and not any("ledger" in run["files"] for run in card["runs"]):
        exported.setdefault("ledger", _FILE)
    own = {"revisions": places.revisions, "ledger": places.ledger}
    for kind, where in exported.items():
        place = own.get(kind, places.releases)
        if place is None:
            _tell_unnamed(kind, where, notices)
            continue
        table = _table(card, kind, place)
        if where != _FILE:
            table = _once(place, table, notices)
        refuse_tested(place, table)
        tables[kind] = [(place, table)] if table.num_rows else []
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
            f"folder ({opt.revisions})"
        )
        return
    if kind == "ledger":
        raise Fault(
            f"the ledger went to {where}, so nothing was recounted: export it, and name the file "
            f"({opt.ledger})"
        )
    raise Fault(
        f"releases went to {where}, so the card names no file of them and nothing was compared: "
        f"export them, and name the file, or the folder of {opt.output}=folder: ({opt.releases})"
    )


def _table(card: Record, kind: str, place: str) -> pa.Table:
    if kind == "ledger" or place.lower().endswith(tuple(EXTENSIONS)):
        table = read_table(place)
    else:
        table = read_json_files(_results(card, kind, place))
    if _GROUPED in table.column_names:
        table = pa.Table.from_pylist(list(_rows(table)))
    if kind.startswith(ANSWERS):
        query = kind.removeprefix(ANSWERS)
        table = table.filter(pc.equal(table.column("query"), query))
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
            f"there is no file {pattern}: name the folder that {opt.output}=folder: of the run "
            f"named, or a file of exported rows, of which the name ends in "
            f"{', '.join(EXTENSIONS)}"
        )
    return found


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of messages, each of one bin and statistic."""
    for message in table.to_pylist():
        rows = message.pop(_GROUPED)
        yield from ({**message, **row} for row in rows)


def _with_times(table: pa.Table) -> pa.Table:
    """Times as ISO 8601 where they are text of BigQuery's."""
    for name in _TIMES:
        at = table.schema.get_field_index(name)
        if at >= 0 and pa.types.is_string(table.column(name).type):
            times = pc.replace_substring_regex(table.column(name), _UTC, "Z")
            table = table.set_column(at, name, times)
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
    """The slot of a row; an invalid one is reported later."""
    try:
        return int(row["slot"])
    except (KeyError, TypeError, ValueError):
        return -1

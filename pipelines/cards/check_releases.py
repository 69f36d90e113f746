"""Whether what was released is what the card is about: each slot once, at its time, in its bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from streamveil.io.formats import CSV, format_of
from streamveil.io.releases import BINS_METADATA, json_values
from streamveil.io.tidy import quoted_label
from streamveil.mechanisms.core.records import (
    Slots,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
)
from streamveil.pipelines.cards.promises import PER_RECORD
from streamveil.pipelines.cards.read import Fault, Read, column, domain_of, numbers, slots_of
from streamveil.pipelines.cards.writing import ANSWERS

Record = Mapping[str, Any]

_MOST_NAMED = 5


def released_faults(card: Record, read: Read) -> Iterator[str]:
    """What is wrong with releases, revisions or answers."""
    if card["promise"]["guarantee"] == PER_RECORD:
        for path, table in read.of("releases"):
            yield from _wrong_rows(card, path, table)
        return
    slots = slots_of(card["data"])
    if "questions" in card["data"]:
        yield from _answers(card, read, slots)
        return
    wanted = _slots_of_runs(card, "releases")
    yield from _wrong_slots("releases", read.of("releases"), wanted, slots)
    labels = domain_of(card["data"]["domain"]).labels
    for kind in ("releases", "revisions"):
        for path, table in read.of(kind):
            yield from _bins(path, table, labels)
    for path, table in read.of("releases"):
        yield from _mechanism(card, path, table)
    revised = [(p, t) for p, t in read.of("revisions")]
    yield from _doubled("revisions", revised)
    strange = sorted(slot for slot in _every(revised) if slot not in wanted)
    if strange:
        yield f"revisions are of slots that were never released: {_named(strange)}: take them out"


def _slots_of_runs(card: Record, kind: str) -> set[int]:
    """Slots that runs with such a file released."""
    runs = [run for run in card["runs"] if kind in run["files"]]
    return {slot for run in runs for slot in range(run["first_slot"], run["last_slot"] + 1)}


def _every(tables: Sequence[tuple[str, pa.Table]]) -> set[int]:
    return {slot for path, table in tables for slot in numbers(path, table, "slot").tolist()}


def _wrong_slots(
    what: str, tables: Sequence[tuple[str, pa.Table]], wanted: Iterable[int], slots: Slots
) -> Iterator[str]:
    """Slots that are missing, too many, doubled or at another time."""
    yield from _doubled(what, tables)
    found, asked = _every(tables), set(wanted)
    for some, how in (
        (asked - found, "are missing, and the card says that they were released: bring them back"),
        (found - asked, "are of no run of the card: take them out, or bring back its card"),
    ):
        if some:
            yield f"{_where(tables)}: {what} of slots {_named(sorted(some))} {how}"
    for path, table in tables:
        yield from _times(path, table, slots)


def _where(tables: Sequence[tuple[str, pa.Table]]) -> str:
    paths = [path for path, _ in tables] or ["no file"]
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"


def _named(slots: Sequence[int]) -> str:
    more = len(slots) - _MOST_NAMED
    listed = ", ".join(map(str, slots[:_MOST_NAMED]))
    return f"{listed} and {more:,} more" if more > 0 else listed


def _doubled(what: str, tables: Sequence[tuple[str, pa.Table]]) -> Iterator[str]:
    """Slots, or bins of slots, of which there are two rows."""
    seen: Counter[Any] = Counter()
    for path, table in tables:
        keys: list[Any] = numbers(path, table, "slot").tolist()
        if "bin" in table.column_names:
            keys = list(zip(keys, column(path, table, "bin"), strict=True))
        seen.update(keys)
    twice = sorted({key if isinstance(key, int) else key[0] for key, n in seen.items() if n > 1})
    if twice:
        yield (
            f"{_where(tables)}: {what} of slots {_named(twice)} are there twice: a slot is "
            "released once, and what is told of it again costs its budget again; take the one out "
            "that the run did not write"
        )


def _times(path: str, table: pa.Table, slots: Slots) -> Iterator[str]:
    rows = zip(numbers(path, table, "slot").tolist(), column(path, table, "start"), strict=True)
    for slot, start in rows:
        if parse_time(start) != slots.start(slot):
            yield (
                f"{path}: slot {slot} begins at {format_time(parse_time(start))}, and by the card "
                f"at {format_time(slots.start(slot))}: another slot length or origin"
            )
            return


def _bins(path: str, table: pa.Table, labels: Sequence[str]) -> Iterator[str]:
    """Whether a table is of the bins of the card."""
    if "bin" in table.column_names:
        yield from _tidy_bins(path, table, labels)
        return
    lengths = {len(json_values(counts)) for counts in column(path, table, "counts")}
    if lengths != {len(labels)}:
        other = next(iter(lengths - {len(labels)}))
        yield f"{path}: a slot has {other} counts, and the domain of the card {len(labels)} bins"
    if "bins" in table.column_names:  # of BigQuery's rows each names them
        named = {tuple(json_values(one)) for one in table.column("bins").to_pylist()}
        if named != {tuple(labels)}:
            yield f"{path}: its bins are {sorted(named)[0]}, and those of the card are others"
    told = (table.schema.metadata or {}).get(BINS_METADATA.encode())
    if told is not None and tuple(json_values(told.decode())) != tuple(labels):
        yield f"{path}: its bins are {told.decode()}, and those of the card are others"


def _tidy_bins(path: str, table: pa.Table, labels: Sequence[str]) -> Iterator[str]:
    named = table.column("bin")
    rows = table.num_rows / max(len(_every([(path, table)])), 1)
    if rows != len(labels):
        yield f"{path}: slots have {rows:g} bins, and the domain of the card {len(labels)}"
    if not pa.types.is_string(
        named.type
    ):  # a CSV file of numbers does not say how they are written
        return
    quoted = format_of(path) == CSV
    known = {quoted_label(label) if quoted else label for label in labels}
    strange = sorted(set(named.to_pylist()) - known)
    if strange:
        yield f"{path}: there is no bin {strange[0]!r} in the domain of the card"


def _mechanism(card: Record, path: str, table: pa.Table) -> Iterator[str]:
    if "mechanism" not in table.column_names:
        return
    names = {str(name).partition(":")[0] for name in table.column("mechanism").to_pylist()}
    meant = str(card["mechanism"]).partition(":")[0]
    if names != {meant}:
        yield f"{path}: releases are by {', '.join(sorted(names))}, and the card says {meant}"


def _answers(card: Record, read: Read, slots: Slots) -> Iterator[str]:
    for question in card["data"]["questions"]:
        kind = f"{ANSWERS}{question['name']}"
        spans = [run["answered"].get(question["name"]) for run in card["runs"]]
        wanted = {s for span in spans if span for s in range(span[0], span[1] + 1)}
        length = format_duration(_length(card) * question["slots"])
        tables = [(path, _of_length(path, table, length)) for path, table in read.of(kind)]
        yield from _wrong_answers(question, tables, wanted)
        own = replace(slots, length=_length(card) * question["slots"])
        for path, table in tables:
            yield from _times(path, table, own)


def _length(card: Record) -> int:
    length = parse_duration(card["data"]["slot"])
    if length is None:
        raise Fault(f"the card says {card['data']['slot']!r} as slot, which is no length of time")
    return length


def _of_length(path: str, table: pa.Table, length: str) -> pa.Table:
    """The answers about slots of the question, without those about longer times."""
    numbers(path, table, "slot")
    return table.filter(
        pa.array([one == length for one in column(path, table, "length")], pa.bool_())
    )


def _wrong_answers(
    question: Record, tables: Sequence[tuple[str, pa.Table]], wanted: set[int]
) -> Iterator[str]:
    name, found = question["name"], _every(tables)
    labels = set(domain_of(question["domain"]).labels)
    keys: Counter[Any] = Counter()
    for path, table in tables:
        columns = (column(path, table, one) for one in ("slot", "bin", "statistic"))
        keys.update(zip(*columns, strict=True))
        named, level = column(path, table, "bin"), column(path, table, "level")
        bins = {label for label, at in zip(named, level, strict=True) if at == 0}
        if table.num_rows and bins != labels:
            other = sorted(bins ^ labels)[0]
            yield f"{path}: the bin {other!r} is not both in the answers and in the card"
    for some, how in (
        (wanted - found, "are missing, and the card says that they were answered: bring them back"),
        (found - wanted, "are of no run of the card: take them out, or bring back its card"),
        ({key[0] for key, n in keys.items() if n > 1}, "are there twice: take one of them out"),
    ):
        if some:
            yield f"{_where(tables)}: slots {_named(sorted(some))} of question {name} {how}"


def _wrong_rows(card: Record, path: str, table: pa.Table) -> Iterator[str]:
    """Of statistics of records: windows and keys that there should be, each once."""
    wanted = _windows_and_keys(card)
    columns = [column(path, table, name) for name in ("key", "start", "end", "statistic")]
    found: Counter[Any] = Counter()
    for key, start, end, statistic in zip(*columns, strict=True):
        found[_text(key), _time(start), _time(end)] += 1
        if statistic != card["data"]["statistic"]:
            yield f"{path}: a row is a {statistic}, and the card says {card['data']['statistic']}"
            return
    for some, how in (
        (wanted - set(found), "is missing, and the card says that it was released"),
        (set(found) - wanted, "is of no window and key of the card"),
        ({one for one, n in found.items() if n > 1}, "is there twice"),
    ):
        if some:
            key, start, _ = min(some, key=str)
            window = "all times" if start is None else format_time(start)
            yield f"{path}: the row of key {key or 'none'} and the window of {window} {how}"


def _text(key: Any) -> str | None:
    return None if key in (None, "") else str(key)


def _time(value: Any) -> int | None:
    return None if value in (None, "") else parse_time(value)


def _windows_and_keys(card: Record) -> set[tuple[str | None, int | None, int | None]]:
    data = card["data"]
    keys: list[str | None] = data["keys"] or [None]
    if "slot" not in data:
        return {(key, None, None) for key in keys}
    slots, run = slots_of(data), card["runs"][0]
    first, last, length = run["first_slot"], run["last_slot"], data["window"]
    begins = [
        (first if data["running"] else pane - length + 1, pane)
        for pane in range(first if data["running"] else first + length - 1, last + 1)
    ]
    return {(key, slots.start(a), slots.end(b)) for key in keys for a, b in begins}

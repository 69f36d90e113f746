"""What a check reads: the card, and the files that it is about."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engine.guarantees import GUARANTEES
from streamveil.io import filesystems, read_table
from streamveil.io.files import is_there
from streamveil.mechanisms.core.budgets import UNIT_BITS, Units
from streamveil.mechanisms.core.records import TEST, ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.claims import ANSWERS, FORMAT
from streamveil.pipelines.cards.files import chained, digest_of, numbered

Record = Mapping[str, Any]


class Fault(Exception):  # noqa: N818 - it is what was found
    """Something that does not agree: one line, with value, place and remedy."""


@dataclass(frozen=True)
class Places:
    """Where the files of a card are: beside it, under the names that it says, or as given."""

    card: str
    releases: str | None = None
    """File of releases, or folder of answers; of passes as `--output` named them."""
    ledger: str | None = None
    revisions: str | None = None
    """What a stream of revisions holds."""

    def of(self, run: Record, kind: str) -> list[str]:
        """The files of a run by what is in them, one from each pass."""
        name = str(run["files"][kind]["name"])
        folder, name = self._place(kind, name)
        first, last = run.get("passes", (None, None))
        names = [name] if first is None else [numbered(name, n) for n in range(first, last + 1)]
        found = [filesystems.join(folder, one) if folder else one for one in names]
        unplaced = kind == "revisions" or (kind == "ledger" and self.ledger is None)
        if unplaced and any(map(_is_answers, run["files"])):
            up = os.path.dirname(folder) if folder not in ("", os.curdir) else os.pardir
            above = [os.path.join(up, one) for one in names]
            if not is_there(found[0]) and is_there(above[0]):
                return above
        return found

    def _place(self, kind: str, name: str) -> tuple[str, str]:
        beside = os.path.dirname(self.card)
        if kind == "ledger" and self.ledger is not None:
            return os.path.dirname(self.ledger), os.path.basename(self.ledger)
        if _is_answers(kind):
            return (beside if self.releases is None else self.releases), name
        if self.releases is None:
            return beside, name
        own = os.path.basename(self.releases) if kind == "releases" else name
        return os.path.dirname(self.releases), own


@dataclass(frozen=True)
class Read:
    """The files of all runs by what is in them, as far as they are there and whole."""

    tables: Mapping[str, Sequence[tuple[str, pa.Table]]]
    """Of each kind every file that is not empty: its path, and its rows."""

    def of(self, kind: str) -> Sequence[tuple[str, pa.Table]]:
        """Those of a kind."""
        return self.tables.get(kind, ())


def read_files(card: Record, places: Places, faults: list[str], notices: list[str]) -> Read:
    """Read the files that the card names.

    What is missing or was changed is added to the faults, and to the notices which files have no
    digest in the card. Raises Fault for a file of test mode.
    """
    tables: dict[str, list[tuple[str, pa.Table]]] = {}
    for run in card["runs"]:
        for kind in run["files"]:
            found = tables.setdefault(kind, [])
            paths = places.of(run, kind)
            missing = [path for path in paths if not is_there(path)]
            if missing:
                faults += [_missing(path, kind) for path in missing]
                continue
            if "sha256" not in run["files"][kind]:
                notices.append(_without_digest(paths[0]))
            wrong: list[str] = []
            try:
                if "sha256" in run["files"][kind]:
                    wrong += _changed(paths, run["files"][kind]["sha256"])
                for path in paths:
                    table = read_table(path)
                    refuse_tested(path, table)
                    if table.num_rows:
                        found.append((path, table))
            except ConfigurationError as error:
                wrong.append(str(error))
            faults += wrong
    faults += _beyond(card["runs"][-1], places)
    return Read(tables)


def _beyond(run: Record, places: Places) -> Iterator[str]:
    """Files of a pass that the card does not know: it is an older one, put back."""
    if "passes" not in run:
        return
    last = run["passes"][1]
    for kind in run["files"]:
        (path,) = places.of({**run, "passes": [last + 1, last + 1]}, kind)
        if is_there(path):
            yield (
                f"{path} is there, and the card knows of passes up to {last} alone: bring back the "
                "newest card, or look again if a pass is just ending"
            )


def _is_answers(kind: str) -> bool:
    """Whether the files are in a folder of answers, beside which other files may be."""
    return kind.startswith(ANSWERS)


def _without_digest(path: str) -> str:
    return (
        f"the card was written when the run was launched and has no digest of {path}: whether that "
        "is as the run wrote it is not checked"
    )


def _missing(path: str, kind: str) -> str:
    option = opt.ledger if kind == "ledger" else opt.releases
    return (
        f"{path} is not there, and the card is about it: bring it back, or say where it is "
        f"({option})"
    )


def refuse_tested(path: str, table: pa.Table) -> None:
    """Refuse results of test mode, and a ledger in which nothing is promised. Raises Fault."""
    nothing = {"0", "0.0"}
    of_test = {"status": {TEST}, "epsilon": nothing, "epsilon_backward": nothing}
    name = next((name for name in of_test if name in table.column_names), None)
    if name and not of_test[name].isdisjoint(map(str, table[name].unique().to_pylist())):
        raise Fault(
            f"{path} is of a run in test mode, whose results are not private: name the file that "
            "the run of the card wrote"
        )


def _changed(paths: Sequence[str], digest_before: str) -> Iterator[str]:
    digest = None
    for path in paths:
        digest = chained(digest, digest_of(path))
    if digest != digest_before:
        what = paths[0] if len(paths) == 1 else f"one of {paths[0]} to {paths[-1]}"
        yield (
            f"{what} is not as the run wrote it (SHA-256 {digest}, in the card {digest_before}): "
            "bring that back"
        )


NOTHING = -1
"""What `numbers` gives where a column has nothing."""


def numbers(path: str, table: pa.Table, name: str) -> Units:
    """A column of whole numbers, int64, null as `NOTHING`. Raises Fault."""
    values = column(path, table, name)
    try:
        found = [NOTHING if value in (None, "") else _whole(value) for value in values]
        return np.array(found, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise Fault(f"{path}: the column {name} holds what is no whole number") from None


def _whole(value: Any) -> int:
    number = int(value)
    if number != float(value):
        raise ValueError(value)
    return number


def floats(path: str, table: pa.Table, name: str) -> Any:
    """A column of numbers, float64. Raises Fault."""
    try:
        return np.array([float(value) for value in column(path, table, name)], np.float64)
    except (TypeError, ValueError):
        raise Fault(f"{path}: the column {name} holds what is not a number") from None


def units(path: str, table: pa.Table, name: str) -> Units:
    """A column of epsilons as whole units, int64. Raises Fault where one is none, or negative."""
    values = floats(path, table, name)
    with np.errstate(over="ignore"):  # what is beyond all numbers is refused
        scaled = np.ldexp(values, UNIT_BITS)
    bad = ~(np.isfinite(scaled) & (scaled == np.rint(scaled)) & (scaled >= 0) & (scaled < 2.0**53))
    if bad.any():
        at = int(bad.argmax())
        raise Fault(
            f"{path}, row {at}: {values[at]:g} as {name} is no cost that a run can book, a whole "
            "number of 2^-40: restore the ledger that the run wrote"
        )
    return scaled.astype(np.int64)


def column(path: str, table: pa.Table, name: str) -> list[Any]:
    """What a column holds. Raises Fault where there is none."""
    if name not in table.column_names:
        raise Fault(f"{path} has no column {name}: name the file that the run wrote")
    return list(table.column(name).to_pylist())


def check_form(card: Record) -> None:
    """Refuse what no run wrote. Raises Fault."""
    if card["format"] != FORMAT:
        raise Fault(
            f"the card is of format {card['format']!r}, and this streamveil reads {FORMAT!r}: "
            "check it with the version that wrote it, or a later one"
        )
    guarantee = card["promise"]["guarantee"]
    if guarantee not in GUARANTEES:
        raise Fault(f"the card promises {guarantee!r}, which is none of {', '.join(GUARANTEES)}")
    if not card["runs"]:
        raise Fault("the card tells of no run: restore the one that the run wrote")
    for number, run in enumerate(card["runs"], 1):
        for name in ("first_slot", "last_slot"):
            if type(run.get(name, 0)) is not int:
                raise Fault(
                    f"run {number} of the card has {run[name]!r} as {name}, which is not a slot: "
                    "restore the card that the run wrote"
                )

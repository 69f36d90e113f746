"""Cards of runs, as JSON has them: at their launch, at their end, and after each pass of a stream.

A card says nothing that a reader of releases does not know already
(docs/explanation/security.md): requirements and how many users ask for each, the domain, the slots,
the columns and options, which slots were released under which version and key. Of a key it has a
fingerprint, of files their names without their folders, and the digests of those that may be
published. What is promised, of which data, the plan says of itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamveil import __version__
from streamveil.engine.description import Description
from streamveil.engine.metrics import LIMITED_PREFIX, OF_QUERY
from streamveil.io import is_stream, read_table
from streamveil.mechanisms.randomness.noise import NoiseKeys, derived_key
from streamveil.pipelines.cards.claims import (
    EVENTS,
    FORMAT,
    OPTIONS,
    RELEASES,
    Span,
    answered,
    base_span,
    facts_of_span,
    queries_of,
    spans_of,
)
from streamveil.pipelines.cards.files import (
    Record,
    chained,
    digest_of,
    file_of,
    is_public,
    name_of,
)
from streamveil.pipelines.cards.registry_form import deployment_of

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan

GIVEN, DRAWN = "given", "drawn"
FIGURES = ("window_backward", "epsilon_backward", "window_forward", "epsilon_forward")
_CLASS = ("window", "epsilon")
_READ = ("slot", "length", *FIGURES, *_CLASS)
"""Columns of results and ledgers that a card is made of."""
_FINGERPRINT_BYTES = 8


@dataclass(frozen=True)
class Cards:
    """Makes the cards of a stream.

    A run that begins has one: the promise, of which nothing is released so far. It is all that a
    stream has while it goes on, and it is what a job has that is handed over to a service. Once the
    run has ended, or a pass of it, the card of that takes its place.
    """

    command: str
    """That is run."""
    plan: Plan
    """With its public tables read, as it is applied; of passes with all that is known after the
    last one."""
    changes: bool = False
    """Whether requirements change, or may change."""
    decided_by: str | None = None
    """What decides which slots there are; the options of the plan, when None."""
    drawn: bool | None = None
    """Whether the key was drawn by the run; where no key was given, when None."""

    def at_launch(self, places: Mapping[str, str]) -> Record:
        """The card of a run that begins.

        Args:
            places: where what may be published goes, files and streams, by what is in them:
                `releases`, `revisions`, `ledger`, or `answers-` and a query.
        """
        files = {kind: {"name": name_of(path)} for kind, path in files_of(places).items()}
        streams = _fact("streams", streams_of(places))
        return self.card([self._run(self._range, {}, files, **streams, open=True)])

    def of_run(self, places: Mapping[str, str], counters: Mapping[str, int]) -> Record:
        """The card of a run that has ended, with its counters, whose files are whole by now.

        Raises ConfigurationError for a file that cannot be read back.
        """
        files = files_of(places)
        tables = {kind: read_table(files[kind], _READ) for kind in self._read_of(files)}
        public = {kind: file_of(path) for kind, path in files.items() if is_public(kind)}
        run = self._run(self._range, tables, public, **_fact("streams", streams_of(places)))
        return self.card([run], self._in_force(tables), counters=counters)

    def of_memory(self, tables: Mapping[str, pa.Table], counters: Mapping[str, int]) -> Record:
        """The same of a run in memory: `tables` in place of files. In test mode it is empty."""
        if self.plan.test_mode:
            return {}
        run = self._run(self._range, tables, {})
        return self.card([run], self._in_force(tables), counters=counters)

    def of_pass(
        self,
        before: Mapping[str, Any] | None,
        due: Span,
        number: int,
        results: Mapping[str, tuple[str, Path]],
        *,
        begun: int,
        grants: int,
    ) -> Record:
        """The card after one more pass.

        Args:
            before: the card after the pass before; None where there is none.
            due: first and last slot of the pass.
            number: of the pass.
            results: by kind the name that the user gave, of a file or a stream, and the file that
                the pass has written.
            begun: first slot of the stream.
            grants: how often one budget forever was granted again.
        """
        public = {kind: one for kind, one in results.items() if is_public(kind)}
        streams = streams_of({kind: name for kind, (name, _) in public.items()})
        files = {
            kind: {"name": name_of(name), "sha256": digest_of(str(path))}
            for kind, (name, path) in public.items()
            if kind not in streams
        }
        tables = {kind: read_table(str(public[kind][1]), _READ) for kind in self._read_of(public)}
        more = {**_fact("streams", streams), **_fact("granted_again", grants)}
        run = self._run(due, tables, files, passes=[number, number], **more)
        runs = [] if before is None else list(before["runs"])
        if before is None and number > 1:  # passes of which no card is left
            unknown = self._run((begun, due[0] - 1), {}, {}, passes=[1, number - 1])
            runs = [{**unknown, "streamveil": None}]
        promised = {} if before is None else before["promise"]
        asked = [*promised.get("in_force", ()), *self._in_force(tables)]
        in_force = [one for i, one in enumerate(asked) if one not in asked[:i]]
        changed = promised.get("requirements_change", False)
        return self.card(_joined([*runs, run]), in_force, grants=grants, changed=changed)

    def card(
        self,
        runs: Sequence[Record],
        in_force: Sequence[Record] = (),
        *,
        grants: int = 0,
        changed: bool = False,
        counters: Mapping[str, int] | None = None,
    ) -> Record:
        """The card of runs.

        Args:
            runs: one at least.
            in_force: classes that the ledger has beside those of the table.
            grants: how often one budget forever was granted again.
            changed: whether requirements have changed before.
            counters: of a run that has ended, which say what limits it chose.
        """
        promise, data, mechanism = deepcopy(self._description)
        if counters is not None:
            _narrow(promise, counters)
        if "granted_again" in promise:
            promise["granted_again"] = grants
        if "classes" in promise:
            promise |= _fact("requirements_change", self.changes or changed)
            data["range"] = self.decided_by or (EVENTS if None in self._range else OPTIONS)
        drawn = self.plan.noise_key is None if self.drawn is None else self.drawn
        made: Record = {
            "format": FORMAT,
            "command": self.command,
            "promise": promise | _fact("in_force", list(in_force)),
            "data": data,
            "mechanism": mechanism,
            "noise_key": {"source": DRAWN if drawn else GIVEN, "keys": self._keys},
            "runs": list(runs),
        }
        return {**made, "deployment": deployment_of(made)}

    @cached_property
    def _description(self) -> Description:
        return self.plan.describe()

    @property
    def _range(self) -> tuple[int | None, int | None]:
        return self.plan.first_slot, self.plan.last_slot

    @property
    def _keys(self) -> list[Record]:
        """The fingerprint of each key, and the slot from which on it is used."""
        keys = NoiseKeys.of(self.plan._key())
        pairs = [(None, keys.first), *keys.later]
        return [{"from_slot": slot, "fingerprint": fingerprint(key)} for slot, key in pairs]

    def _run(
        self,
        due: tuple[int | None, int | None],
        tables: Mapping[str, pa.Table],
        files: Mapping[str, Mapping[str, str]],
        **more: Any,
    ) -> Record:
        """What one run released.

        Args:
            due: first and last slot, base slots of queries; None where nothing says them but the
                tables, or time is not cut.
            tables: results and ledger, as far as they are needed.
            files: by what is in them, name and digest: see `files.py`.
            more: facts of this kind of run.
        """
        data, slots = self._description.data, self.plan.slots
        shown = {kind: [table] for kind, table in tables.items()}
        if RELEASES not in shown and "ledger" in shown:
            shown[RELEASES] = shown["ledger"]
        spans = spans_of(data, shown)
        found = base_span(data, spans) or (None, None)
        first, last = (
            own if own is not None else seen for own, seen in zip(due, found, strict=True)
        )
        times = {} if slots is None else facts_of_span(slots, first, last)
        asked = answered(data, spans) if set(tables) - {"ledger"} else {}
        return {"streamveil": __version__, **times, **asked, **more, "files": dict(files)}

    def _read_of(self, files: Mapping[str, Any]) -> list[str]:
        """Of files of a run those that say more than its options: by what is in them."""
        promise, data, _ = self._description
        wanted = {"ledger"} if "classes" in promise else set()
        if "queries" in data:
            wanted = {one.kind for one in queries_of(data)}
        elif None in self._range:
            wanted |= {one.kind for one in queries_of(data)}
        return [kind for kind in files if kind in wanted]

    def _in_force(self, tables: Mapping[str, pa.Table]) -> list[Record]:
        """What the ledger has that the table did not ask for when the run began: each once."""
        promise, data, _ = self._description
        ledger = tables.get("ledger")
        if ledger is None or not ledger.num_rows or "queries" in data:
            return []
        names = FIGURES if FIGURES[0] in ledger.column_names else _CLASS
        # A thread of a pool may still hold the ledger as Python exits.
        each = ledger.select(names).group_by(list(names), use_threads=False)
        listed = each.aggregate([]).to_pylist()
        rows = {tuple(row[name] for name in names) for row in listed}
        if names is _CLASS:
            classes = promise["classes"]
            known = {(one["window"], one["epsilon"]) for one in classes}
            limited = any("limits" in one for one in classes)
            rows = {row for row in rows - known if row[0] not in (None, "") and not limited}
        return [dict(zip(names, row, strict=True)) for row in sorted(rows)]


def files_of(places: Mapping[str, str]) -> dict[str, str]:
    """Those that are files."""
    return {kind: place for kind, place in places.items() if not is_stream(place)}


def streams_of(places: Mapping[str, str]) -> dict[str, str]:
    """Of those that are streams the kind of the place, such as `kafka`."""
    return {kind: p.partition(":")[0] for kind, p in places.items() if is_stream(p)}


def fingerprint(key: bytes) -> str:
    """Tells a key from others, and nothing else about it: 64 bits of a keyed digest."""
    return derived_key(key, "card")[:_FINGERPRINT_BYTES].hex()


def _fact(name: str, value: Any) -> Record:
    """A fact that is left out where there is nothing to say."""
    return {name: value} if value else {}


def _narrow(promise: Record, counters: Mapping[str, int]) -> None:
    """Leave, of limits that a run may have chosen, those that it chose, by its counters.

    They say of how many users they are, not of whom: so each class may have any for its blocks.
    """
    chosen: dict[str | int | None, list[int | None]] = defaultdict(list)
    for name in counters:
        if name.startswith(LIMITED_PREFIX):
            slots, _, query = name.removeprefix(LIMITED_PREFIX).partition(OF_QUERY)
            most, length = map(int, slots.split(" of "))
            chosen[query or length].append(None if length == 1 else most)
    for one in promise.get("classes", ()):
        for limit in one.get("limits", ()):
            if isinstance(limit["max_slots"], list):
                may_be = chosen[limit["query"]]
                if limit["query"] is None:
                    may_be = [*chosen[-(-one["window"] // limit["blocks"])], *chosen[1]]
                limit["max_slots"] = may_be


def _joined(runs: list[Record]) -> list[Record]:
    """The runs, the last as a part of the one before it where they are alike but for slots."""
    if len(runs) < 2:
        return runs
    *others, before, last = runs
    if _alike(before) != _alike(last):
        return runs
    files = {
        kind: {**one, "sha256": chained(before["files"][kind]["sha256"], one["sha256"])}
        for kind, one in last["files"].items()
    }
    joined = {**before, "last_slot": last["last_slot"], "end": last["end"], "files": files}
    joined["passes"] = [before["passes"][0], last["passes"][1]]
    if "answered" in last:
        earlier, later = before["answered"], last["answered"]
        joined["answered"] = {
            name: [earlier.get(name, later.get(name))[0], later.get(name, earlier.get(name))[1]]
            for name in dict.fromkeys((*earlier, *later))
        }
    return [*others, joined]


def _alike(run: Mapping[str, Any]) -> Any:
    """What must be the same in passes of one run."""
    names = {kind: one["name"] for kind, one in run["files"].items()}
    return run["streamveil"], names, run.get("streams"), run.get("granted_again", 0)

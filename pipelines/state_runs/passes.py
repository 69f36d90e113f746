"""One pass over a stream: a bounded run over some of its slots, into a folder of its own."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamveil.engine.encode.passes import WAITING_SCHEMA, Pass, PassSplit
from streamveil.engine.messages import REJECTED, STATE, WAITING, Output
from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import (
    UNREADABLE,
    CsvDialect,
    UserTable,
    change_columns,
    read_state,
    read_table,
)
from streamveil.io.events import REJECTED_FORM, file_outputs, lenient_outputs
from streamveil.io.releases import STATE_FORM
from streamveil.io.result_files import Files, ResultFile
from streamveil.io.tables import as_they_come
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.outputs.outputs import Outputs
from streamveil.pipelines.reports.summary import Summary
from streamveil.pipelines.runners.local_run import (
    Source,
    count_letters,
    run_here,
    with_keys_discovered,
)

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.io import ReadPubSubEvents

_STATE = "state.parquet"
_WAITING = "waiting.parquet"
_USERS = "users.parquet"


def state_after(folder: Path) -> tuple[int, bytes]:
    """The slot that comes after a pass, and the state to go on from."""
    return read_state(str(folder / _STATE))


def users_after(folder: Path) -> UserTable | None:
    """The users of a stream after a pass; None where they cannot change."""
    return UserTable.read(folder / _USERS) if (folder / _USERS).exists() else None


_WAITING_FORM = as_they_come(WAITING_SCHEMA)


@dataclass(frozen=True)
class PassJob:
    """What one pass reads, releases and writes."""

    due: Pass
    plan: UserPlan
    """For the whole stream."""
    outputs: Outputs
    """What the results of the plan are."""
    fresh: Sequence[str]
    """Files that no pass has read."""
    again: Sequence[str]
    """Files that an earlier pass read, with events that are due now."""
    folder: Path
    """Where the pass writes, empty."""
    results: Mapping[str, str]
    """Kinds of results, as of :class:`Outputs`, and `rejected`, to the file in the folder."""
    command: str
    """What the run is called."""
    resume: bytes | None
    """State after the last pass; None for the first."""
    users: UserTable | None = None
    """The users after the changes of this pass; None where they cannot change."""
    moved: pa.RecordBatch | None = None
    """What differs in the table of users from this pass on, as changes of requirements."""
    changes: Sequence[str] = ()
    """Files with changes of requirements that no pass has read."""
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    topics: Sequence[str] = ()
    """Kinds of results that wait for a topic, which takes one release or revision at a time."""
    lenient: bool = False
    """Whether a file of events that cannot be read is a dead letter, not an error."""
    broken: Sequence[str] = ()
    """More files as in `again`, which could not be read to their ends then."""
    messages: ReadPubSubEvents | None = None
    """How the files are read where they are those of an inbox."""

    def run(self) -> Summary:
        """Write the results, the state after them, and what waits.

        Raises ConfigurationError or BudgetExceeded, and RuntimeError for a pass that is not whole.
        """
        if self.users is not None:
            self.users.write(self.folder / _USERS)
        plan = self._plan_of_pass()
        if plan.plan_kind is PlanKind.QUERIES and plan.discovers:
            with progress(f"streamveil {self.command}: discovering keys"):
                plan = with_keys_discovered(plan, self._sources()[0])
        with progress(f"streamveil {self.command}"):
            summary = run_here(plan, self._sources(), self._files())
        for name in (*self.results.values(), _STATE, _WAITING):
            if not (self.folder / name).exists():
                raise RuntimeError(f"the pass is done, but {self.folder / name} was not written")
        wanted = self.due.last_slot + 1
        next_slot, _ = state_after(self.folder)
        if next_slot != wanted:
            raise RuntimeError(f"the pass is done before slot {next_slot}, not {wanted}")
        return summary

    def waiting(self) -> dict[str, int]:
        """After the run: files with events of later slots, and the first such slot of each."""
        first: dict[str, int] = {}
        for row in self._noted():
            if row["slot"] is not None:
                first[row["source"]] = min(row["slot"], first.get(row["source"], row["slot"]))
        return first

    def unreadable(self) -> set[str]:
        """After the run: fresh files that could not be read, or not to their ends."""
        return {row["source"] for row in self._noted() if row["slot"] is None}

    def _noted(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(str(self.folder / _WAITING)).to_pylist()
        return rows

    @property
    def _changing(self) -> bool:
        """Whether requirements may change."""
        return self.plan.plan_kind is not PlanKind.LOCAL and self.plan.changing

    def _plan_of_pass(self) -> UserPlan:
        whole, due = self.plan, self.due
        registry = whole.registry
        if self.users is not None:
            registry = self.users.registry(self.folder / _USERS)
        last = due.last_slot == whole.last_slot
        # A query set does not end: where its end is moved on, slots that it cut are answered whole.
        rest: dict[str, Any] = {}
        if whole.plan_kind is PlanKind.QUERIES:
            rest = {"revise_rest": last, "stream_start": due.stream_start}
        return dataclasses.replace(
            whole,
            registry=registry,
            first_slot=due.first_slot,
            last_slot=due.last_slot,
            resume=self.resume,
            may_be_empty=True,
            ends=whole.ends and last,
            **rest,
        )

    def _sources(self) -> list[Source]:
        sources: list[Source] = [chain(self._fresh(), self._again())]
        if self._changing:
            sources.append(chain(self._moved(), self._changes()))
        return sources

    def _fresh(self) -> Iterator[Output]:
        """Events of files that no pass has read, and what is to be noted of these."""
        split = self._split(again=False)
        for output in count_letters(self._read(self.fresh, again=False, lenient=self.lenient)):
            if output.tag is None:
                yield from split.split(output.value)
                continue
            yield output
            letters = output.value
            if self.lenient and letters.column("reason")[0].as_py() == UNREADABLE:
                source = letters.column("source")[0].as_py()
                noted = [{"source": source, "slot": None}]
                yield Output(pa.RecordBatch.from_pylist(noted, WAITING_SCHEMA), WAITING)

    def _again(self) -> Iterator[Output]:
        """Events that waited, in files that an earlier pass read, which logged what is wrong."""
        split = self._split(again=True)
        for files, lenient in ((self.again, False), (self.broken, True)):
            for output in self._read(files, again=True, lenient=lenient):
                yield from split.split(output.value)

    def _split(self, again: bool) -> PassSplit:
        return PassSplit(self.due, self.plan.columns, self.plan.slots, again)

    def _read(self, files: Sequence[str], *, again: bool, lenient: bool) -> Iterator[Output]:
        if not files:
            return iter(())
        if self.messages is not None:
            from streamveil.io.inbox import inbox_outputs  # Google's libraries come with it

            return inbox_outputs(files, self.messages, again)
        read = lenient_outputs if lenient else file_outputs
        paths = [glob.escape(path) for path in files]
        return read(paths, self.plan.columns.names, silent=again, dialect=self.dialect)

    def _moved(self) -> Iterator[Output]:
        """What differs in the table of users."""
        if self.moved is not None:
            yield Output(self.moved)

    def _changes(self) -> Iterator[Output]:
        """Changes of requirements, and dead letters of what cannot be read."""
        if self.changes:
            paths = [glob.escape(path) for path in self.changes]
            yield from count_letters(file_outputs(paths, change_columns(paths)))

    def _files(self) -> dict[str | None, Files]:
        """Where outputs go, by the tag that the engine gives them."""
        found = self.outputs.pass_files(self.folder, self.results, self.topics)
        if "rejected" in self.results:
            letters = str(self.folder / self.results["rejected"])
            found[REJECTED] = ResultFile(letters, REJECTED_FORM, private=True)
        found[WAITING] = ResultFile(str(self.folder / _WAITING), _WAITING_FORM, private=True)
        found[STATE] = ResultFile(str(self.folder / _STATE), STATE_FORM, private=True)
        return found

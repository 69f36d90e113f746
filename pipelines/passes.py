"""One pass over a stream: a bounded pipeline over some of its slots, into a folder of its own."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.engine.encode.passes import WAITING_SCHEMA, Pass
from streamveil.io import (
    LAYOUTS,
    UNREADABLE,
    CsvDialect,
    ReadEvents,
    UserTable,
    WriteAnswers,
    WriteLedger,
    WritePortfolioLedger,
    WriteRejected,
    WriteReleases,
    WriteRevisions,
    WriteState,
    WriteTable,
    change_columns,
    read_state,
    read_table,
)
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.launch import run
from streamveil.pipelines.remembering import remembered_specs
from streamveil.pipelines.summary import Summary
from streamveil.transforms import CollectHistograms, PrivateAnswers, PrivateHistograms
from streamveil.transforms.slots.passes import SplitByPass

if TYPE_CHECKING:
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


def _unreadable(letters: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Of dead letters of one reason: which file cannot be read, of `WAITING_SCHEMA`."""
    if letters.column("reason")[0].as_py() == UNREADABLE:
        source = letters.column("source")[0].as_py()
        yield pa.RecordBatch.from_pylist([{"source": source, "slot": None}], WAITING_SCHEMA)


@dataclass(frozen=True)
class PassJob:
    """What one pass reads, releases and writes."""

    due: Pass
    transform: PrivateHistograms | CollectHistograms | PrivateAnswers
    """For the whole stream."""
    fresh: Sequence[str]
    """Files that no pass has read."""
    again: Sequence[str]
    """Files that an earlier pass read, with events that are due now."""
    folder: Path
    """Where the pass writes, empty."""
    results: Mapping[str, str]
    """`releases`, and `revisions`, `ledger` and `rejected` if wanted, to the file in the folder; of
    questions see :class:`AnswersPass`."""
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
    layout: str = LAYOUTS[0]
    """Of the releases, and of the revisions."""
    lenient: bool = False
    """Whether a file of events that cannot be read is a dead letter, not an error."""
    broken: Sequence[str] = ()
    """More files as in `again`, which could not be read to their ends then."""
    messages: ReadPubSubEvents | None = None
    """How the files are read where they are those of an inbox."""

    def run(self, options: PipelineOptions) -> Summary:
        """Write the results, the state after them, and what waits.

        Raises ConfigurationError or BudgetExceeded, and RuntimeError for a pass that is not whole.
        """
        if self.users is not None:
            self.users.write(self.folder / _USERS)
        with remembered_specs():
            summary = run(self._build, options, f"streamveil {self.command}")
        for name in (*self.results.values(), _STATE, _WAITING):
            if not (self.folder / name).exists():
                raise RuntimeError(f"the runner is done, but {self.folder / name} was not written")
        wanted = self.due.last_slot + 1
        next_slot, _ = state_after(self.folder)
        if next_slot != wanted:
            raise RuntimeError(f"the runner is done before slot {next_slot}, not {wanted}")
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
        return isinstance(self.transform, PrivateHistograms) and self.transform.changing

    @property
    def _shares(self) -> bool:
        """Whether releases have shares."""
        return (
            isinstance(self.transform, PrivateHistograms)
            and self.transform.population.requirements.forever
        )

    def _build(self, pipeline: beam.Pipeline) -> None:
        whole, due = self.transform, self.due
        batches, waiting, rejected = [], [], []
        for label, files, again, lenient in (
            ("New", self.fresh, False, self.lenient),
            ("Again", self.again, True, False),
            ("Broken", self.broken, True, True),
        ):
            if not files:
                continue
            read = pipeline | f"Read{label}" >> self._reader(files, again, lenient)
            taken = read.batches | f"SplitByPass{label}" >> SplitByPass(
                due, whole.columns, whole.slots, again
            )
            batches.append(taken.batches)
            waiting.append(taken.waiting)
            if not again:  # or its dead letters would be written once more
                rejected += [read.rejected, taken.rejected]
                if lenient:
                    noted = read.rejected | "NoteUnreadable" >> beam.FlatMap(_unreadable)
                    noted.element_type = pa.RecordBatch
                    waiting.append(noted)
        events = batches | "Events" >> beam.Flatten(pipeline=pipeline)
        events.element_type = pa.RecordBatch
        registry = whole.registry
        if self.users is not None:
            registry = self.users.registry(self.folder / _USERS)
        transform = dataclasses.replace(
            whole,
            registry=registry,
            first_slot=due.first_slot,
            last_slot=due.last_slot,
            resume=self.resume,
            may_be_empty=True,
            ends=self._ends,
        )
        inputs: Any = events
        if self._changing:
            changes, unread = self._changes(pipeline)
            inputs = (events, changes)
            rejected += unread
        outputs = inputs | type(transform).__name__ >> transform
        outputs.state | "WriteState" >> WriteState(str(self.folder / _STATE))
        later = waiting | "Waiting" >> beam.Flatten(pipeline=pipeline)
        later.element_type = pa.RecordBatch
        later | "WriteWaiting" >> WriteTable(
            str(self.folder / _WAITING), WAITING_SCHEMA, private=True
        )
        paths = {kind: str(self.folder / name) for kind, name in self.results.items()}
        self._write(outputs, paths)
        if "rejected" in paths:
            letters = [*rejected, outputs.rejected] | "Rejected" >> beam.Flatten()
            letters | "WriteRejected" >> WriteRejected(paths["rejected"])

    def _reader(self, files: Sequence[str], again: bool, lenient: bool) -> beam.PTransform:
        if self.messages is not None:
            from streamveil.io import ReadInbox  # Google's libraries come with it

            return ReadInbox(files, self.messages, again)
        return ReadEvents(
            [glob.escape(path) for path in files],
            columns=self.transform.columns.names,
            again=again,
            lenient=lenient,
            dialect=self.dialect,
        )

    @property
    def _ends(self) -> bool:
        """Whether the stream ends with this pass."""
        return self.due.last_slot == self.transform.last_slot

    def _write(self, outputs: Any, paths: Mapping[str, str]) -> None:
        """Compose the sinks of what is released, and of what it cost."""
        whole = self.transform
        assert not isinstance(whole, PrivateAnswers)
        (outputs.releases, outputs.done) | "WriteReleases" >> WriteReleases(
            paths["releases"],
            labels=whole.domain.labels,
            shares=self._shares,
            layout=self.layout,
        )
        if "revisions" in paths:
            (outputs.revisions, outputs.revised) | "WriteRevisions" >> WriteRevisions(
                paths["revisions"], labels=whole.domain.labels, layout=self.layout
            )
        if "ledger" in paths:
            limited = isinstance(whole, PrivateHistograms) and whole.limits is not None
            dynamic = (self._changing and not limited) or only_dynamic(whole.mechanism)
            entries = outputs.ledger, outputs.done
            entries | "WriteLedger" >> WriteLedger(paths["ledger"], dynamic=dynamic)

    def _changes(
        self, pipeline: beam.Pipeline
    ) -> tuple[beam.PCollection[pa.RecordBatch], list[beam.PCollection[pa.RecordBatch]]]:
        """All changes of requirements, and dead letters of what cannot be read."""
        moved = [] if self.moved is None else [self.moved]
        batches = [pipeline | "TableChanges" >> beam.Create(moved, reshuffle=False)]
        rejected = []
        if self.changes:
            paths = [glob.escape(path) for path in self.changes]
            read = pipeline | "ReadChanges" >> ReadEvents(paths, columns=change_columns(paths))
            batches.append(read.batches)
            rejected.append(read.rejected)
        changes = batches | "Changes" >> beam.Flatten()
        changes.element_type = pa.RecordBatch
        return changes, rejected


@dataclass(frozen=True)
class AnswersPass(PassJob):
    """The same of questions: `results` has a file of each, as of :func:`answers_kind`."""

    @property
    def _ends(self) -> bool:
        """Never: where the end is moved on, slots that it cut are answered whole."""
        return False

    def _write(self, outputs: Any, paths: Mapping[str, str]) -> None:
        """Compose the sinks of the answers, and of what they cost."""
        assert isinstance(self.transform, PrivateAnswers)
        (outputs.answers, outputs.done) | "WriteAnswers" >> WriteAnswers(
            str(self.folder), self.transform.portfolio, answers_kind("")
        )
        if "ledger" in paths:
            entries = outputs.ledger, outputs.booked
            entries | "WriteLedger" >> WritePortfolioLedger(paths["ledger"])


def answers_kind(question: str) -> str:
    """What the answers to a question are among the results of a pass, and in its folder."""
    return f"answers-{question}"

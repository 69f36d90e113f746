"""One pass over a stream: a bounded pipeline over some of its slots, into a folder of its own."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import (
    ReadEvents,
    WriteLedger,
    WriteRejected,
    WriteReleases,
    WriteState,
    WriteTable,
    read_state,
    read_table,
)
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.launch import Summary, run
from streamveil.transforms import PrivateHistograms
from streamveil.transforms.due import WAITING_SCHEMA, Pass, TakeDue

_STATE = "state.parquet"
_WAITING = "waiting.parquet"


def state_after(folder: Path) -> tuple[int, bytes]:
    """The slot that comes after a pass, and the state to go on from."""
    return read_state(str(folder / _STATE))


@dataclass(frozen=True)
class PassJob:
    """What one pass reads, releases and writes."""

    due: Pass
    transform: PrivateHistograms
    """For the whole stream."""
    fresh: Sequence[str]
    """Files that no pass has read."""
    again: Sequence[str]
    """Files that an earlier pass read, with events that are due now."""
    folder: Path
    """Where the pass writes, empty."""
    results: Mapping[str, str]
    """`releases`, and `ledger` and `rejected` if wanted, to the name of the file in the folder."""
    resume: bytes | None
    """State after the last pass; None for the first."""

    def run(self, options: PipelineOptions) -> Summary:
        """Write the results, the state after them, and what waits.

        Raises ConfigurationError or BudgetExceeded, and RuntimeError for a pass that is not whole.
        """
        summary = run(self._build, options, "streamveil release")
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
        for row in read_table(str(self.folder / _WAITING)).to_pylist():
            first[row["source"]] = min(row["slot"], first.get(row["source"], row["slot"]))
        return first

    def _build(self, pipeline: beam.Pipeline) -> None:
        whole, due = self.transform, self.due
        batches, waiting, rejected = [], [], []
        for again, files in ((False, self.fresh), (True, self.again)):
            if not files:
                continue
            label = "Again" if again else "New"
            read = pipeline | f"Read{label}" >> ReadEvents(
                [glob.escape(path) for path in files], columns=whole.columns.names
            )
            taken = read.batches | f"TakeDue{label}" >> TakeDue(
                due, whole.columns, whole.slots, again
            )
            batches.append(taken.batches)
            waiting.append(taken.waiting)
            if not again:  # or its dead letters would be written once more
                rejected += [read.rejected, taken.rejected]
        events = batches | "Events" >> beam.Flatten(pipeline=pipeline)
        events.element_type = pa.RecordBatch
        outputs = events | "PrivateHistograms" >> dataclasses.replace(
            whole, first_slot=due.first_slot, last_slot=due.last_slot, resume=self.resume
        )
        outputs.state | "WriteState" >> WriteState(str(self.folder / _STATE))
        later = waiting | "Waiting" >> beam.Flatten(pipeline=pipeline)
        later.element_type = pa.RecordBatch
        later | "WriteWaiting" >> WriteTable(str(self.folder / _WAITING), WAITING_SCHEMA)
        paths = {kind: str(self.folder / name) for kind, name in self.results.items()}
        outputs.releases | "WriteReleases" >> WriteReleases(
            paths["releases"], labels=whole.domain.labels, shares=whole.population.forever
        )
        if "ledger" in paths:
            dynamic = only_dynamic(whole.mechanism)
            outputs.ledger | "WriteLedger" >> WriteLedger(paths["ledger"], dynamic=dynamic)
        if "rejected" in paths:
            letters = [*rejected, outputs.rejected] | "Rejected" >> beam.Flatten()
            letters | "WriteRejected" >> WriteRejected(paths["rejected"])

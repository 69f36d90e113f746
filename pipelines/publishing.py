"""Results of a run without a runner to streams and tables, by the sinks of Beam."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from streamveil.pipelines.execution import Execution
from streamveil.pipelines.launch import run


@dataclass
class Published:
    """Where a sink of Beam takes results: those are kept until all of them are there."""

    sink: beam.PTransform
    execution: Execution
    title: str
    """Of the run, for progress."""
    _results: list[Any] = field(default_factory=list, init=False, repr=False)

    def add(self, result: Any) -> None:
        """Take one result."""
        self._results.append(result)

    def send(self) -> None:
        """Send all, in order. Raises what :func:`run` does."""
        run(self._build, self.execution.options, self.title)

    def _build(self, pipeline: beam.Pipeline) -> None:
        results = pipeline | "Results" >> beam.Create(self._results, reshuffle=False)
        results.element_type = Any
        _ = results | "Write" >> self.sink

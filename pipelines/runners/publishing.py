"""Results of a run without a runner to streams and tables, by the sinks of Beam."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from streamveil.io.held import Held
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.console.errors import PartlyWritten, reason_of, without_step
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.runners.launch import run


class Published:
    """Where a sink of Beam takes results: those are kept until all of them are there.

    Args:
        sink: takes a collection of results.
        place: where it writes to, as the user gave it.
        execution: of the command.
        title: of the run, for progress.
    """

    def __init__(self, sink: beam.PTransform, place: str, execution: Execution, title: str) -> None:
        self._sink, self._place = sink, place
        self._execution, self._title = execution, title
        # Beam would hold and compress them several times in the description of the pipeline.
        self._held = Held(deque[Any](), f"results for {place} are kept in another process")

    def add(self, result: Any) -> None:
        """Take one result."""
        self._held.value.append(result)

    def send(self) -> None:
        """Send all, in order.

        Raises ConfigurationError, and PartlyWritten for a place that may have some of them.
        """
        try:
            run(self._build, self._execution.options, self._title)
        except ConfigurationError:
            raise
        except Exception as error:
            why = without_step(reason_of(error))
            raise PartlyWritten(
                f"{why}. What {self._place} has of this run's results stays there"
            ) from error

    def _build(self, pipeline: beam.Pipeline) -> None:
        results = pipeline | beam.Impulse() | "Results" >> beam.ParDo(_Give(self._held))
        results.element_type = Any
        _ = results | "Write" >> self._sink


class _Give(beam.DoFn):
    """Gives results, and lets each go."""

    def __init__(self, held: Held[deque[Any]]) -> None:
        self._held = held

    def process(self, _: bytes) -> Iterator[Any]:
        results = self._held.value
        while results:
            yield results.popleft()

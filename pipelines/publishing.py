"""Results of a run without a runner to streams and tables, by the sinks of Beam."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import apache_beam as beam

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.errors import PartlyWritten, reason_of, without_step
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.launch import run


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
        self._kept = _Kept()

    def add(self, result: Any) -> None:
        """Take one result."""
        self._kept.results.append(result)

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
        results = pipeline | beam.Impulse() | "Results" >> beam.ParDo(_Give(self._kept))
        results.element_type = Any
        _ = results | "Write" >> self._sink


class _Kept:
    """Results that are pickled by a number which this process knows.

    A pipeline that had them in its description would hold and compress them several times.
    """

    def __init__(self) -> None:
        self.results: deque[Any] = deque()
        self._number = next(_NUMBERS)
        _KEPT[self._number] = self

    def __reduce__(self) -> Any:
        return _kept, (self._number,)


_NUMBERS = itertools.count()
_KEPT: WeakValueDictionary[int, _Kept] = WeakValueDictionary()


def _kept(number: int) -> _Kept:
    return _KEPT[number]


class _Give(beam.DoFn):
    """Gives results, and lets each go."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept

    def process(self, _: bytes) -> Iterator[Any]:
        results = self._kept.results
        while results:
            yield results.popleft()

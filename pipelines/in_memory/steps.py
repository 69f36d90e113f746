"""Takes a bounded input through the steps of a pipeline here and now, without a runner.

A runner starts workers, encodes every element for them, and can try again what failed. Here each
step hands what it gives on to the next at once, and only what groups elements waits for the end of
its input. The steps are those of the commands, so what comes out is what a command releases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.internal.util import insert_values_in_args
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.pipeline import AppliedPTransform
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.runners.runner import PipelineRunner
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.core import _StateDoFnParam, _TimerDoFnParam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.pipelines.beam_flags import BeamFlags
from streamveil.pipelines.summary import Summary
from streamveil.transforms import metrics

Wanted = Mapping[str, PCollection | Iterable[PCollection]]
"""What is to be kept of a pipeline, by name."""


def run_here(build: Callable[[beam.Pipeline], Wanted]) -> tuple[dict[str, list[Any]], Summary]:
    """Build a pipeline and take its input through it.

    Args:
        build: applies transforms of bounded inputs, and says what is to be kept.

    Returns:
        All elements of what is to be kept, in the order in which they came, and what was counted.

    Raises:
        NotImplementedError: for a step that only a runner can take, such as one with timers.
        Exception: what a step raises, as it is.
    """
    pipeline = beam.Pipeline(runner=PipelineRunner(), options=BeamFlags([]))
    wanted = build(pipeline)
    kept: dict[str, list[Any]] = {name: [] for name in wanted}
    takers: _Takers = defaultdict(list)
    for name, some in wanted.items():
        for collection in [some] if isinstance(some, PCollection) else some:
            takers[collection].append(kept[name].append)
    return kept, _taken(_steps(pipeline, takers))


def run_steps(pipeline: beam.Pipeline) -> Summary | None:
    """Take the input of a pipeline through it, for what it writes.

    Gives what was counted, or None if nothing was done since a step needs a runner. Raises what a
    step raises, as it is.
    """
    try:
        steps = _steps(pipeline, defaultdict(list))
    except NotImplementedError:
        return None
    return _taken(steps)


_Takers = dict[PCollection, list[Callable[[Any], None]]]


def _steps(pipeline: beam.Pipeline, takers: _Takers) -> list[_Step]:
    """All steps, none of them begun. Raises NotImplementedError."""
    return [_step(applied, takers) for applied in _leaves(pipeline.transforms_stack[0])]


def _taken(steps: Sequence[_Step]) -> Summary:
    with _counting() as counted:
        for step in steps:
            step.begin()
        for step in steps:
            step.end()  # whoever gives to it stands before it, and has ended
    return _summary(counted)


def _leaves(applied: AppliedPTransform) -> Iterator[AppliedPTransform]:
    """The steps of a pipeline, each after those that give to it."""
    if applied.parts and not isinstance(applied.transform, beam.Reshuffle):
        for part in applied.parts:
            yield from _leaves(part)
    elif not set(applied.outputs.values()) <= set(applied.inputs):  # else it gives what it takes
        yield applied


class _Step(ABC):
    """Takes elements, and the end of them; gives others to those who take its outputs."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers) -> None:
        self._takers = {tag: takers[one] for tag, one in applied.outputs.items()}
        for collection in applied.main_inputs.values():
            takers[collection].append(self.take)

    def begin(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Be ready to take."""

    def give(self, element: Any, tag: str | None = None) -> None:
        for take in self._takers.get(tag, ()):
            take(element)

    @abstractmethod
    def take(self, element: Any) -> None:
        """Take an element."""

    @abstractmethod
    def end(self) -> None:
        """Do the rest: all elements have been taken."""


class _Begin(_Step):
    """Gives the one element that every source begins with."""

    def take(self, element: Any) -> None:
        raise AssertionError("nothing comes before it")

    def end(self) -> None:
        self.give(b"")


class _PassOn(_Step):
    """Gives what it takes."""

    def take(self, element: Any) -> None:
        self.give(element)

    def end(self) -> None:
        pass


class _Gather(_Step):
    """Groups pairs by key, until all have come."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers) -> None:
        super().__init__(applied, takers)
        self._groups: dict[Any, list[Any]] = {}

    def take(self, element: Any) -> None:
        key, value = element
        self._groups.setdefault(key, []).append(value)

    def end(self) -> None:
        while self._groups:  # each is let go when it is counted
            key = next(iter(self._groups))
            self.give((key, self._groups.pop(key)))


class _Do(_Step):
    """Calls a DoFn for each element; if it has side inputs, when those have ended."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers) -> None:
        super().__init__(applied, takers)
        transform: Any = applied.transform
        self._fn: beam.DoFn = transform.fn
        if _has_state(self._fn):
            raise NotImplementedError(f"{applied.full_label} needs a runner: it has state")
        self._args, self._kwargs = transform.args, transform.kwargs
        self._sides: list[tuple[Any, list[Any]]] = [(side, []) for side in applied.side_inputs]
        for side, elements in self._sides:
            takers[side.pvalue].append(elements.append)
        self._waiting: list[Any] = []

    def begin(self) -> None:
        self._fn.setup()
        self._fn.start_bundle()

    def take(self, element: Any) -> None:
        if self._sides:
            self._waiting.append(element)
        else:
            self._call(element, self._args, self._kwargs)

    def end(self) -> None:
        views = [
            side._from_runtime_iterable(iter(some), side._view_options())
            for side, some in self._sides
        ]
        args, kwargs = insert_values_in_args(self._args, self._kwargs, views)
        for element in self._waiting:
            self._call(element, args, kwargs)
        self._give_all(self._fn.finish_bundle())
        self._fn.teardown()

    def _call(self, element: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        self._give_all(self._fn.process(element, *args, **kwargs))

    def _give_all(self, outputs: Iterable[Any] | None) -> None:
        for output in outputs or ():
            tag = None
            if isinstance(output, TaggedOutput):
                tag, output = output.tag, output.value
            # Nothing here has windows, so times of elements say nothing.
            self.give(
                output.value if isinstance(output, (TimestampedValue, WindowedValue)) else output,
                tag,
            )


def _has_state(fn: beam.DoFn) -> bool:
    """Whether a DoFn asks for state or timers, without which no timer of it is ever set."""
    defaults = fn.get_function_arguments("process")[1]
    return any(isinstance(one, (_StateDoFnParam, _TimerDoFnParam)) for one in defaults)


_STEPS: Mapping[type[beam.PTransform], type[_Step]] = {
    beam.Impulse: _Begin,
    beam.ParDo: _Do,
    beam.GroupByKey: _Gather,
    beam.Flatten: _PassOn,
    beam.Reshuffle: _PassOn,
}


def _step(applied: AppliedPTransform, takers: _Takers) -> _Step:
    transform = applied.transform
    for kind, step in _STEPS.items():
        if isinstance(transform, kind):
            return step(applied, takers)
    raise NotImplementedError(f"{applied.full_label} needs a runner: it is a {transform!r}")


@contextmanager
def _counting() -> Iterator[MetricsContainer]:
    """Gather here what the steps count."""
    before = statesampler.get_current_tracker()
    sampler = statesampler.StateSampler("", CounterFactory())
    container = MetricsContainer("here")
    statesampler.set_current_tracker(sampler)
    try:
        with sampler.scoped_state("here", "process", metrics_container=container):
            yield container
    finally:
        statesampler.set_current_tracker(before)


def _summary(counted: MetricsContainer) -> Summary:
    updates = counted.get_cumulative()
    uses = [
        use.max
        for key, use in updates.distributions.items()
        if key.metric.name == metrics.WINDOW_USE
    ]
    return Summary.of_metrics(
        {
            key.metric.name: number
            for key, number in updates.counters.items()
            if key.metric.namespace == metrics.METRICS_NAMESPACE
        },
        uses,
    )

"""Takes a bounded input through the steps of a pipeline here and now, without a runner.

A runner starts workers, encodes every element for them, and can try again what failed. Here each
step hands what it gives on to the next at once, and only what groups elements waits for the end of
its input. The steps are those of the commands, so what comes out is what a command releases.

Where a pipeline spreads its elements, by a Reshuffle or by keys, several processes may take them
through the steps that follow, up to where they are grouped, spread again or kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import apache_beam as beam
from apache_beam.internal.util import insert_values_in_args
from apache_beam.metrics import Metrics
from apache_beam.metrics.execution import MetricsContainer, MetricUpdates
from apache_beam.pipeline import AppliedPTransform
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.core import _DoFnParam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.pipelines.in_memory.parcels import Parcel, Passed
from streamveil.pipelines.in_memory.processes import Processes
from streamveil.pipelines.summary import Summary
from streamveil.transforms.on_beam import metrics


def run_steps(pipeline: beam.Pipeline, processes: int = 1) -> Summary | None:
    """Take the input of a pipeline through it, for what it writes.

    Gives what was counted, or None if nothing was done since a step needs a runner. Raises what a
    step raises, as it is, and WorkerDied if one of several processes does.
    """
    with Processes(processes) as others:
        try:
            steps = _steps(pipeline, defaultdict(list), others)
        except NotImplementedError:
            return None
        return _taken(steps)


class _Taker(Protocol):
    def take(self, element: Any) -> None:
        """Take an element."""


_Takers = dict[PCollection, list[_Taker]]


def _steps(pipeline: beam.Pipeline, takers: _Takers, processes: Processes) -> list[_Step]:
    """All steps, none of them begun. Raises NotImplementedError."""
    return [_step(applied, takers, processes) for applied in _leaves(pipeline.transforms_stack[0])]


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

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        self.takers = {tag: takers[one] for tag, one in applied.outputs.items()}
        for collection in applied.main_inputs.values():
            takers[collection].append(self)

    def begin(self) -> None:  # noqa: B027 - most steps have nothing to do
        """Be ready to take."""

    def give(self, element: Any, tag: str | None = None) -> None:
        for taker in self.takers.get(tag, ()):
            taker.take(element)

    @abstractmethod
    def take(self, element: Any) -> None:
        """Take an element."""

    def flush(self) -> None:  # noqa: B027
        """Give what was held back for elements yet to come."""

    @abstractmethod
    def end(self) -> None:
        """Do the rest: all elements have been taken."""


class _InParent:
    """Something that stays in the process that began: to others it goes as :class:`_Outlet`."""

    def __reduce__(self) -> tuple[type[_Outlet], tuple[()]]:
        return _Outlet, ()


class _Outlet:
    """Where elements leave another process."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def take(self, element: Any) -> None:
        self.taken.append(element)


class _OutletOfPairs(_Outlet):
    """Where pairs leave it whose values are for yet another process."""

    def take(self, element: Any) -> None:
        key, value = element
        self.taken.append((key, Parcel(value)))


class _Keep(_InParent):
    """Keeps what it takes in a list."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def take(self, element: Any) -> None:
        self.kept.append(element)


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


class _Spreading(_InParent, _Step):
    """Gives elements to the processes, if there are several of both."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        super().__init__(applied, takers, processes)
        self._processes = processes

    @property
    def several(self) -> bool:
        """Whether there are several processes."""
        return self._processes.number > 1

    def spread(self, elements: deque[Any]) -> None:
        """Give the elements, and let go each that is given."""
        if not self.several or len(elements) < 2:
            while elements:
                self.give(elements.popleft())
            return
        part = _Part(self.takers)
        for outputs, counted in self._processes.results(part, elements):
            _count(counted)
            for taker, some in zip(part.outlets, outputs, strict=True):
                for output in some:
                    taker.take(output)


class _Spread(_Spreading):
    """Spreads what it takes."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        super().__init__(applied, takers, processes)
        self._elements: deque[Any] = deque()

    def take(self, element: Any) -> None:
        if self.several:
            self._elements.append(element)
        else:
            self.give(element)

    def end(self) -> None:
        self.spread(self._elements)


class _Gather(_Spreading):
    """Groups pairs by key, until all have come, and spreads the groups."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        super().__init__(applied, takers, processes)
        self._groups: dict[Any, list[Any]] = {}

    def take(self, element: Any) -> None:
        key, value = element
        self._groups.setdefault(key, []).append(value)

    def end(self) -> None:
        groups = deque(self._groups.items())
        self._groups.clear()
        self.spread(groups)

    def give(self, element: Any, tag: str | None = None) -> None:
        key, values = element
        own = [value.open() if isinstance(value, Passed) else value for value in values]
        super().give((key, own), tag)

    def __reduce__(self) -> tuple[type[_Outlet], tuple[()]]:
        return _OutletOfPairs, ()


class _Part:
    """The steps that follow one that spreads, as far as an element goes there by itself."""

    def __init__(self, takers: Mapping[str | None, Sequence[_Taker]]) -> None:
        self._takers = takers.get(None, ())
        self._steps: list[_Step] = []
        self.outlets: list[_Taker] = []
        """Who takes what leaves it: in another process, who keeps it."""
        self._follow(takers)

    def _follow(self, takers: Mapping[str | None, Sequence[_Taker]]) -> None:
        for taker in (one for some in takers.values() for one in some):
            if isinstance(taker, _Step) and not isinstance(taker, _InParent):
                if taker not in self._steps:
                    self._follow(taker.takers)
                    self._steps.insert(0, taker)  # before all that it gives to
            elif taker not in self.outlets:
                self.outlets.append(taker)

    def begin(self) -> None:
        """Get the steps ready; in another process."""
        for step in self._steps:
            step.begin()

    def do(self, element: Any) -> tuple[list[list[Any]], MetricUpdates]:
        """What an element gives to each of the outlets, and what was counted."""
        with _counting() as counted:
            for taker in self._takers:
                taker.take(element)
            for step in self._steps:
                step.flush()
        outputs = []
        for outlet in self.outlets:
            assert isinstance(outlet, _Outlet)
            outputs.append(outlet.taken.copy())
            outlet.taken.clear()
        return outputs, counted.get_cumulative()


class _Do(_Step):
    """Calls a DoFn for each element."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        super().__init__(applied, takers, processes)
        transform: Any = applied.transform
        self._fn: beam.DoFn = transform.fn
        if _asks_runner(self._fn):
            raise NotImplementedError(
                f"{applied.full_label} needs a runner: it has state, or asks for times or windows"
            )
        self._args, self._kwargs = transform.args, transform.kwargs

    def begin(self) -> None:
        self._fn.setup()
        self._fn.start_bundle()

    def take(self, element: Any) -> None:
        self._give_all(self._fn.process(element, *self._args, **self._kwargs))

    def flush(self) -> None:
        self._give_all(self._fn.finish_bundle())
        self._fn.start_bundle()

    def end(self) -> None:
        self._give_all(self._fn.finish_bundle())
        self._fn.teardown()

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


class _DoLater(_InParent, _Do):
    """Calls a DoFn for each element when the side inputs have ended that it needs besides."""

    def __init__(self, applied: AppliedPTransform, takers: _Takers, processes: Processes) -> None:
        super().__init__(applied, takers, processes)
        self._sides: list[tuple[Any, list[Any]]] = [(side, []) for side in applied.side_inputs]
        for side, elements in self._sides:
            takers[side.pvalue].append(_Keep(elements))
        self._waiting: list[Any] = []

    def take(self, element: Any) -> None:
        self._waiting.append(element)

    def end(self) -> None:
        views = [
            side._from_runtime_iterable(iter(some), side._view_options())
            for side, some in self._sides
        ]
        self._args, self._kwargs = insert_values_in_args(self._args, self._kwargs, views)
        for element in self._waiting:
            super().take(element)
        super().end()


def _do(applied: AppliedPTransform, takers: _Takers, processes: Processes) -> _Do:
    return (_DoLater if applied.side_inputs else _Do)(applied, takers, processes)


def _asks_runner(fn: beam.DoFn) -> bool:
    """Whether a DoFn asks for what a runner alone has: state, timers, times, windows."""
    defaults = fn.get_function_arguments("process")[1]
    return any(isinstance(one, _DoFnParam) for one in defaults)


_STEPS: Mapping[type[beam.PTransform], Callable[[AppliedPTransform, _Takers, Processes], _Step]] = {
    beam.Impulse: _Begin,
    beam.ParDo: _do,
    beam.GroupByKey: _Gather,
    beam.Flatten: _PassOn,
    beam.Reshuffle: _Spread,
}


def _step(applied: AppliedPTransform, takers: _Takers, processes: Processes) -> _Step:
    transform = applied.transform
    for kind, step in _STEPS.items():
        if isinstance(transform, kind):
            return step(applied, takers, processes)
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


def _count(counted: MetricUpdates) -> None:
    """Count here what another process did."""
    for key, number in counted.counters.items():
        Metrics.counter(key.metric.namespace, key.metric.name).inc(number)
    for key, data in counted.distributions.items():
        told: Any = Metrics.distribution(key.metric.namespace, key.metric.name)
        told.update(data.max)  # of which no more than the largest is told


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

"""A bounded input through a plan, in this process: from where events are to where results go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.encode.dead_letters import reasons_of
from streamveil.engine.messages import REJECTED, Output
from streamveil.engine.plan_kinds import PlanKind
from streamveil.io.result_files import Files, Results
from streamveil.pipelines.reports.summary import Summary

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.pipelines.runners.publishing import Published

Source = Iterable[Output]
"""Batches of events, and other outputs that are not for the engine, such as dead letters."""
Take = Callable[[Output], None]


def run_here(
    plan: Plan,
    sources: Sequence[Source],
    files: Mapping[str | None, Files],
    streams: Mapping[str | None, Published] = MappingProxyType({}),
) -> Summary:
    """Release what a plan says, and write it when all of it is there; gives what was counted.

    Releases come last, so that none is anywhere before the ledger says what it cost.

    Args:
        plan: what is released.
        sources: events, and perhaps changes of requirements.
        files: where outputs go, by tag, releases first. None gets its name before all are written,
            and the last one is the first.
        streams: the same of streams and tables, to which outputs are sent then, the last one first.
            Outputs that go nowhere are dropped.

    Raises:
        Exception: what the engine raises, with nothing written, and what writing does.
    """
    kept: Mapping[str | None, Results] = {**files, **streams}

    def take(output: Output) -> None:
        results = kept.get(output.tag)
        if results is not None:
            results.add(output.value)

    summary = run_plan(plan, sources, take)
    with ExitStack() as block:
        for written in files.values():
            written.write(block)
    for stream in reversed([*streams.values()]):
        stream.send()
    return summary


def run_plan(plan: Plan, sources: Sequence[Source], take: Take) -> Summary:
    """Release what a plan says; gives what was counted.

    Args:
        plan: what is released.
        sources: events, and perhaps changes of requirements.
        take: called with every output of the engine, and of the sources what is not for it.

    Raises:
        Exception: what the engine raises.
    """
    with metrics.counting() as counts:
        for output in _outputs(plan, [_batches(source, take) for source in sources]):
            take(output)
    use = counts.largest.get(metrics.WINDOW_USE)
    return Summary.of_metrics(counts.counters, () if use is None else (use,))


def with_keys_discovered(plan: QueryPlan, source: Source) -> QueryPlan:
    """The plan with all keys that are to be discovered, which takes a pass over the events.

    A plan of several discovery slots of a stream stays as it is: its release discovers the keys.

    Raises:
        ConfigurationError: for what cannot be discovered.
    """
    if not plan.discovers or len(plan.discovery_ranges) > 1:
        return plan
    from streamveil.engine.run.discover import discover_keys

    return discover_keys(plan, (one.value for one in source if one.tag is None))


def _outputs(plan: Plan, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[Output]:
    # Each kind of plan imports what only that kind needs.
    if plan.plan_kind is PlanKind.QUERIES and plan.discovers and len(plan.discovery_ranges) > 1:
        from streamveil.engine.run.one_by_one import release_by_discovery_slot

        return release_by_discovery_slot(plan, *inputs)
    if plan.plan_kind is PlanKind.HISTOGRAMS or plan.plan_kind is PlanKind.QUERIES:
        from streamveil.engine.run.release import release_plan

        return release_plan(plan, *inputs)
    (events,) = inputs
    if plan.plan_kind is PlanKind.LOCAL:
        from streamveil.engine.run.local import release_local

        return release_local(plan, events)
    from streamveil.engine.run.records import release_records

    return release_records(plan.plan(), events)


def _batches(source: Source, take: Take) -> Iterator[pa.RecordBatch]:
    for output in source:
        if output.tag is None:
            yield output.value
        else:
            take(output)


def count_letters(outputs: Iterable[Output]) -> Iterator[Output]:
    """The same outputs; the dead letters of a reader among them are counted as events read."""
    for output in outputs:
        if output.tag == REJECTED:
            metrics.count(metrics.EVENTS_READ, output.value.num_rows)
            for reason, number in reasons_of(output.value):
                metrics.count(metrics.REJECTED_PREFIX + reason, number)
        yield output

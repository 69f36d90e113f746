"""Answers to all questions about a bounded input."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import pyarrow as pa

from streamveil.engine.count.bounds_choice import BOUNDS, BoundsChoice
from streamveil.engine.encode.query_mapper import slices_of
from streamveil.engine.messages import Message, Output
from streamveil.engine.run.gathered import Batches, Gathered, without_tallies
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan


def release_queries(plan: QueryPlan, events: Batches) -> Iterator[Output]:
    """Answer all questions of a bounded input.

    Args:
        plan: what is asked, and of whom. The guarantee is that of
            :class:`streamveil.transforms.PrivateAnswers`.
        events: batches with the columns of the plan; read once. Where bounds are chosen they are
            kept in memory until that is done.

    Yields:
        As :func:`release_histograms`: a `SlotAnswer` (no tag) and a `PortfolioEntry` (`LEDGER`) of
        each, then how many there are (`DONE`, `BOOKED`) and the state (`STATE`).

    Raises:
        ConfigurationError, InputLost, BudgetExceeded: as :func:`release_histograms`.
        NothingChosen: where too few events can be told from noise to choose bounds; the look is
            spent.
    """
    plan.check(bounded=True)
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = Gathered(plan, plan.counter(bounded=True), QUERIES)
    choice, bounds = plan.bounds_choice(plan), None
    if choice is not None:
        held = deque(events)
        bounds = _chosen_bounds(run, choice, _slices(held))
        events = _drained(held)
    yield from run.map_events(plan.event_mapper(bounds), _slices(events))
    kept = plan.kept(bounded=True)
    for block, message in kept:
        run.blocks[block].append(message)
    run.count_messages(len(kept))
    yield from run.count()
    yield from run.release(plan.release_config(layout, clock), plan.first_slot, plan.end)


def _drained(held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches one by one, each of which is let go."""
    while held:
        yield held.popleft()


def _slices(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from slices_of(batch)


def _chosen_bounds(run: Gathered, choice: BoundsChoice, batches: Batches) -> bytes:
    """Bounds that a private look at a sample of all events chooses.

    Raises InputLost before anything is asked where the input is lost, and NothingChosen.
    """
    blocks: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    mapper, looks, tallies = choice.sample.mapper, list[Message](), list[bytes]()
    for batch in batches:
        for key, message in without_tallies(choice.sample.map_batch(mapper, batch), tallies):
            blocks[key].append(message)
    for key in list(blocks):
        counted = choice.count(key, blocks.pop(key))
        looks += [look for _, look in without_tallies(counted, tallies)]
    looks.append(run.word(tallies))
    (chosen,) = run.gather(choice.choose(run.stream, looks))
    assert chosen.tag == BOUNDS
    return bytes(chosen.value)

"""Private results of a bounded input, here and now."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from streamveil.engine.count.bounds_choice import BOUNDS, BoundsChoice
from streamveil.engine.encode.query_mapper import slices_of
from streamveil.engine.messages import Message, Output
from streamveil.engine.run.gathered import Batches, Gathered, without_tallies

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.query_plan import QueryPlan


def release_plan(
    plan: HistogramPlan | QueryPlan, events: Batches, changes: Batches | None = None
) -> Iterator[Output]:
    """Release what a plan says of a bounded input.

    Args:
        plan: what is released, and for whom. The guarantee is that of
            :class:`streamveil.transforms.PrivateQueries`.
        events: batches with at least the columns of the plan; read once, batch after batch. Where
            bounds are chosen they are kept in memory until that is done.
        changes: batches of changes of requirements, if any may come.

    Yields:
        In this order: dead letters (`REJECTED`), then for each slot, of each query, its result (no
        tag), an entry of the ledger (`LEDGER`) and revisions (`REVISIONS`), then how many there are
        (`DONE`, `BOOKED`, `REVISED`) and the state (`STATE`).

    Raises:
        ConfigurationError: for what cannot be done; nothing is spent. Like all errors it is raised
            when the first output is asked for, or later.
        InputLost: if no event is counted, or too many are lost; nothing is spent.
        NothingChosen: where too few events stand out from noise to choose bounds; the look is
            spent.
        BudgetExceeded: rather than spend more than anybody's budget.
    """
    steps = plan.steps(bounded=True, changes=changes is not None)
    run = Gathered(plan, steps.counter, steps.stream)
    chosen: tuple[bytes, ...] = ()
    if steps.bounds_choice is not None:
        bounds, events = choose_bounds(run, steps.bounds_choice, events)
        chosen = (bounds,)
    mapped = _slices(events) if steps.in_slices else events
    yield from run.map_events(steps.make_mapper(*chosen), mapped)
    logic = steps.shard_logic
    if logic is not None and logic.change_mapper is not None:
        from streamveil.engine.count.changes import map_changes

        mapper = logic.change_mapper()
        for batch in changes or ():
            yield from run.gather(map_changes(mapper, steps.layout, batch))
    if steps.waiting:
        for block, message in steps.waiting:
            run.blocks[block].append(message)
        run.count_messages(len(steps.waiting))
    yield from run.count()
    if logic is not None:
        if steps.limit_choice is not None:
            run.choose_limits(steps.limit_choice)
        for message in steps.kept:
            run.sent[steps.layout.key(message.shard)].append(message)
        run.count_messages(len(steps.kept))
        yield from run.close_shards(logic)
    yield from run.release(steps.config, steps.first_slot, steps.last_slot)


def _drained(held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches one by one, each of which is let go."""
    while held:
        yield held.popleft()


def _slices(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from slices_of(batch)


def choose_bounds(
    run: Gathered, choice: BoundsChoice, events: Batches
) -> tuple[bytes, Iterator[pa.RecordBatch]]:
    """Choose bounds by a private look at a sample of all events.

    The bounds are also among the messages of the stream.

    Returns:
        The bounds, and the events, which are kept in memory until they are read again.

    Raises:
        InputLost: if the input is lost. Nothing is spent.
        NothingChosen: as :func:`release_plan`.
    """
    held = deque(events)
    blocks: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    mapper, looks, tallies = choice.sample.mapper, list[Message](), list[bytes]()
    for batch in _slices(held):
        for key, message in without_tallies(choice.sample.map_batch(mapper, batch), tallies):
            blocks[key].append(message)
    for key in list(blocks):
        counted = choice.count(key, blocks.pop(key))
        looks += [look for _, look in without_tallies(counted, tallies)]
    looks.append(run.word(tallies))
    (chosen,) = run.gather(choice.choose(run.stream, looks))
    assert chosen.tag == BOUNDS
    return bytes(chosen.value), _drained(held)

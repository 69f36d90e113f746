"""Private histograms of a bounded input."""

from __future__ import annotations

from collections.abc import Iterator

from streamveil.engine.messages import Output
from streamveil.engine.run.gathered import Batches, Gathered
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.histogram_plan import HISTOGRAMS, HistogramPlan


def release_histograms(
    plan: HistogramPlan, events: Batches, changes: Batches | None = None
) -> Iterator[Output]:
    """Release a private histogram for each slot of a bounded input.

    Args:
        plan: what is released, and for whom. The guarantee is that of
            :class:`streamveil.transforms.PrivateHistograms`.
        events: batches with at least the columns of the plan; read once, batch after batch.
        changes: batches of changes of requirements, if any may come.

    Yields:
        In this order: dead letters (`REJECTED`), then for each slot a `Release` (no tag), a ledger
        entry (`LEDGER`) and revisions (`REVISIONS`), then how many there are (`DONE`, `REVISED`)
        and the state (`STATE`).

    Raises:
        ConfigurationError: for what cannot be done; nothing is spent. Like all errors it is raised
            when the first output is asked for, or later.
        InputLost: if no event is counted, or too many are lost; nothing is spent.
        BudgetExceeded: rather than spend more than anybody's budget.
    """
    plan.check_look()
    with_changes = changes is not None or plan.dynamic
    plan.check_changes(changes=with_changes, bounded=True)
    by_shard = with_changes or plan.limits is not None
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = Gathered(plan, plan.counter(layout, by_user=by_shard), HISTOGRAMS)
    yield from run.map_events(plan.event_mapper(with_changes), events)
    if with_changes:
        from streamveil.engine.count.changes import map_changes

        mapper = plan.change_mapper()
        for batch in changes or ():
            yield from run.gather(map_changes(mapper, layout, batch))
    yield from run.count()
    if by_shard:
        keeps = plan.keeps_state(changes=with_changes)
        logic = plan.shard_logic(layout, clock, changes=with_changes, keeps=keeps)
        choice = plan.limit_choice(logic)
        if choice is not None:
            run.choose_limits(choice)
        for message in plan.kept:
            run.sent[layout.key(message.shard)].append(message)
        run.count_messages(len(plan.kept))
        yield from run.close_shards(logic)
    config = plan.release_config(layout, clock, changes=with_changes)
    yield from run.release(config, plan.first_slot, plan.last_slot)

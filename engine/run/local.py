"""Histograms of a bounded input from devices' reports, which are played here."""

from __future__ import annotations

from collections.abc import Iterator

from streamveil.engine.messages import (
    DONE,
    STATE,
    Message,
    Output,
)
from streamveil.engine.run.gathered import Batches, Gathered
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.local_plan import LOCAL, LocalPlan, slots_sent
from streamveil.engine.stream.release_slots import release_at_end


def release_local(plan: LocalPlan, events: Batches) -> Iterator[Output]:
    """Release a histogram for each slot from devices' reports, which are played here.

    Args:
        plan: what is released, and for whom. The guarantee is that of
            :class:`streamveil.transforms.CollectHistograms`.
        events: as of :func:`release_plan`.

    Yields:
        As :func:`release_plan`; the state is that of the devices.

    Raises:
        ConfigurationError, InputLost, BudgetExceeded: as :func:`release_plan`.
    """
    layout, clock = plan.layout(bounded=True), SlotClock(plan.slots)
    run = Gathered(plan, plan.counter(layout), LOCAL)
    yield from run.map_events(plan.event_mapper(), events)
    yield from run.count()
    crossing: list[Message] = []
    states: list[Output] = []
    for output in run.release(plan.edge_config(layout, clock), plan.first_slot, plan.last_slot):
        if output.tag is None:
            crossing.append(output.value[1])
        elif output.tag == DONE:
            crossing.append(slots_sent(output.value)[1])
        elif output.tag == STATE:
            states.append(output)
    config = plan.server_config(clock)
    yield from release_at_end(config, LOCAL, crossing)
    yield from states

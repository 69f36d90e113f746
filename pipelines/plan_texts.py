"""What a plan means for those who run it, in words: known before anything is read, and public."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import format_duration
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import block_length
from streamveil.mechanisms.registry import mechanism

if TYPE_CHECKING:
    from streamveil.engine.per_record.records_plan import RecordsPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.query_plan import QueryPlan


def about_least_total(plan: HistogramPlan) -> tuple[str, int] | None:
    """Of how many events a slot must be to be worth measuring, and how grave that is.

    It follows from what is public. Where a public total is smaller, all is in vain. None where
    every slot is worth it.
    """
    if not plan.population.requirements.forever:
        return None
    from streamveil.mechanisms.infinite.gated import Gated

    gated = mechanism(plan.mechanism, plan.population)
    if not isinstance(gated, Gated):
        return None
    least, total = gated.least_total, gated.public_total
    told = f"slots need about {least:,} events or more for anything to be measured"
    if not total or total >= least:
        return told, logging.INFO
    return (
        f"warning: {told}, and the public total is {total:,}: every slot will be unmeasured; "
        "give longer slots, fewer bins or a larger --epsilon, or choose --guarantee=w-event",
        logging.WARNING,
    )


def about_limits(plan: HistogramPlan) -> str | None:
    """For whom a limit on presence is left out, because it does not pay for them.

    With a public rate, what was chosen by it. None where there is nothing to say before the run.
    """
    limit, registry = plan.limit, plan.registry
    if isinstance(limit, Auto):
        return _about_choice(plan, limit)
    if not isinstance(limit, Limit) or plan.limits is None:
        return None
    left = [k for k, one in enumerate(plan.limits) if one.is_none]
    if not left:
        return None
    users, longest = registry.sizes[left].sum(), registry.classes.windows[left].max()
    return (
        f"max_slots={limit.max_slots} does not pay over windows of {number_of(longest, 'slot')}"
        f" or less: {users:,} of {number_of(registry.sizes.sum(), 'user')} count in every slot"
    )


def _about_choice(plan: HistogramPlan, auto: Auto) -> str | None:
    registry, limits = plan.registry, plan.limits
    asked = "max_slots=auto" if auto.rate is None else f"max_slots=auto:{auto.rate:g}"
    if limits is None:
        longest = number_of(registry.classes.longest, "slot")
        return (
            f"{asked}: over windows of {longest} or less, in {number_of(auto.blocks, 'block')}, no "
            "limit is worth it, so users count in every slot"
        )
    if auto.rate is None:  # a run tells what it chose
        return None
    users: Counter[str] = Counter()
    own = registry.max_slots or (None,) * len(limits)
    for k, (limit, said) in enumerate(zip(limits, own, strict=True)):
        if said is None:
            length = block_length(registry.classes[k].window, limit.blocks)
            some = f"the first {limit.max_slots} of {length} slots"
            users["every slot" if limit.is_none else some] += int(registry.sizes[k])
    found = ", ".join(f"{number_of(n, 'user')} in {where}" for where, n in users.items())
    return f"{asked}: users count as chosen, {found}" if found else None


def about_shares(plan: QueryPlan) -> str:
    """How everybody's budget is divided, which is public."""
    from streamveil.pipelines.answers_report import shares_of

    listed = ", ".join(f"{name} {part:.1%}" for name, part in shares_of(plan).items())
    base = format_duration(plan.portfolio.base.length)
    open_ones = sum(question.share is None for question in plan.portfolio)
    later = "; planned again from answers" if plan.shares is None and open_ones > 1 else ""
    return f"shares of everybody's budget, whose windows are in slots of {base}: {listed}{later}"


def about_records(plan: RecordsPlan) -> str:
    """What is released: public, whatever the records are."""
    slots = "one window of all times"
    keys = number_of(len(plan.keys), "key") if plan.keys else ""
    if plan.slots is not None:
        slots = "a window with every slot"
        if plan.first_slot is not None and plan.last_slot is not None:
            number = plan.last_slot - plan.first_slot + 2 - plan.sliding
            slots = number_of(number, "window")
    shared = plan.max_records_per_user
    share = "" if shared == 1 else f", divided by {shared} records of one person"
    return (
        f"released: {' for each of '.join(filter(None, (slots, keys)))}\n"
        f"budget:   each record paid its own at most, once{share}"
    )

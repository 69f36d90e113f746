"""What a plan means for those who run it, in words: known before anything is read, and public."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.local_days import multiple, shown, time_text, zone_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS, format_time
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import block_length
from streamveil.mechanisms.registry import mechanism
from streamveil.pipelines.reports.given_limits import Limited, limited_of, most_present

if TYPE_CHECKING:
    from streamveil.engine.per_record.records_plan import RecordsPlan
    from streamveil.engine.plans import UserPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.core.records import Slots
    from streamveil.mechanisms.core.user_table import Registry
    from streamveil.mechanisms.discovery.terms import DiscoveryTerms
    from streamveil.mechanisms.queries.discovered import Discoverer


def about_plan(plan: UserPlan) -> Iterator[tuple[str, int]]:
    """What follows from public facts before a run: each text and how grave it is."""
    if (other_days := _about_days(plan)) is not None:
        yield other_days, logging.WARNING
    if plan.plan_kind is PlanKind.LOCAL:
        return
    if plan.plan_kind is PlanKind.QUERIES:
        if not plan.test_mode:
            yield _about_shares(plan), logging.INFO
    elif (least := _about_least_total(plan)) is not None:
        yield least
    for text in _about_limits(plan):
        yield text, logging.INFO
    if plan.plan_kind is PlanKind.QUERIES and not plan.ends:
        end = _about_end(plan)
        if end is not None:
            yield end, logging.INFO


def _about_days(plan: UserPlan) -> str | None:
    """That days do not begin at midnight in the zone in which times are read; None where they do.

    Whoever names a zone of the times may expect days of that zone.
    """
    zone = plan.columns.time_zone
    each = [plan.slots]
    if plan.plan_kind is PlanKind.QUERIES:
        each = [plan.query_set.slots_of(query) for query in plan.query_set]
    begun = plan.slots.start(plan.first_slot or 0)
    for slots in each:
        start = slots.start(slots.index(begun))
        whole_days = slots.length % MICROSECONDS["d"] == 0 or slots.of_days
        if whole_days and zone_of(slots) is None and shown(start, zone) % MICROSECONDS["d"]:
            return (
                f"warning: slots of {slots.text} begin at {format_time(start)}, which is "
                f"{format_time(start, zone)} in the zone of the times ({opt.time_zone}): give "
                f"{opt.slot_zone}={zone} for days of that zone"
            )
    return None


def about_discovered(plan: UserPlan) -> Iterator[tuple[str, int]]:
    """What the discovery of keys found, and how many users a key needs: both are public."""
    if plan.plan_kind is not PlanKind.QUERIES or plan.delta is None:
        return
    for one in plan.discoverers():
        listed = f"; listed: {number_of(len(one.keys.values), 'key')}" if one.keys.found else ""
        yield f"{about_discoverer(one, plan.slots)}{listed}", logging.INFO


def about_discoverer(one: Discoverer, slots: Slots) -> str:
    """How many users a key needs to be discovered, which is public."""
    where = "the whole input", "it"
    if not one.whole:
        where = f"slots of {multiple(slots, one.length).text}", "one of them"
    return (
        f"keys of {one.query.name} are discovered in {where[0]}: a key that is counted for "
        f"{one.terms.users_for_half_chance:,} users in {where[1]} is found with probability 1/2, "
        f"for {one.keys.share:.0%} of every user's budget; a user with more unlisted keys than "
        f"max_keys allows is counted for a random choice of them{_uncounted(one.terms)}"
    )


def _uncounted(terms: DiscoveryTerms) -> str:
    """How many users the discovery leaves out."""
    if not terms.uncounted:
        return ""
    return (
        f"; {number_of(terms.uncounted, 'user')} of {int(terms.sizes.sum()):,} are not counted in "
        "the discovery, because their budget or their delta is too small"
    )


def _about_least_total(plan: HistogramPlan) -> tuple[str, int] | None:
    """Of how many events a slot must be to be worth measuring, and how grave that is.

    It follows from what is public. Where a public total is smaller, all is in vain. None where
    every slot is worth it.
    """
    if plan.test_mode or not plan.population.requirements.forever:
        return None
    from streamveil.mechanisms.infinite.gated import Gated

    gated = mechanism(plan.mechanism, plan.population)
    if not isinstance(gated, Gated):
        return None
    least, total = gated.least_total, gated.public_total
    message = f"slots need about {least:,} events or more for anything to be measured"
    if not total or total >= least:
        return message, logging.INFO
    return (
        f"warning: {message}, and the public total is {total:,}: every slot will be unmeasured; "
        f"give longer slots, fewer bins or a larger {opt.epsilon}, or choose "
        f"{opt.guarantee}=w-event",
        logging.WARNING,
    )


def _about_limits(plan: HistogramPlan | QueryPlan) -> Iterator[str]:
    """Where a participation limit is left out, or follows from a public rate, and what it means."""
    limited, registry = limited_of(plan), plan.known
    if not limited:
        if isinstance(plan.limit, Auto) or (plan.plan_kind is PlanKind.QUERIES and plan.limit):
            longest = number_of(registry.classes.longest, "slot")
            yield (
                f"{_limit_text(plan)}: over windows of {longest} or less, in "
                f"{number_of(plan.limit.blocks, 'block')}, no limit is worth it, so users count in "
                "every slot"
            )
        return
    if ratios := _limited_ratios(plan, limited):
        yield (
            f"{_limit_text(plan)}: figures of {', '.join(ratios)} describe the events that count, "
            "and not those of users who are there more often"
        )
    if (most := most_present(plan)) is not None:
        yield (
            f"{_limit_text(plan)} reduces errors if users are present in at most {most:.1%} of the "
            "slots; if they are there more often, it may increase them"
        )
    own = registry.max_slots or (None,) * len(registry.classes)
    left, chosen = [], []
    for query, limits, requirements, _ in limited:
        left_out: list[int] = []
        found: dict[str, list[int]] = {}
        for k, (limit, over) in enumerate(zip(limits, requirements, strict=True)):
            if isinstance(plan.limit, Auto) and own[k] is None:
                if plan.limit.rate is not None:  # otherwise the run says what it chose
                    length = block_length(over.window, limit.blocks)
                    some = f"the first {limit.max_slots} of {length} slots"
                    found.setdefault("every slot" if limit.is_none else some, []).append(k)
            elif limit.is_none and (plan.limit is not None or own[k] is not None):
                left_out.append(k)
        if left_out:
            longest = number_of(max(requirements[k].window for k in left_out), "slot")
            users = _users_text(registry, left_out, query)
            whose = "" if query is None else f"{query} for "
            left.append(f"{whose}{users} ({longest} in a window)")
        whose = "" if query is None else f"{query}: "
        chosen += [f"{whose}{_users_text(registry, ks, query)} in {at}" for at, ks in found.items()]
    if chosen:
        yield f"{_limit_text(plan)}: users count as chosen, {'; '.join(chosen)}"
    if left:
        yield (
            f"{_limit_text(plan)} does not help for {', '.join(left)}: there users count in every "
            "slot"
        )


def _limited_ratios(plan: HistogramPlan | QueryPlan, limited: Sequence[Limited]) -> list[str]:
    """Queries whose figures say nothing of the events that a limit leaves out."""
    if plan.plan_kind is PlanKind.HISTOGRAMS:
        return []
    return [
        query.name
        for query, one in zip(plan.query_set, limited, strict=True)
        if query.statistic.ratios and not all(limit.is_none for limit in one.limits)
    ]


def _users_text(registry: Registry, classes: Sequence[int], query: str | None) -> str:
    """Words for the users of some classes."""
    if query is not None and len(classes) == len(registry.classes):
        return "all users"
    return number_of(int(registry.sizes[list(classes)].sum()), "user")


def _limit_text(plan: HistogramPlan | QueryPlan) -> str:
    """How the limit was given."""
    limit = plan.limit
    if isinstance(limit, Auto):
        return "max_slots=auto" if limit.rate is None else f"max_slots=auto:{limit.rate:g}"
    if isinstance(limit, Limit):
        return f"max_slots={limit.in_life or limit.max_slots}"
    return "max_slots of the table" if limit is None else "max_slots of each class"


def _about_shares(plan: QueryPlan) -> str:
    """How the budget of each user is divided, which is public."""
    from streamveil.pipelines.reports.report import shares_of

    listed = ", ".join(f"{name} {part:.1%}" for name, part in shares_of(plan).items())
    base = plan.query_set.base.text
    open_ones = sum(query.share is None for query in plan.query_set)
    planned_again = plan.shares is None and plan.presences is None and open_ones > 1
    later = "; planned again later from the results" if planned_again else ""
    return f"shares of every user's budget, with windows in slots of {base}: {listed}{later}"


def _about_end(plan: QueryPlan) -> str | None:
    """Which queries' last slots are not over at the end of a stream that may go on."""
    if plan.last_slot is None:
        return None
    last = plan.last_slot + 1
    names = plan.within(last)
    if not names:
        return None
    return (
        f"{opt.end} is within a slot of {', '.join(names)}, at "
        f"{time_text(plan.slots.start(last), plan.slots)}: that slot of each is answered when a "
        f"later run, with a later {opt.end}, comes to where it ends"
    )


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

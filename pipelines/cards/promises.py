"""What is promised to whom, of each kind of release: for machines, by its guarantee.

Every promise is of pure differential privacy, so delta is 0; what differs is the unit (which events
neighbouring inputs differ in), how they differ, and what bounds the loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamveil.engine.metrics import LIMITED_PREFIX
from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import Lifetime, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.limits import block_length
from streamveil.pipelines.guarantees import INFINITE, USER, WINDOWS

if TYPE_CHECKING:
    from streamveil.engine.per_record.records_plan import RecordsPlan
    from streamveil.engine.plans import Plan
    from streamveil.engine.stream.histogram_plan import HistogramPlan


LOCAL, PER_RECORD = "local w-event", "per-record"
GUARANTEES = (WINDOWS, INFINITE, USER, LOCAL, PER_RECORD)

ANY = "any"
"""Adjacency of the local setting: a user's events are any others, or none."""

Record = dict[str, Any]
Chosen = Mapping[int, list[int | None]]
"""Limits on presence that a run may have chosen for a class, by the length of a block."""

UNITS: Mapping[str, str] = {
    WINDOWS: "all events of one user in any `window` consecutive slots",
    INFINITE: "all events of one user, in any or all slots of the stream",
    USER: "all events of one user, their whole life in the stream",
    LOCAL: "all events of one user in any `window` consecutive slots",
    PER_RECORD: "one record",
}


def setting_of(guarantee: str) -> str:
    """Who sees the events."""
    return "local" if guarantee == LOCAL else "central"


def promise_of(
    plan: Plan, *, changes: bool = False, grants: int = 0, chosen: Chosen | None = None
) -> Record:
    """What a plan promises, as the card states it.

    Args:
        plan: with its public tables read.
        chosen: limits that the run chose: see :func:`chosen_limits`.
        changes: whether requirements change, or have changed.
        grants: how often one budget forever was granted again.
    """
    if plan.plan_kind is PlanKind.RECORDS:
        return _of_records(plan)
    registry, guarantee = plan.registry, guarantee_of(plan)
    stated: Record = {
        "guarantee": guarantee,
        "setting": setting_of(guarantee),
        "unit": UNITS[guarantee],
        "adjacency": ANY if plan.plan_kind is PlanKind.LOCAL else plan.adjacency,
        "delta": 0,
        "classes": _classes(plan, registry, chosen or {}),
    }
    if guarantee == INFINITE:
        stated["granted_again"] = grants
    if changes:
        stated["requirements_change"] = True
    return stated


def guarantee_of(plan: Plan) -> str:
    """Which of `GUARANTEES` a plan gives."""
    if plan.plan_kind is PlanKind.RECORDS:
        return PER_RECORD
    if plan.plan_kind is PlanKind.LOCAL:
        return LOCAL
    if not plan.registry.classes.forever:
        return WINDOWS
    limits = getattr(plan, "limits", None)
    return INFINITE if limits is None else USER


def _classes(plan: Plan, registry: Registry, chosen: Chosen) -> list[Record]:
    """One for each class of the table, as the ledger has them: by window and epsilon."""
    limits = None
    if plan.plan_kind is PlanKind.HISTOGRAMS and plan.limits is not None:
        registry, limits = plan.known, _stated(plan, plan.limits, chosen)
    looks = _looks(plan, registry)
    listed = [
        {
            "window": None if isinstance(one, Lifetime) else one.window,
            "epsilon": one.epsilon,
            "users": int(size),
            **({} if limits is None else {"limit": limits[k]}),
            **({"look": looks[k]} if looks else {}),
        }
        for k, (one, size) in enumerate(zip(registry.classes, registry.sizes, strict=True))
    ]
    return sorted(listed, key=class_key)


def class_key(stated: Mapping[str, Any]) -> tuple[float, float]:
    """What classes are sorted by, in cards and ledgers."""
    window = stated["window"]
    return (float("inf") if window is None else window, stated["epsilon"])


def _stated(plan: HistogramPlan, limits: Sequence[Limit], chosen: Chosen) -> list[Record]:
    """In how many slots the users of each class count."""
    looks = plan.looks or [None] * len(limits)
    return [
        {
            "max_slots": _slots_of(limit) if look is None else _any_of(one, limit, chosen),
            "blocks": limit.blocks,
            "in_life": limit.in_life,
            "chosen": limit.chosen,
        }
        for one, limit, look in zip(plan.known.classes, limits, looks, strict=True)
    ]


def _slots_of(limit: Limit) -> int | None:
    return None if limit.is_none else limit.max_slots


def _any_of(requirement: Requirement, limit: Limit, chosen: Chosen) -> list[int | None]:
    """What a run may have chosen for a class: it tells of how many users, not of whom."""
    length = block_length(requirement.window, limit.blocks)
    return [*chosen.get(length, ()), *chosen.get(1, ())]


def chosen_limits(counters: Mapping[str, int]) -> dict[int, list[int | None]]:
    """The limits that a run chose, by the length of a block; by 1 those who count in every slot.

    Args:
        counters: of a run, by name.
    """
    found: dict[int, list[int | None]] = defaultdict(list)
    for name in counters:
        if name.startswith(LIMITED_PREFIX):
            most, length = map(int, name.removeprefix(LIMITED_PREFIX).split(" of "))
            found[length].append(None if length == 1 else most)
    return found


def possible_limits(plan: Plan) -> dict[int, list[int | None]]:
    """The limits that a run may choose, before it has: as of :func:`chosen_limits`."""
    looks = [look for look in getattr(plan, "looks", ()) if look is not None]
    found: dict[int, list[int | None]] = {look.every: look.limits.tolist() for look in looks}
    return {**found, 1: [None]} if looks else {}


def _looks(plan: Plan, registry: Registry) -> list[float]:
    """What a look at numbers, for bounds, cost each class of a portfolio."""
    if plan.plan_kind is not PlanKind.QUERIES:
        return []
    from streamveil.mechanisms.portfolio.bounds import set_aside

    units = set_aside(plan.portfolio, registry.classes, registry.sizes)
    return to_epsilon(units).tolist() if units.any() else []


def _of_records(plan: RecordsPlan) -> Record:
    bounds = plan.budget.bounds
    return {
        "guarantee": PER_RECORD,
        "setting": setting_of(PER_RECORD),
        "unit": UNITS[PER_RECORD],
        "adjacency": "add_remove",
        "delta": 0,
        "epsilon_max": bounds.epsilon_max,
        "epsilon_min": bounds.epsilon_min,
        "budget": _budget(plan.budget),
        "max_records_per_user": plan.max_records_per_user,
    }


def _budget(budget: Any) -> Record:
    """The public function from records to budgets, as far as it can be written down."""
    from streamveil.engine.per_record.budgets import CategoryBudget, ValueBudget
    from streamveil.mechanisms.per_record.budget_functions import Lookup

    function = budget.function if isinstance(budget, ValueBudget) else None
    if isinstance(budget, CategoryBudget) and isinstance(budget.lookup, Lookup):
        return {
            "columns": list(budget.columns),
            "function": "table",
            "table": dict(budget.lookup.table),
        }
    figures = {} if function is None else {k: v for k, v in vars(function).items() if k != "bounds"}
    name = "custom" if function is None else type(function).__name__.lower()
    return {
        "columns": list(budget.columns),
        "function": name,
        **{k: v for k, v in figures.items() if isinstance(v, (int, float))},
    }


def requirement_of(stated: Mapping[str, Any]) -> Requirement:
    """The requirement of a class of a card. Raises ConfigurationError for one that is none."""
    if stated["window"] is None:
        return Lifetime(stated["epsilon"])
    return Requirement(stated["window"], stated["epsilon"])

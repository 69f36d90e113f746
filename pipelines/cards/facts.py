"""The card of a stream: all that is public of it, as JSON has it.

It says nothing that a reader of releases does not know already (docs/security.md): requirements and
how many users ask for each, the domain, the slots, the columns and options, which slots were
released under which version and key. Of a key it has a fingerprint, of files their names without
their folders, and the digests of those that may be published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamveil import __version__
from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.domains import Domain, Edges, Grid, parts_of
from streamveil.mechanisms.core.local_days import CalendarSlots
from streamveil.mechanisms.core.records import Slots, format_duration, format_time
from streamveil.mechanisms.randomness.noise import NoiseKeys, derived_key
from streamveil.pipelines.cards.promises import Chosen, Record, promise_of
from streamveil.pipelines.cards.registry_form import deployment_of

if TYPE_CHECKING:
    from streamveil.engine.per_record.records_plan import RecordsPlan
    from streamveil.engine.plans import Plan
    from streamveil.mechanisms.portfolio.questions import Portfolio, Question


FORMAT = "streamveil card 1"
GIVEN, DRAWN = "given", "drawn"
OPTIONS, EVENTS, CLOCK, STREAM = "options", "events", "clock", "stream"
"""What decides which slots there are."""
_FINGERPRINT_BYTES = 8


def card_of(
    command: str,
    plan: Plan,
    runs: Sequence[Mapping[str, Any]],
    *,
    drawn: bool | None = None,
    decided_by: str | None = None,
    in_force: Sequence[Mapping[str, Any]] = (),
    grants: int = 0,
    changes: bool = False,
    chosen: Chosen | None = None,
) -> Record:
    """The card of what a plan has released.

    Args:
        command: that was run.
        plan: with its public tables read, as it was applied.
        runs: of it, as :func:`run_of` makes them; one at least.
        drawn: whether its key was drawn by the run; where nobody gave one, when None.
        decided_by: what decides which slots there are; by the options of the plan, when None.
        in_force: classes that the ledger has beside those of the table.
        grants: see :func:`promise_of`.
        changes: the same.
        chosen: the same.
    """
    promise = promise_of(plan, changes=changes, grants=grants, chosen=chosen)
    if in_force:
        promise["in_force"] = list(in_force)
    asked = drawn if drawn is not None else plan.noise_key is None
    made: Record = {
        "format": FORMAT,
        "command": command,
        "promise": promise,
        "data": _data_of(plan, decided_by or _range_of(plan)),
        "mechanism": _mechanism_of(plan),
        "noise_key": {"source": DRAWN if asked else GIVEN, "keys": _keys_of(plan)},
        "runs": list(runs),
    }
    return {**made, "deployment": deployment_of(made)}


def run_of(
    plan: Plan,
    first_slot: int | None,
    last_slot: int | None,
    files: Mapping[str, Mapping[str, str]],
    **more: Any,
) -> Record:
    """What one run released.

    Args:
        plan: that did.
        first_slot: of it; base slots of questions; None where time is not cut, or nobody knows.
        last_slot: the same.
        files: by what is in them, name and digest: see `files.py`.
        more: facts of this kind of run.
    """
    slots = plan.slots
    times: Record = {}
    if slots is not None and first_slot is not None:
        times |= {"first_slot": first_slot, "start": format_time(slots.start(first_slot))}
    if slots is not None and last_slot is not None:
        times |= {"last_slot": last_slot, "end": format_time(slots.end(last_slot))}
    return {"streamveil": __version__, **times, **more, "files": dict(files)}


def fingerprint(key: bytes) -> str:
    """Tells a key from others, and nothing else about it: 64 bits of a keyed digest."""
    return derived_key(key, "card")[:_FINGERPRINT_BYTES].hex()


def _keys_of(plan: Plan) -> list[Record]:
    """The fingerprint of each key, and the slot from which on it is used."""
    keys = NoiseKeys.of(plan._key())
    pairs = [(None, keys.first), *keys.later]
    return [{"from_slot": slot, "fingerprint": fingerprint(key)} for slot, key in pairs]


def _mechanism_of(plan: Plan) -> str | None:
    """Its name with its options; None of questions, each of which has its own."""
    if plan.plan_kind is PlanKind.QUERIES:
        return None
    if plan.plan_kind is PlanKind.RECORDS:
        return plan.plan().mechanism
    return plan.mechanism


def _data_of(plan: Plan, decided_by: str) -> Record:
    """What the figures mean: all of it is public."""
    if plan.plan_kind is PlanKind.RECORDS:
        return _data_of_records(plan)
    columns = plan.columns
    stated: Record = {
        "columns": {"user": columns.user, "value": list(columns.value), "time": columns.time},
        **slots_stated(plan.slots),
        "range": decided_by,
    }
    if plan.plan_kind is PlanKind.QUERIES:
        return {**stated, "questions": _questions(plan.portfolio)}
    stated |= {"domain": domain_stated(plan.domain), "keep": plan.keep}
    if plan.plan_kind is PlanKind.LOCAL:
        return {**stated, "max_contributions": 1}
    return {**stated, "max_contributions": plan.max_contributions}


def _range_of(plan: Plan) -> str:
    """What decides which slots there are."""
    return EVENTS if None in (plan.first_slot, plan.last_slot) else OPTIONS


def _data_of_records(plan: RecordsPlan) -> Record:
    on_workers = plan.plan()
    kind = on_workers.kind
    columns = {"value": plan.value, "key": plan.key, "time": plan.time}
    return {
        "columns": {name: column for name, column in columns.items() if column is not None},
        **({} if plan.slots is None else slots_stated(plan.slots)),
        "keys": list(plan.keys),
        "statistic": f"running_{kind}" if plan.running else kind,
        "value_max": on_workers.bounds.value_max,
        "window": plan.sliding,
        "running": plan.running,
    }


def slots_stated(slots: Slots) -> Record:
    """How time is cut, in words of the options; the origin of a calendar is as its clocks show."""
    zone = slots.zone if isinstance(slots, CalendarSlots) else None
    origin = format_time(slots.origin)
    return {
        "slot": format_duration(slots.length),
        "slot_zone": zone,
        "origin": origin if zone is None else origin.removesuffix("Z"),
    }


def domain_stated(domain: Domain) -> Record:
    """What the bins are."""
    listed, *names = parts_of(domain)
    named = zip(("other", "null"), names, strict=True)
    more = {key: name for key, name in named if name is not None}
    if isinstance(listed, Edges):
        return {"edges": list(listed.edges), **more}
    if isinstance(listed, Grid):
        return {"grid": dataclasses.asdict(listed), **more}
    return {"values": list(listed.values), **more}


def _questions(portfolio: Portfolio) -> list[Record]:
    return [_question(question) for question in portfolio]


def _question(question: Question) -> Record:
    return {
        "name": question.name,
        "slots": question.slots,
        "value": list(question.value),
        "domain": domain_stated(question.domain),
        "statistic": question.statistic.name,
        "mechanism": question.mechanism,
        "max_contributions": question.max_contributions,
        "keep": question.keep,
        "conditions": len(question.where),
    }

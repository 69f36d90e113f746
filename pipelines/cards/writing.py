"""Cards of runs that have released something: of one that ended, of a stream in passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import read_table
from streamveil.mechanisms.core.records import format_duration
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.cards.facts import CLOCK, card_of, run_of
from streamveil.pipelines.cards.files import chained, digest_of, file_of, is_public, name_of
from streamveil.pipelines.cards.launched import streams_of
from streamveil.pipelines.cards.promises import Record, chosen_limits

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.portfolio.questions import Portfolio


ANSWERS = "answers-"
"""What the answers to a question are called among files, before the question's name."""

FIGURES = ("window_backward", "epsilon_backward", "window_forward", "epsilon_forward")
_CLASS = ("window", "epsilon")

Files = Mapping[str, str]
"""Paths by what is in them: `releases`, `revisions`, `ledger`, or `answers-` and a question."""


def card_of_run(
    command: str,
    plan: Plan,
    files: Files,
    counters: Mapping[str, int],
    *,
    streams: Mapping[str, str] | None = None,
    decided_by: str | None = None,
    changes: bool = False,
) -> Record:
    """The card of a run that has ended.

    Args:
        command: that was run.
        plan: that it applied.
        files: that it wrote, whole by now.
        counters: of the run.
        streams: of what did not go to files the kind of the place, by what it is.
        decided_by: see :func:`card_of`.
        changes: whether requirements changed in it.

    Raises:
        ConfigurationError: for a file that cannot be read back.
    """
    tables = {kind: read_slots(path) for kind, path in _with_slots(plan, files).items()}
    public = {kind: file_of(path) for kind, path in files.items() if is_public(kind)}
    read = "ledger" in files and _may_differ(plan, changes)
    ledger = read_table(files["ledger"]) if read else None
    run = _run_of(plan, tables, public, **({"streams": dict(streams)} if streams else {}))
    return card_of(
        command,
        plan,
        [run],
        decided_by=decided_by,
        in_force=in_force(ledger, plan),
        changes=changes,
        chosen=chosen_limits(counters),
    )


def card_in_memory(
    command: str,
    plan: Plan,
    tables: Mapping[str, pa.Table],
    counters: Mapping[str, int],
    *,
    changes: bool = False,
) -> Record:
    """The same of a run in memory: `tables` in place of files."""
    slots = _with_slots(plan, tables)
    return card_of(
        command,
        plan,
        [_run_of(plan, slots, {})],
        in_force=in_force(tables.get("ledger"), plan),
        changes=changes,
        chosen=chosen_limits(counters),
    )


def _may_differ(plan: Plan, changes: bool) -> bool:
    """Whether the ledger may be of other classes than the table: else it need not be read."""
    if plan.plan_kind is PlanKind.HISTOGRAMS:
        return changes or only_dynamic(plan.mechanism)
    return plan.plan_kind is PlanKind.LOCAL and changes


def _with_slots(plan: Plan, files: Mapping[str, Any]) -> dict[str, Any]:
    """Those that say which slots were released, where options do not."""
    if plan.plan_kind is PlanKind.RECORDS:
        return {}
    if plan.plan_kind is PlanKind.QUERIES:
        return {kind: one for kind, one in files.items() if kind.startswith(ANSWERS)}
    known = None not in (plan.first_slot, plan.last_slot)
    told = [kind for kind in ("releases", "ledger") if kind in files]
    return {} if known or not told else {"slots": files[told[0]]}


def read_slots(path: str) -> pa.Table:
    """The columns of a file that say which slots it is about."""
    return read_table(path, ("slot", "length"))


def _run_of(
    plan: Plan,
    tables: Mapping[str, pa.Table],
    files: Mapping[str, Mapping[str, str]],
    **more: Any,
) -> Record:
    first, last = plan.first_slot, plan.last_slot
    if plan.plan_kind is PlanKind.QUERIES and tables:
        slots = answered(plan.portfolio, tables)
        first, last = _base_range(plan, slots)
        return run_of(plan, first, last, files, answered=slots, **more)
    if tables:
        first, last = _ends(tables["slots"].column("slot"))
    return run_of(plan, first, last, files, **more)


def _ends(slots: Any) -> tuple[int, int]:
    found = pc.min_max(slots).as_py()
    return int(found["min"]), int(found["max"])


def answered(portfolio: Portfolio, tables: Mapping[str, pa.Table]) -> dict[str, list[int]]:
    """The first and the last slot of each question that was answered, by its name."""
    found = {}
    for question in portfolio:
        table = tables[f"{ANSWERS}{question.name}"]
        if not table.num_rows:
            continue
        own = format_duration(portfolio.slots_of(question).length)
        slots = table.filter(pc.equal(table.column("length"), own)).column("slot")
        if len(slots):
            found[question.name] = list(_ends(slots))
    return found


def _base_range(plan: QueryPlan, slots: Mapping[str, list[int]]) -> tuple[int, int]:
    """Base slots that answers are about."""
    spans = [
        (slots[one.name][0] * one.slots, (slots[one.name][1] + 1) * one.slots - 1)
        for one in plan.portfolio
        if one.name in slots
    ]
    first, last = plan.first_slot, plan.last_slot
    return (
        min(a for a, _ in spans) if first is None else first,
        max(b for _, b in spans) if last is None else last,
    )


def in_force(ledger: pa.Table | None, plan: Plan) -> list[Record]:
    """What the ledger has that the table did not ask for when the run began: each once, sorted."""
    if plan.plan_kind is PlanKind.RECORDS or plan.plan_kind is PlanKind.QUERIES:
        return []
    if ledger is None or not ledger.num_rows:
        return []
    names = FIGURES if FIGURES[0] in ledger.column_names else _CLASS
    known = {(one.window, one.epsilon) for one in plan.registry.classes}
    rows = {tuple(row.values()) for row in ledger.select(names).to_pylist()}
    if names is _CLASS:
        limits = getattr(plan, "limits", None)
        rows = set() if limits is not None else {row for row in rows if row not in known}
        rows = {row for row in rows if row[0] not in (None, "")}
    return [dict(zip(names, row, strict=True)) for row in sorted(rows)]


def card_of_pass(
    command: str,
    plan: Plan,
    before: Mapping[str, Any] | None,
    due: tuple[int, int],
    number: int,
    results: Mapping[str, tuple[str, Path]],
    *,
    begun: int,
    drawn: bool,
    grants: int,
    changes: bool,
) -> Record:
    """The card of a stream after one more pass.

    Args:
        command: that was run.
        plan: of the whole stream, with all that is known after the pass.
        before: the card after the pass before; None where there is none.
        due: first and last slot of the pass.
        number: of the pass.
        results: by kind the name that the user gave, of a file or a stream, and the file that the
            pass has written.
        begun: first slot of the stream.
        drawn: whether the noise key was drawn when the stream began.
        grants: how often one budget forever was granted again.
        changes: whether requirements change, or have changed.
    """
    changes = changes or (before or {}).get("promise", {}).get("requirements_change", False)
    public = {kind: one for kind, one in results.items() if is_public(kind)}
    streams = streams_of({kind: name for kind, (name, _) in public.items()})
    files = {
        kind: {"name": name_of(name), "sha256": digest_of(str(path))}
        for kind, (name, path) in public.items()
        if kind not in streams
    }
    more: Record = {"passes": [number, number], **({"streams": streams} if streams else {})}
    if plan.plan_kind is PlanKind.QUERIES:
        answers = {kind: read_slots(str(path)) for kind, (_, path) in public.items()}
        told = {kind: one for kind, one in answers.items() if kind.startswith(ANSWERS)}
        more["answered"] = answered(plan.portfolio, told)
    if grants:
        more["granted_again"] = grants
    run = run_of(plan, *due, files, **more)
    read = "ledger" in public and _may_differ(plan, changes)
    ledger = read_table(str(public["ledger"][1])) if read else None
    known = () if before is None else before["promise"].get("in_force", ())
    asked = [*known, *in_force(ledger, plan)]
    return card_of(
        command,
        plan,
        _joined([*_runs_before(plan, before, begun, due, number), run]),
        drawn=drawn,
        decided_by=CLOCK,
        in_force=[one for i, one in enumerate(asked) if one not in asked[:i]],
        grants=grants,
        changes=changes,
    )


def _runs_before(
    plan: Plan,
    before: Mapping[str, Any] | None,
    begun: int,
    due: tuple[int, int],
    number: int,
) -> list[Record]:
    """The runs so far; of passes that an earlier version made, which kept no card, little."""
    if before is not None:
        return list(before["runs"])
    if number == 1:
        return []
    unknown = run_of(plan, begun, due[0] - 1, {}, passes=[1, number - 1])
    return [{**unknown, "streamveil": None}]


def _joined(runs: list[Record]) -> list[Record]:
    """The runs, the last as a part of the one before it where they are alike but for slots."""
    if len(runs) < 2:
        return runs
    *others, before, last = runs
    if _alike(before) != _alike(last):
        return runs
    files = {
        kind: {**one, "sha256": chained(before["files"][kind]["sha256"], one["sha256"])}
        for kind, one in last["files"].items()
    }
    joined = {**before, "last_slot": last["last_slot"], "end": last["end"], "files": files}
    joined["passes"] = [before["passes"][0], last["passes"][1]]
    if "answered" in last:
        joined["answered"] = _answered_together(before["answered"], last["answered"])
    return [*others, joined]


def _alike(run: Mapping[str, Any]) -> Any:
    """What must be the same in passes of one run."""
    names = {kind: one["name"] for kind, one in run["files"].items()}
    return run["streamveil"], names, run.get("streams"), run.get("granted_again", 0)


def _answered_together(before: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, list[int]]:
    return {
        name: [before.get(name, last.get(name))[0], last.get(name, before.get(name))[1]]
        for name in dict.fromkeys((*before, *last))
    }


def after_choice(plan: Any, next_slot: int, state: bytes) -> Any:
    """The plan with the limits that its first pass chose, if that had to."""
    if not getattr(plan, "looks", ()) or not any(plan.looks):
        return plan
    return dataclasses.replace(plan, first_slot=next_slot, last_slot=None, resume=state)

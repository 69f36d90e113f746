"""Whether the ledger keeps what the card promises, and books every slot that was released.

One recount serves all kinds: the rows of a ledger become one account for each class of the card,
and the promise says what an account may add up to. Where requirements change, rows are of histories
and not of classes: see `check_changing.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine.description import class_key
from streamveil.engine.guarantees import LOCAL_EVENTS
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import REPLACE, Lifetime, Requirement
from streamveil.mechanisms.queries.cuts import Months
from streamveil.pipelines.cards.card_writer import FIGURES
from streamveil.pipelines.cards.check_changing import changing_faults
from streamveil.pipelines.cards.check_input import Fault, Read, column, floats, numbers, units
from streamveil.pipelines.cards.claims import (
    StatedQuery,
    queries_of,
    released_slots,
    requirement_of,
)
from streamveil.pipelines.cards.recount import (
    Account,
    Integers,
    Reach,
    Recount,
    in_reach,
    in_windows,
    months_met,
    on_devices,
    reach_of,
    slots_met,
    wrong_account,
)

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


Column = npt.NDArray[Any]


class Rows(NamedTuple):
    """Rows of a ledger that book slots to classes, in the order of accounts; of shape (N,)."""

    query: Column
    """Which query of the card, int64."""
    slot: Column
    """Of that query, int64."""
    first: Column
    """The first base slot of the slot."""
    last: Column
    window: Column
    """In base slots, float64; infinite for ever."""
    epsilon: Column
    """The same."""
    users: Column
    spent: Column
    """Units, int64, as what follows."""
    in_window: Column

    def take(self, which: Column) -> Rows:
        """Some of them, by a mask or in another order."""
        return Rows(*(one[which] for one in self))


def ledger_faults(card: Record, read: Read, notices: list[str]) -> Iterator[str]:
    """What is wrong with the ledger, or between it and the releases."""
    tables = read.of("ledger")
    if not tables:
        if any("ledger" in run["files"] for run in card["runs"]):
            yield "the ledger has no row that can be read: restore the one that the run wrote"
        return
    queries = queries_of(card["data"])
    changed = [one for one in tables if FIGURES[0] in one[1].column_names]
    fixed = [one for one in tables if FIGURES[0] not in one[1].column_names]
    yield from _booked(card, queries, tables)
    accounts: list[Account] = []
    if fixed:
        rows = _rows(queries, fixed)
        yield from _misplaced(queries, rows)
        accounts = _accounts(card, queries, _released(card, queries, rows))
        yield from _wrong_accounts(card, queries, accounts)
    if changed:
        yield from changing_faults(card, accounts, changed, notices)


# ---- rows ------------------------------------------------------------------------------------


def _booked(card: Record, queries: Sequence[StatedQuery], tables: Tables) -> Iterator[str]:
    """Whether every released slot has rows, and no other has any."""
    wanted = {
        (slot, at)
        for at, query in enumerate(queries)
        for slot in released_slots(card, query, "ledger")
    }
    found: set[tuple[int, int]] = set()
    for path, table in tables:
        here = set(zip(*(one.tolist() for one in _slots(queries, path, table)), strict=True))
        twice = found & here
        if twice:
            raise Fault(f"{path}: slot {min(twice)[0]} is in an earlier file of the ledger as well")
        found |= here
    for slot, at in sorted(wanted - found)[:1]:
        yield (
            f"slot {slot}{_of(queries, at)} was released, and the ledger has no row of it: no "
            "reader can tell what it cost; restore the ledger that the run wrote"
        )
    for slot, at in sorted(found - wanted)[:1]:
        yield (
            f"the ledger books slot {slot}{_of(queries, at)}, which no run of the card released: "
            "bring back the card and the releases that belong to it"
        )


def _slots(queries: Sequence[StatedQuery], path: str, table: pa.Table) -> tuple[Column, Column]:
    """Slot of each row, and which query of the card it is of, -1 for none. Raises Fault."""
    slots = numbers(path, table, "slot")
    if queries[0].name is not None:
        numbered = {query.name: at for at, query in enumerate(queries)}
        names = column(path, table, "query")
        return slots, np.array([numbered.get(name, -1) for name in names], np.int64)
    if (np.diff(slots) < 0).any():
        raise Fault(f"{path}: slots are not in order: restore the ledger that the run wrote")
    return slots, np.zeros_like(slots)


def _of(queries: Sequence[StatedQuery], at: int) -> str:
    if at < 0:
        return " of a query that the card has not"
    name = queries[at].name
    return "" if name is None else f" of query {name}"


def _place(query: StatedQuery) -> str:
    """Words for where its slots are booked."""
    return "the ledger" if query.name is None else f"query {query.name} in the ledger"


def _rows(queries: Sequence[StatedQuery], tables: Tables) -> Rows:
    """The rows that book slots to classes. Raises Fault."""
    parts = []
    for path, table in tables:
        window = numbers(path, table, "window").astype(np.float64)
        slots, query = _slots(queries, path, table)
        parts.append(
            Rows(
                query,
                slots,
                numbers(path, table, "first_base_slot"),
                numbers(path, table, "last_base_slot"),
                np.where(window < 0, np.inf, window),
                floats(path, table, "epsilon"),
                numbers(path, table, "users"),
                units(path, table, "spent"),
                units(path, table, "spent_in_window"),
            )
        )
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


def _misplaced(queries: Sequence[StatedQuery], rows: Rows) -> Iterator[str]:
    """Whether the slot of every row is the one of its base slots."""
    begin, end = _base_slots(queries, rows)
    other = (rows.query >= 0) & ((begin != rows.first) | (end != rows.last))
    for at in np.flatnonzero(other)[:1]:
        yield (
            f"slot {rows.slot[at]}{_of(queries, rows.query[at])} in the ledger does not begin with "
            f"base slot {rows.first[at]} and end with {rows.last[at]}: restore the ledger that the "
            "run wrote"
        )


def _base_slots(queries: Sequence[StatedQuery], rows: Rows) -> tuple[Column, Column]:
    """The first and the last base slot of the slot of each row."""
    first, following = rows.slot.copy(), rows.slot + 1
    for at, query in enumerate(queries):
        mine = rows.query == at
        first[mine] = query.cut.firsts(rows.slot[mine])
        following[mine] = query.cut.firsts(rows.slot[mine] + 1)
    return first, following - 1


def _released(card: Record, queries: Sequence[StatedQuery], rows: Rows) -> Rows:
    """The rows by slot, query and class, without those of slots beyond the card's.

    Base slots are those of their slots, whatever the rows say.
    """
    known = np.zeros(len(rows.slot), np.bool_)
    for at, query in enumerate(queries):
        slots = list(released_slots(card, query, "ledger")) or [0]
        known |= (rows.query == at) & (rows.slot >= min(slots)) & (rows.slot <= max(slots))
    rows = rows.take(known)
    first, last = _base_slots(queries, rows)
    rows = rows._replace(first=first, last=last)
    return rows.take(np.lexsort((rows.epsilon, rows.window, rows.query, rows.last)))


# ---- accounts --------------------------------------------------------------------------------


def _accounts(card: Record, queries: Sequence[StatedQuery], rows: Rows) -> list[Account]:
    """One account for each class of the card. Raises Fault where the ledger is of others."""
    promise = card["promise"]
    classes = sorted(promise["classes"], key=class_key)
    if _come_and_go(promise):
        classes = sorted([*classes, *promise.get("in_force", ())], key=class_key)
        which = _known(queries, classes, rows)
    else:
        which = _in_turn(queries, classes, rows)
    places, of_set = list(map(_place, queries)), queries[0].name is not None
    return [
        Account(
            requirement_of(one),
            mine.query,
            mine.slot,
            mine.first,
            mine.last,
            mine.spent,
            mine.in_window,
            places,
            of_set,
        )
        for k, one in enumerate(classes)
        for mine in [rows.take(which == k)]
    ]


def _come_and_go(promise: Record) -> bool:
    """Whether classes are of devices whose requirements change, so that they come and go."""
    return promise["guarantee"] == LOCAL_EVENTS and bool(promise.get("requirements_change"))


def _in_turn(queries: Sequence[StatedQuery], classes: Sequence[Record], rows: Rows) -> Integers:
    """The class of each row, where each booked slot has one for each class. Raises Fault."""
    size = len(classes)
    begins = np.flatnonzero(
        np.diff(rows.slot, prepend=rows.slot[:1] - 1) | np.diff(rows.query, prepend=-1)
    )
    counts = np.diff(np.append(begins, len(rows.slot)))
    other = np.flatnonzero(counts != size)
    if other.size:
        at = int(begins[other[0]])
        fewer = counts[other[0]] < size
        why = "there is no row of it for every class" if fewer else "a row of it is there twice"
        raise Fault(
            f"slot {rows.slot[at]} of {_place(queries[rows.query[at]])} has "
            f"{counts[other[0]]} classes of users, and the card promises to {size}: {why}, or one "
            "of the two is of another stream"
        )
    which = np.tile(np.arange(size), len(begins))
    for name in ("window", "epsilon", "users"):
        stated = [np.inf if one[name] is None else one[name] for one in classes]
        meant, written = np.asarray(stated, np.float64)[which], getattr(rows, name)
        other = np.flatnonzero(written != meant)
        if other.size:
            at = int(other[0])
            raise Fault(
                f"slot {rows.slot[at]} of {_place(queries[rows.query[at]])} has "
                f"{written[at]:g} as {name} of a class of which the card says {meant[at]:g}: one "
                "of the two was changed, or is of another stream"
            )
    return which


def _known(queries: Sequence[StatedQuery], classes: Sequence[Record], rows: Rows) -> Integers:
    """The class of each row, by its requirement. Raises Fault."""
    numbered = {(one["window"], one["epsilon"]): k for k, one in enumerate(classes)}
    asked = zip(rows.window.tolist(), rows.epsilon.tolist(), strict=True)
    which = np.array([numbered.get(one, -1) for one in asked], np.int64)
    strange = np.flatnonzero(which < 0)
    if strange.size:
        at = int(strange[0])
        raise Fault(
            f"slot {rows.slot[at]} of the ledger has users with epsilon {rows.epsilon[at]:g} over "
            f"{rows.window[at]:g} slots, and the card promises that to no user"
        )
    return which


# ---- promises --------------------------------------------------------------------------------


def _wrong_accounts(
    card: Record, queries: Sequence[StatedQuery], accounts: Sequence[Account]
) -> Iterator[str]:
    """Whether every window of every class is within what the card promises."""
    promise = card["promise"]
    local = promise["guarantee"] == LOCAL_EVENTS
    at_once = local and "turns=" in card["mechanism"]
    changes = _come_and_go(promise)
    grants, until = _grants(card), _until(card, queries, accounts)
    classes = sorted(promise["classes"], key=class_key)
    for k, account in enumerate(accounts):
        if not account.spent.size:
            continue
        stated = classes[k] if k < len(classes) else {}
        look = int(to_units(float(stated.get("look", 0.0))))
        if local:
            found = on_devices(account, changes=changes, at_once=at_once)
            yield from wrong_account(account, found)
        elif "limits" in stated:
            yield from _limited(card, queries, stated, accounts, k, look, until)
        else:
            yield from wrong_account(account, in_windows(account, look, grants, until))


def _grants(card: Record) -> list[int]:
    """Slots from which on one budget forever was granted again. Raises Fault."""
    found, granted = [], 0
    for run in card["runs"]:
        now = run.get("granted_again", 0)
        if now > granted:
            found.append(run["first_slot"])
        granted = now
    stated = card["promise"].get("granted_again", 0)
    if granted != stated or len(found) != stated:
        raise Fault(
            f"the card says that the budget was granted again {stated} times, and its runs tell of "
            f"{len(found)}: restore the card that the run wrote"
        )
    return found


def _until(card: Record, queries: Sequence[StatedQuery], accounts: Sequence[Account]) -> int:
    """The base slot up to which all queries were answered."""
    ends = [
        int(account.last[account.query == query].max(initial=-1))
        for query in range(len(queries))
        for account in accounts
        if (account.query == query).any()
    ]
    goes_on = "passes" in card["runs"][-1] or card["runs"][-1].get("open", False)
    return (max if goes_on else min)(ends, default=0)


def _limited(
    card: Record,
    queries: Sequence[StatedQuery],
    stated: Record,
    accounts: Sequence[Account],
    k: int,
    look: int,
    until: int,
) -> Iterator[str]:
    """Where users count in a few slots only; of a limit that the run chose any may be it."""
    account, tries = accounts[k], []
    # Where users move, who is of a class may have been of any before it.
    most = np.max([one.spent for one in accounts[: k + 1]], axis=0)
    for reaches in _reaches(card, queries, stated):
        found = in_reach(account, account.spent, look, reaches, until)
        if card["promise"].get("requirements_change"):
            found = _moved(account, found, in_reach(account, most, look, reaches, until))
        tries.append(list(wrong_account(account, found)))
    if all(tries):
        yield from min(tries, key=len)


def _moved(account: Account, alone: Recount, moved: Recount) -> Recount:
    """Until a user moves, classes pay for themselves alone, and then for those before as well."""
    cost = np.where(alone.cost == account.in_window, alone.cost, moved.cost)
    return Recount.exact(cost, moved.what)


def _reaches(
    card: Record, queries: Sequence[StatedQuery], stated: Record
) -> Iterator[dict[int, Reach]]:
    """What a window can reach of each query, under each limit that a class may have."""
    adjacency = card["promise"]["adjacency"]
    numbered = {query.name: at for at, query in enumerate(queries)}
    found: dict[int, list[Reach]] = {}
    for limit in stated["limits"]:
        at = numbered.get(limit["query"])
        if at is None:
            raise Fault(
                f"the card limits the slots of query {limit['query']!r}, which it does not have: "
                "restore the card that the run wrote"
            )
        over, neighbours = requirement_of({**stated, "epsilon": limit["epsilon"]}), adjacency
        if not isinstance(over, Lifetime):
            over = Requirement(_slots_met(over.window, queries[at]), over.epsilon)
            # A window may have a part of a slot of several base slots: events are replaced there.
            neighbours = adjacency if queries[at].length == 1 else REPLACE
        found[at] = list(_of_limit(over, neighbours, limit))
    if len(found) != len(queries):
        raise Fault(
            "the card does not say of every query in how many slots users count: restore the "
            "card that the run wrote"
        )
    for each in product(*found.values()):
        yield dict(zip(found, each, strict=True))


def _of_limit(over: Requirement, adjacency: str, limit: Record) -> Iterator[Reach]:
    """What a window can reach under each of the limits that a run may have chosen."""
    most = limit["max_slots"]
    some = most if isinstance(most, list) else [most]
    if not some:
        raise Fault("the card does not say which participation limit the run chose: bring it back")
    for one in some:
        shape = {name: limit[name] for name in ("blocks", "in_life", "chosen")}
        yield reach_of(over, adjacency, max_slots=one, **shape)


def _slots_met(window: int, query: StatedQuery) -> int:
    """How many slots of a query a window of base slots can meet."""
    if isinstance(query.length, Months):
        return months_met(window, query.length.months, query.length.per_day)
    return slots_met(window, query.length)

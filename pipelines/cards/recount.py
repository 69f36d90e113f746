"""What ledgers add up to, counted anew: by sums of their own, not by the filters of a release.

Nothing here is imported from the accounting of mechanisms, from their limits or from query sets:
bounds are worked out again from what the card states. All figures are whole units of 2^-40 epsilon,
as Python has integers or as int64, so nothing is rounded. What is found wrong comes as lines for
people.

A row of a ledger books what a slot of a query costs a class of users. Slots of a query are of one
or several base slots, windows are of base slots, and a single count is a query of base slots. A
booking counts whole in every window that its slot meets.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamveil.mechanisms.core.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError, Lifetime, Requirement

Integers = Units
Faults = Iterator[str]

SMALLEST = "restore the ledger that the run wrote; if it is that one, report it as a fault"

_PART, _LOOK = 20, 25
"""One in so many units of a budget measures what a limit leaves out, or chooses a limit."""


@dataclass(frozen=True)
class Account:
    """What a class of users was charged, in the order in which slots ended; shape (N,)."""

    requirement: Requirement
    """Windows in base slots."""
    query: Integers
    """Which query the booked slot is of: its number."""
    slot: Integers
    """The booked slot, in slots of its query."""
    first: Integers
    """The first base slot of the booked slot."""
    last: Integers
    spent: Units
    in_window: Units
    """As the ledger says."""
    places: Sequence[str]
    """Words for the slots of each query: whose, or of what."""
    of_set: bool
    """Whether queries of a set share the budget, so that windows are said in base slots."""

    @property
    def cap(self) -> int:
        """What a window may cost."""
        return int(to_units(self.requirement.epsilon))

    @property
    def name(self) -> str:
        """Words for the class."""
        one = self.requirement
        forever = isinstance(one, Lifetime)
        unit = "base slots" if self.of_set else "slots"
        over = "for ever" if forever else f"over {one.window} {unit}"
        return f"epsilon {one.epsilon:g} {over}"

    def place(self, at: int) -> str:
        """Words for a booking."""
        return f"slot {self.slot[at]} of {self.places[int(self.query[at])]}"


@dataclass(frozen=True)
class Recount:
    """What an account adds up to, and between what its ledger may say that; shape (N,)."""

    cost: Units
    """Of what the promise bounds."""
    least: Units
    most: Units
    what: str
    """Words for what has that cost."""

    @classmethod
    def exact(cls, sums: Units, what: str) -> Recount:
        """Where the ledger must say just that."""
        return cls(sums, sums, sums, what)


def wrong_account(account: Account, found: Recount) -> Faults:
    """Where more was spent than promised, or the ledger says something else; the first of each."""
    over = np.flatnonzero(found.cost > account.cap)
    if over.size:
        at = int(over[0])
        yield (
            f"{account.place(at)}: {found.what} cost {shown(found.cost[at])}, and the card "
            f"promises {account.name}: do not publish more of this stream before it is known which "
            "of the two is wrong"
        )
    stated = account.in_window
    other = np.flatnonzero((stated < found.least) | (stated > found.most))
    if other.size:
        at = int(other[0])
        least, most = shown(found.least[at]), shown(found.most[at])
        yield (
            f"{account.place(at)} says {shown(stated[at])} as spent_in_window of the class "
            f"{account.name}, and the rows add up to "
            f"{least if least == most else f'{least} to {most}'}: {SMALLEST}"
        )


def shown(units: int) -> str:
    """Units as epsilon, exactly enough to tell one unit from none."""
    return f"{float(to_epsilon(units)):.13g}"


# ---- windows ---------------------------------------------------------------------------------


def in_windows(account: Account, look: int, grants: Sequence[int], until: int) -> Recount:
    """What the fullest window cost that meets each slot, as far as it was booked by then.

    Args:
        account: of the class.
        look: units that a look at bounds cost, in every window.
        grants: base slots from which on one budget forever was granted again.
        until: the base slot up to which all queries were answered. Slots of queries that end later
            are answered as well, and what others would have cost then is set aside.
    """
    forever = isinstance(account.requirement, Lifetime)
    sums = np.zeros(len(account.spent), np.int64)
    granted = np.searchsorted(np.asarray(grants, np.int64), account.first, "right")
    for time in np.unique(granted):
        some = granted == time
        first, last = account.first[some], account.last[some]
        window = int(last.max() - first.min()) + 1 if forever else account.requirement.window
        sums[some] = window_sums(first, last, account.spent[some], window, look)
    what = "all slots of the budget" if forever else "the window that ends with it"
    return _exact_until(until, account, sums, "a window of all queries" if account.of_set else what)


def _exact_until(until: int, account: Account, sums: Units, what: str) -> Recount:
    """Sums that the ledger must say up to a base slot, and that are a least from there on."""
    most = np.where(account.last > until, np.maximum(sums, account.in_window), sums)
    return Recount(sums, sums, most, what)


def window_sums(
    first: Integers, last: Integers, spent: Units, window: int, reserved: int = 0
) -> Units:
    """Of each booking what the fullest window cost that its slot meets, by then; shape (N,).

    Args:
        first: base slots, shape (N,).
        last: the same, ascending.
        spent: units.
        window: base slots.
        reserved: units that every window costs beside them.
    """
    start = int(first.min())
    window = min(window, int(last[-1]) - start + 1)  # longer ones cost the same
    ends = np.full(int(last[-1]) - start + window, reserved, np.int64)
    sums = np.zeros(len(spent), np.int64)
    begins = np.flatnonzero(np.diff(last, prepend=start - 1))
    for low, high in zip(begins, [*begins[1:], len(last)], strict=True):
        for at in range(low, high):  # in the windows that end with its first base slot, to w - 1 on
            ends[first[at] - start : last[at] - start + window] += spent[at]
        for at in range(low, high):
            sums[at] = ends[first[at] - start : last[at] - start + 1].max()
    return sums


# ---- participation limits --------------------------------------------------------------------


class Reach(NamedTuple):
    """What the events of a window can change of a query whose users count in few of its slots."""

    most: int
    """Slots in which neighbours can differ."""
    slots: int
    """Of so many consecutive ones; 0 for all."""
    aside: int
    """Units that are for no slot: they measure what is left out, or chose the limit."""


def reach_of(
    requirement: Requirement,
    adjacency: str,
    *,
    max_slots: Any,
    blocks: Any,
    in_life: Any,
    chosen: bool = False,
) -> Reach:
    """The reach of a class under a limit of a card, by the theorems of `presence/limits.py`.

    A block is one of j that cover the window w together, and m slots of it count: then (j + 2) m
    slots differ, or (j + 1) m where events are replaced, within w and a block less one slot. If
    that is no less than w, nothing is limited. Of a life so many slots differ as count in it.

    Args:
        requirement: windows in slots of the query.
        adjacency: what neighbouring inputs differ in.
        max_slots: slots m of a block; None for all.
        blocks: how many cover a window, j.
        in_life: slots of a life.
        chosen: whether the run chose the limit, for which users paid.

    Raises ConfigurationError for numbers that no limit has.
    """
    budget, window = int(to_units(requirement.epsilon)), requirement.window
    look = budget // _LOOK if chosen else 0
    most, block = window, -(-window // whole("blocks", blocks))
    if max_slots is not None:
        most = (blocks + (1 if adjacency == REPLACE else 2)) * whole("max_slots", max_slots)
    if isinstance(requirement, Lifetime):
        if max_slots is not None:
            raise ConfigurationError(
                f"max_slots is {max_slots} of a lifetime, which has no blocks of slots: restore "
                "the card that the run wrote"
            )
        return Reach(whole("in_life", in_life), 0, budget // _PART + look)
    if most < window:
        return Reach(most, window + block - 1, budget // _PART + look)
    return Reach(window, window, look)


def slots_met(window: int, slots: int) -> int:
    """How many slots, of so many base slots each, a window of base slots can meet."""
    return -(-(window - 1) // slots) + 1


def months_met(window: int, months: int, per_day: int) -> int:
    """The same of slots of so many calendar months, where a day has so many base slots.

    A window that meets n slots has the n - 2 between as a whole and a base slot of both ends. The
    calendar repeats itself after 400 years.
    """
    begins = np.arange(0, 4800, math.gcd(months, 4800))  # in one cycle of the calendar or another
    met = 1
    while window > met:  # a slot has a base slot at least
        inner = begins + (met - 1) * months
        days = inner.astype("M8[M]").astype("M8[D]") - begins.astype("M8[M]").astype("M8[D]")
        if int(days.astype(np.int64).min()) * per_day + 2 > window:
            break
        met += 1
    return met


def in_reach(
    account: Account, spent: Units, look: int, reaches: Mapping[int, Reach], until: int
) -> Recount:
    """What the dearest slots within reach cost, of every query.

    Windows may meet those of different queries at different times: so of several queries each is
    taken as it was at most so far.

    Args:
        account: of the class.
        spent: units, in place of the account's.
        look: units that a look at bounds cost, in every window.
        reaches: of each query, by its number.
        until: see :func:`in_windows`.
    """
    ends = np.unique(account.last)
    total = np.full(len(ends), look, np.int64)
    for query, (most, slots, aside) in reaches.items():
        mine = account.query == query
        sums = dearest_sums(spent[mine], most, slots) + aside
        if account.of_set:
            sums = np.maximum.accumulate(sums)
        so_far = np.searchsorted(account.last[mine], ends, "right")
        total += np.concatenate([[aside], sums])[so_far]
    which = "slots of all queries" if account.of_set else f"{reaches[0].most} slots"
    what = f"the dearest {which} within reach, and what is aside,"
    return _exact_until(until, account, total[np.searchsorted(ends, account.last)], what)


def dearest_sums(spent: Units, most: int, reach: int) -> Units:
    """Of each slot what the dearest slots within reach of it cost, shape (S,).

    Args:
        spent: in each slot.
        most: how many slots.
        reach: of so many that end with the slot; 0 for all.
    """
    kept: list[int] = []
    sums = np.zeros(len(spent), np.int64)
    for at, amount in enumerate(spent.tolist()):
        bisect.insort(kept, amount)
        if reach and at >= reach:
            del kept[bisect.bisect_left(kept, int(spent[at - reach]))]
        sums[at] = sum(kept[-most:])
    return sums


# ---- the local model -------------------------------------------------------------------------


def on_devices(account: Account, *, changes: bool, at_once: bool) -> Recount:
    """The window of the dearest user of a class, whose slots need not be those of one user.

    So it cost at least what its dearest slot cost, and at most what all of them did.

    Args:
        account: of the class.
        changes: whether users come and go: then the slots before were others'.
        at_once: whether a window is booked whole with its first slot, as turns are.
    """
    window, spent, in_window = account.requirement.window, account.spent, account.in_window
    least, most = spent, np.maximum(in_window, spent)
    if not changes:
        least = _largest(spent, window)
        most = most if at_once else window_sums(account.first, account.last, spent, window)
    return Recount(in_window, least, most, "the window of one user that ends with it")


def _largest(spent: Units, window: int) -> Units:
    """Of each slot the largest of the window that ends with it."""
    ahead = np.concatenate([np.zeros(min(window, len(spent)) - 1, np.int64), spent])
    views = np.lib.stride_tricks.sliding_window_view(ahead, min(window, len(spent)))
    largest: Units = views.max(axis=1)
    return largest

"""What ledgers add up to, counted anew: by sums of their own, not by the filters of a release.

All figures are whole units of 2^-40 epsilon, as Python has integers or as int64, so nothing is
rounded. What is found wrong comes as lines for people.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.core.records import Lifetime, Requirement

Integers = Units
Told = Iterator[str]

SMALLEST = "restore the ledger that the run wrote; if it is that one, report it as a fault"


@dataclass(frozen=True)
class ClassLedger:
    """What the slots of a stream cost one class, in order; arrays of shape (S,), units."""

    requirement: Requirement
    slots: Integers
    """Without gaps."""
    spent: Units
    in_window: Units
    """As the ledger says."""

    @property
    def cap(self) -> int:
        """What a window may cost."""
        return int(to_units(self.requirement.epsilon))

    @property
    def name(self) -> str:
        """Words for the class."""
        one = self.requirement
        over = "for ever" if isinstance(one, Lifetime) else f"over {one.window} slots"
        return f"epsilon {one.epsilon:g} {over}"


def window_sums(spent: Units, window: int) -> Units:
    """Of each slot what the window that ends with it cost, shape (S,)."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(spent)])
    ends = np.arange(1, len(spent) + 1)
    sums: Units = total[ends] - total[np.maximum(ends - window, 0)]
    return sums


def life_sums(spent: Units, slots: Integers, grants: Sequence[int]) -> Units:
    """Of each slot what all slots since the budget was last granted cost, shape (S,)."""
    sums = np.cumsum(spent)
    for first in grants:
        start = int(np.searchsorted(slots, first))
        if start < len(sums):
            sums[start:] -= sums[start] - spent[start]
    return sums


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


def wrong_sums(ledger: ClassLedger, sums: Units, what: str) -> Told:
    """What is wrong where a class has spent so much, by a count of our own."""
    yield from beyond(ledger, sums, what)
    other = np.flatnonzero(sums != ledger.in_window)
    if other.size:
        at = int(other[0])
        yield (
            f"slot {ledger.slots[at]} of the ledger says {shown(ledger.in_window[at])} as "
            f"spent_in_window of the class {ledger.name}, and its rows add up to "
            f"{shown(sums[at])}: {SMALLEST}"
        )


def beyond(ledger: ClassLedger, sums: Units, what: str) -> Told:
    """Where more was spent than promised."""
    over = np.flatnonzero(sums > ledger.cap)
    if over.size:
        at = int(over[0])
        yield (
            f"slot {ledger.slots[at]} of the ledger: {what} cost {shown(sums[at])}, and the card "
            f"promises {ledger.name}: do not publish more of this stream before it is known which "
            "of the two is wrong"
        )


def shown(units: int) -> str:
    """Units as epsilon, exactly enough to tell one unit from none."""
    return f"{float(to_epsilon(units)):.13g}"


def wrong_local(ledger: ClassLedger, *, changes: bool, at_once: bool = False) -> Told:
    """What is wrong of the dearest user of a class, whose slots need not be those of one user.

    Args:
        ledger: of the class.
        changes: whether users come and go.
        at_once: whether a window is booked whole with its first slot, as turns are.
    """
    window = ledger.requirement.window
    yield from beyond(ledger, ledger.in_window, "the window of one user that ends with it")
    least = ledger.spent if changes else _largest(ledger.spent, window)
    most = ledger.in_window if at_once else window_sums(ledger.spent, window)
    for wrong, what in (
        (ledger.in_window < least, "less than a slot of that window alone"),
        (ledger.in_window > most, "more than its slots together"),
    ):
        at = np.flatnonzero(wrong)
        if at.size:
            yield (
                f"slot {ledger.slots[at[0]]} of the ledger says "
                f"{shown(ledger.in_window[at[0]])} as spent_in_window of the class {ledger.name}, "
                f"{what}: {SMALLEST}"
            )


def _largest(spent: Units, window: int) -> Units:
    """Of each slot the largest of the window that ends with it."""
    ahead = np.concatenate([np.zeros(min(window, len(spent)) - 1, np.int64), spent])
    views = np.lib.stride_tricks.sliding_window_view(ahead, min(window, len(spent)))
    largest: Units = views.max(axis=1)
    return largest


@dataclass(frozen=True)
class Answer:
    """What an answer cost a class, and of which base slots it is."""

    question: str
    first: int
    last: int
    spent: int
    in_window: int


def wrong_portfolio(
    requirement: Requirement, look: int, answers: Sequence[Answer], until: int
) -> Told:
    """What is wrong of the answers to all questions, in the order of their last base slots.

    An answer counts whole in every window of base slots that it meets.

    Args:
        requirement: of the class, windows in base slots.
        look: units that a look at bounds cost, in every window.
        answers: that the class paid for.
        until: the base slot up to which all questions were answered. Slots of questions that end
            later are answered as well, and what others would have cost then is set aside.
    """
    if not answers:
        return
    window, cap = requirement.window, int(to_units(requirement.epsilon))
    start = min(one.first for one in answers)
    sums = np.full(max(one.last for one in answers) - start + window, look, np.int64)
    told_over = told_other = False
    for last in sorted({one.last for one in answers}):
        ended = [one for one in answers if one.last == last]
        for one in ended:  # in the windows that end with its first base slot, to w - 1 after it
            sums[one.first - start : last - start + window] += one.spent
        for one in ended:
            fullest = int(sums[one.first - start : last - start + 1].max())
            if fullest > cap and not told_over:
                told_over = True
                yield (
                    f"base slots {one.first} to {last} of the ledger: a window of all questions "
                    f"cost {shown(fullest)}, and the card promises epsilon "
                    f"{requirement.epsilon:g} over {window} base slots: do not publish more of "
                    "this stream before it is known which of the two is wrong"
                )
            same = fullest <= one.in_window if last > until else fullest == one.in_window
            if not same and not told_other:
                told_other = True
                yield (
                    f"base slots {one.first} to {last} of the ledger, question {one.question}: "
                    f"spent_in_window is {shown(one.in_window)} for epsilon "
                    f"{requirement.epsilon:g} over {window} base slots, and the rows add up to "
                    f"{shown(fullest)}: {SMALLEST}"
                )
    if int(sums.max()) > cap and not told_over:
        yield (
            f"the ledger: a window of all questions cost {shown(int(sums.max()))}, and the card "
            f"promises epsilon {requirement.epsilon:g} over {window} base slots"
        )

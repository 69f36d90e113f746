"""Limits on the slots in which a user counts, and what a slot may cost under them.

**Rule 1, for windows of w slots.** A user has a calendar of blocks of B = ceil(w / j) slots: slot t
is in block floor((t + phase) / B). The phase is drawn with a key and depends on nothing else. In
each block the first m slots in which the user has events count, and the others do not.

Theorem. Let one input have a user's events in w consecutive slots, the window, and the other have
none there; all else is the same. Then the user counts in only one of the two inputs in at most
(j + 2) m slots.
Proof. What counts in a block depends on the user's events in that block alone, so only blocks that
the window touches can differ: at most j + 1, as B j >= w.
- In the first of them the window comes last. What is before it is the same in both inputs, and at
  most m slots of the window count.
- Of each of the j - 1 between, at most m slots count.
- In the last the window comes first. If l <= m slots of it count, at most l behind it count in
  their place once they are removed.
Together that is m + (j - 1) m + 2 m. A window that touches fewer blocks changes less. The bound is
tight where w >= (j - 1) B + 2 m.

Theorem. If the events of the window are replaced by any others, what the user contributes changes
by at most 2 (j + 1) m units: 2 for a slot that counts in both inputs, 1 for one that counts in one.
Proof. In each of the j + 1 blocks, up to the end of the window, each input counts in at most m
slots. In the last block let one input count in a slots of the window and the other in b: behind it
they differ in at most |a - b| slots, and a + b + |a - b| = 2 max(a, b) <= 2 m.

To remove some slots of the window and keep the others is to replace it: those that are kept may
count in place of the removed ones, in each block. So up to 2 (j + 1) m slots differ, and not
(j + 2) m.

So a slot may cost c = E / ((j + 2) m). Under `replace` it is E / ((j + 1) m), a price for a change
of two units, since the loss of a mechanism is linear in units. Each slot has that price by itself.
It is no budget for windows of (j + 2) m slots: the slots that differ need not be consecutive, so
what one does not spend cannot be saved for another. A ledger takes it as a requirement of one slot.
Prices may depend on earlier releases, as everywhere: sequential composition needs no more than that
each is at most c.

A limit gains something only where its bound is less than w. Elsewhere nothing is limited, and a
slot costs what it did: a limit priced at E / w would not be private (w = 5, m = 2, j = 1 differs in
6 slots).

**Rule 2, for a life.** The first M slots of a user that pass rule 1, or simply the first M with
events, count, and no others ever. All that a user ever contributes then costs at most M slots.

Theorem. Under both rules, if the events of a window are removed, at most 2 min((j + 1) m, M) slots
differ; under rule 2 alone, 2 min(w, M). If they are replaced, as many units differ.
Proof. Let P and Q be the slots that pass rule 1 without and with the events of the window, and T(P)
and T(Q) the first M of each. Behind the window P passes wherever Q does, and up to any slot Q has
passed no fewer. So what is in T(Q) and not in T(P) lies in the window: l slots, with
l <= (j + 1) m and l <= M. If T(Q) has M slots, T(P) has no more of them, so at most l of T(P) are
not in T(Q). If T(Q) has fewer, the life cuts nothing off Q. P has beside it only what rule 1 lets
count in place of what was lost in the last block: l slots at most.
Replaced: let one input count in a slots of the window and the other in b, a' and b' of these in the
last block, a' >= b'. Behind the window the other first passes in x <= a' - b' more slots. Then both
pass in the same ones, until they reach M: their ends differ in at most |a - b - x| slots. Now
a + b + x + |a - b - x| is 2 a or 2 (b + x), and neither a nor b + a' - b' is above (j + 1) m. It is
at most 2 M because neither input counts in more than M slots.

Where the promise is for a whole life (a :class:`Lifetime`), neighbours differ in all events of a
user and not only in those of a window. Then nothing is left that could count in the place of what
is removed: M slots differ, or 2 M units if the events are replaced. So a slot may cost E / M for
ever under either adjacency. To remove a part of a life is to replace it: it may cost 2 E where the
price is for lives that are removed.

`tests/mechanisms/presence` enumerates all of this. It also shows why no limit slides: under "at
most m of the last w slots" differences never end, for what is kept after a window depends on what
was kept in it.

Source: our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamveil.mechanisms.accounting.presence_filter import FOREVER, PresenceTerms
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements, to_units
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    MAX_WINDOW,
    REPLACE,
    ConfigurationError,
    Lifetime,
    Requirement,
    leave_shares,
)
from streamveil.mechanisms.core.wording import opt

BLOCKS = 2
"""Blocks of a window, where nothing else is asked for. More or fewer gain little."""
PART = 20
"""One in so many units of a budget is for the share that is kept."""
LOOK = 25
"""One in so many units of a budget is for the look by which a limit is chosen (`choice.py`)."""
WORTH = 3
"""A limit is worth what it leaves out if a slot then costs so many times more."""
GAIN, LOSS = 0.6, 2.5
"""The error under a limit is about as g ** -GAIN and s ** -LOSS (see `choice.py`)."""
LEAST = 1.3
"""By how much it must fall in that estimate, which knows no drift and no preference for bins."""
EVERYBODY = 10**10
"""More users than there are people: the public bound where nobody knows who will come. Mechanisms
take it for a bound on counts, and for what to expect before the first release; no more."""
UNLIMITED = MAX_WINDOW * MAX_WINDOW
"""More slots than anybody is present in."""


def block_length(window: int, blocks: int) -> int:
    """Slots B of a block, if so many are to hold a window."""
    return -(-window // blocks)


def effective_window(
    window: int, max_slots: int, blocks: int = BLOCKS, adjacency: str = ADD_REMOVE
) -> int:
    """How many slots can differ where the events of a window do: a slot may cost E by this.

    Args:
        window: slots w of the requirement.
        max_slots: slots m of a block in which a user counts.
        blocks: blocks j of a window.
        adjacency: under `replace` in units of what a slot of both inputs can change by.

    Returns:
        (j + 2) m, or (j + 1) m under `replace`; w where that is not less. Then nothing is limited.

    Raises:
        ConfigurationError: for what is no whole number from 1 on, or another adjacency.
    """
    window, max_slots = whole("window", window), whole("max_slots", max_slots)
    beside = {ADD_REMOVE: 2, REPLACE: 1}.get(adjacency)
    if beside is None:
        raise ConfigurationError(
            f"adjacency {adjacency!r} is unknown: choose {ADD_REMOVE} or {REPLACE}"
        )
    return min((whole("blocks", blocks) + beside) * max_slots, window)


def effective_window_in_life(
    window: int, in_life: int, max_slots: int | None = None, blocks: int = BLOCKS
) -> int:
    """The same where users count in so many slots of their life besides, in units of one input.

    Under `replace` half of it is what a slot of both inputs can change by. It is the price of the
    guarantee for windows; that for a life is `in_life` slots.
    """
    lost = whole("window", window)
    if max_slots is not None:
        lost = min((whole("blocks", blocks) + 1) * whole("max_slots", max_slots), lost)
    return 2 * min(lost, whole("in_life", in_life))


def expected_sizes(requirements: Requirements, sizes: Integers) -> Integers:
    """Users of each class that may come, shape (K,): for a lifetime their number is unknown."""
    return np.where(sizes == 0, EVERYBODY, sizes) if requirements.forever else sizes


def known_sizes(sizes: Integers) -> Integers:
    """The same for people to read: 0 where it is unknown."""
    return np.where(sizes == EVERYBODY, 0, sizes)


def aside(epsilon: float) -> int:
    """Units of a budget that are for the share that is kept and not for slots.

    See `kept_share.py`, and `life_share.py` of a life.
    """
    return to_units(epsilon) // PART


@dataclass(frozen=True)
class Limit(Identified):
    """In how many slots a user counts: in a block of the window, in a life, or in both.

    Raises ConfigurationError for what is no whole number from 1 on, or no limit at all.
    """

    IDENTITY = Form("presence limit", ("max_slots", "blocks", "in_life"), {"chosen": False})

    max_slots: int | None
    """Slots of a block; None for all."""
    blocks: int = BLOCKS
    """Blocks of a window."""
    in_life: int | None = None
    """Slots forever; None for all."""
    chosen: bool = False
    """Whether it was chosen by a private look at the users, which they pay for."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        whole("blocks", self.blocks)
        given = [one for one in (self.max_slots, self.in_life) if one is not None]
        if not given:
            raise ConfigurationError(
                "a participation limit is empty: give the slots of a block (max_slots), or "
                "of a life (in_life)"
            )
        for one in given:
            whole("max_slots", one)

    @property
    def is_none(self) -> bool:
        """Whether users count in every slot, whatever they ask for."""
        return self.in_life is None and self.max_slots == MAX_WINDOW

    @property
    def stated(self) -> int | None:
        """Slots of a block as a card states them; None for all."""
        return None if self.is_none else self.max_slots

    def applies(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> bool:
        """Whether rule 1 applies to those who ask for this: only if it gains anything."""
        if self.max_slots is None or isinstance(requirement, Lifetime):
            return False
        window = requirement.window
        return effective_window(window, self.max_slots, self.blocks, adjacency) < window

    def rule(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> tuple[int, int, int]:
        """Slots of a block, how many of them count, and how many in a life.

        Without a limit, a block is a slot.
        """
        in_life = UNLIMITED if self.in_life is None else self.in_life
        if not self.applies(requirement, adjacency):
            return 1, 1, in_life
        assert self.max_slots is not None
        return block_length(requirement.window, self.blocks), self.max_slots, in_life

    def slots(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> int:
        """By how many slots the budget is divided: what a user's neighbours can differ in.

        With a :class:`Lifetime`, neighbours differ in all of a user's events; else in those of a
        window.
        """
        if isinstance(requirement, Lifetime):
            if self.in_life is None:
                raise ConfigurationError(
                    f"{requirement} needs a limit for a life: give the slots in which a user "
                    "counts (in_life)"
                )
            return self.in_life
        window = requirement.window
        if self.in_life is None:
            if not self.applies(requirement, adjacency):
                return window
            assert self.max_slots is not None
            return effective_window(window, self.max_slots, self.blocks, adjacency)
        limited = self.max_slots if self.applies(requirement, adjacency) else None
        units = effective_window_in_life(window, self.in_life, limited, self.blocks)
        return units // 2 if adjacency == REPLACE else units

    def priced(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> Requirement:
        """What a ledger is to keep so that the requirement is kept: a most for every slot.

        It is the requirement itself where nothing is limited. Exact: whole units, rounded down.

        Raises ConfigurationError where nothing would be left for a slot.
        """
        slots = self.slots(requirement, adjacency)
        budget = to_units(requirement.epsilon) - self.aside(requirement, adjacency)
        if self.in_life is None and not self.applies(requirement, adjacency):
            if not self.chosen:
                return requirement
            return Requirement(requirement.window, math.ldexp(budget, -UNIT_BITS))
        price = budget // slots
        if not price:
            raise _too_little(requirement, slots)
        return Requirement(1, math.ldexp(price, -UNIT_BITS))

    def aside(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> int:
        """Units that are not for slots.

        They are for the share that is kept, where that is asked for, and for the look at users, if
        that chose the limit.
        """
        asked = isinstance(requirement, Lifetime) or self.applies(requirement, adjacency)
        kept = aside(requirement.epsilon) if asked else 0
        return kept + (to_units(requirement.epsilon) // LOOK if self.chosen else 0)

    def reach(self, requirement: Requirement, adjacency: str) -> int:
        """Consecutive slots in which neighbours can differ."""
        if self.in_life is not None:
            return FOREVER
        return requirement.window + self.rule(requirement, adjacency)[0] - 1

    def pays(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> bool:
        """Whether it gains more than it leaves out; a limit of a life always does."""
        if self.max_slots is None or isinstance(requirement, Lifetime):
            return True
        return self.slots(requirement, adjacency) * WORTH <= requirement.window

    def kept_share_needed(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> float:
        """The fraction of slots with events that must be kept for errors to be sure to fall.

        It is above 1 where nothing would do.
        """
        gain = requirement.window / self.slots(requirement, adjacency)
        return float((LEAST / gain**GAIN) ** (1 / LOSS))

    def most_present(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> float:
        """In which fraction of the slots users may be present for errors to be sure to fall.

        As where a limit is chosen by a public rate, users who come in some slots of a block are
        taken to have a long tail of others. It is 0 where the limit does not help anybody.
        """
        assert self.max_slots is not None
        dropped = 1 - self.kept_share_needed(requirement, adjacency)
        more = max(dropped, 0.0) ** (1 / self.max_slots)
        return more / (1 - more) / block_length(requirement.window, self.blocks)

    def check(self, requirement: Requirement, adjacency: str = ADD_REMOVE) -> None:
        """Refuse a limit of the window that leaves out more than it gains.

        Raises ConfigurationError, which says what would do better.
        """
        if self.pays(requirement, adjacency):
            return
        assert self.max_slots is not None
        window, gained = requirement.window, self.slots(requirement, adjacency)
        over, best = number_of(window, "slot"), self._best(requirement, adjacency)
        fewer, rarely = replace(self, blocks=BLOCKS), "appear rarely"
        if best:
            remedy = f"give at most max_slots={best}"
            rarely = replace(self, max_slots=best)._rarely(requirement, adjacency)
        elif self.blocks > BLOCKS and (best := fewer._best(requirement, adjacency)):
            best = min(best, self.max_slots)
            remedy = f"give fewer blocks, such as max_slots={best},{BLOCKS}"
            rarely = replace(fewer, max_slots=best)._rarely(requirement, adjacency)
        else:
            remedy = "give longer windows"
        if gained >= window:
            raise ConfigurationError(
                f"max_slots={self.max_slots} in each of {self.blocks} blocks saves nothing over "
                f"{over}: a slot would cost what it costs without a limit. If users {rarely}, "
                f"{remedy}; otherwise leave the limit out"
            )
        raise ConfigurationError(
            f"max_slots={self.max_slots} in each of {self.blocks} blocks does not help over "
            f"{over}: a slot would cost 1/{gained} of the budget, and the events dropped cost "
            f"more accuracy than that gains. If users {rarely}, {remedy}; otherwise leave "
            "the limit out"
        )

    def check_all(self, requirements: Sequence[Requirement], adjacency: str = ADD_REMOVE) -> None:
        """Refuse a limit that pays for nobody: not for the longest window, nor for any other.

        Raises ConfigurationError, which says what would do for the longest and for the shortest.
        """
        shortest = min(requirements, key=lambda one: one.window)
        longest = max(requirements, key=lambda one: one.window)
        try:
            self.check(longest, adjacency)
        except ConfigurationError as error:
            if shortest.window == longest.window:
                raise
            best = self._best(shortest, adjacency)
            most = f"at most max_slots={best} does" if best else "none does"
            raise ConfigurationError(
                f"{error}. That is the longest window; for the shortest, "
                f"{number_of(shortest.window, 'slot')}, {most}"
            ) from None

    def _rarely(self, requirement: Requirement, adjacency: str) -> str:
        """How rarely users must come, in words."""
        return (
            f"are present in at most {self.most_present(requirement, adjacency):.1%} of the slots"
        )

    def _best(self, requirement: Requirement, adjacency: str) -> int:
        """The most slots of a block that are worth it; 0 if none are."""
        one = Limit(1, self.blocks, self.in_life).slots(requirement, adjacency)
        return requirement.window // (WORTH * one)


EVERY_SLOT = Limit(MAX_WINDOW)
"""Limits nobody."""


def limits_of(
    limit: Limit | None,
    own: Sequence[int | None],
    requirements: Sequence[Requirement],
    adjacency: str = ADD_REMOVE,
    named: Callable[[int], str] | None = None,
) -> tuple[Limit, ...] | None:
    """The limit of each class, K of them; None where nothing is limited.

    Args:
        limit: of classes for which nothing else is said. It is left out where it does not pay.
        own: slots of a block of each class for which that is said, in as many blocks, shape (K,);
            or nothing at all.
        requirements: of each class, shape (K,).
        adjacency: what neighbouring inputs differ in.
        named: what to call the users of a class in what is refused; by their requirement where
            nothing is given.

    Raises:
        ConfigurationError: for one of its own that does not pay; or if the other pays for nobody.
    """
    if limit is None and not any(own):
        return None
    usual = EVERY_SLOT if limit is None else limit
    both = list(zip(requirements, own or [None] * len(requirements), strict=True))
    made = []
    for k, (requirement, most) in enumerate(both):
        if most is not None:
            mine = replace(usual, max_slots=most)
            try:
                mine.check(requirement, adjacency)
            except ConfigurationError as error:
                users = f"users with {requirement}" if named is None else named(k)
                raise ConfigurationError(f"{users}: {error}") from None
            made.append(mine)
        elif usual.pays(requirement, adjacency):
            made.append(usual)
        else:
            unlimited = EVERY_SLOT.max_slots if usual.in_life is None else None
            made.append(replace(usual, max_slots=unlimited))
    others = [requirement for requirement, most in both if most is None]
    if limit is not None and others and limit not in made:
        limit.check_all(others, adjacency)
    return tuple(made)


def priced(
    limits: Iterable[Limit], requirements: Iterable[Requirement], adjacency: str = ADD_REMOVE
) -> Requirements:
    """What a ledger is to keep of each class: see :meth:`Limit.priced`."""
    both = zip(limits, requirements, strict=True)
    return Requirements(limit.priced(one, adjacency) for limit, one in both)


def check_prices(
    limits: Iterable[Limit],
    requirements: Iterable[Requirement],
    adjacency: str = ADD_REMOVE,
    sensitivity: int = 1,
) -> None:
    """Refuse what leaves nothing for a slot in which a user counts, as `check_shares` does.

    Raises ConfigurationError.
    """
    for limit, one in zip(limits, requirements, strict=True):
        made = np.array([limit.priced(one, adjacency).epsilon])
        limited = limit.in_life is not None or limit.applies(one, adjacency)
        if limited and not leave_shares(made, 1, sensitivity).all():
            raise _too_little(one, limit.slots(one, adjacency), sensitivity)


def _too_little(asked: Requirement, slots: int, sensitivity: int = 1) -> ConfigurationError:
    over = "forever" if isinstance(asked, Lifetime) else f"over {number_of(asked.window, 'slot')}"
    return ConfigurationError(
        f"epsilon {asked.epsilon:g} {over} leaves less than 2**-{UNIT_BITS} for each of the "
        f"{number_of(slots, 'slot')} that can differ, at sensitivity {sensitivity}: ask for more "
        f"epsilon, or count users in fewer slots ({opt.max_slots})"
    )


def terms(
    limits: Sequence[Limit],
    requirements: Sequence[Requirement],
    adjacency: str = ADD_REMOVE,
    *,
    moving: bool = False,
) -> PresenceTerms:
    """What the last door checks of each class, whatever a slot may cost.

    `moving` if users may change from class to class (`changing.py`), which ascend by epsilon.
    """
    both = list(zip(limits, requirements, strict=True))
    return PresenceTerms(
        tuple(requirements),
        tuple(limit.slots(one, adjacency) for limit, one in both),
        tuple(limit.reach(one, adjacency) for limit, one in both),
        tuple(limit.aside(one, adjacency) for limit, one in both),
        moving,
    )

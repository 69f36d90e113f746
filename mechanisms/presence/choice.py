"""Which participation limit to choose: by what it gains and leaves out, as far as either is known.

A limit gains a price that is g times that without one, and keeps a share s of the slots in which
users are there. What is known of s is a public rate, or a private look, once and before anything is
limited: of each class, blocks of users are counted by how many of their slots have events. There is
a cell for each limit that may be chosen, of the blocks for which it is the smallest that keeps all
of their slots, and a last one for blocks with more slots than the largest limit. What those in the
last cell have more is added up.

Theorem. Let a user's events in a window of w slots be added or removed. The cells change by at most
j + 3 altogether, or by 2 (j + 1) if the events are replaced. What is added up changes by at most
min((B - most) (j + 1), w), where `most` is the largest limit.
Proof. At most j + 1 blocks are touched. One that lies in the window as a whole is counted in one
input alone, or under `replace` in two cells. One that lies there in part may move from cell to
cell, which changes two. Only the first and the last block can lie there in part, which leaves j - 1
others at most: (j - 1) + 4.
The sum is that of the rest in `kept_share.py`, above one layer of `most` slots.

So one look at noise of rates a and b a unit costs a user (j + 3) a and min(...) b, once, beside
what slots cost. That is taken from the budget for good: the ledger has no windows that end. Which
limit is chosen follows from the answers, from then on it is fixed, and no slot is released before.

Source: our own. The exponents were fitted to `adaptive` on populations of 10,000 users who are
there in 1 to 30 % of the slots, at even and uneven rates, and in visits of a few days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    REPLACE,
    ConfigurationError,
    Lifetime,
    Requirement,
)
from streamveil.mechanisms.presence.calendars import Keys, block_ends, steps
from streamveil.mechanisms.presence.limits import (
    BLOCKS,
    EVERY_SLOT,
    GAIN,
    LEAST,
    LOOK,
    LOSS,
    WORTH,
    Limit,
    block_length,
    effective_window,
    limits_of,
)
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

CAUTION = 1.0
"""Standard errors by which shares are taken to be worse than they look."""


@dataclass(frozen=True)
class Auto(Identified):
    """A participation limit is to be chosen for each class, or none.

    Raises ConfigurationError for a rate that is not above 0 and below 1, or blocks that are no
    whole number.
    """

    IDENTITY = Form("chosen presence limit", ("rate", "blocks"))

    rate: float | None = None
    """In which share of the slots users are there, as is publicly known; None for a private look.
    """
    blocks: int = BLOCKS
    """Blocks of a window."""

    def __post_init__(self) -> None:
        """Check both."""
        whole("blocks", self.blocks)
        rate = self.rate
        if rate is None:
            return
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1:
            raise ConfigurationError(
                f"a presence rate of {rate!r}: give the share of the slots in which users are "
                "there, above 0 and below 1"
            )

    def looks(
        self, own: Sequence[int | None], requirements: Sequence[Requirement], adjacency: str
    ) -> list[Look | None]:
        """What is to be asked of each class: nothing where no limit can be worth it, or is given.

        Arguments are those of `limits.limits_of`. Raises ConfigurationError for a budget that is
        too small to ask anything.
        """
        both = zip(requirements, own or [None] * len(requirements), strict=True)
        made = [(Look(one, self.blocks, adjacency), most) for one, most in both]
        looks = [look if most is None and look.most else None for look, most in made]
        for look in looks:
            if look is not None and self.rate is None:
                look.check()
        return looks

    def limits(
        self,
        looks: Sequence[Look | None],
        own: Sequence[int | None],
        requirements: Sequence[Requirement],
        adjacency: str,
        named: Callable[[int], str] | None = None,
    ) -> tuple[Limit, ...] | None:
        """The limit of each class as far as it is known before anybody looks; None for no limits.

        Who is to be looked at has none so far, and pays for the look.
        """
        every = replace(EVERY_SLOT, blocks=self.blocks)
        known = limits_of(every, own, requirements, adjacency, named) if any(own) else None
        made = list(known or (every,) * len(requirements))
        for k, look in enumerate(looks):
            if look is not None:
                made[k] = replace(every, chosen=True)
                if self.rate is not None:
                    made[k] = look.expected(self.rate)
        return tuple(made) if not all(one == every for one in made) else None


@dataclass(frozen=True)
class Look:
    """What is asked about the users of a class, and what follows from the answers."""

    requirement: Requirement
    blocks: int = BLOCKS
    adjacency: str = ADD_REMOVE

    @property
    def every(self) -> int:
        """Slots B of a block."""
        return block_length(self.requirement.window, self.blocks)

    @property
    def most(self) -> int:
        """The most slots of a block that are worth it as a limit; 0 if none are."""
        if isinstance(self.requirement, Lifetime):
            return 0
        window = self.requirement.window
        return window // (WORTH * effective_window(window, 1, self.blocks, self.adjacency))

    @property
    def limits(self) -> Integers:
        """The limits to choose from, ascending; each is the last number of a cell."""
        powers = 2 ** np.arange(self.most.bit_length() + 1)
        both = np.unique(np.concatenate([powers, powers // 2 * 3, [self.most]]))
        return both[(both > 0) & (both <= self.most)]

    @property
    def stated(self) -> list[int | None]:
        """The same as a card states them; None for all slots."""
        return [*self.limits.tolist(), None]

    def used(
        self, key: bytes, users: Keys, slots: Integers, asked: tuple[int | None, int | None]
    ) -> Integers:
        """Slots with events of the users' blocks that lie in the range as a whole: shape (n,).

        Args:
            key: of the phases, 32 bytes.
            users: of each visit, shape (n,).
            slots: of each, shape (n,); a user has one visit in a slot.
            asked: the first and the last slot of the range, None where it is not given.
        """
        order = np.argsort(users, kind="stable")
        users, slots = users[order], slots[order]
        ends = block_ends(key, users, slots, np.full(len(users), self.every))
        first, last = asked
        whole = np.ones(len(ends), np.bool_)
        if first is not None:
            whole &= ends - self.every >= first
        if last is not None:
            whole &= ends <= last + 1
        users, ends = users[whole], ends[whole]
        order = np.lexsort((ends, users))
        users, ends = users[order], ends[order]
        starts = np.flatnonzero(np.append(True, steps(users) | steps(ends))[: len(users)])
        used: Integers = np.diff(starts, append=len(users))
        return used

    def cells(self, used: Integers) -> Integers:
        """Blocks with so many slots with events, by cell, and what is added up.

        Args:
            used: slots with events of some blocks, each 1 or more, shape (n,).

        Returns:
            shape (cells + 2,): by cell, those above all limits, and the slots that these have more.
        """
        counts = np.zeros(len(self.limits) + 2, np.int64)
        at = np.searchsorted(self.limits, used)
        counts[:-1] = np.bincount(at, minlength=len(counts) - 1)
        counts[-1] = np.maximum(used - self.most, 0).sum()
        return counts

    @property
    def sensitivities(self) -> tuple[int, int]:
        """By how much neighbours change all cells together, and what is added up."""
        cells = 2 * (self.blocks + 1) if self.adjacency == REPLACE else self.blocks + 3
        above = max(self.every - self.most, 0) * (self.blocks + 1)
        return cells, min(above, self.requirement.window)

    @property
    def rates(self) -> tuple[int, int]:
        """Units that a unit of each costs: half of what is set aside for each, rounded down."""
        cells, above = self.sensitivities
        budget = to_units(self.requirement.epsilon) // LOOK
        return budget // 2 // cells, budget // 2 // max(above, 1)

    def check(self) -> None:
        """Raise ConfigurationError for a budget that is too small to ask anything."""
        if not all(self.rates):
            raise ConfigurationError(
                f"{self.requirement} is too small a budget to estimate a limit: ask for more "
                "epsilon, or give max_slots"
            )

    def answer(self, counts: Integers, words: RandomWords) -> Integers:
        """The cells with noise. Raises ValueError where the budget is too small for any."""
        cells, above = self.rates
        noisy = counts.copy()
        noisy[:-1] += discrete_laplace(cells, len(counts) - 1, words)
        noisy[-1:] += discrete_laplace(above, 1, words)
        return noisy

    def choice(self, answer: Integers) -> Limit:
        """What follows from an answer: all slots count if no limit is worth it for sure."""
        limits = self.limits
        firsts = np.append(1, limits[:-1] + 1)
        slots = np.append((firsts + limits) / 2, self.most)  # of a block, by cell
        weights = np.append(slots, 1)
        variances = np.full(len(answer), laplace_variance(self.rates[0]))
        variances[-1] = laplace_variance(self.rates[1])
        shares = []
        for limit in limits:
            counts = np.append(np.minimum(slots, limit), 0)
            kept, left_out = float(answer @ counts), float(answer @ (weights - counts))
            doubts = [CAUTION * np.sqrt(variances @ each**2) for each in (counts, weights - counts)]
            kept, left_out = kept - doubts[0], max(left_out, 0) + doubts[1]
            shares.append(max(kept, 0.0) / (max(kept, 0.0) + left_out))
        return replace(self._best(np.array(shares)), chosen=True)

    def expected(self, rate: float) -> Limit:
        """What follows from a public rate: in which share of the slots users are there."""
        mean = rate * self.every
        more = mean / (1 + mean)  # of those with some slots, as many have another: a long tail
        shares: Floats = 1 - more ** self.limits.astype(np.float64)
        return self._best(shares)

    def _best(self, shares: Floats) -> Limit:
        limits = self.limits
        worth = self.gains**GAIN * shares**LOSS
        best = int(worth.argmax())
        most = int(limits[best]) if worth[best] >= LEAST else EVERY_SLOT.max_slots
        return Limit(most, self.blocks)

    @property
    def gains(self) -> Floats:
        """Price of a slot under each limit, in parts of that without one."""
        window, limits = self.requirement.window, self.limits
        return np.array(
            [window / effective_window(window, int(m), self.blocks, self.adjacency) for m in limits]
        )

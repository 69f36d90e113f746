"""Who pays what for a slot of a query: under participation limits, and where requirements change.

**Limits.** Every query limits users in slots of its own.

A query with the share a of the budget has the requirement (W, a E) over its own slots, where W is
the most of them that a window of w base slots meets (`cuts.py`). The limit applies to these:
in each block of ceil(W / j) slots of the query a user counts in the first m in which the query has
events of that user. Each query has counters of its own, and which slots count for one query does
not depend on the events of another.

Theorem. Let the events of a user in w consecutive base slots be removed, or any of them replaced.
Then all releases of the query set together differ in distribution by a factor exp(E) at most.
Proof. Of a query whose slots are base slots, the events of W = w of its slots are removed, and
`presence/limits.py` has the number of slots that differ. The slots of any other query hold several
base slots, and the window may have only a part of the first and of the last one it meets. There the
user may keep events, count in both inputs and contribute something else in each. So for this query
the events of W slots are replaced by others: by that module's second theorem at most 2 (j + 1) m
units differ, where a unit is what one input can contribute to a slot. The rule for `replace` prices
a change of two units at E / ((j + 1) m), and the sensitivity of the query is doubled to match. So
the stream of every query loses at most a E: what slots cost, and what is set aside to measure the
share that is kept. Noise is independent by query, and the shares add up to 1 at most.

**For a lifetime.** Where the budget E is for all that a user ever contributes, a user counts in the
first M slots of each query in which that query has events of theirs, and never again.

Theorem. Let all events of a user be removed, or replaced. Then all releases of the query set
together, however long the stream, differ in distribution by a factor exp(E) at most.
Proof. Which slots count for a query depends on the user's own events of that query. Without any,
none counts; with them M do. So M of its slots differ, or 2 M units if the events are replaced, and
by `presence/limits.py` each slot may cost a E / M of a budget a E for ever. No slot is met in part,
since no event of the user is left, so slots of several base slots cost no more. Queries draw their
noise independently, and the shares add up to 1 at most.

**Where requirements change**, with a limit or without, the classes of a query set are the epsilons
of the table, all over the longest window of base slots. Slot by slot of each query a user is in the
class of `presence/changing.py`, over W slots of that query, with its blocks under a limit, and with
blocks of one slot without.

Theorem. Let (w, E) be in force ahead in base slot t, or back as many base slots before t as the
longest window has. Remove, or replace, a user's events in the w base slots from t on, or up to t.
Then all releases of the query set together change by a factor exp(E) at most.
Proof. By the theorem of that module, every slot of every query in which the inputs differ is paid
for by a class of E or less. Which class is public, so it is the same in both inputs. Let k be the
largest class of E or less. In a query with the share a, no class up to k pays more for a slot than
the filter books for class k: it books the dearest of all classes up to each. That adds up to a E_k
at most over the slots which can differ: W in a row without a limit, and those of the proofs above
with one. The share is the same for all classes and the shares add up to 1 at most, so all queries
together lose E_k at most, and E_k <= E.

Mechanisms over windows spend no less for a class of more epsilon, for all classes have one window
and what they save grows with their budgets (a test looks at all mechanisms). Were one to spend less
for it, the filter would book the larger amount and refuse what does not fit.

The filter over all queries (:class:`LimitedFilter`) adds up, by its own arithmetic, the dearest
slots of every query that one window, or one lifetime, can reach.

**What figures say.** Counts and sums are scaled by the share that counts, which is measured
privately for each query as `presence/kept_share.py` has it, or `presence/life_share.py` of
lifetimes: of a count the share of the events, of a sum that of the parts which make up most of its
figure, for users who come often may have other numbers than those who come rarely. The error of the
share is common to all of a query's figures, so it is added to each figure and not to the cells it
is made of: a sum over a month errs by the same factor as each of its days. Ratios (means, variances
and quantiles) are not scaled. They describe the events that count, and users who come more often
than the limit allows weigh less in them than in all events.

Source: our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.presence_filter import PresenceFilter, PresenceTerms
from streamveil.mechanisms.accounting.window_filter import refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements, Units
from streamveil.mechanisms.core.records import (
    REPLACE,
    ConfigurationError,
    Lifetime,
    Requirement,
)
from streamveil.mechanisms.driver.life_stream import LifeStream
from streamveil.mechanisms.driver.present_stream import Presence, PresentState, PresentStream
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.driver.stream import check_order
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.kept_share import Beyond, Rates
from streamveil.mechanisms.presence.left_out import LeftOut
from streamveil.mechanisms.presence.life_share import LifeQuery
from streamveil.mechanisms.presence.limits import BLOCKS, EVERY_SLOT, Limit, priced, terms
from streamveil.mechanisms.protocol import Mechanism, Observed, SlotRelease
from streamveil.mechanisms.queries.cuts import Cut
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import Charge
from streamveil.mechanisms.queries.statistics import Sum
from streamveil.mechanisms.randomness.noise import NoiseSource

SCALED_BY = "scaled_by"
"""The factor of a release's cells, among its diagnostics."""


def neighbours_of(query: Query, adjacency: str, *, lifetime: bool = False) -> str:
    """What neighbouring inputs differ in, in the slots of a query: see the module."""
    return REPLACE if query.cut.longest > 1 and not lifetime else adjacency


def requirements_of(query: Query, requirements: Requirements, units: Units) -> Requirements:
    """What a query keeps of each class over its own slots, for units of shape (K,)."""
    return Requirements(
        _requirement_of(query, one, math.ldexp(int(part), -UNIT_BITS))
        for one, part in zip(requirements, units, strict=True)
    )


def _requirement_of(query: Query, requirement: Requirement, epsilon: float) -> Requirement:
    if isinstance(requirement, Lifetime):
        return Lifetime(epsilon)
    return Requirement(query.cut.most_in(requirement.window), epsilon)


def presences_of(
    query_set: QuerySet,
    limit: Limit | Auto | None,
    requirements: Requirements,
    shares: Units,
    adjacency: str,
    *,
    own: Sequence[int | None] = (),
    named: Callable[[int], str] | None = None,
    moving: bool = False,
) -> tuple[Presence, ...] | None:
    """The limit of each query and class, which is left out where it does not pay.

    Args:
        query_set: what is asked.
        limit: in slots of each query; or `Auto`, which chooses it by a public rate, or says whom a
            private look is to be at: who is looked at counts in every slot and pays for the look.
        requirements: of each class, windows in base slots.
        shares: units of each query and class, shape (Q, K).
        adjacency: what neighbouring inputs differ in.
        own: slots of a block of the classes that have a number of their own, shape (K,); or
            nothing at all.
        named: words for the users of a class; their requirement where nothing is given.
        moving: whether users may move from class to class, which ascend by epsilon.

    Returns None where nobody is limited and nobody moves.

    Raises ConfigurationError for a limit that pays for no query and class, for a number of a class
    that pays for none of the queries, and for a budget and a limit of which only one is for a
    lifetime.
    """
    lifetime = requirements.forever
    if isinstance(limit, Limit) and lifetime and limit.max_slots is not None:
        raise ConfigurationError(
            "the budget is for a lifetime, and the limit for slots of a block (max_slots): give "
            f"Limit(None, in_life={limit.in_life or limit.max_slots})"
        )
    if isinstance(limit, Limit) and limit.in_life is not None and not lifetime:
        raise ConfigurationError(
            "the limit is for a lifetime (in_life) and the budget is for windows: limit the "
            "slots of a block (max_slots), or give a Lifetime to all users: "
            "Registry.of(default=(Lifetime(epsilon), 0))"
        )
    unlimited = limit is None and not any(own)
    if unlimited and not moving:
        return None
    made = []
    for query, units in zip(query_set, shares, strict=True):
        over = requirements_of(query, requirements, units)
        neighbours = adjacency
        if not unlimited:
            neighbours = neighbours_of(query, adjacency, lifetime=lifetime)
        limits = (
            _limit_of(limit, most, one, neighbours, query.cut)
            for one, most in zip(over, own or [None] * len(over), strict=True)
        )
        made.append(Presence(tuple(limits), over, neighbours, moving, by_bin=False))
    for k, most in enumerate(own):
        if most is not None and all(one.limits[k].is_none for one in made):
            users = f"users with {requirements[k]}" if named is None else named(k)
            usual = limit if isinstance(limit, Limit) else Limit(most)
            _refuse(replace(usual, max_slots=most), query_set, made, [k], f"{users}: ")
    others = [k for k in range(len(requirements)) if not own or own[k] is None]
    pays_nobody = all(one.limits[k].is_none for one in made for k in others)
    if isinstance(limit, Limit) and others and pays_nobody:
        _refuse(limit, query_set, made, others)
    limited = any(not one.is_none or one.chosen for one in all_limits(made))
    return tuple(made) if limited or moving else None


def all_limits(presences: Sequence[Presence]) -> tuple[Limit, ...]:
    """Their limits, of the classes of one query after another."""
    return tuple(limit for presence in presences for limit in presence.limits)


def under_limits(presences: Sequence[Presence], limits: Sequence[Limit]) -> tuple[Presence, ...]:
    """The same under other limits, in the order of :func:`all_limits`."""
    classes = len(presences[0].limits)
    return tuple(
        replace(one, limits=tuple(limits[q * classes : (q + 1) * classes]))
        for q, one in enumerate(presences)
    )


def _limit_of(
    limit: Limit | Auto | None, own: int | None, over: Requirement, neighbours: str, cut: Cut
) -> Limit:
    """The limit of a query and class, with requirement `over` in slots of the query."""
    if own is not None:
        usual = limit if isinstance(limit, Limit) else Limit(own, blocks_of(limit))
        mine = replace(usual, max_slots=own)
    elif isinstance(limit, Auto):
        look = Look(over, limit.blocks, neighbours)
        if not look.most:
            return EVERY_SLOT
        if limit.rate is None:
            return replace(EVERY_SLOT, blocks=limit.blocks, chosen=True)
        mine = look.expected(1 - (1 - limit.rate) ** cut.mean)
    else:
        mine = limit or EVERY_SLOT
    return mine if mine.pays(over, neighbours) else EVERY_SLOT


def blocks_of(limit: Limit | Auto | None) -> int:
    """Blocks of a window."""
    return BLOCKS if limit is None else limit.blocks


def _refuse(
    limit: Limit,
    query_set: QuerySet,
    made: Sequence[Presence],
    classes: Sequence[int],
    users: str = "",
) -> None:
    """Say why a limit pays for none of some classes: by the query with most slots in a window.

    Raises ConfigurationError.
    """
    both = list(zip(query_set, made, strict=True))
    query, widest = max(both, key=lambda one: one[1].requirements.longest)
    try:
        limit.check_all([widest.requirements[k] for k in classes], widest.adjacency)
    except ConfigurationError as error:
        length = query_set.slots_of(query).text
        raise ConfigurationError(
            f"{users}{error}. Slots are those of query {query.name!r}, of {length} each, which has "
            "the most of them in a window"
        ) from None


def priced_of(presence: Presence) -> Requirements:
    """What the mechanism of a query keeps: of a limited class, what one slot may cost."""
    return priced(presence.limits, presence.requirements, presence.adjacency)


class LimitedQuery(PresentStream):
    """The stream of one query of a set whose users count in a few slots only.

    Cells are scaled by what is left out of all of them alike; the error of that is the `common`
    one of a release.
    """

    def __init__(
        self,
        mechanism: Mechanism[Any],
        noise: NoiseSource,
        context: Parts,
        presence: Presence,
        query: Query,
    ) -> None:
        """As :class:`PresentStream`, of a query."""
        self._query = query
        super().__init__(mechanism, noise, context, presence)

    def price(self, state: PresentState) -> Units:
        """The most that the next slot can cost a user of each class who counts in it: (K,)."""
        return self.stream.price(state.stream)

    def _measured(self, counts: Integers, beyond: Beyond) -> tuple[Integers, Beyond]:
        """Of a sum, what most of its figure is made of: users may differ in their numbers.

        These are some of the cells, so they change by no more than all of them.
        """
        cells = self._cells
        some = cells[beyond.bins]
        return counts * cells, Beyond(*(each[some] for each in beyond))

    @cached_property
    def _cells(self) -> npt.NDArray[np.bool_]:
        """Cells whose share is measured, shape (d,)."""
        query = self._query
        parts, bins = query.measure.parts, self.mechanism.population.bins
        if isinstance(query.statistic, Sum):
            return np.tile(query.statistic.added_up, bins // parts)
        return np.ones(bins, np.bool_)

    def left_out(self, state: PresentState) -> Any:
        """What is left out, by bin: the cells of a bin are of the same events."""
        parts = self._query.measure.parts
        sizes, kept = self.mechanism.population.sizes, state.kept.reshape(-1, parts)
        return LeftOut.of(state.shares, sizes, kept.sum(axis=1))

    def _known(self, state: PresentState, left_out: Any) -> dict[str, float]:
        return {**super()._known(state, left_out), SCALED_BY: left_out.factor[0]}

    def _made_up(self, estimate: Any, left_out: Any) -> Any:
        there, variance = left_out.factor
        counts = estimate.values * there
        made = replace(
            estimate,
            counts=np.rint(counts).astype(np.int64),
            estimates=counts,
            stderr=np.asarray(estimate.stderr) * there,
            common=math.sqrt(variance) / there,
            unshrunk=estimate.unshrunk and _scaled(estimate.unshrunk, there),
        )
        if not isinstance(estimate, SlotRelease):
            return made
        observed = estimate.observed and tuple(_scaled(one, there) for one in estimate.observed)
        return replace(made, observed=observed)

    def encode(self, state: PresentState) -> bytes:
        """Bytes of the state."""
        return self.keeper.write(self.pack(state))

    def decode(self, data: bytes) -> PresentState:
        """State of bytes. Raises as :meth:`ReleaseStream.decode`."""
        return self.unpack(self.keeper.read(data))


class LivedQuery(LimitedQuery, LifeStream):
    """The same where users count in a few slots of their lifetimes."""

    @property
    def _part(self) -> npt.NDArray[np.bool_] | None:
        """Cells that most of a sum is made of."""
        return None if self._cells.all() else self._cells

    def _life_query(self, limit: Limit, budget: int) -> tuple[LifeQuery, Rates]:
        query, rates = super()._life_query(limit, budget)
        unit = int(self._query.measure.weights.sum(axis=1).max())
        return replace(query, part=self._part, unit=unit), rates

    def _measured(self, counts: Integers, beyond: Beyond) -> tuple[Integers, Beyond]:
        """All of it: the query divides it by cells."""
        return counts, beyond

    def _released(self, release: SlotRelease) -> tuple[float, ...]:
        if self._part is None:
            return super()._released(release)
        return float(release.values[self._part].sum()), float(release.values.sum())

    def left_out(self, state: PresentState) -> Any:
        """What is left out of all cells together."""
        return LifeStream.left_out(self, state)

    def _made_up(self, estimate: Any, left_out: Any) -> Any:
        """With what chance does: those who are left out might have been others."""
        made = super()._made_up(estimate, left_out)
        if self._query.statistic.ratios is not None:
            return made
        return replace(made, stderr=self._with_chance(made, estimate))


def _scaled(observed: Observed, there: float) -> Observed:
    counts, variances = observed.counts * there, observed.variances * there**2
    return replace(observed, counts=counts, variances=variances)


class LimitedFilter:
    """The filter over all queries where users count in a few slots only: the last door.

    Guarantee: after any sequence of :meth:`charge` that did not raise, the dearest slots of every
    query that the events of one window can reach cost class k together at most its `epsilon`, with
    all that is set aside, in exact integers; where users move, also a user who was of earlier
    classes in some of these slots. It knows neither the shares of queries nor what a slot
    may cost.

    Args:
        requirements: of each class, windows in base slots, K of them.
        presences: of each query.
        aside: units of each class that a look at bounds costs, shape (K,).
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "LimitedFilter",
            next_slot=["null", "long"],
            queries={"type": "array", "items": "bytes"},
            peaks="bytes",
        )
    }

    def __init__(
        self, requirements: Requirements, presences: Sequence[Presence], aside: Units
    ) -> None:
        self.requirements = Requirements.of(requirements)
        self._caps = self.requirements.budgets
        self._aside = aside
        self._terms = [_whole_budgets(one, self.requirements) for one in presences]
        self._booked = [PresenceFilter(one) for one in self._terms]
        self._peaks: Units = np.array([one.in_window for one in self._booked])
        self.next_slot: int | None = None
        """The base slot after the last one that was charged; None before the first."""

    @property
    def in_window(self) -> Units:
        """The most that one window can have cost each class so far, shape (K,), units.

        A window may meet the dearest slots of queries at different times, as slots of queries end
        at different times. So the largest sum of each query so far is taken.
        """
        return self._together(self._peaks)

    def _together(self, peaks: Units) -> Units:
        total: Units = self._aside + peaks.sum(axis=0)
        return total

    def charge(self, last_base_slot: int, charges: Sequence[Charge]) -> None:
        """Book all releases that end with a base slot, or refuse them and book none.

        Args:
            last_base_slot: the first one, or a later one than before.
            charges: the slots that end with it.

        Raises:
            BudgetExceeded: with requested, remaining and difference, if a class would lose more
                than its budget.
            ValueError: for a base slot out of order, or amounts that nothing can spend.
        """
        if self.next_slot is not None and last_base_slot < self.next_slot:
            check_order(self.next_slot, last_base_slot)
        booked, peaks = list(self._booked), self._peaks.copy()
        for _, _, units, query in charges:
            one = booked[query] = booked[query].copied()
            one.charge(units)
            peaks[query] = np.maximum(peaks[query], one.in_window)
        before, after = self.in_window, self._together(peaks)
        over = np.flatnonzero(after > self._caps)
        if over.size:
            k = int(over[0])
            raise refusal(
                f"releases of base slot {last_base_slot} refused for users with "
                f"{self.requirements[k]}",
                *(int(after[k] - before[k]), int(self._caps[k] - before[k])),
                "the dearest slots of all queries",
            )
        self._booked, self._peaks, self.next_slot = booked, peaks, last_base_slot + 1

    def most(self, base_slots: int) -> Units:
        """The same, whatever slots a release has: shape (K,), units."""
        return self.in_window

    def use(self) -> float:
        """Largest share of any class's budget that is spent, from 0 to 1."""
        return float((self.in_window / np.maximum(self._caps, 1)).max())

    def encode(self) -> bytes:
        """Bytes of what is booked."""
        record = {
            "next_slot": self.next_slot,
            "queries": [one.encode() for one in self._booked],
            "peaks": state_codec.table_to_bytes(self._peaks),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> LimitedFilter:
        """The filter of bytes, of the classes and limits of this one.

        Raises ConfigurationError for those of others.
        """
        made = copy(self)
        _, record = state_codec.unpack(self.SCHEMAS, data)
        both = zip(self._terms, record["queries"], strict=True)
        made._booked = [one.decode(written) for one, written in both]
        made._peaks = state_codec.table_from_bytes(record["peaks"], self._peaks.shape)
        made.next_slot = record["next_slot"]
        return made


def _whole_budgets(presence: Presence, requirements: Requirements) -> PresenceTerms:
    """What the filter keeps of a query, whose slots may cost all of a budget if others cost none.

    What is set aside is of the query's share.
    """
    own = terms(
        *(presence.limits, presence.requirements, presence.adjacency), moving=presence.moving
    )
    whole = tuple(
        replace(one, epsilon=budget.epsilon)
        for one, budget in zip(own.requirements, requirements, strict=True)
    )
    return replace(own, requirements=whole)

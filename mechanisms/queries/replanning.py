"""Shares of the budget that are planned again while a query set runs, from its releases.

A plan changes the cap of a query, which is what the query may cost a user in any window of its own
slots. A stream runs in steps of base slots, and caps only change between steps.

Guarantee: whatever is planned, the releases of all queries that meet any w consecutive base slots
cost class k at most its budget E_k together.
Proof: let c_q be the caps in force in step j, which begins with base slot t, and m_q the most that
q's own windows cost that ended with one of the L base slots before t, L being the longest slot
of any query in base slots. A step begins only under caps for which, of each class, the sum over
q of max(c_q, m_q) is E at most. Take any w base slots W, u being the last one, and let j be the
last step in which something costs anything that meets W. That is a release of base slots s to e,
where e >= t and s <= u: so u >= t - L + 1. The slots of q that meet W are of one window of its own.
If the last of them that costs anything ends in step j, the window which it ends is at most c_q, for
a mechanism lets nothing cost anything beyond the cap in force (`Resizable`). Else all that they
cost was charged before t. Let z be the last of them that ended before t. If a later one meets W, z
is the last slot of q that ended before t, which is less than L before; if none does, u is in z. So
z ended with one of the L base slots before t, and the window of its own that ended with z holds all
that q's slots cost that meet W: at most m_q. Together this is E_k at most.

So a query's cap may fall at once. The cap of another query rises later, when windows in which the
first query cost more have passed. Caps that were in force can always stay: a window that ended
since cost no more than they, or than the window before it. A cap is the mean of what was planned
for the slots of the longest window. Slots before the stream count as planned now, so early in a
stream caps change at once. A query whose share becomes smaller therefore continues at the lower
pace, and does not pause until its window allows for a release again.

The plan. The error of a query is known from the squares of `stderr`, at its present share. Before
the first answer, it is the largest error that is expected for any rate of users' events
(`shares.py`). For example, one answer a day from many users has a small error at any rate. So this
query can give up budget that it does not need before its first day has ended. An error falls with a
power of the share, which is unknown, but between 0.6 and 2 (`shares.py`). So the plan assumes a
larger power for a share that becomes smaller than for one that becomes larger. For a query without
an answer, it assumes the largest power, that of fresh noise. The plan has the smallest weighted
error under these assumptions, and changes no share for a negligible gain. Queries with a share in
the file, and those with another mechanism than `adaptive`, keep their budget.

Plans are computed from released and public numbers: they are post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.protocol import Mechanism, Resizable, SlotRelease
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.shares import FALLS as FEARED
from streamveil.mechanisms.queries.shares import Expected, surest

FALLS, RISES = 1.5, 1.0
"""Powers of the share with which an error is assumed to grow, and to fall."""
USUAL = 1.3
"""Power by which errors at other shares are compared."""
STEPS = 8
"""Plans in the longest window or slot."""
MEMORY = 8
"""Slots of a query over which its error is averaged."""
ROUNDED = 1 / 12
"""Squared error of rounding counts, the smallest possible error."""
KEPT, AUDITS = 8, 2
"""A query keeps 1 / `KEPT` of its first budget, and `AUDITS` times the cost of its audits."""
BITS = 24
"""Shares are multiples of 2**-24, rounded down, so that all machines get the same shares."""
LITTLE = 0.02
"""The smallest relative change of a share that is planned."""
RAISES = 16
"""Steps in which a rise is tried."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The budgets in force, and the data for plans: all of it is public."""

    caps: Units
    """What a window of its own may cost, of each query and class: shape (Q, K)."""
    pace: Units
    """What a window costs if every slot gets an even part, of the same shape."""
    wanted: Floats
    """Shares that are planned, shape (Q,)."""
    errors: Floats
    """Mean squared error of a cell at a share of 1, in squares of what an event adds: (Q,)."""
    answers: npt.NDArray[np.int64]
    """Slots with a figure so far, shape (Q,)."""
    slots: int = 0
    """Base slots so far with which a query was due."""
    past: tuple[Floats, ...] = ()
    """What was planned for the last steps, oldest first."""
    most: tuple[Units, ...] = ()
    """The most that windows of their own had cost in the last steps, oldest first; the last one is
    of the step that runs: each of shape (Q, K)."""

    SCHEMA = state_codec.record_schema(
        "Plan",
        slots="long",
        **dict.fromkeys(("caps", "pace", "wanted", "errors", "answers"), "bytes"),
        past={"type": "array", "items": "bytes"},
        most={"type": "array", "items": "bytes"},
    )

    def same(self, other: Plan | None) -> bool:
        """Whether the same budgets are in force."""
        return other is not None and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("caps", "pace")
        )

    def record(self) -> dict[str, Any]:
        """Avro record of the plan."""
        return {
            "slots": self.slots,
            **{name: state_codec.table_to_bytes(getattr(self, name)) for name in _TABLES},
            **{name: getattr(self, name).astype("<f8").tobytes() for name in _FLOATS},
            "past": [one.astype("<f8").tobytes() for one in self.past],
            "most": [state_codec.table_to_bytes(one) for one in self.most],
        }

    def read(self, record: Mapping[str, Any]) -> Plan:
        """The plan of a record, of the same queries and classes as this one."""
        shape = self.caps.shape
        return Plan(
            caps=state_codec.table_from_bytes(record["caps"], shape),
            pace=state_codec.table_from_bytes(record["pace"], shape),
            wanted=np.frombuffer(record["wanted"], "<f8"),
            errors=np.frombuffer(record["errors"], "<f8"),
            answers=state_codec.table_from_bytes(record["answers"], shape[:1]),
            slots=record["slots"],
            past=tuple(np.frombuffer(one, "<f8") for one in record["past"]),
            most=tuple(state_codec.table_from_bytes(one, shape) for one in record["most"]),
        )


_TABLES, _FLOATS = ("caps", "pace", "answers"), ("wanted", "errors")


class Replanning:
    """Plans the shares of a query set again.

    Args:
        query_set: what is asked.
        requirements: of each class, K of them, windows in base slots.
        model: of their errors before anything is known.
        budgets: what all queries may cost together in a window, shape (K,).
        begun: what each may cost at first, int64, shape (Q, K).
        mechanisms: of the queries.
    """

    def __init__(
        self,
        query_set: QuerySet,
        requirements: Requirements,
        model: Expected,
        budgets: Units,
        begun: Units,
        mechanisms: Sequence[Mechanism[Any]],
    ) -> None:
        self._query_set = query_set
        self._model = model
        self._budgets = budgets
        self._begun = begun
        self._weights = np.array([query.weight for query in query_set])
        longest = max(query.cut.longest for query in query_set)
        self._step = -(-max(requirements.longest, longest) // STEPS)
        self._window = -(-requirements.longest // self._step)
        self._remembered = -(-longest // self._step)
        self._start = (begun / budgets).min(axis=1)
        self._least, self._open = np.zeros(len(begun)), np.zeros(len(begun), bool)
        for q, (query, one) in enumerate(zip(query_set, mechanisms, strict=True)):
            if query.share is None and isinstance(one, Resizable):
                audits = float((AUDITS * one.least / budgets).max())
                # Rounded down it is a part, still.
                self._least[q] = max(self._start[q] / KEPT, audits, 2 / (1 << BITS))
                self._open[q] = self._least[q] < self._start[q]

    @property
    def able(self) -> bool:
        """Whether there is anything to plan."""
        return bool(self._open.sum() > 1)

    def start(self) -> Plan:
        """Before the first base slot."""
        queries = len(self._start)
        return Plan(
            *(self._begun, self._begun, self._start),
            *(np.zeros(queries), np.zeros(queries, np.int64)),
            most=(np.zeros_like(self._begun),),
        )

    def after(
        self, plan: Plan, releases: Mapping[int, SlotRelease], cost: Mapping[int, Units]
    ) -> Plan:
        """The plan after a base slot; other caps only where a step begins.

        Args:
            plan: before it.
            releases: of the queries that were due, by number.
            cost: of the window of each of these that ended, units by class, shape (K,).
        """
        errors, answers, most = plan.errors.copy(), plan.answers.copy(), plan.most[-1].copy()
        for q, release in releases.items():
            most[q] = np.maximum(most[q], cost[q])
            error = _error(release) / self._query_set.queries[q].measure.sensitivity ** 2
            if np.isfinite(error):
                answers[q] += 1
                whole = max(error, ROUNDED) * self._share(plan.pace[q]) ** USUAL
                errors[q] += (whole - errors[q]) / min(answers[q], MEMORY)
        plan = replace(
            plan,
            errors=errors,
            answers=answers,
            slots=plan.slots + 1,
            most=(*plan.most[:-1], most),
        )
        return plan if plan.slots % self._step else self._next_step(plan)

    def described(self, plan: Plan) -> str:
        """The shares in force, in words."""
        parts = zip(self._query_set, plan.caps, strict=True)
        return ", ".join(f"{one.name} {self._share(caps):.1%}" for one, caps in parts)

    def _share(self, units: Units) -> float:
        return float((units / self._budgets).min())

    def _next_step(self, plan: Plan) -> Plan:
        """Plan the step that begins."""
        past = (*plan.past, plan.wanted)[-self._window :]
        most = plan.most[-self._remembered :]
        wanted = self._wanted(plan)
        missing = self._window - len(past)
        target = self._units((np.sum(past, axis=0) + missing * wanted) / self._window)
        caps = self._allowed(plan.caps, target, np.max(most, axis=0))
        pace = np.minimum(self._units(wanted), caps)
        most = (*most, np.zeros_like(caps))
        return replace(plan, caps=caps, pace=pace, wanted=wanted, past=past, most=most)

    def _units(self, shares: Floats) -> Units:
        """Of shares; what a query began with is so to the last unit."""
        same = np.isclose(shares, self._start, rtol=1e-9, atol=0) | ~self._open
        steps = np.floor(shares * (1 << BITS)).astype(np.int64).tolist()
        exact = self._budgets.astype(object)
        units = np.array([exact * step >> BITS for step in steps]).astype(np.int64)
        return np.where(same[:, None], self._begun, np.maximum(units, 1))

    def _allowed(self, caps: Units, target: Units, most: Units) -> Units:
        """The caps nearest to a target under which the next step may begin."""
        low = np.minimum(caps, target)
        rise = np.maximum(target - caps, 0)
        for parts in range(RAISES, 0, -1):
            allowed: Units = low + rise * parts // RAISES
            if (np.maximum(allowed, most).sum(axis=0) <= self._budgets).all():
                return allowed
        return low

    def _wanted(self, plan: Plan) -> Floats:
        """Shares of the least weighted error that is sure."""
        some, known = np.flatnonzero(self._open), plan.answers > 0
        if not known[some].any():
            return plan.wanted
        now, all_of_it = plan.wanted[some], self._start[some].sum()
        now = now * (all_of_it / now.sum())
        most = self._model.at(plan.wanted).max(axis=1)[some]
        expected = plan.errors[some] * now**-USUAL
        error = self._weights[some] * np.where(known[some], expected, most)
        falls = np.where(known[some], FALLS, FEARED)
        shares = surest(error, now, np.minimum(self._least[some], now), falls, RISES)
        if np.abs(shares / now - 1).max() < LITTLE:
            return plan.wanted
        found = plan.wanted.copy()
        found[some] = np.floor(shares * (1 << BITS)) / (1 << BITS)
        return found


def _error(release: SlotRelease) -> float:
    """Mean squared error of a cell, as stated; NaN where none is.

    The error is at most about the mean square of counts, which is the error of zeros. If noise is
    larger than counts, `stderr` is larger than that, because it does not use that counts are not
    negative. How small counts are is known as precisely as the mean of all cells.
    """
    variance = float(np.mean(release.stderr**2))
    counts = float(np.mean(release.counts.astype(np.float64) ** 2))
    return (
        min(variance, counts + variance / len(release.counts)) if variance == variance else variance
    )

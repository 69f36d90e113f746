"""What the adaptive mechanism remembers from slot to slot, and its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import Cycle, CycleState
from streamveil.mechanisms.adaptive.factor import Factor, FactorState
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.gap_errors import POINT
from streamveil.mechanisms.adaptive.intervals import Misfit
from streamveil.mechanisms.adaptive.jumps import Jumps, Watch
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.shrinkage import Shrinkage
from streamveil.mechanisms.adaptive.weighting import Correlation, CorrelationState
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.protocol import Members

_BYTES_LIST = {"type": "array", "items": "bytes"}
_BELIEFS = ("mean", "deviation", "scores")
_KEPT = {
    "slots": "long",
    "since": "long",
    "gap": "long",
    "kind": "long",
    "patience": "double",
    "usual_gap": "double",
    "published_slot": ["null", "long"],
    "epsilon": "double",
    "dispersion": "double",
    "unwatched": "long",
    "alert": "double",
    "watch": "long",
}


def schemas(**accounts: Any) -> dict[int, state_codec.Schema]:
    """Schemas of a state whose accounts are written in fields of these types."""
    beliefs: dict[str, Any] = {
        "bank": kalman.SCHEMA,
        "correlation": _BYTES_LIST,
        "running": ["null", RunningSum.SCHEMA],
        "cycle": CycleState.SCHEMA,
        "ring": ["null", Ring.SCHEMA],
        "jumps": Jumps.SCHEMA,
        "misfit": Misfit.SCHEMA,
        "shrinkage": Shrinkage.SCHEMA,
    }
    return {
        1: state_codec.record_schema(
            "Adaptive",
            bank=_BYTES_LIST,
            correlation=_BYTES_LIST,
            **accounts,
            slots="long",
            since="long",
            unseen="long",
            gap="long",
            patience="double",
            usual_gap="double",
            published_slot=["null", "long"],
            epsilon="double",
            dispersion="double",
        ),
        2: state_codec.record_schema("Adaptive", **beliefs, **accounts, **_KEPT),
        **{
            version: state_codec.record_schema(
                "Adaptive", **beliefs, factor=["null", factor], **accounts, **_KEPT
            )
            for version, factor in enumerate((*FactorState.FORMER_SCHEMAS, FactorState.SCHEMA), 3)
        },
    }


class Foretold(NamedTuple):
    """Stated variances of forecasts, until something is observed."""

    several: kalman.Forecast
    """The forecasts, made together."""
    every: bool
    """Whether every slot is released."""
    variance: npt.NDArray[np.float64]
    """Stated, shape (slots, d)."""


@dataclass
class AdaptiveState:
    """What the next slot needs. Everything in it is public, except for running sums."""

    bank: kalman.BankState
    correlation: CorrelationState
    accounts: Any
    """What was spent from each part of the budgets."""
    misfit: Misfit
    """Of the variances that the bank states."""
    cycle: CycleState = field(default_factory=CycleState)
    """Its running sums are SECRET, too."""
    shrinkage: Shrinkage = field(default_factory=Shrinkage)
    factor: FactorState | None = None
    """None if the mechanism looks for none."""
    running: RunningSum | None = None
    """The sum of a gap that has begun: SECRET."""
    ring: Ring | None = None
    """What revisions need; None without any."""
    slots: int = 0
    since: int = 1
    """Slots of the gap up to this one."""
    gap: int = 1
    """Planned slots between releases."""
    kind: int = POINT
    """What the gap ends with, POINT or SUM."""
    patience: float = 0.0
    """Expected variance of the curve between releases, as a fraction of a release's error."""
    usual_gap: float = 0.0
    """Slow average of `gap`."""
    published_slot: int | None = None
    epsilon: float = 0.0
    dispersion: float = 0.0
    """Of the weights of the last release."""
    unwatched: int = 1
    """Slots from the last look to this one."""
    alert: float = 1.0
    """How much of the shares of gate and reserve is kept for jumps: one of `jumps.ALERTS`."""
    watch: int = 1
    """Planned slots from one look to the next."""
    jumps: Jumps = field(default_factory=Jumps)
    begun: tuple[Members | None, Terms] | None = None
    """Members and terms of the next slot, once its price was requested: not saved."""
    watching: tuple[tuple[Any, ...], Watch] | None = None
    """What jumps cost in the gap that has begun, and what it was computed for: not saved."""
    foretold: Foretold | None = None
    """Stated variances of forecasts that were made together: not saved."""

    @classmethod
    def start(
        cls,
        bank: Bank,
        correlation: Correlation,
        cycle: Cycle | None,
        factor: Factor | None,
        accounts: Any,
    ) -> AdaptiveState:
        """Nothing released yet."""
        begun, bins = bank.start(), bank.bins
        state = cls(begun, correlation.start(begun.scale), accounts, Misfit.start(bins))
        if cycle:
            state.cycle = cycle.start(bins)
        if factor:
            state.factor = factor.start()
        return state


def pack(
    state: AdaptiveState,
    versions: Mapping[int, state_codec.Schema],
    accounts: Mapping[str, Any],
) -> bytes:
    """Bytes of a state under :func:`schemas`."""
    record = {
        **{name: getattr(state, name) for name in _KEPT},
        "bank": kalman.record(state.bank),
        "correlation": [getattr(state.correlation, name).tobytes() for name in _BELIEFS],
        "running": state.running.record() if state.running else None,
        "cycle": state.cycle.record(),
        "ring": state.ring.record() if state.ring else None,
        "jumps": state.jumps.record(),
        "misfit": state.misfit.record(),
        "shrinkage": state.shrinkage.record(),
        "factor": state.factor.record() if state.factor else None,
        **accounts,
    }
    return state_codec.pack(versions, record)


def unpack(
    data: bytes,
    versions: Mapping[int, state_codec.Schema],
    state: AdaptiveState,
    accounts: Callable[[dict[str, Any]], Any],
) -> AdaptiveState:
    """State of bytes, read into a fresh `state` of the same configuration.

    Raises ConfigurationError for another number of bins or classes.
    """
    version, record = state_codec.unpack(versions, data)
    if version == 1:
        kalman.read_former(state.bank, record["bank"])
        record |= {"kind": POINT, "running": None, "unwatched": 1, "alert": 1.0, "watch": 1}
    else:
        kalman.read(state.bank, record["bank"])
        state.jumps = Jumps(**record["jumps"])
        state.misfit = Misfit.read(record["misfit"], len(state.bank.scale))
        state.shrinkage = Shrinkage(**record["shrinkage"])
    beliefs = [getattr(state.correlation, name) for name in _BELIEFS]
    shapes = [(part.dtype, part.shape) for part in beliefs]
    if version == 1:
        shapes = [(np.dtype(np.float64), shape) for _, shape in shapes]
    read = [
        np.frombuffer(stored, dtype).reshape(shape).copy()
        for stored, (dtype, shape) in zip(record["correlation"], shapes, strict=True)
    ]
    state.correlation = (CorrelationState.of if version == 1 else CorrelationState)(*read)
    if version > 1:
        state.cycle.read(record["cycle"])
    if record["running"]:
        state.running = RunningSum.read(record["running"], len(state.bank.scale))
    if record.get("factor") and state.factor:
        state.factor.read(record["factor"])
    if record.get("ring"):
        state.ring = Ring.read(record["ring"], len(state.bank.scale))
    state.accounts = accounts(record)
    for name in _KEPT:
        setattr(state, name, record[name])
    return state

"""What the adaptive mechanism remembers between slots, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms import kalman
from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.correlation import CorrelationState
from streamveil.mechanisms.window_sums import Sums, WindowSums

SCHEMAS = {
    1: {
        "type": "record",
        "name": "Adaptive",
        "fields": [
            {"name": "bank", "type": {"type": "array", "items": "bytes"}},
            {"name": "correlation", "type": {"type": "array", "items": "bytes"}},
            {"name": "spent", "type": WindowSums.SCHEMA},
            {"name": "reserve", "type": "WindowSums"},
            {"name": "slots", "type": "long"},
            {"name": "since", "type": "long"},
            {"name": "unseen", "type": "long"},
            {"name": "gap", "type": "long"},
            {"name": "patience", "type": "double"},
            {"name": "usual_gap", "type": "double"},
            {"name": "published_slot", "type": ["null", "long"]},
            {"name": "epsilon", "type": "double"},
            {"name": "dispersion", "type": "double"},
        ],
    }
}

_PLAIN = (
    "slots",
    "since",
    "unseen",
    "gap",
    "patience",
    "usual_gap",
    "published_slot",
    "epsilon",
    "dispersion",
)


@dataclass
class AdaptiveState:
    """What the next slot needs to know: everything in it is public."""

    bank: kalman.BankState
    correlation: CorrelationState
    spent: Sums
    """Spent by gate and releases from `main_cap`."""
    reserve: Sums
    """Spent from the reserve."""
    slots: int = 0
    since: int = 1
    """Slots from the last scheduled release to this one: budget is saved up for so long."""
    unseen: int = 1
    """Slots from the last release of any kind to this one."""
    gap: int = 1
    """Planned slots between releases."""
    patience: float = 0.0
    """Expected variance of the curve between releases, in parts of that of a release."""
    usual_gap: float = 0.0
    """Slow average of `gap`."""
    published_slot: int | None = None
    epsilon: float = 0.0
    dispersion: float = 0.0
    """Of the weights of the last release."""


def pack(state: AdaptiveState, sums: WindowSums) -> bytes:
    """Bytes of a state; figures of beliefs as 64-bit floats."""
    record = {
        **{name: getattr(state, name) for name in _PLAIN},
        "bank": [part.tobytes() for part in vars(state.bank).values()],
        "correlation": [part.tobytes() for part in vars(state.correlation).values()],
        "spent": sums.record(state.spent),
        "reserve": sums.record(state.reserve),
    }
    return state_bytes.pack(SCHEMAS, record)


def unpack(data: bytes, state: AdaptiveState, sums: WindowSums) -> AdaptiveState:
    """State of bytes, read into a fresh `state` of the same configuration.

    Raises ConfigurationError for another number of bins or classes.
    """
    _, record = state_bytes.unpack(SCHEMAS, data)
    scale = np.frombuffer(record["bank"][-1], dtype=np.float64)
    state_bytes.check_length(scale, state.bank.scale.size, "bins")
    for belief in ("bank", "correlation"):
        parts = vars(getattr(state, belief))
        for (name, part), stored in zip(parts.items(), record[belief], strict=True):
            read = np.frombuffer(stored, dtype=np.float64)
            parts[name] = read.reshape(part.shape).copy()
    state.spent = sums.read(record["spent"])
    state.reserve = sums.read(record["reserve"])
    for name in _PLAIN:
        setattr(state, name, record[name])
    return state

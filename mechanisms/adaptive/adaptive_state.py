"""What the adaptive mechanism remembers between slots, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.weight_bias import CorrelationState
from streamveil.mechanisms.core import state_codec

_BYTES_LIST = {"type": "array", "items": "bytes"}


def schemas(accounts: Sequence[state_codec.Schema]) -> dict[int, state_codec.Schema]:
    """Schemas of a state whose accounts are written in these fields."""
    fields = [
        {"name": "bank", "type": _BYTES_LIST},
        {"name": "correlation", "type": _BYTES_LIST},
        *accounts,
        {"name": "slots", "type": "long"},
        {"name": "since", "type": "long"},
        {"name": "unseen", "type": "long"},
        {"name": "gap", "type": "long"},
        {"name": "patience", "type": "double"},
        {"name": "usual_gap", "type": "double"},
        {"name": "published_slot", "type": ["null", "long"]},
        {"name": "epsilon", "type": "double"},
        {"name": "dispersion", "type": "double"},
    ]
    return {1: {"type": "record", "name": "Adaptive", "fields": fields}}


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

    bank: filter_bank.BankState
    correlation: CorrelationState
    accounts: Any
    """What was spent of each part of the budgets."""
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


def pack(
    state: AdaptiveState,
    versions: Mapping[int, state_codec.Schema],
    accounts: Mapping[str, Any],
) -> bytes:
    """Bytes of a state under :func:`schemas`; figures of beliefs as 64-bit floats."""
    record = {
        **{name: getattr(state, name) for name in _PLAIN},
        "bank": [part.tobytes() for part in vars(state.bank).values()],
        "correlation": [part.tobytes() for part in vars(state.correlation).values()],
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
    _, record = state_codec.unpack(versions, data)
    scale = np.frombuffer(record["bank"][-1], dtype=np.float64)
    state_codec.check_length(scale, state.bank.scale.size, "bins")
    for belief in ("bank", "correlation"):
        parts = vars(getattr(state, belief))
        for (name, part), stored in zip(parts.items(), record[belief], strict=True):
            read = np.frombuffer(stored, dtype=np.float64)
            parts[name] = read.reshape(part.shape).copy()
    state.accounts = accounts(record)
    for name in _PLAIN:
        setattr(state, name, record[name])
    return state

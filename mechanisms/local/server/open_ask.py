"""The ask whose reports are awaited, as a field of a state's record."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.local.protocol import Ask

ASKED: list[str | state_codec.Schema] = [
    "null",
    state_codec.record_schema(
        "Asked",
        slot="long",
        round="int",
        users="bytes",
        epsilons=state_codec.LONGS,
        oracles={"type": "array", "items": "string"},
    ),
]


def asked_record(asked: Ask | None) -> dict[str, Any] | None:
    """The value of `ASKED`."""
    if asked is None:
        return None
    return {
        "slot": asked.slot,
        "round": asked.round,
        "users": np.ascontiguousarray(asked.users, "<i4").tobytes(),
        "epsilons": asked.epsilons.tolist(),
        "oracles": list(asked.oracles),
    }


def asked_of(record: dict[str, Any] | None) -> Ask | None:
    """The ask of a value of `ASKED`."""
    if record is None:
        return None
    return Ask(
        record["slot"],
        record["round"],
        np.frombuffer(record["users"], "<i4").astype(np.int32),
        np.array(record["epsilons"], np.int64),
        tuple(record["oracles"]),
    )

"""What a query set's state is read with: shares, bounds and limits that the stream started with.

Shares are planned before the first base slot, and bounds and participation limits chosen then.
Other versions may plan other shares, and no run looks twice. So all go with the state, which is
bound to them: see `Keeper`. The state also contains the keys that are listed, those that left, and
the pairs of a key and a user of the last discovery slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.chosen_limits import choice_message, limits_from
from streamveil.engine.messages import Kind, Message, array_from_bytes, array_to_bytes
from streamveil.engine.stream.drivers import JOINED
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.queries.bounds import looks_at, with_bounds
from streamveil.mechanisms.queries.discovered import (
    Listed,
    discovering,
    undiscovered,
    with_keys,
)
from streamveil.mechanisms.queries.queries import QuerySet

_PURPOSE = b"answers"
_CHOSEN = dict.fromkeys(("shares", "bounds", "limits", "state"), "bytes")
_ENDED = {
    "type": "array",
    "items": state_codec.record_schema("Ended", key="string", since="long", until="long"),
}


def _discovered(**more: Any) -> dict[str, Any]:
    """Fields of the schema for keys that were discovered; `more` are those of a list of keys."""
    texts = {"type": "array", "items": "string"}
    listed = state_codec.record_schema("Listed", keys=texts, since=state_codec.LONGS, **more)
    named = {"type": "map", "values": listed}
    return {"listed": named, "slot": ["null", "long"], "discovery": "bytes"}


@dataclass(frozen=True, eq=False)
class Saved:
    """A state, and what it is read with."""

    shares: Units
    """Units of each query and class, int64, shape (Q, K)."""
    bounds: npt.NDArray[np.float64]
    """Of each look, shape (looks, 2)."""
    limits: tuple[Limit, ...]
    """That a look at users chose, of the classes of one query after another; none where it did not.
    """
    state: bytes
    """What the driver keeps, bound to its configuration."""
    listed: Mapping[str, Listed] = field(default_factory=dict)
    """The keys that are listed in the last released base slot, by query."""
    slot: int | None = None
    """This base slot."""
    discovery: bytes = b""
    """State of the discovery of keys. Its pairs of a key and a user are SECRET."""

    SCHEMAS = {
        1: state_codec.record_schema("Answers", **_CHOSEN),
        2: state_codec.record_schema("Answers", **_CHOSEN, **_discovered()),
        3: state_codec.record_schema("Answers", **_CHOSEN, **_discovered(ended=_ENDED)),
    }

    def sealed(self, key: bytes) -> bytes:
        """Bytes under a checksum."""
        record = {
            "shares": array_to_bytes(self.shares),
            "bounds": array_to_bytes(self.bounds),
            "limits": choice_message(self.limits).payload,
            "state": self.state,
            "listed": {name: one.record() for name, one in self.listed.items()},
            "slot": self.slot,
            "discovery": self.discovery,
        }
        return state_codec.seal(key, _PURPOSE, state_codec.pack(self.SCHEMAS, record))

    @classmethod
    def read(cls, data: bytes, key: bytes) -> Saved:
        """What was sealed. Raises ConfigurationError for bytes that were changed."""
        sealed = data.removeprefix(JOINED)
        version, record = state_codec.unpack(cls.SCHEMAS, state_codec.unseal(key, _PURPOSE, sealed))
        shares, bounds = (array_from_bytes(record[name]) for name in ("shares", "bounds"))
        limits = limits_from(Message(Kind.CHOICE, payload=record["limits"]))
        if version == 1:
            return cls(shares, bounds, limits, record["state"])
        listed = {
            name: Listed.of_record(one, record["slot"]) for name, one in record["listed"].items()
        }
        more = listed, record["slot"], record["discovery"]
        return cls(shares, bounds, limits, record["state"], *more)

    def asked(self, query_set: QuerySet) -> QuerySet:
        """The queries with the bounds that were chosen and the keys that were found.

        Raises ConfigurationError for a state of queries whose bounds were given, where these are
        to be chosen, and the other way round.
        """
        looks = len(looks_at(query_set))
        if bool(looks) != bool(len(self.bounds)):
            was, now = ("given", "to be chosen") if looks else ("chosen", "given")
            raise ConfigurationError(
                f"this state belongs to another configuration: the bounds of numbers were {was} "
                f"when it was written, and are {now} here; use the queries that it was written "
                "with, or start a new stream, which spends the users' budgets again"
            )
        if looks != len(self.bounds):
            raise ConfigurationError(
                "this state belongs to another configuration: bounds of numbers were chosen for "
                "other queries when it was written; use the queries that it was written with, or "
                "start a new stream, which spends the users' budgets again"
            )
        if undiscovered(query_set) and self.listed:
            query_set = with_keys(query_set, self.listed_of(query_set))
        return with_bounds(query_set, self.bounds) if looks else query_set

    def listed_of(self, query_set: QuerySet) -> Mapping[str, Listed]:
        """The keys of each query that discovers keys; none if a query did not do so earlier."""
        nothing = Listed(())
        return {one.name: self.listed.get(one.name, nothing) for one in discovering(query_set)}

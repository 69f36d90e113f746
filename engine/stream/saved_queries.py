"""What a query set's state is read with: shares, bounds and limits that the stream started with.

Shares are planned before the first base slot, and bounds and participation limits chosen then.
Other versions may plan other shares, and no run looks twice. So all go with the state, which is
bound to them: see `Keeper`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from streamveil.mechanisms.queries.queries import QuerySet

_PURPOSE = b"answers"


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

    SCHEMAS = {
        1: state_codec.record_schema(
            "Answers", shares="bytes", bounds="bytes", limits="bytes", state="bytes"
        )
    }

    def sealed(self, key: bytes) -> bytes:
        """Bytes under a checksum."""
        record = {
            "shares": array_to_bytes(self.shares),
            "bounds": array_to_bytes(self.bounds),
            "limits": choice_message(self.limits).payload,
            "state": self.state,
        }
        return state_codec.seal(key, _PURPOSE, state_codec.pack(self.SCHEMAS, record))

    @classmethod
    def read(cls, data: bytes, key: bytes) -> Saved:
        """What was sealed. Raises ConfigurationError for bytes that were changed."""
        sealed = data.removeprefix(JOINED)
        _, record = state_codec.unpack(cls.SCHEMAS, state_codec.unseal(key, _PURPOSE, sealed))
        shares, bounds = (array_from_bytes(record[name]) for name in ("shares", "bounds"))
        limits = limits_from(Message(Kind.CHOICE, payload=record["limits"]))
        return cls(shares, bounds, limits, record["state"])

    def asked(self, query_set: QuerySet) -> QuerySet:
        """The queries under the bounds that were chosen for them.

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
        return with_bounds(query_set, self.bounds) if looks else query_set

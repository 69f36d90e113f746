"""What the state of a portfolio is read with: the shares and bounds that the stream began with.

Shares are planned before the first base slot, and bounds chosen then. Other versions may plan other
shares, and no run looks twice. So both go with the state, which is bound to them: see `Keeper`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.engine.messages import array_from_bytes, array_to_bytes
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.portfolio.bounds import looks_at, with_bounds
from streamveil.mechanisms.portfolio.questions import Portfolio

_PURPOSE = b"answers"


@dataclass(frozen=True, eq=False)
class Saved:
    """A state, and what it is read with."""

    shares: Units
    """Units of each question and class, int64, shape (Q, K)."""
    bounds: npt.NDArray[np.float64]
    """Of each look, shape (looks, 2)."""
    state: bytes
    """What the driver keeps, bound to its configuration."""

    SCHEMAS = {
        1: state_codec.record_schema("Answers", shares="bytes", bounds="bytes", state="bytes")
    }

    def sealed(self, key: bytes) -> bytes:
        """Bytes under a checksum."""
        record = {
            "shares": array_to_bytes(self.shares),
            "bounds": array_to_bytes(self.bounds),
            "state": self.state,
        }
        return state_codec.seal(key, _PURPOSE, state_codec.pack(self.SCHEMAS, record))

    @classmethod
    def read(cls, data: bytes, key: bytes) -> Saved:
        """What was sealed. Raises ConfigurationError for bytes that were changed."""
        _, record = state_codec.unpack(cls.SCHEMAS, state_codec.unseal(key, _PURPOSE, data))
        shares, bounds = (array_from_bytes(record[name]) for name in ("shares", "bounds"))
        return cls(shares, bounds, record["state"])

    def asked(self, portfolio: Portfolio) -> Portfolio:
        """The questions under the bounds that were chosen for them.

        Raises ConfigurationError for a state of questions whose bounds were given, where these are
        to be chosen, and the other way round.
        """
        looks = len(looks_at(portfolio))
        if bool(looks) != bool(len(self.bounds)):
            was, now = ("given", "to be chosen") if looks else ("chosen", "given")
            raise ConfigurationError(
                f"this state belongs to another configuration: the bounds of numbers were {was} "
                f"when it was written, and are {now} here; go on with the questions that it was "
                "written with, or begin anew, which spends the users' budgets again"
            )
        if looks != len(self.bounds):
            raise ConfigurationError(
                "this state belongs to another configuration: bounds of numbers were chosen for "
                "other questions when it was written; go on with the questions that it was written "
                "with, or begin anew, which spends the users' budgets again"
            )
        return with_bounds(portfolio, self.bounds) if looks else portfolio

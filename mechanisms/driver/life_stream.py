"""A stream where users count in so many slots of their lives: it is scaled to all there was.

It is as `present_stream.py` has it for windows; what is asked, and when, is in
`presence/life_share.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError
from streamveil.mechanisms.driver.present_stream import Presence, PresentState, PresentStream
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.presence.kept_share import Rates
from streamveil.mechanisms.presence.life_share import LifeQuery, LifeShare, due
from streamveil.mechanisms.presence.limits import Limit
from streamveil.mechanisms.protocol import Mechanism
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class LifeStream(PresentStream):
    """Releases slots in order, each once, scaled by the private share that is kept.

    Arguments are those of :class:`PresentStream`; the layers of a slot are those of lives.
    Diagnostics of releases have `kept_share`, `events_beyond`, with which users went beyond the
    layers so far, and the standard errors of both.

    Raises ConfigurationError for a budget too small to ask anything.
    """

    SHARE = LifeShare

    def __init__(
        self, mechanism: Mechanism[Any], noise: NoiseSource, context: Parts, presence: Presence
    ) -> None:
        super().__init__(mechanism, noise, context, presence)
        self._scales = True
        self._inputs = 2 if presence.adjacency == REPLACE else 1
        both = zip(presence.limits, presence.requirements, strict=True)
        self._lives = {
            k: self._asked(limit, limit.aside(one, presence.adjacency))
            for k, (limit, one) in enumerate(both)
        }

    def _asked(self, limit: Limit, budget: int) -> tuple[LifeQuery, Rates]:
        """What is asked of a class, at that cost for ever."""
        assert limit.in_life is not None
        query = LifeQuery(limit.in_life, self.mechanism.population.sensitivity)
        rates = query.rates(budget)
        if not (rates.layers and rates.rest):
            raise ConfigurationError(
                f"a budget of {budget} units of 2**-{UNIT_BITS} is too small to ask how much a "
                f"limit of {limit.in_life} slots leaves out: ask for more epsilon, or count users "
                "in fewer slots"
            )
        return query, rates

    def _learnt(self, state: PresentState, slot: int) -> PresentState:
        sums, shares = state.sums, list(state.shares)
        for k, (query, rates) in self._lives.items():
            asked = due(state.stream.filter.slots, query.in_life)
            if not asked.any():
                continue
            told = sums[k][asked].tobytes()
            purpose = digest(state.stream.history, b"kept share of lives", b"%d" % k, told)
            words = self._noise.slot(slot, purpose).words("kept share")
            answer = query.answer(sums[k], asked, rates, words)
            shares[k] = shares[k].told(answer, asked, rates)
            sums[k][asked] = 0
        return PresentState(state.stream, sums, tuple(shares))

    def _share(self, state: PresentState) -> tuple[float, float]:
        share, variance = 0.0, 0.0
        for k, (query, _) in self._lives.items():
            mine, doubt = state.shares[k].estimate(query, state.stream.filter.slots)
            share += self._weights[k] * mine
            variance += self._weights[k] ** 2 * doubt
        return share, variance

    def _all_there(
        self, counts: Integers, stderr: Floats, share: float, variance: float
    ) -> tuple[Integers, Floats]:
        """With what chance does: whoever is left out might have been another, in another bin."""
        values, known = super()._all_there(counts, stderr, share, variance)
        each = self.mechanism.population.sensitivity / self._inputs  # events of a user
        chance = np.maximum(values, 0) * each * (1 - share) / share
        return values, np.sqrt(np.square(known) + chance)

    def _beyond(self, state: PresentState) -> dict[str, float]:
        events, errors = np.array([one.beyond for one in state.shares]).T
        return {
            "events_beyond": float(events.sum()),
            "events_beyond_stderr": float(np.sqrt(np.square(errors).sum())),
        }

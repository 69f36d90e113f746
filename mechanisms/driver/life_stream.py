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
from streamveil.mechanisms.presence.life_share import LifeQuery, LifeShare, due
from streamveil.mechanisms.presence.limits import terms as terms_of
from streamveil.mechanisms.protocol import Mechanism
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class LifeStream(PresentStream):
    """Releases slots in order, each once, scaled by the private share that is kept.

    Arguments are those of :class:`PresentStream`; the layers of a slot are those of lives.
    Diagnostics of releases have `kept_share`, `users_beyond`, who went beyond the layers so far,
    and the standard errors of both.

    Raises ConfigurationError for a budget too small to ask anything.
    """

    SHARE = LifeShare

    def __init__(
        self, mechanism: Mechanism[Any], noise: NoiseSource, context: Parts, presence: Presence
    ) -> None:
        super().__init__(mechanism, noise, context, presence)
        in_life, *others = {one.in_life for one in presence.limits}
        if in_life is None or others:
            raise ConfigurationError("all users count in equally many slots of a life (max_slots)")
        self._in_life = in_life
        self._users = 2 if presence.adjacency == REPLACE else 1
        query = LifeQuery(in_life, mechanism.population.sensitivity, self._users)
        terms = terms_of(presence.limits, presence.requirements, presence.adjacency)
        self._scales = True
        self._lives = {k: (query, query.rates(budget)) for k, budget in enumerate(terms.aside)}
        for k, (_, rates) in self._lives.items():
            if not (rates.layers and rates.rest):
                raise ConfigurationError(
                    f"a budget of {terms.aside[k]} units of 2**-{UNIT_BITS} is too small to ask "
                    f"how much a limit of {in_life} slots leaves out: ask for more epsilon, or "
                    "count users in fewer slots"
                )

    def _learnt(self, state: PresentState, slot: int) -> PresentState:
        asked = due(state.stream.filter.slots, self._in_life)
        if not asked.any():
            return state
        sums, shares = state.sums, list(state.shares)
        for k, (query, rates) in self._lives.items():
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
        each = self.mechanism.population.sensitivity / self._users
        chance = np.maximum(values, 0) * each * (1 - share) / share
        return values, np.sqrt(np.square(known) + chance)

    def _beyond(self, state: PresentState) -> dict[str, float]:
        users, errors = np.array([one.beyond for one in state.shares]).T
        return {
            "users_beyond": float(users.sum()),
            "users_beyond_stderr": float(np.sqrt(np.square(errors).sum())),
        }

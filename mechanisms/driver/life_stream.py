"""A stream where users count in so many slots of their lives: it is scaled to all there was.

It is as `present_stream.py` has it for windows; what is asked, and when, is in
`presence/life_share.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError
from streamveil.mechanisms.driver.present_stream import E, Presence, PresentState, PresentStream
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.presence.kept_share import Rates
from streamveil.mechanisms.presence.life_share import LifeQuery, LivesLeftOut, due, unknown
from streamveil.mechanisms.presence.limits import Limit
from streamveil.mechanisms.protocol import Mechanism, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, laplace_variance


class LifeStream(PresentStream):
    """Releases slots in order, each once, scaled by the private share that is kept.

    Arguments are those of :class:`PresentStream`; the layers of a slot are those of lives.
    Diagnostics of releases have `kept_share`, `events_beyond`, with which users went beyond the
    layers so far, and the standard errors of both.

    Raises ConfigurationError for a budget too small to ask anything.
    """

    UNKNOWN: Any = staticmethod(unknown)

    def __init__(
        self, mechanism: Mechanism[Any], noise: NoiseSource, context: Parts, presence: Presence
    ) -> None:
        super().__init__(mechanism, noise, context, presence)
        population = mechanism.population
        inputs = 2 if presence.adjacency == REPLACE else 1
        self._each = population.sensitivity / inputs  # events of a user
        price = int(population.requirements.budgets.min()) // population.sensitivity
        self._noise_of_bins = float(np.sqrt(population.bins * laplace_variance(price)))

    def _queries_of(self, presence: Presence, aside: Sequence[int]) -> dict[int, tuple[Any, Rates]]:
        return {k: self._life_query(limit, aside[k]) for k, limit in enumerate(presence.limits)}

    def _life_query(self, limit: Limit, budget: int) -> tuple[LifeQuery, Rates]:
        """What is asked of a class, at that cost for ever."""
        assert limit.in_life is not None
        query = LifeQuery(limit.in_life, self.mechanism.population.sensitivity)
        rates = query.rates(budget)
        if not (rates.layers and rates.rest):
            raise ConfigurationError(
                f"a budget of {budget} units of 2**-{UNIT_BITS} is too small to estimate how "
                f"much a limit of {limit.in_life} slots drops: ask for more epsilon, or count "
                "users in fewer slots"
            )
        return query, rates

    def _learn(self, state: PresentState, slot: int, release: SlotRelease) -> None:
        age = state.stream.filter.slots
        for k, (query, rates) in self.queries.items():
            share = state.shares[k].released(*self._released(release))
            asked = due(age, query.in_life)
            if asked.any():
                sums, numbers = state.sums[k], query.asked(asked)
                words = self._words(state, slot, k, sums[numbers])
                share = share.updated(query.answer(sums, asked, rates, words), asked, rates)
                state.sums[k] = np.where(numbers, 0, sums)
            state.shares[k] = share

    def _released(self, release: SlotRelease) -> tuple[float, ...]:
        """Events that count, as :meth:`LifeShare.released` takes them."""
        return (float(release.values.sum()),)

    def left_out(self, state: PresentState) -> Any:
        """See :class:`PresentStream`."""
        weights = state.kept + 1
        if not weights.sum():  # counts are noisy, and may be below 0
            weights = np.ones_like(weights)
        floor = self._noise_of_bins * weights / weights.sum()
        return LivesLeftOut.of(list(state.shares.values()), state.stream.filter.slots, floor)

    def _made_up(self, estimate: E, left_out: Any) -> E:
        """With what chance does: whoever is left out might have been another, in another bin."""
        made = super()._made_up(estimate, left_out)
        return replace(made, stderr=self._with_chance(made, estimate))

    def _with_chance(self, made: E, counted: E) -> Floats:
        """Standard errors of what was made up from what counted, with that of chance: (d,)."""
        chance = np.maximum(made.values - counted.values, 0) * self._each
        errors: Floats = np.sqrt(np.square(made.stderr) + chance)
        return errors

    def _known(self, state: PresentState, left_out: Any) -> dict[str, float]:
        share, error = left_out.share
        events, errors = np.array([one.beyond for one in state.shares.values()]).T
        return {
            "kept_share": float(share),
            "kept_share_stderr": float(error),
            "events_beyond": float(events.sum()),
            "events_beyond_stderr": float(np.sqrt(np.square(errors).sum())),
        }

"""How much is left out where users count in so many slots of their lives: a private estimate.

Number the visits of a user, that is the slots with events of theirs, from the first on for ever.
The first M count; the next M lie one layer above, and M more in a third. Beside counts, a slot
tells how many events there were in visits of each layer, and in those with which users go beyond:
the (3 M + 1)-th of each.

Theorem. If all events of a user are added or removed, the sums of a layer over all slots change by
at most M C in all, and the events beyond by C, where C events of a user count in a slot; twice as
much if they are replaced.
Proof. However long the stream, a user has at most M visits in a layer, of at most C events each,
and one that is the (3 M + 1)-th; other users' visits have the numbers that they had. To replace
events is to remove those of one user and to add those of another.

Each visit is in one answer of a kind. So noise of rate a for an event of the layers and b for one
beyond costs a user at most (3 M a + b) C for ever, however often it is asked: answers never end,
and never get worse. When it is asked depends on the age of the stream alone.

What users do beyond 3 M visits is in no figure: to measure it as well would cost more the longer
the stream is. So the share is estimated as if layers went on to fall as they fell, and the events
beyond are told: if these users all still come as they came then, so many are missing in each slot.
That is asked ever more rarely, since only the sum of the answers is of use, and each adds noise.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.presence.kept_share import (
    FADING,
    LAYERS,
    Beyond,
    Floats,
    Integers,
    Rates,
    drawn,
)
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

GUESS, DOUBT = 0.9, 0.15
"""Share that a limit chosen with care keeps, and its standard error, before any is measured."""
EVERY = 20
"""Slots from one answer to the next; there are two more early ones."""
BEYOND = LAYERS
"""Column of the visits with which users go beyond the layers."""
SURE = 20.0
"""Old answers fade where what counts is known to so many standard errors."""
CLEAR = 3.0
"""What is so many standard errors is something: a layer whose fall is believed, an answer."""
SLOWEST = 0.9
"""Layers are taken to fall at least so much: by this factor from one to the next."""
LOW = 0.5
"""A share below this is worth a warning."""


def due(age: int, in_life: int) -> npt.NDArray[np.bool_]:
    """What is asked at the end of a slot, of the layers and beyond: shape (4,).

    Args:
        age: slots of the stream so far, this one included.
        in_life: slots M in which a user counts.
    """
    often = age > in_life and (age % EVERY == 0 or age in (2 * in_life, 4 * in_life))
    lives, part = divmod(age, LAYERS * in_life)  # asked after 1, 2, 3, 4, 6, 8, 12, 16, ...
    seldom = lives > 0 == part and lives % (1 << max(lives.bit_length() - 2, 0)) == 0
    return np.array([often] * LAYERS + [seldom])


@dataclass(frozen=True)
class LifeQuery:
    """What it costs to ask for the layers of a class, and the answers."""

    in_life: int
    """Slots M in which a user counts."""
    sensitivity: int
    """How much one user can change a slot."""

    every = EVERY
    width = LAYERS + 1
    """Numbers in an answer."""
    bins = 1
    """None is asked for by itself."""

    @property
    def sensitivities(self) -> tuple[int, int]:
        """By how much neighbours change all answers of the layers together, and beyond."""
        return LAYERS * self.in_life * self.sensitivity, self.sensitivity

    def rates(self, budget: int) -> Rates:
        """What costs at most so many units for ever: half for the layers, half for beyond."""
        inside, above = self.sensitivities
        each = budget // 2 // inside
        return Rates(each, each, budget // 2 // above, 0)

    def sums(self, counts: Integers, beyond: Beyond) -> Integers:
        """What a slot adds to the next answers, of counts and of events that do not count."""
        sums = np.zeros(self.width, np.int64)
        sums[0] = counts.sum()
        np.add.at(sums, beyond.layers, beyond.events)
        return sums

    def answer(
        self, sums: Integers, asked: npt.NDArray[np.bool_], rates: Rates, words: RandomWords
    ) -> Integers:
        """The sums that are asked with noise, and 0 for the others: shape (4,)."""
        noisy = np.where(asked, sums, 0)
        if asked[0]:
            noisy[:LAYERS] += discrete_laplace(rates.layers, LAYERS, words)
        if asked[BEYOND]:
            noisy[BEYOND:] += discrete_laplace(rates.rest, 1, words)
        return noisy


@dataclass(frozen=True, eq=False)
class LifeShare:
    """What is known of the share that is kept: a function of answers alone, so public."""

    query: LifeQuery
    sums: Floats
    """Of the layers, older answers with less weight, and all beyond: shape (4,)."""
    variances: Floats
    """Of the noise of each, shape (4,)."""

    @classmethod
    def unknown(cls, query: LifeQuery) -> LifeShare:
        """Before the first answer."""
        return cls(query, np.zeros(LAYERS + 1), np.zeros(LAYERS + 1))

    def told(self, answer: Integers, asked: npt.NDArray[np.bool_], rates: Rates) -> LifeShare:
        """With one more answer to noise of these rates.

        Nothing fades before much is known, nor for an answer that tells nothing: where few events
        count, or none any more, what they said is remembered.
        """
        noise = np.full(LAYERS + 1, laplace_variance(rates.layers))
        noise[BEYOND] = laplace_variance(rates.rest)
        known = self.sums[0] > SURE * np.sqrt(self.variances[0])
        fades = known and answer[0] > CLEAR * np.sqrt(noise[0])
        fading = np.where(asked, FADING if fades else 1.0, 1.0)
        fading[BEYOND] = 1.0
        return replace(
            self,
            sums=fading * self.sums + answer,
            variances=fading**2 * self.variances + np.where(asked, noise, 0.0),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, to be saved."""
        return *self.variances, *self.sums

    def of_numbers(self, numbers: Floats) -> LifeShare:
        """One of the same query that was saved."""
        return LifeShare(self.query, numbers[4:], numbers[:4])

    def estimate(self, age: int) -> tuple[float, float]:
        """The share of the events of a slot, above 0 and at most 1, and its variance.

        What is measured is drawn to what is to be expected of a limit, by as much as it is
        uncertain: see :func:`drawn`. In the first M slots nothing can be left out, and in the next
        M little is.

        Args:
            age: slots of the stream so far.
        """
        later = min(max(age / self.query.in_life - 1, 0.0), 1.0)
        expected, doubt = 1 - (1 - GUESS) * later, DOUBT * later
        kept, middle, upper = np.maximum(self.sums[:LAYERS], 0)
        noise = self.variances[0]
        if kept <= np.sqrt(noise):
            return expected, doubt**2
        fall = min(upper * middle / (middle**2 + CLEAR**2 * noise), SLOWEST)
        near, likely = (middle + upper) / kept, 1 / expected - 1
        near, variance = drawn(
            near, (2 + near**2) * noise / kept**2, likely, (doubt / expected**2) ** 2
        )
        # Of the rest nobody knows: it may be twice as much, or nothing.
        rest = upper * fall / (1 - fall) / kept
        there = 1 + near + rest
        return float(1 / there), float((variance + rest**2) / there**4)

    @property
    def beyond(self) -> tuple[float, float]:
        """Events with which users went beyond the layers so far, and the standard error of that."""
        return max(float(self.sums[BEYOND]), 0.0), float(np.sqrt(self.variances[BEYOND]))


def mostly_left_out(diagnostics: Mapping[str, float], events: int) -> bool:
    """Whether it seems that more is left out of a slot than counts: a function of a release.

    That is if the share is below `LOW`, or if more is surely beyond the layers than there is in the
    slot: these users may all still be there.

    Args:
        diagnostics: of the release.
        events: that it says there were, in all bins.
    """
    surely = diagnostics["events_beyond"] - 2 * diagnostics["events_beyond_stderr"]
    return diagnostics["kept_share"] < LOW or surely > max(events, 0)

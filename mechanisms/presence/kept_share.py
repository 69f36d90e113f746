"""Which share of the slots with events counts: a private estimate, and counts scaled by it.

What a limit leaves out makes counts low, and nobody would see by how much. In a block of a user let
n be the slots with events. They lie in layers of m slots each: the first min(n, m) count, the next
m lie above, and so on. Of each class, once for each length of a block, four sums over all users
whose block has ended since are released with Laplace noise: those of the first three layers, and
that of all above.

Theorem. If a user's events in a window of w slots are added, removed or replaced, the sums of the
three layers together change by at most min(3 m (j + 1), w), over all answers, and those of the rest
by at most min((B - 3 m) (j + 1), w).
Proof. A user has part in an answer once for each block. The three layers of a block add up to
min(n, 3 m) and all change in the direction in which n does, and the rest is n less that; so a block
changes them by at most 3 m and B - 3 m, and neither by more slots than it has in the window. There
are j + 1 such blocks, and w slots.

So noise of rates a and b a unit costs a user a times the one and b times the other over any window,
beside what slots cost. That is for limits to blocks; a life has none.

The rest is measured because nothing below tells how large it is: of users who are always there, few
suffice for most of what is left out. It is as dear to measure as a total without any limit, so what
the layers tell is added to it. They never rise, since who is in one is in all below it.

Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.presence.limits import BLOCKS, block_length
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LAYERS = 3
"""That of the slots which count, and two above it; then comes the rest."""
FADING = 0.9
"""Weight of what was measured one block earlier."""
GUESS, DOUBT = 0.9, 0.15
"""Share that a limit chosen with care keeps, and its standard error, before any is measured."""
_SPREAD = 12**-0.5  # standard deviation of what may be anything from 0 to 1


def layers(slots: Integers, max_slots: npt.ArrayLike) -> Integers:
    """Slots with events of some users' blocks by layers, and the rest: shape (n, 4).

    Args:
        slots: with events, of each block that has ended, shape (n,).
        max_slots: slots m of a block that count: one number, or of each, shape (n,).
    """
    most = np.broadcast_to(np.asarray(max_slots, np.int64), slots.shape)[:, None]
    above = np.maximum(slots[:, None] - most * np.arange(LAYERS + 1), 0)
    above[:, :LAYERS] = np.minimum(above[:, :LAYERS], most)
    return above


@dataclass(frozen=True)
class Rates:
    """Units that a unit of the sums costs; 0 for what is not asked."""

    layers: int
    rest: int


@dataclass(frozen=True)
class ShareQuery:
    """What it costs to ask for the layers of a class, and the answer."""

    window: int
    max_slots: int
    blocks: int = BLOCKS

    @property
    def every(self) -> int:
        """Slots B from one answer to the next."""
        return block_length(self.window, self.blocks)

    @property
    def sensitivities(self) -> tuple[int, int]:
        """By how much neighbours change all answers of the layers together, and of the rest."""
        inside = LAYERS * self.max_slots
        touched = self.blocks + 1
        above = max(self.every - inside, 0)
        return min(inside * touched, self.window), min(above * touched, self.window)

    def rates(self, budget: int) -> Rates:
        """What costs at most so many units over any window: half for the layers, half for the rest.

        Rounded down; all for the layers where there can be no rest.
        """
        inside, above = self.sensitivities
        if not above:
            return Rates(budget // inside, 0)
        return Rates(budget // 2 // inside, budget // 2 // above)

    def answer(self, sums: Integers, rates: Rates, words: RandomWords) -> Integers:
        """The sums with noise, shape (4,). Raises ValueError where a rate is 0 that is needed."""
        noisy = sums.copy()
        noisy[:LAYERS] += discrete_laplace(rates.layers, LAYERS, words)
        if self.sensitivities[1]:
            noisy[LAYERS:] += discrete_laplace(rates.rest, 1, words)
        return noisy


@dataclass(frozen=True, eq=False)
class KeptShare:
    """What is known of the share that is kept: a function of answers alone, so public."""

    sums: Floats
    """Of the layers and the rest, older answers with less weight: shape (4,)."""
    variances: Floats
    """Of the noise of each, shape (4,)."""

    @classmethod
    def unknown(cls) -> KeptShare:
        """Before the first answer."""
        return cls(np.zeros(LAYERS + 1), np.zeros(LAYERS + 1))

    def told(self, answer: Integers, rates: Rates) -> KeptShare:
        """With one more answer to noise of these rates."""
        noise = np.full(LAYERS + 1, laplace_variance(rates.layers))
        noise[LAYERS] = laplace_variance(rates.rest) if rates.rest else 0.0
        return replace(
            self,
            sums=FADING * self.sums + answer,
            variances=FADING**2 * self.variances + noise,
        )

    def estimate(self, query: ShareQuery) -> tuple[float, float]:
        """The share, above 0 and at most 1, and its variance.

        It is drawn to what is to be expected of a limit, by as much as the answers are uncertain.
        That is done with 1 / share: its error does not depend on how much seems to be left out.
        """
        kept, middle, upper = np.maximum(self.sums[:LAYERS], 0)
        noise = self.variances[0]
        if kept <= np.sqrt(noise):
            return GUESS, DOUBT**2
        rest, rest_variance = self._rest(middle, upper, query)
        there = 1 + (middle + upper + rest) / kept
        variance = (2 * noise + rest_variance + (there - 1) ** 2 * noise) / kept**2
        guess, doubt = 1 / GUESS, DOUBT / GUESS**2
        trust = doubt**2 / (doubt**2 + variance)
        there = max(guess + trust * (there - guess), 1.0)
        return float(1 / there), float(trust * variance / there**4)

    def _rest(self, middle: float, upper: float, query: ShareQuery) -> tuple[float, float]:
        """Slots above the layers and their variance, of what was measured and what is likely.

        Likely is that layers go on to fall as they fell; they may as well stay as high.
        """
        most = max(query.every / query.max_slots - LAYERS, 0)
        if not most:
            return 0.0, 0.0
        fall = min(upper / middle, 1 - 1e-9) if middle > 0 else 0.0
        likely = upper * fall * (1 - fall**most) / (1 - fall)
        doubt = (_SPREAD * most) ** 2 * (upper**2 + self.variances[0])
        measured, noise = self.sums[LAYERS], self.variances[LAYERS]
        weight = doubt / (doubt + noise)
        return max(likely + weight * (measured - likely), 0.0), weight * noise


def scaled(
    counts: npt.ArrayLike, variances: npt.ArrayLike, share: float, variance: float
) -> tuple[Floats, Floats]:
    """Counts of what is kept as counts of all there was, and their variances.

    Args:
        counts: private counts, any shape.
        variances: of their noise, the same shape.
        share: that is kept, in all bins alike.
        variance: of that share.
    """
    all_there = np.asarray(counts, np.float64) / share
    return all_there, (np.asarray(variances) + all_there**2 * variance) / share**2

"""Which share of the events counts: a private estimate, of each class that is limited.

What a limit leaves out makes counts low, and nobody would see by how much. The slots of a user's
block in which there are events lie in layers of m: the first m count, the next m are a layer above,
and so on. What is in a layer is known in the slot itself, from the one counter that decides whether
it counts. Of each class, once in the length of a block, sums over all users and the slots since the
last time are released with Laplace noise: the events of the first three layers, those of the rest
above, and those of the second and third layer together by bin.

Theorem. If a user's events in a window of w slots are added, removed or replaced, the sums of one
layer, by bin or not, change together, over all answers, by at most what the counts of all slots
change by: w_eff times the sensitivity of a slot.
Proof. That of `limits.py`, which uses two things only of what counts: in a block there are at most
m slots of it, which depend on that block alone, and those before the window are the same in both
inputs. Both are true of any layer. Sums over slots change by no more than the slots do.

Theorem. The sums of the rest change by at most min((j + 1) (B - 3 m), w) times that sensitivity.
Proof. Let the events be removed. No slot moves to a higher place, so none comes into the rest. Of a
block, as many slots leave it as it has fewer: at most all, B - 3 m, and at most as many as have
events removed. There are j + 1 blocks and w slots. Replacing is removing and adding, and a slot
then counts twice.

So noise of a rate of a units costs a times that over any window, beside what slots cost. All is
counted in events, since events are what is scaled. It is for limits to blocks; for those of a life
see `life_share.py`.

The rest is measured because little below tells how large it is: of users who are always there, few
suffice for most of what is left out. It is as dear to measure as a total without any limit, so what
the layers tell is added to it. They never rise, since who is in one is in all below it.

Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.presence.limits import BLOCKS, block_length
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LAYERS = 3
"""That of the slots which count, and two above it; then comes the rest."""
MOST_BINS = 1000
"""Of more bins none is asked for by itself."""
FADING = 0.9
"""Weight of what was measured one block earlier."""
NEAR = 0.09, 0.12
"""What the two layers above are to the first, if a limit was chosen with care, and its doubt."""
FALL = 0.35, 0.3
"""What the third layer is to the second, and its doubt."""
CARELESS, ANYTHING = 10, 0.5
"""One limit in so many was not chosen with care; what is left out then, of each measure."""
FOR_REST, FOR_BINS = 6, 4
"""Parts of 20 of the budget that questions about the rest and the bins have; layers have others."""
CLEAR = 3
"""Standard errors that must be between nothing and what counts, or answers tell nothing."""
TINY = 1e-12
_SPREAD = 12**-0.5  # standard deviation of what may be anything from 0 to 1


class Beyond(NamedTuple):
    """Events of a slot that do not count: of users of some classes, in bins. All of shape (n,)."""

    layers: Integers
    """1 and 2 for the two layers above that which counts, 3 for the rest."""
    classes: Integers
    bins: Integers
    events: Integers

    @classmethod
    def none(cls) -> Beyond:
        """Everything counts."""
        return cls(*np.zeros((4, 0), np.int64))


class Rates(NamedTuple):
    """Units that a unit of the sums costs; 0 for what is not asked."""

    kept: int
    """Of what counts. Of it less has to be known."""
    layers: int
    bins: int
    rest: int


@dataclass(frozen=True)
class ShareQuery:
    """What it costs to ask for the layers of a class, and the answer."""

    window: int
    max_slots: int
    slots: int
    """By how many slots neighbours can differ in what counts, and so in each layer."""
    blocks: int = BLOCKS
    bins: int = 1
    """Bins that are asked for; 1 for none by itself."""
    sensitivity: int = 1
    """How much one user can change a slot."""

    @property
    def every(self) -> int:
        """Slots B from one answer to the next."""
        return block_length(self.window, self.blocks)

    @property
    def sensitivities(self) -> tuple[int, int]:
        """By how much neighbours change all answers of one layer, and of the rest."""
        above = max(self.every - LAYERS * self.max_slots, 0) * (self.blocks + 1)
        return self.slots * self.sensitivity, min(above, self.window) * self.sensitivity

    def sums(self, counts: Integers, beyond: Beyond, mine: Flags) -> Integers:
        """What a slot adds to the next answer: `mine` are the rows of the class."""
        layers, bins, events = beyond.layers[mine], beyond.bins[mine], beyond.events[mine]
        sums = np.zeros(self.width, np.int64)
        sums[0] = counts.sum()
        np.add.at(sums, layers, events)
        if self.bins > 1:
            near = layers < LAYERS
            np.add.at(sums, LAYERS + 1 + bins[near], events[near])
        return sums

    def rates(self, budget: int) -> Rates:
        """What costs at most so many units over any window, rounded down.

        What is not asked for leaves its part to the layers.
        """
        layer, rest = self.sensitivities
        part = budget // 20
        for_rest = FOR_REST * part if rest else 0
        for_bins = FOR_BINS * part if self.bins > 1 else 0
        half = (budget - for_rest - for_bins) // 5 // layer
        return Rates(half, 2 * half, for_bins // 2 // layer, for_rest // rest if rest else 0)

    def answer(self, sums: Integers, rates: Rates, words: RandomWords) -> Integers:
        """The sums with noise: of three layers, of the rest, and of bins if there are several.

        Raises ValueError where a rate is 0 that is needed.
        """
        noisy = sums.copy()
        noisy[:1] += discrete_laplace(rates.kept, 1, words)
        noisy[1:LAYERS] += discrete_laplace(rates.layers, LAYERS - 1, words)
        if self.sensitivities[1]:
            noisy[LAYERS] += discrete_laplace(rates.rest, 1, words)[0]
        if self.bins > 1:
            noisy[LAYERS + 1 :] += discrete_laplace(rates.bins, self.bins, words)
        return noisy

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return LAYERS + 1 + (self.bins if self.bins > 1 else 0)


class Odds(NamedTuple):
    """Events left out for each that counts: of the two layers above, and of the rest."""

    near: float
    near_variance: float
    rest: float
    rest_variance: float

    @property
    def all(self) -> float:
        """All that is left out."""
        return self.near + self.rest

    @property
    def variance(self) -> float:
        """Of all that is left out."""
        return self.near_variance + self.rest_variance


@dataclass(frozen=True, eq=False)
class KeptShare:
    """What is known of the share that is kept: a function of answers alone, so public."""

    query: ShareQuery
    sums: Floats
    """Of layers, rest and bins, older answers with less weight: shape (width,)."""
    variances: Floats
    """Of the noise of what counts, of a layer, of the rest and of a bin: shape (4,)."""
    answers: int = 0
    """So far."""

    @classmethod
    def unknown(cls, query: ShareQuery) -> KeptShare:
        """Before the first answer."""
        return cls(query, np.zeros(query.width), np.zeros(4))

    def told(self, answer: Integers, rates: Rates) -> KeptShare:
        """With one more answer to noise of these rates.

        Of the first answer nothing stays: the beginning of the stream cut the users' blocks short,
        and less is left out of a part of a block.
        """
        fading = 0.0 if self.answers == 1 else FADING
        asked = (rates.kept, rates.layers, rates.rest, rates.bins)
        noise = np.array([laplace_variance(rate) if rate else 0.0 for rate in asked])
        return replace(
            self,
            sums=fading * self.sums + answer,
            variances=fading**2 * self.variances + noise,
            answers=self.answers + 1,
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, to be saved."""
        return self.answers, *self.variances, *self.sums

    def of_numbers(self, numbers: Floats) -> KeptShare:
        """One of the same query that was saved."""
        return KeptShare(self.query, numbers[5:], numbers[1:5], int(numbers[0]))

    @property
    def slots(self) -> float:
        """That the sums are of, older ones with less weight."""
        weights = FADING ** np.arange(max(self.answers - 1, min(self.answers, 1)))
        return self.query.every * float(weights.sum())

    @property
    def is_clear(self) -> bool:
        """Whether so much counts that answers tell anything."""
        return bool(self.sums[0] > CLEAR * np.sqrt(self.variances[0]))

    def odds(self) -> Odds:
        """What is left out for each event that counts.

        What is measured is drawn to what is to be expected of a limit, by as much as it is
        uncertain: see :func:`drawn`.
        """
        kept, middle, upper, rest = map(float, self.sums[: LAYERS + 1])
        in_kept, in_layer, in_rest, _ = map(float, self.variances)
        above, in_above = self._above()
        fall = FALL[0]
        if not self.is_clear:
            kept, in_above, in_rest = 1.0, np.inf, np.inf
        elif middle > 0:
            ratio = upper / middle
            trust = FALL[1] ** 2 / (FALL[1] ** 2 + in_layer * (1 + ratio**2) / middle**2)
            fall = float(np.clip(fall + trust * (ratio - fall), 0, 1))
        ratio = above / kept
        near = drawn(ratio, (in_above + ratio**2 * in_kept) / kept**2, NEAR[0], NEAR[1] ** 2)
        more = max(self.query.every / self.query.max_slots - LAYERS, 0)
        if not more:
            return Odds(*near, 0.0, 0.0)
        # Layers go on to fall as they fell; they may as well stay as high.
        upper, fall = near[0] * fall / (1 + fall), min(fall, 1 - 1e-9)
        likely, doubt = upper * fall * (1 - fall**more) / (1 - fall), (_SPREAD * more * upper) ** 2
        ratio = rest / kept
        noise = (in_rest + ratio**2 * in_kept) / kept**2
        return Odds(*near, *drawn(ratio, noise, likely, doubt))

    def _above(self) -> tuple[float, float]:
        """Events of the two layers above, as layers and as bins, and the variance of that."""
        by_layer, noise = float(self.sums[1:LAYERS].sum()), 2 * float(self.variances[1])
        bins = self.sums[LAYERS + 1 :]
        if not len(bins) or not noise:
            return by_layer, noise
        by_bin = len(bins) * float(self.variances[3])
        weight = by_bin / (noise + by_bin)
        return by_layer + (1 - weight) * (float(bins.sum()) - by_layer), weight * noise


def drawn(measured: float, noise: float, likely: float, doubt: float) -> tuple[float, float]:
    """What was measured drawn to what is likely, and the variance of that; not below 0.

    It is likely of a limit that was chosen with care. One in `CARELESS` was not: then anything is
    about as likely, which is what a measure far off says, and what the variance tells before.

    Args:
        measured: with noise of this variance.
        noise: its variance; infinite where nothing was measured.
        likely: before anything was measured.
        doubt: the variance of that.
    """
    noise, doubts = max(noise, TINY), np.array([doubt, max(ANYTHING**2, doubt)])
    chances = np.array([1 - 1 / CARELESS, 1 / CARELESS])
    if np.isinf(noise):
        return likely, float(chances @ doubts)
    far = measured - likely
    logs = np.log(chances / np.sqrt(doubts + noise)) - far**2 / 2 / (doubts + noise)
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    trust = doubts / (doubts + noise)
    mean = float(chances @ trust) * far
    variance = float(chances @ (trust * noise + (trust * far - mean) ** 2))
    return max(likely + mean, 0.0), variance

"""Which share of the events counts: a private estimate for each class that is limited.

What a limit leaves out makes counts low, and nobody would see by how much. So it is measured, in
layers: of the slots of a user's block in which there are events, the first m count, the next m are
the first layer above, m more are the second, and all others are the rest. The counter that decides
whether a slot counts knows its layer at once.

Of each class, once in the length of a block, sums over all users and over the slots since the last
time are released with Laplace noise: the events that count, those of the two layers above together,
those of the rest, and of large classes also those of the two layers by bin. All is in events, since
events are what is scaled. This is for limits to blocks; for those of a life see `life_share.py`.

Theorem. If a user's events in a window of w slots are added, removed or replaced, the sums of one
layer, by bin or not, change over all answers together by at most what counts change by over all
slots: w_eff times the sensitivity of a slot.
Proof. That of `limits.py`. It uses two things only of the slots that count: in a block there are at
most m of them, which depend on that block alone, and those before the window are the same in both
inputs. Both are true of any layer. Sums over slots change by no more than the slots do. (Two layers
together change by at most twice that.)

Theorem. The sums of the rest change by at most min((j + 1) (B - 3 m), w) times that sensitivity.
Proof. Let the events be removed. No other slot of a block gets a later place by that, so none comes
into the rest. Of each block as many slots leave the rest as it then has fewer: at most all, which
are B - 3 m, and at most as many as have events removed. There are j + 1 blocks and w slots. To
replace is to remove and to add, and then a slot counts twice in the sensitivity as well.

So noise of a rate of a units costs a times these bounds over any window, beside what slots cost.

Why these sums: the two layers are one number, because as two, at the same price together, their sum
would have twice the variance. The rest is asked for because layers tell little of it: of users who
are always there, a few are enough for most of what is left out. It is as dear to measure as a total
without any limit, so what is likely by the layers is taken into account.

Of few users nothing can be measured: 943 of whom 30 % of 11 visits a day are left out would take
two fifths of all their budget. Then it is a guess, by how many slots count, and a wide one.

Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.presence.limits import BLOCKS, block_length
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

LAYERS = 3
"""That of the slots which count, and two above it; then comes the rest."""
KEPT, NEARBY, REST, BY_BIN = range(4)
"""Places in an answer: what counts, the two layers above, the rest; from the last on bins."""
MOST_BINS = 1000
"""Of more bins none is asked for by itself."""
MANY_USERS = 20_000
"""Of classes of fewer neither: noise would hide all but what is plain in all bins together."""
FADING = 0.9
"""Weight of what was measured one block earlier."""
NEAR = 0.09, 0.12
"""What the two layers above are to the first, if a limit was chosen with care, and its doubt."""
COARSE = 0.4, 0.3
"""By how much more, divided by the square of the slots that count: one or two are a coarse choice,
which can leave out much of those who come again and little of those who do not."""
FALL = 0.35
"""What a layer is to the one below it."""
CARELESS, ANYTHING = 10, 0.5
"""One limit in so many was not chosen with care; what is left out then, of each measure."""
PARTS, FOR_REST, FOR_BINS = 20, 10, 4
"""Of so many parts of the budget, those of queries about the rest and about bins; the others are
for layers."""
FOR_KEPT = 3
"""One in so many of these is for what counts. Of it less has to be known."""
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
    """Of what counts."""
    layers: int
    """Of the two layers above."""
    rest: int
    bins: int
    """Of the two layers, by bin."""


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
        sums, near = np.zeros(self.width, np.int64), layers < LAYERS
        sums[KEPT], sums[NEARBY], sums[REST] = counts.sum(), events[near].sum(), events[~near].sum()
        if self.bins > 1:
            np.add.at(sums, BY_BIN + bins[near], events[near])
        return sums

    def rates(self, budget: int) -> Rates:
        """What costs at most so many units over any window, rounded down.

        What is not asked for leaves its part to the layers. So what these cost in all, bins among
        them, is the same with bins and without; and neither it nor the rest is more for less.
        """
        layer, rest = self.sensitivities
        part = budget // PARTS
        for_rest = FOR_REST * part if rest else 0
        for_bins = FOR_BINS * part if self.bins > 1 else 0
        for_layers = PARTS * part - for_rest - for_bins
        for_kept = for_layers // FOR_KEPT
        return Rates(
            for_kept // layer,
            (for_layers - for_kept) // 2 // layer,
            for_rest // rest if rest else 0,
            for_bins // 2 // layer,
        )

    def answer(self, sums: Integers, rates: Rates, words: RandomWords) -> Integers:
        """The sums with noise: what counts, near, the rest, and of bins if there are several.

        Raises ValueError where a rate is 0 that is needed.
        """
        noisy = sums.copy()
        noisy[KEPT : KEPT + 1] += discrete_laplace(rates.kept, 1, words)
        noisy[NEARBY : NEARBY + 1] += discrete_laplace(rates.layers, 1, words)
        if self.sensitivities[1]:
            noisy[REST : REST + 1] += discrete_laplace(rates.rest, 1, words)
        if self.bins > 1:
            noisy[BY_BIN:] += discrete_laplace(rates.bins, self.bins, words)
        return noisy

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return BY_BIN + (self.bins if self.bins > 1 else 0)


class Odds(NamedTuple):
    """Events left out for each that counts: of the two layers above, and of the rest."""

    near: float
    near_variance: float
    rest: float
    rest_variance: float
    shared: float = 0.0
    """Covariance: both are in parts of what counts, which is measured once."""

    @property
    def all(self) -> float:
        """All that is left out."""
        return self.near + self.rest

    @property
    def variance(self) -> float:
        """Of all that is left out."""
        return self.near_variance + self.rest_variance + 2 * self.shared


@dataclass(frozen=True, eq=False)
class KeptShare:
    """What is known of the share that is kept: a function of answers alone, so public."""

    query: ShareQuery
    sums: Floats
    """As in an answer, older ones with less weight: shape (width,)."""
    variances: Floats
    """Of the noise of what counts, of what is near, of the rest and of a bin: shape (4,)."""
    answers: int = 0
    """So far."""

    @classmethod
    def unknown(cls, query: ShareQuery) -> KeptShare:
        """Before the first answer."""
        return cls(query, np.zeros(query.width), np.zeros(4))

    def updated(self, answer: Integers, rates: Rates) -> KeptShare:
        """With one more answer to noise of these rates.

        Of the first answer nothing stays: the beginning of the stream cut the users' blocks short,
        and less is left out of a part of a block.
        """
        fading = 0.0 if self.answers == 1 else FADING
        noise = np.array([laplace_variance(rate) if rate else 0.0 for rate in rates])
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
        kept, rest = float(self.sums[KEPT]), float(self.sums[REST])
        in_kept, _, in_rest, _ = map(float, self.variances)
        close, in_close = self._near()
        if not self.is_clear:
            kept, in_close, in_rest = 1.0, np.inf, np.inf
        most = self.query.max_slots
        likely, doubt = (one + more / most**2 for one, more in zip(NEAR, COARSE, strict=True))
        ratio = close / kept
        near = drawn(ratio, (in_close + ratio**2 * in_kept) / kept**2, likely, doubt**2)
        more = max(self.query.every / most - LAYERS, 0)
        if not more:
            return Odds(*near, 0.0, 0.0)
        # Layers go on to fall; they may as well stay as high.
        upper = near[0] * FALL / (1 + FALL)
        likely, doubt = upper * FALL * (1 - FALL**more) / (1 - FALL), _SPREAD * more * upper
        ratio = rest / kept
        noise = (in_rest + ratio**2 * in_kept) / kept**2
        above = drawn(ratio, noise, likely, doubt**2)
        shared = near[0] * above[0] * in_kept / kept**2 if self.is_clear else 0.0
        return Odds(*near, *above, min(shared, float(np.sqrt(near[1] * above[1]))))

    def _near(self) -> tuple[float, float]:
        """Events of the two layers above, by one number and by bins, and the variance of that."""
        together, noise = float(self.sums[NEARBY]), float(self.variances[NEARBY])
        bins = self.sums[BY_BIN:]
        if not len(bins) or not noise:
            return together, noise
        by_bin = len(bins) * float(self.variances[3])
        weight = by_bin / (noise + by_bin)
        return together + (1 - weight) * (float(bins.sum()) - together), weight * noise


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

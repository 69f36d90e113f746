"""PBA's frame with one part after the other exchanged, to see what each is worth. Never a choice.

A slot is compared with the last publication at half of the budget and published when it has moved
by more than a publication would err, as in `pwsm.py`. But a class is charged what its users really
pay, min(offer, threshold), and the rest stays in its ledger. What can be exchanged:

- `release`: `sampled` as printed (`sampling.py`); `rescaled`, the same divided by the share of the
  users that it is expected to keep; `weighted` (`weighting.py`).
- `ledger`: `shares`, the nullified slots of PBA; `sliding`, what the window really holds; `saving`,
  the same without losing what a publication left over (`ledgers.py`).
- `rule`: `published` as printed; `corrected`, less the deviation that noise and sampling cause
  when nothing has moved.

Guarantee: (w, E)-EPDP, pure: over any `window` consecutive slots, the releases of a user of class k
differ in distribution by at most a factor exp(epsilon_k).
Adjacency: streams that differ in one user's events, all added or removed (sensitivity 1 for one
contribution a slot); replaced with twice the sensitivity.
Sensitivity: 1 per contribution, of the sampled histogram and of its L1 distance from public
integers alike; m_k for the weighted ones (`weighting.py`).
Proof: thresholds, factors and ledgers are functions of public requirements and earlier releases. A
look costs at most E / (2 w), so E / 2 a window; the ledgers keep publications within the other
half. The privacy filter checks the sum.
Source: our own, around Du et al., "Personalized w-event privacy for infinite stream estimation".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamveil.mechanisms.accounting.schedule import Schedule
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.weighting import Choices, Risk, Weighting, candidates
from streamveil.mechanisms.comparators.paid_schedules import Saving, Shares, Sliding
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import (
    NULLIFIED,
    PUBLISHED,
    SKIPPED,
    ConfigurationError,
    Requirement,
)
from streamveil.mechanisms.protocol import Crowd, Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise, laplace_variance
from streamveil.mechanisms.wevent.last_publication import Publication
from streamveil.mechanisms.wevent.pwsm import PWSM, PublicationState
from streamveil.mechanisms.wevent.sampling import Sampling

# Mean distance of a normal variable from its mean, in standard deviations.
_MEAN_DISTANCE = np.sqrt(2 / np.pi)


class Way(ABC):
    """A way to look at a slot, or to publish it, at a price that is known before."""

    factor = 1.0
    """From whole numbers with noise to estimated counts."""
    epsilon: float
    """Largest budget that it costs anybody; 0 when there is no budget for it."""
    spent: Units
    """Units that it costs a user of each class, shape (K,)."""
    noise_variance: float
    """Variance of the noise on an estimated count."""

    @abstractmethod
    def histogram(self, counts: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """Whole numbers of counts (K, d) before noise, shape (d,)."""

    @abstractmethod
    def add_noise(self, values: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """Add noise to whole numbers that the histogram moves by at most as much."""

    @abstractmethod
    def other_variance(self, estimate: Integers) -> Floats:
        """Expected squared error of estimates (d,), but for the noise."""

    def error(self, estimate: Integers) -> float:
        """Expected squared error of a count, where the last estimates are (d,)."""
        return self.noise_variance + float(self.other_variance(estimate).mean())

    def publish(self, counts: Integers, noise: SlotNoise) -> tuple[Integers, Floats]:
        """Estimated counts and their expected standard error, shape (d,), of counts (K, d)."""
        noisy = self.add_noise(self.histogram(counts, noise, "release"), noise, "release")
        estimate = np.rint(noisy * self.factor).astype(np.int64)
        return estimate, np.sqrt(self.noise_variance + self.other_variance(estimate))

    def deviation(self, counts: Integers, last: Publication, noise: SlotNoise) -> float:
        """Noisy mean deviation per bin of the counts (K, d) from the last publication."""
        known = np.rint(last.counts / self.factor).astype(np.int64)
        moved = np.abs(self.histogram(counts, noise, "look") - known).sum(keepdims=True)
        return float(self.add_noise(moved, noise, "look")[0]) * self.factor / known.size

    def usual_deviation(self, last: Publication) -> float:
        """Expected deviation when nothing has moved since the last publication."""
        errors = np.nan_to_num(last.stderr) ** 2 + self.other_variance(last.counts)
        return float((_MEAN_DISTANCE * np.sqrt(errors)).mean())


class Sampled(Way):
    """SM at the threshold of OBS, as printed."""

    def __init__(self, sampling: Sampling, offers: Units) -> None:
        sensitivity = sampling.population.sensitivity
        self.sampling = sampling
        self.epsilon = sampling.epsilon
        self.spent = np.minimum(offers // sensitivity, sampling.threshold) * sensitivity
        self.noise_variance = self.factor**2 * laplace_variance(sampling.threshold)

    @classmethod
    def choose(cls, offers: Units, estimate: Integers, population: Population) -> Way:
        """The best for offers of shape (K,), where the last estimates are (d,)."""
        return cls(Sampling.choose(offers, population), offers)

    def histogram(self, counts: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """A sample of the counts."""
        return self.sampling.sample(counts, noise.words(f"{purpose} sample"))

    def add_noise(self, values: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """Noise at the threshold."""
        return values + self.sampling.noise(values.size, noise.words(f"{purpose} noise"))

    def error(self, estimate: Integers) -> float:
        """What OBS expects."""
        return self.sampling.error

    def other_variance(self, estimate: Integers) -> Floats:
        """Variance and squared bias of sampling if classes are equally busy."""
        squares = self.sampling.standard_error(estimate) ** 2
        return np.maximum(squares - self.noise_variance, 0.0)


class Rescaled(Sampled):
    """SM, divided by the expected share of the users kept; so is its dispersion that of weights.

    A user is kept, and then weighs 1, with probability p: the mean of the squared weight is p.
    """

    def __init__(self, sampling: Sampling, offers: Units) -> None:
        sizes = sampling.population.sizes
        kept = float(sizes @ sampling.keep)
        self.factor = float(sizes.sum()) / kept if kept > 0 else 1.0
        super().__init__(sampling, offers)

    @classmethod
    def choose(cls, offers: Units, estimate: Integers, population: Population) -> Way:
        """At the threshold of the least expected error."""
        each = offers // population.sensitivity
        ways: list[Way] = [
            cls(Sampling.at(int(threshold), offers, population), offers)
            for threshold in candidates(each[population.sizes > 0])
        ]
        none = Sampled.choose(np.zeros_like(offers), estimate, population)
        return min(ways, key=lambda way: way.error(estimate), default=none)

    def error(self, estimate: Integers) -> float:
        """Noise and sampling, without the bias that there no longer is."""
        return Way.error(self, estimate)

    def other_variance(self, estimate: Integers) -> Floats:
        """Variance of sampling if value and class are independent."""
        return (self.factor - 1) * _scale(estimate, self.sampling.population)


class Weighted(Way):
    """Deterministic weights in place of chances, rescaled."""

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting
        self.factor = weighting.factor
        self.epsilon = weighting.epsilon
        self.spent = weighting.spent
        self.noise_variance = weighting.noise_variance

    @classmethod
    def choose(cls, offers: Units, estimate: Integers, population: Population) -> Way:
        """At the threshold of the least expected error."""
        choices = Choices.of(offers // population.sensitivity, population)
        if not choices.thresholds.size:
            return Sampled.choose(np.zeros_like(offers), estimate, population)
        threshold = choices.best(float(_scale(estimate, population).mean()), Risk(0.0, 0.0))
        return cls(Weighting.at(threshold, offers, population))

    def histogram(self, counts: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """Weighted counts."""
        table: Integers = self.weighting.weights @ counts
        return table

    def add_noise(self, values: Integers, noise: SlotNoise, purpose: str) -> Integers:
        """Noise at the unit of the weights."""
        return self.weighting.add_noise(values, noise, purpose)

    def other_variance(self, estimate: Integers) -> Floats:
        """Error of the weights if value and class are independent."""
        return self.weighting.dispersion * _scale(estimate, self.weighting.population)


class Ablation(PWSM[Any]):
    """See the module.

    Args:
        name: what releases say.
        population: public facts.
        release: `sampled`, `rescaled` or `weighted`.
        ledger: `shares`, `sliding` or `saving`.
        rule: `published` or `corrected`.
    """

    RELEASES: Mapping[str, type[Sampled] | type[Weighted]] = {
        "sampled": Sampled,
        "rescaled": Rescaled,
        "weighted": Weighted,
    }
    LEDGERS: Mapping[str, Callable[[Sequence[Requirement]], Schedule[Any]]] = {
        "shares": Shares,
        "sliding": Sliding,
        "saving": Saving,
    }
    RULES = ("published", "corrected")

    def __init__(
        self,
        name: str,
        population: Population,
        *,
        release: str = "sampled",
        ledger: str = "shares",
        rule: str = "published",
    ) -> None:
        for option, given, known in (
            ("release", release, self.RELEASES),
            ("ledger", ledger, self.LEDGERS),
            ("rule", rule, self.RULES),
        ):
            if given not in known:
                raise ConfigurationError(
                    f"mechanism {name!r}: {option} is {given!r}, give one of {', '.join(known)}"
                )
        super().__init__(self.LEDGERS[ledger], name, population)
        self._way = self.RELEASES[release]
        self._corrected = rule == "corrected"

    def step(
        self, state: PublicationState[Any], slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[PublicationState[Any], SlotRelease]:
        """Release one slot."""
        offer = self.schedule.offer(state.schedule)
        counts, last = slot_input.counts, state.last
        status, spent = NULLIFIED, np.zeros_like(offer.dissimilarity)
        if not offer.nullified:
            looking = self._way.choose(offer.dissimilarity, last.counts, self.population)
            publishing = self._way.choose(offer.publication, last.counts, self.population)
            moved = -np.inf
            if looking.epsilon > 0:
                moved = looking.deviation(counts, last, noise)
                moved -= looking.usual_deviation(last) if self._corrected else 0.0
            status = PUBLISHED if moved > np.sqrt(publishing.error(last.counts)) else SKIPPED
            spent = looking.spent
            offer = replace(offer, publication=publishing.spent)
            if status == PUBLISHED:
                state.last = Publication.by(publishing, slot_input.slot, counts, noise)
                spent = spent + publishing.spent
        state.schedule = self.schedule.commit(state.schedule, offer, status == PUBLISHED)
        return state, state.last.release(status, spent)


def _scale(estimate: Integers, population: Crowd) -> Floats:
    """Variance s of counts if everybody takes part by chance, at least that of half an event."""
    most = float(population.sizes.sum()) * population.sensitivity
    return Bank(most, population.bins, assumed=population.assumed).scale(
        estimate.astype(np.float64)
    )

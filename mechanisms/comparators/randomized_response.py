"""Generalised randomised response (GRR): local privacy, simulated from the counts of a slot.

Every user has `sensitivity` tickets a slot, and every ticket reports one of m = d + 1 symbols: the
bin of a contribution, or that there is none. A report is the true symbol with probability
``a = (exp(e) - 1) / (exp(e) + m - 1)``, else uniform over all m, so no report is more than exp(e)
times as likely for one symbol as for another. The number of tickets is public: n_k times the
sensitivity, for class k.

Users of one class who report the same symbol are alike, so it is enough to count them: what is
simulated has exactly the distribution of all reports added up by class.

Guarantee: a ticket costs e, so a user costs sensitivity * e. Adjacency: one unit of sensitivity
adds, removes or replaces one contribution and so changes the symbol of one ticket. That holds on
any counts: of a class with more contributions than tickets, only the first ones in the order of the
bins are counted, and a contribution more or less still changes one ticket.

Source: Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy" (2016);
combination of groups as in Du et al., "PLDP-IDS: personalized local differential privacy for
infinite data stream" (PFO).
Changed: absence is a symbol; the estimate of a group is (share - q) / (p - q), where the latter
source divides by n q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import (
    SlotNoise,
    WatchedWords,
    probability_threshold,
    thin,
    uniform,
)

_MAX_WORDS = 1 << 22  # drawn at once
_MOST_TICKETS = 10**9  # of which each is drawn, in every slot
_LARGEST = 2.0**62  # an estimate beyond this is noise of a budget near 0: it is cut


@dataclass(frozen=True)
class RandomizedResponse:
    """GRR of every user with a budget by class, debiased and combined over the classes.

    The classes' estimates of frequencies are combined by inverse variance, at frequencies of 1 / m:
    weights are public. That is unbiased where all classes have the same budget, or the same
    distribution of values.
    """

    tickets: Integers
    """Reports of each class in a slot, shape (K,); 0 for a class without budget."""
    truth: Floats
    """Probability `a` that a report is the truth, shape (K,)."""
    weights: Floats
    """Weight of each class's frequencies, shape (K,): they add up to 1, or all are 0."""
    epsilon: float
    """Largest budget of a user; 0 when nobody can report."""
    total: int
    """Public number of tickets of all classes, with or without budget."""

    @classmethod
    def choose(cls, budgets: Units, population: Population) -> RandomizedResponse:
        """Set GRR up for budgets of a slot of shape (K,), in units.

        Raises ConfigurationError where the number of users is assumed, and for more users than
        could be drawn one by one.
        """
        if population.guessed is not None:
            raise ConfigurationError(
                "every user would report in every slot, present or not, so it must be known how "
                "many there are: list all of them in the table of requirements, without a default "
                "requirement, or choose another mechanism, such as uniform"
            )
        each = to_epsilon(budgets // population.sensitivity)
        tickets = np.where(each > 0, population.sizes * population.sensitivity, 0)
        growth, m = -np.expm1(-each), population.bins + 1
        # Rounded to 1, this would be no randomised response at all.
        truth = np.minimum(growth / (growth + m * np.exp(-each)), np.nextafter(1, 0))
        variances = _variances(truth, m, np.full(len(each), 1 / m))
        precision = np.divide(tickets, variances, out=np.zeros_like(each), where=tickets > 0)
        weights = precision / max(float(precision.sum()), np.finfo(float).tiny)
        largest = float((each * (tickets > 0)).max()) * population.sensitivity
        total = int(population.sizes.sum()) * population.sensitivity
        if total > _MOST_TICKETS:
            raise ConfigurationError(
                f"reports of {total:,} users would be drawn one by one in every slot, the number "
                "assumed for a stream with unknown users: choose another mechanism, such as "
                "uniform"
            )
        return cls(tickets, truth, weights, largest, total)

    def publish(self, counts: Integers, noise: SlotNoise) -> tuple[Integers, Floats]:
        """Estimated counts and their expected standard error, shape (d,), of counts (K, d).

        Rounded to whole numbers. The error contains the randomness of the reports and rounding,
        not what classes that differ in their values add to combined frequencies.
        """
        m = counts.shape[1] + 1
        reports = self.perturb(self.symbols(counts), noise)[:, :-1]
        heard = self.weights > 0
        tickets, truth, weights = self.tickets[heard], self.truth[heard], self.weights[heard]
        expected = (tickets * (1 - truth) / m)[:, None]
        shares = (reports[heard] - expected) / (truth * tickets)[:, None]
        estimate = np.clip(self.total * (weights @ shares), -_LARGEST, _LARGEST)
        released = np.rint(estimate).astype(np.int64)
        # On the simplex: noise alone would make frequencies, and so errors, look large.
        busy = np.maximum(estimate, 0)
        frequency = busy / max(self.total, float(busy.sum()))
        variances = [_variances(truth, m, np.full(len(truth), f)) / tickets for f in frequency]
        errors = np.sqrt(self.total**2 * (np.array(variances) @ weights**2) + 1 / 12)
        return released, errors

    def symbols(self, counts: Integers) -> Integers:
        """Tickets with each symbol, shape (K, d + 1), of counts (K, d); the last one is absence."""
        filled = np.minimum(np.cumsum(counts, axis=1), self.tickets[:, None])
        return np.diff(filled, axis=1, prepend=0, append=self.tickets[:, None])

    def perturb(self, symbols: Integers, noise: SlotNoise) -> Integers:
        """Reports of each symbol by class, shape (K, m), of tickets with each symbol."""
        thresholds = [probability_threshold(a) for a in self.truth.tolist()]
        reports = thin(symbols, thresholds, noise.words("truthful reports"))
        words = noise.words("random reports")
        for k, missing in enumerate((self.tickets - reports.sum(axis=1)).tolist()):
            for start in range(0, missing, _MAX_WORDS):
                drawn = uniform(min(_MAX_WORDS, missing - start), symbols.shape[1], words)
                reports[k] += np.bincount(drawn, minlength=symbols.shape[1])
        if isinstance(words, WatchedWords):
            return words.reported(symbols, thresholds, reports)
        return reports


def _variances(truth: Floats, symbols: int, frequency: Floats) -> Floats:
    """Variance of the estimated frequency of a symbol from one ticket, given the true values."""
    q = (1 - truth) / symbols
    with np.errstate(divide="ignore"):  # without budget
        return (q * (1 - q) + frequency * truth * (1 - truth - 2 * q)) / truth**2

"""The general framework of per-record privacy: any differentially private mechanism on top.

A share rho of every budget chooses the domain l to start from: records by domain, each count with
Laplace noise of scale 1 / (rho low_i). The rest pays for a mechanism M on the records of domain l
and later ones, with budget (1 - rho) low_l: less than (1 - rho) E(r) for each of them. Records of
earlier domains are left out.

Guarantee: E-per-record privacy. A record r of domain i costs rho low_i, and (1 - rho) low_l where
l <= i: together at most low_i <= E(r), in exact integers.
Adjacency: add or remove one record; M must be private under the same, for how many records it gets
is private. Sensitivity: a record counts in one domain.
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Algorithm 2.
Changed: the source has rho = 1/2 (`rho`) and takes the first domain that reaches
ln(2 K / beta) / (rho low_i) (`select` = first); choosing by gaps is as private, and a far domain is
hardly ever chosen by mistake. Records are divided by the domain of E, of which l and the budget
of M are functions too: divided by low_l / 2, half of them would pay twice their budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record import domains
from streamveil.mechanisms.per_record.hat_partition import gap_select
from streamveil.mechanisms.per_record.laplace import Laplace, fine_units
from streamveil.mechanisms.per_record.protocol import Bounds, Part, PerRecordRelease
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise, fine_laplace

GAP, FIRST = "gap", "first"

# Values on which a budget function is tried, to find the largest ones with some budget.
_TRIED = np.concatenate([[0.0], np.geomspace(2.0**-60, 1.0, 4096)])


# A budget function that falls by half or more from a value to this many times that value tells of a
# domain what its values are like.
_NEAR = 5.0


class Kept(NamedTuple):
    """Which records a mechanism is for, and what it may spend: public."""

    first: int
    """Domain from which on records are kept, from 0."""
    budget: int
    """In units of 2**-56 epsilon."""
    beta: float
    """Probability that its promise of accuracy may fail with."""
    largest: float
    """Largest value of the records kept. No guarantee of privacy may depend on it."""
    near: bool
    """Whether some are likely to have a value near that, for all of the first domain do."""


class Base(Protocol):
    """A mechanism for the framework, private under adding or removing one record."""

    def tally(
        self, values: Floats, domains: Integers, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Parts of records with their domains, from 0, by cell: see `Statistic.tally`."""

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts; of none, that of no record."""

    def counts(self, part: Part, number: int) -> Integers:
        """Records by domain, shape (number,): each record is in one."""

    def release(self, part: Part, kept: Kept, noise: SlotNoise) -> tuple[float, float]:
        """Estimate and standard error, NaN if unknown, from the records to keep alone."""

    def left_out(self, records: Floats, largest: Floats) -> float:
        """What records add up to at most, of which there are so many by domain.

        Args:
            records: shape (m,).
            largest: value of any of them, shape (m,).
        """


def largest_values(
    budget: Callable[[Floats], Floats] | None, epsilons: Floats, value_max: float
) -> Floats:
    """About the largest value that a budget function gives some budgets or more: shape (m,).

    Without a function, `value_max`. Whatever this tells is public.
    """
    if budget is None:
        return np.full(len(epsilons), value_max)
    values = _TRIED * value_max
    enough = budget(values)[:, None] >= epsilons
    last = len(values) - 1 - np.argmax(enough[::-1], axis=0)
    return values[np.minimum(last + 1, len(values) - 1)]


def thresholds(low: Floats, beta: float, rho: float) -> Floats:
    """What noisy counts by domain have to reach: ln(2 K / beta) / (rho low_i), shape (K,)."""
    return domains.thresholds(rho * low, beta / 2)


@dataclass(frozen=True)
class Framework:
    """A statistic that a base mechanism computes of the records of the domains worth it.

    `epsilon_tau` is low_l: records of smaller budgets are left out. `dropped_bound` comes from the
    noisy counts of their domains; of a maximum and of own mechanisms it tells how many they are.

    Raises ConfigurationError for options out of range and budgets too small for noise.
    """

    name: str
    bounds: Bounds
    base: Base
    budget: Callable[[Floats], Floats] | None = None
    """The budget function if it is one of the value alone: it tells what values to expect, and so
    where a sum is clipped, of which points a maximum is, and what records left out add up to.
    Without it, all of these expect `value_max`. No guarantee of privacy depends on it."""
    beta: float = 0.1
    """Probability of failure: half of it is that of the base mechanism."""
    rho: float = 0.25
    select: str = GAP

    def __post_init__(self) -> None:
        """Check the options, and that there is noise for every share of the budget."""
        if not (0 < self.beta < 1 and 0 < self.rho < 1):
            raise ConfigurationError(
                f"mechanism {self.name!r}: beta {self.beta!r} and rho {self.rho!r} must be above 0 "
                "and below 1"
            )
        if self.select not in (GAP, FIRST):
            raise ConfigurationError(
                f"mechanism {self.name!r}: select is {self.select!r}: give {GAP} or {FIRST}"
            )
        Laplace.of(self.kept(0).budget)

    @cached_property
    def low(self) -> Floats:
        """Smallest budget of each domain, shape (K,)."""
        return domains.partition(self.bounds.epsilon_min, self.bounds.epsilon_max)

    @cached_property
    def largest(self) -> Floats:
        """Largest value in each domain and later ones, shape (K,): whatever it is, it is public."""
        return largest_values(self.budget, self.low, self.bounds.value_max)

    @cached_property
    def selection_noise(self) -> Sequence[Laplace]:
        """Noise of the count of each domain."""
        share = Fraction(self.rho)
        return [Laplace.of(fine_units(share * Fraction(e))) for e in self.low.tolist()]

    def kept(self, first: int) -> Kept:
        """What the base mechanism gets if records are kept from a domain on, counted from 0."""
        budget = fine_units((1 - Fraction(self.rho)) * Fraction(float(self.low[first])))
        largest, smaller = [*self.largest.tolist(), 0.0][first : first + 2]
        near = smaller < largest < _NEAR * smaller
        return Kept(first, budget, self.beta / 2, largest, near)

    def tally(
        self, values: Floats, budgets: Floats, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Parts of records by cell: see `Statistic.tally`."""
        usable = self.bounds.usable(values, budgets)
        index = domains.domain_index(budgets[usable], self.low) - 1
        return self.base.tally(values[usable], index, cells[usable], number)

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts: see `Statistic.add`."""
        return self.base.add(parts)

    @property
    def _scales(self) -> Floats:
        return np.array([noise.scale for noise in self.selection_noise])

    def noisy_counts(self, part: Part, words: RandomWords, size: int = 1) -> Floats:
        """Records by domain with noise, drawn `size` times: shape (size, K)."""
        rates, bits = np.array([(noise.rate, noise.bits) for noise in self.selection_noise]).T
        counts = self.base.counts(part, len(self.low))
        return counts + np.ldexp(fine_laplace(rates, words, size).astype(np.float64), -bits)

    def first(self, noisy: Floats) -> Integers:
        """First domain to keep, from 0, of noisy counts of shape (..., K): shape (...)."""
        if self.select == GAP:
            return gap_select(noisy, 1 / self._scales, 2.0)
        return domains.select_domain(noisy, thresholds(self.low, self.beta, self.rho)) - 1

    def release(self, part: Part, noise: SlotNoise) -> PerRecordRelease:
        """Choose the domains to keep, and run the base mechanism on them: see `Statistic`."""
        noisy = self.noisy_counts(part, noise.words("domains"))[0]
        first = int(self.first(noisy))
        estimate, stderr = self.base.release(part, self.kept(first), noise)
        dropped = self.base.left_out(self._at_most(noisy)[:first], self.largest[:first])
        return PerRecordRelease(estimate, stderr, float(self.low[first]), dropped)

    def _at_most(self, noisy: Floats) -> Floats:
        """Records by domain at most, all at once except with probability beta: shape (K,)."""
        tail = math.log(len(self.low) / (2 * self.beta))
        return np.maximum(np.floor(noisy + self._scales * max(tail, 0.0)), 0.0)

"""Frequency oracles: how a device perturbs one of d symbols, and what reports tell of frequencies.

GRR (generalised randomised response) reports one symbol: the true one with probability
p = exp(e) / (exp(e) + d - 1), each other one with q = 1 / (exp(e) + d - 1). OUE (optimised unary
encoding) reports d bits: the true symbol's is 1 with probability p = 1/2, each other one with
q = 1 / (exp(e) + 1). A report supports the symbols that it names. OUE0 is OUE without a bit of the
last symbol, which stands for no event: who has none reports no true bit.

Guarantee: e-local differential privacy of one report, pure and exact: probabilities are integers
over 2**64, rounded towards more privacy. Adjacency: any value of the user for any other.
Sensitivity: a user has one symbol. Of several reports by OUE0, in which one input has at most n
events that the other has not, or has otherwise, and the other at most n that the one has not: n e.
Each bit that is true in the one alone may tell exp(e) / 2 + 1 / 2 in its favour, each that is true
in the other alone 2 / (1 + exp(-e)), and the product of the two is exp(e).
Sources: Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy" (2016);
Wang, Blocki, Li, Jha, "Locally differentially private protocols for frequency estimation" (2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0
from streamveil.mechanisms.randomness.noise import (
    RandomWords,
    probability_threshold,
    raised_threshold,
    uniform,
)

Integers = npt.NDArray[np.integer]

# What some devices report. GRR: symbols, int64, shape (m,). OUE: bits, packed as by
# `numpy.packbits` (the first symbol is the highest bit of the first byte, the last byte is filled
# with zeros), uint8, shape (m, ceil(d / 8)).
Reports = npt.NDArray[np.int64] | npt.NDArray[np.uint8]

# Beyond this budget q is 0 for all that a float can tell; it stays above, as do variances.
_MAX_EPSILON = 300.0

# Random words or bits held at once: 32 MB of words, 16 MB of bits.
_MAX_WORDS = 1 << 22
_MAX_BITS = 1 << 24


@dataclass(frozen=True)
class Oracle:
    """One way to report: how likely a report supports the true symbol, and any other one."""

    kind: str
    symbols: int
    epsilon: float
    p: float
    q: float

    @classmethod
    def of(cls, kind: str, units: int, symbols: int) -> Oracle:
        """The oracle of a kind for a budget in units. Raises ValueError for no budget."""
        if units <= 0 or symbols < 2 or kind not in (GRR, OUE, OUE0):
            raise ValueError(
                f"no oracle {kind!r} for {units} units of budget and {symbols} symbols: it takes "
                f"{GRR}, {OUE} or {OUE0}, a budget above 0 and 2 symbols or more"
            )
        epsilon = float(to_epsilon(np.array([units], np.int64))[0])
        shrunk = math.exp(-min(epsilon, _MAX_EPSILON))
        if kind != GRR:
            return cls(kind, symbols, epsilon, 0.5, shrunk / (1 + shrunk))
        whole = 1 + (symbols - 1) * shrunk
        return cls(kind, symbols, epsilon, 1 / whole, shrunk / whole)

    @property
    def threshold(self) -> int:
        """Probability of chance over 2**64, rounded towards more privacy.

        GRR: that a report is the truth, (exp(e) - 1) / (exp(e) + d - 1); else it is uniform over
        all d symbols. OUE: that the bit of another symbol is 1, q.
        """
        if self.kind != GRR:
            return raised_threshold(self.q)
        truth = -math.expm1(-self.epsilon) * self.p
        # Rounded to 1, this would be no randomised response at all.
        return probability_threshold(min(truth, math.nextafter(1, 0)))

    def variance(self, frequency: Floats | float) -> Floats:
        """Variance of an estimated frequency from one report, by the true frequency."""
        p, q = self.p, self.q
        return np.asarray((q * (1 - q) + frequency * (p - q) * (1 - p - q)) / (p - q) ** 2)

    def frequencies(self, supports: npt.NDArray[np.int64], reports: int) -> Floats:
        """Unbiased estimates from one report or more: shape (d,)."""
        found = np.asarray((supports / reports - self.q) / (self.p - self.q))
        if self.kind == OUE0:
            found[-1] = 1 - found[:-1].sum()
        return found


def best_oracle(units: int, symbols: int) -> str:
    """The kind with the smaller variance at a budget: OUE for many symbols."""
    epsilon = float(to_epsilon(np.array([units], np.int64))[0])
    return OUE if symbols > 3 * math.exp(min(epsilon, 700.0)) + 2 else GRR


def check_symbols(values: Integers, symbols: int) -> None:
    """Refuse values that are not symbols from 0 to d - 1: raises ValueError."""
    wrong = values[(values < 0) | (values >= symbols)]
    if wrong.size:
        raise ValueError(
            f"value {wrong[0]} is none of the {symbols} symbols from 0 to {symbols - 1}: report "
            "bins of the stream's domain"
        )


def perturb(oracle: Oracle, values: Integers, words: RandomWords) -> Iterator[Reports]:
    """Report each of many values, exactly, in chunks that keep memory bounded.

    Args:
        oracle: how to report.
        values: symbols from 0 to d - 1, shape (m,).
        words: where randomness comes from; each value gets its own.

    Yields:
        Reports of the next values: all chunks together are the reports of all values, in order.
    """
    unary = oracle.kind != GRR
    rows = max(1, _MAX_BITS // oracle.symbols) if unary else _MAX_WORDS
    one_chunk = _unary if unary else _randomised_response
    for start in range(0, values.size, rows):
        yield one_chunk(oracle, values[start : start + rows], words)


def supports(kind: str, symbols: int, reports: Reports) -> npt.NDArray[np.int64]:
    """How many reports of a chunk support each symbol, shape (d,)."""
    if kind != GRR:
        bits = np.unpackbits(reports.astype(np.uint8, copy=False), axis=1, count=symbols)
        return bits.sum(axis=0, dtype=np.int64)
    return np.bincount(reports, minlength=symbols).astype(np.int64)


def _randomised_response(oracle: Oracle, values: Integers, words: RandomWords) -> Reports:
    reports = values.astype(np.int64)
    lies = np.flatnonzero(words.draw(values.size) >= np.uint64(oracle.threshold))
    reports[lies] = uniform(lies.size, oracle.symbols, words)
    return reports


def _unary(oracle: Oracle, values: Integers, words: RandomWords) -> Reports:
    """Decide each bit by one random byte, and by 56 bits more where that is a tie."""
    cells = values.size * oracle.symbols
    drawn = words.draw(-(-cells // 8)).view(np.uint8)[:cells]
    first_byte, rest = divmod(oracle.threshold, 1 << 56)
    bits = drawn < first_byte
    ties = np.flatnonzero(drawn == first_byte)
    bits[ties] = words.draw(ties.size) >> np.uint64(8) < np.uint64(rest)
    true_bits = np.arange(values.size) * oracle.symbols + values
    bits[true_bits] = drawn[true_bits] < 128
    if oracle.kind == OUE0:
        bits[oracle.symbols - 1 :: oracle.symbols] = False
    return np.packbits(bits.reshape(-1, oracle.symbols), axis=1)

"""Frequency oracles: how a device perturbs one of d symbols, and what reports tell of frequencies.

GRR (generalised randomised response) reports one symbol: the true one with probability
p = exp(e) / (exp(e) + d - 1), each other one with q = 1 / (exp(e) + d - 1). OUE (optimised unary
encoding) reports d bits: the true symbol's is 1 with probability p = 1/2, each other one with
q = 1 / (exp(e) + 1). A report supports the symbols that it names.

Guarantee: e-local differential privacy of one report, pure and exact: probabilities are integers
over 2**64, rounded towards more privacy. Adjacency: any value of the user for any other.
Sensitivity: a user has one symbol.
Sources: Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy" (2016);
Wang, Blocki, Li, Jha, "Locally differentially private protocols for frequency estimation" (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.budgets import to_epsilon
from streamveil.mechanisms.local.protocol import GRR, OUE

Floats = npt.NDArray[np.float64]


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
        if units <= 0 or symbols < 2 or kind not in (GRR, OUE):
            raise ValueError(
                f"no oracle {kind!r} for {units} units of budget and {symbols} symbols: it takes "
                f"{GRR} or {OUE}, a budget above 0 and 2 symbols or more"
            )
        epsilon = float(to_epsilon(np.array([units], np.int64))[0])
        shrunk = math.exp(-epsilon)
        if kind == OUE:
            return cls(kind, symbols, epsilon, 0.5, shrunk / (1 + shrunk))
        whole = 1 + (symbols - 1) * shrunk
        return cls(kind, symbols, epsilon, 1 / whole, shrunk / whole)

    def variance(self, frequency: Floats | float) -> Floats:
        """Variance of an estimated frequency from one report, by the true frequency."""
        p, q = self.p, self.q
        return np.asarray((q * (1 - q) + frequency * (p - q) * (1 - p - q)) / (p - q) ** 2)

    def frequencies(self, supports: npt.NDArray[np.int64], reports: int) -> Floats:
        """Unbiased estimates from one report or more: shape (d,)."""
        return np.asarray((supports / reports - self.q) / (self.p - self.q))


def best_oracle(units: int, symbols: int) -> str:
    """The kind with the smaller variance at a budget: OUE for many symbols."""
    epsilon = float(to_epsilon(np.array([units], np.int64))[0])
    return OUE if symbols > 3 * math.exp(min(epsilon, 700.0)) + 2 else GRR

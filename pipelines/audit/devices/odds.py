"""What a report tells of two values: the log-likelihood ratio of them, from what is promised alone.

It asks nothing of the code that reports: of a promise of epsilon e, a report by GRR is exp(e) times
as likely for the symbol that it names as for any other one; by OUE a bit is 1 with probability 1/2
if it is the true symbol's, and 1 / (exp(e) + 1) otherwise; OUE0 has no bit of the last symbol.
"""

from __future__ import annotations

import math

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.local.oracles import Reports
from streamveil.mechanisms.local.protocol import GRR, OUE0


def odds(
    kind: str, epsilon: float, symbols: int, reports: Reports, values: Integers, others: Integers
) -> Floats:
    """For a value and against another one, of each report: shape (m,).

    Args:
        kind: of the oracle.
        epsilon: what the report was charged.
        symbols: d.
        reports: a chunk, as of `oracles.perturb`.
        values: symbols, shape (m,).
        others: symbols that are not these, shape (m,).
    """
    if kind == GRR:
        return epsilon * ((reports == values).astype(np.float64) - (reports == others))
    return _of_bit(kind, epsilon, symbols, reports, values) - _of_bit(
        kind, epsilon, symbols, reports, others
    )


def _of_bit(kind: str, epsilon: float, symbols: int, reports: Reports, at: Integers) -> Floats:
    """For one symbol and against any whose bit is not looked at."""
    bits = reports[np.arange(len(at)), at >> 3] >> (7 - (at & 7)).astype(np.uint8) & 1
    one = float(np.logaddexp(epsilon, 0.0)) - math.log(2)
    zero = math.log1p(math.exp(-epsilon)) - math.log(2)
    by_bit = np.where(bits == 1, one, zero)
    return np.where(at == symbols - 1, 0.0, by_bit) if kind == OUE0 else by_bit

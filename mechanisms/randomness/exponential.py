"""The exponential mechanism over many candidates, drawn exactly: integers alone decide."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.randomness.noise import (
    FINE_BITS,
    RandomWords,
    WatchedWords,
    bernoulli_exp,
    uniform,
)

# Losses are cut this many powers of e below the best candidate.
_CUT = 32

# Candidates tried at once.
_BATCH = 1 << 12


def draw(
    losses: npt.NDArray[np.int64], rate: int, words: RandomWords, size: int = 1
) -> npt.NDArray[np.int64]:
    """Draw candidate i with probability proportional to exp(-cut(losses)[i] * rate / 2**56).

    By rejection: uniform tries, each accepted with its probability relative to the best one. How
    long it takes depends on the losses: at most about as many tries as there are candidates.

    Losses are cut at that of the best candidate plus a number that only depends on the rate, so
    that products stay below 63 bits. If one person changes every loss by at most D, then also the
    best one, and so every cut loss: a draw costs 2 D rate / 2**56, and the cut costs nothing.

    Args:
        losses: of the candidates, shape (n,), from -2**60 to 2**60.
        rate: whole number from 0 on; 0 makes all candidates alike.
        words: where randomness comes from.
        size: how many draws.

    Returns:
        Candidates, int64, shape (size,).
    """
    rate = min(rate, _CUT << FINE_BITS)
    cut = (_CUT << FINE_BITS) // max(rate, 1)
    products = np.minimum(losses - losses.min(), cut) * rate
    found: list[npt.NDArray[np.int64]] = []
    missing = size
    while missing > 0:
        tries = uniform(_BATCH, losses.size, words)
        found.append(tries[bernoulli_exp(products[tries], words)])
        missing -= found[-1].size
    chosen = np.concatenate(found)[:size]
    return words.chosen(losses, rate, chosen) if isinstance(words, WatchedWords) else chosen

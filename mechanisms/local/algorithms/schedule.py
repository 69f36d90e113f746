"""Whom a mechanism asks and at what price, apart from what is made of the reports.

A schedule reads requirements and its own earlier decisions, never reports.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.local.oracles import Oracle, best_oracle
from streamveil.mechanisms.local.protocol import Ask, Users
from streamveil.mechanisms.randomness.noise import RandomWords

S = TypeVar("S")


class AskSchedule(Protocol[S]):
    """Two rounds a slot: one for the dissimilarity, then perhaps one for a publication."""

    users: Users

    def start(self) -> S:
        """State before the first slot."""

    def dissimilarity(self, state: S, slot: int, words: RandomWords) -> tuple[S, Ask]:
        """Begin the next slot: its first ask is spent."""

    def publication(self, state: S, slot: int, words: RandomWords) -> Ask | None:
        """What a publication would ask, nothing spent yet; None in a nullified slot.

        An ask of nobody where too little is left.
        """

    def commit(self, state: S, published: Ask | None) -> S:
        """Close the slot: the publication's ask is spent."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


@lru_cache(maxsize=4096)
def oracle_of(kind: str, units: int, symbols: int) -> Oracle | None:
    """The oracle at a price; None where there is no budget to report with."""
    return Oracle.of(kind, units, symbols) if units else None


def oracles_of(ask: Ask, symbols: int) -> tuple[Oracle | None, ...]:
    """How each class answers an ask, shape (K,)."""
    return tuple(
        oracle_of(kind, units, symbols)
        for kind, units in zip(ask.oracles, ask.epsilons.tolist(), strict=True)
    )


def best_oracles(prices: Units, symbols: int) -> tuple[str, ...]:
    """The kind with the smaller variance at each price, shape (K,)."""
    kinds = {units: best_oracle(units, symbols) for units in set(prices.tolist())}
    return tuple(kinds[units] for units in prices.tolist())


def asked_by_class(ask: Ask, users: Users) -> npt.NDArray[np.int64]:
    """Users asked of each class, shape (K,)."""
    counts = np.bincount(users.class_of[ask.users], minlength=len(users.classes))
    return counts.astype(np.int64)

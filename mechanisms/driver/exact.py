"""Mechanisms of test mode: exact counts in place of private ones. NOT private, and no guarantee.

They stand where another mechanism would and publish the bounded counts of every slot as they are,
with a standard error of 0 and the status `test`, and book no epsilon. No name makes one: a plan in
test mode does, for pipelines under development and synthetic data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import NO_NOISE, TEST
from streamveil.mechanisms.protocol import Members, Population, Setting, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise


class Exact:
    """A :class:`Mechanism` that publishes exact counts; one budget forever has `shares` as well."""

    name = NO_NOISE

    def __init__(self, population: Population) -> None:
        self.population = population
        self._free = np.zeros(len(population.requirements), np.int64)

    def start(self) -> None:
        """Nothing is remembered."""

    def price(self, state: None) -> Units:
        """Nothing is booked."""
        return self._free

    def step(
        self, state: None, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[None, SlotRelease]:
        """Publish the counts of all classes together."""
        return None, _exact(slot_input, self._free, shares=self.population.requirements.forever)

    def encode(self, state: None) -> bytes:
        """Nothing."""
        return b""

    def decode(self, data: bytes) -> None:
        """Nothing."""


class DynamicExact:
    """The same as a :class:`DynamicMechanism`."""

    name = NO_NOISE

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def start(self) -> None:
        """Nothing is remembered."""

    def regroup(self, state: None, parents: npt.NDArray[np.int64]) -> None:
        """Nothing is kept of ledgers."""

    def canonical(self, state: None, ledgers: npt.NDArray[np.int64]) -> Units:
        """Nothing depends on ledgers: shape (0, S)."""
        return np.zeros((0, len(ledgers)), np.int64)

    def price(self, state: None, members: Members) -> Units:
        """Nothing is booked: shape (L,)."""
        return np.zeros(len(members.sizes), np.int64)

    def step(
        self, state: None, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[None, SlotRelease]:
        """Publish the counts of all ledgers together."""
        return None, _exact(slot_input, np.zeros(len(slot_input.counts), np.int64))

    def encode(self, state: None) -> bytes:
        """Nothing."""
        return b""

    def decode(self, data: bytes) -> None:
        """Nothing."""


def _exact(slot_input: SlotInput, spent: Units, *, shares: bool = False) -> SlotRelease:
    counts = slot_input.counts.sum(axis=0)
    return SlotRelease(
        counts,
        TEST,
        slot_input.slot,
        0.0,
        np.zeros(len(counts)),
        shares=_shares(counts) if shares else None,
        spent=spent,
    )


def _shares(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Of each bin, all alike without events."""
    weights = counts if counts.any() else np.ones_like(counts)
    return np.asarray(weights / weights.sum())

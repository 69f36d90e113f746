"""Records by name, synthetic ones and flights, to release statistics of.

The synthetic data are those of Chen et al., "A general framework for per-record differential
privacy" (2025), Section 8.1: 200,000 whole numbers, negative ones left out. Scale and largest value
of its Zipf data are not printed: with these its figures come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.budget_functions import Inverse

RECORDS = 200_000
VALUE_MAX = 1e12
EPSILON_MAX = 100.0

_Random = np.random.Generator


@dataclass(frozen=True)
class NamedData:
    """Data that has a name."""

    draw: Callable[[_Random, int], Floats]
    """Makes so many values; real data are as they are."""
    scale: float
    """Of the budget scale / v that is taken unless another is asked for."""
    about: str

    @property
    def budget(self) -> Inverse:
        """The budget function of that scale."""
        return Inverse(self.scale, VALUE_MAX, EPSILON_MAX)


def _normal(mean: float) -> Callable[[_Random, int], Floats]:
    """Normal with the mean as standard deviation, where it is not negative."""

    def draw(random: _Random, number: int) -> Floats:
        found = np.zeros(0)
        while len(found) < number:
            values = np.rint(random.normal(mean, mean, number))
            found = np.concatenate([found, values[values >= 0]])
        return found[:number]

    return draw


def _zipf(power: float, scale: float, largest: float) -> Callable[[_Random, int], Floats]:
    """Density proportional to (v / scale + 1) ** -power on v from 0 to the largest."""
    beyond = (largest / scale + 1.0) ** (1.0 - power)

    def draw(random: _Random, number: int) -> Floats:
        survival = 1.0 - (1.0 - beyond) * random.random(number)
        return np.floor(scale * (survival ** (1.0 / (1.0 - power)) - 1.0))

    return draw


def _flights(column: str) -> Callable[[_Random, int], Floats]:
    def draw(_random: _Random, _number: int) -> Floats:
        from streamveil.pipelines.sample_data.flights import flight_figures  # needs pyarrow

        return flight_figures(column)

    return draw


PER_RECORD_DATA: Mapping[str, NamedData] = {
    "normal-50k": NamedData(_normal(50e3), 1e4, "Normal, mean and deviation 50,000"),
    "normal-500k": NamedData(_normal(500e3), 1e4, "Normal, mean and deviation 500,000"),
    "zipf-3": NamedData(_zipf(3.0, 15e3, 230e3), 1e4, "Zipf, power 3, scale 15,000 to 230,000"),
    "zipf-5": NamedData(_zipf(5.0, 16e3, 250e3), 1e4, "Zipf, power 5, scale 16,000 to 250,000"),
    "flights-delay": NamedData(_flights("dep_delay"), 20.0, "minutes late, of flights not early"),
    "flights-distance": NamedData(_flights("distance"), 1000.0, "miles flown"),
}

"""Streams of numbers in slots, by which intervals of figures are measured.

All were looked at when intervals were made. The same seed gives the same numbers; of the flights
only the noise differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats

DAY, PEOPLE = 24, 5000
# Halfway between whole minutes.
MINUTES = (-30.5, -15.5, -10.5, -5.5, -2.5, 0.5, 5.5, 10.5, 15.5, 30.5, 45.5, 60.5, 90.5)
MINUTES += (120.5, 180.5)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers by slot, and what is asked about them."""

    about: str
    drawn: Callable[[np.random.Generator, int], Iterator[Floats]]
    """Of each of so many slots those that count: of a user one in a slot."""
    lower: float
    upper: float
    edges: tuple[float, ...]
    slots: int = 300
    window: int = DAY
    """Slots over which the budget is promised."""
    people: int = PEOPLE


def _flights(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    users, days, delays = _of_flights()
    order = np.random.default_rng(0).permutation(len(users))
    _, first = np.unique((users * (slots + 365) + days)[order], return_index=True)
    some = order[first]
    for day in range(slots):
        yield delays[some[days[some] == day]]


@functools.cache
def _of_flights() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """Aircraft, day and delay of each flight."""
    from streamveil.pipelines.sample_data import flights

    table = flights._columns("year", "month", "day", flights.USER, flights.DELAY)
    table = table.filter(table[flights.USER].is_valid()).drop_null()
    _, users = np.unique(table[flights.USER].to_numpy().astype(str), return_inverse=True)
    months, days = (table[name].to_pylist() for name in ("month", "day"))
    dates = [f"2013-{month:02}-{day:02}" for month, day in zip(months, days, strict=True)]
    since = np.array(dates, "datetime64[D]") - np.datetime64("2013-01-01")
    delays: Floats = table[flights.DELAY].to_numpy().astype(np.float64)
    return users.astype(np.int64), since.astype(np.int64), delays


def _delays(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for day in range(slots):
        season = 3 * np.sin(2 * np.pi * day / 182)
        bad = 1 + random.exponential(1.0) if random.random() < 0.1 else 1.0
        size = random.poisson(650)
        late = random.gamma(0.35, (40 + 6 * season) * bad, size)
        yield np.round(random.normal(-4, 5, size) + late)


def _moving(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for slot in range(slots):
        crowd = int(750 * (1 + 0.5 * np.sin(2 * np.pi * slot / DAY)))
        yield random.gamma(2.0, 14 + 4 * np.sin(2 * np.pi * slot / 60), crowd)


def _amounts(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for _ in range(slots):
        yield np.exp(random.normal(3.3, 0.9, random.poisson(800)))


def _steady(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for _ in range(slots):
        yield random.gamma(1.5, 18, random.poisson(600))


def _steps(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for slot in range(slots):
        yield random.gamma(3.0, 12 if slot // 50 % 2 else 7, random.poisson(700))


def _two(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for slot in range(slots):
        size = random.poisson(900)
        far = random.random(size) < 0.45 + 0.15 * np.sin(2 * np.pi * slot / 80)
        yield np.where(far, random.normal(95, 14, size), random.normal(25, 8, size))


def _heavy(random: np.random.Generator, slots: int) -> Iterator[Floats]:
    for _ in range(slots):
        yield 15 * (1 + random.pareto(2.5, random.poisson(800)))


STREAMS = {
    "flights": Numbers(
        "delays of flights by day, each aircraft once",
        *(_flights, -30, 180, MINUTES, 365, 7, 4043),
    ),
    "drawn-delays": Numbers(
        "whole minutes, with seasons and bad days",
        *(_delays, -30, 180, MINUTES, 365, 7, 4000),
    ),
    "moving": Numbers(
        "gamma distributions whose mean goes up and down, some 750 a slot",
        *(_moving, 0, 150, (0, 5, 10, 20, 30, 45, 60, 90, 120, 160)),
    ),
    "amounts": Numbers(
        "some 800 lognormal numbers whose log has a standard deviation of 0.9",
        *(_amounts, 0, 200, (0, 5, 10, 20, 30, 45, 60, 90, 120, 160, 200)),
    ),
    "steady": Numbers(
        "some 600 of one gamma distribution",
        *(_steady, 0, 150, (0, 5, 10, 15, 20, 30, 40, 60, 80, 110, 150)),
    ),
    "steps": Numbers(
        "some 700 of gamma distributions whose mean jumps every 50 slots",
        *(_steps, 0, 120, (0, 5, 10, 15, 20, 25, 30, 40, 50, 65, 80, 120)),
    ),
    "two-kinds": Numbers(
        "two normal distributions far apart, of which now one, now the other has more",
        *(_two, -20, 160, (-20, *range(0, 120, 10), 130, 160)),
    ),
    "heavy": Numbers(
        "some 800 of a Pareto distribution of index 2.5",
        *(_heavy, 0, 200, (10, 15, 18, 22, 27, 35, 50, 75, 120, 200)),
    ),
}

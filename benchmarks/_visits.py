"""Streams as visits of single users, and what participation limits make of them.

A visit is a user's one event in a slot. Streams have numbers that the same seed gives again; of the
flights only the noise differs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers

E, W, USERS, SLOTS, DAYS = 0.6, 120, 10_000, 3_000, 214
BINS, MOVING, DAY = 20, 0.01, 288
FILMS = {"ratings": 5, "genres": 19}
FLIGHTS = {"flights": False, "flights-hourly": True}
HOUR = 3_600_000_000
LIKELY = 1.75
"""Slots that count, in mean slots with events of those who come to a block."""


@dataclass(frozen=True, eq=False)
class Visits:
    """Who is where in each slot."""

    users: Integers
    """Of each visit, shape (n,)."""
    slots: Integers
    """From 0 on, shape (n,)."""
    places: Integers
    """Bin of each, shape (n,)."""
    class_of: Integers
    """Class of each user."""
    requirements: tuple[Any, ...]
    bins: int
    length: int
    """Slots."""
    slot_length: int | None = None
    """In microseconds, where it is known."""

    @property
    def sizes(self) -> Integers:
        """Users of each class, shape (K,)."""
        return np.bincount(self.class_of, minlength=len(self.requirements)).astype(np.int64)

    def counts(self, some: npt.NDArray[np.bool_] | slice = slice(None)) -> Integers:
        """Some of the visits by slot, class and bin, shape (T, K, d)."""
        table = np.zeros((self.length, len(self.requirements), self.bins), np.int64)
        cells = self.slots[some], self.class_of[self.users[some]], self.places[some]
        np.add.at(table, cells, 1)
        return table

    def limits(self, blocks: int = 2) -> tuple[Any, ...]:
        """A limit for each class by the rule: `LIKELY` times what those who come to a block need.

        Fewer where so many would not pay.
        """
        from streamveil.mechanisms.presence import Limit

        found = []
        for one in self.requirements:
            block = -(-one.window // blocks)
            in_blocks = np.unique(self.users * self.length + self.slots // block * block).size
            most = max(round(LIKELY * len(self.users) / in_blocks), 1)
            found.append(Limit(max(min(most, one.window // (3 * (blocks + 2))), 1), blocks))
        return tuple(found)


def visits(name: str, seed: int, slots: int | None = None) -> Visits:
    """A stream by its name: `present-SHARE`, or one of `FILMS` or `FLIGHTS`."""
    if name in FILMS:
        return _films(FILMS[name], seed, min(slots or DAYS, DAYS))
    if name in FLIGHTS:
        return _flights(FLIGHTS[name], slots)
    return _present(float(name.removeprefix("present-")) / 100, seed, slots or SLOTS)


def _present(share: float, seed: int, slots: int) -> Visits:
    """Users who are in any slot with the same chance, at places of changing popularity."""
    from streamveil.mechanisms.core.records import Requirement

    random = np.random.default_rng([seed, int(1000 * share)])
    base, phases = 1 / np.arange(1, BINS + 1), random.uniform(0, 2 * np.pi, BINS)
    users, times, places = [], [], []
    at = random.choice(BINS, USERS, p=base / base.sum())
    for slot in range(slots):
        popular = base * (1 + 0.8 * np.sin(2 * np.pi * slot / DAY + phases))
        moving = random.random(USERS) < MOVING
        at[moving] = random.choice(BINS, int(moving.sum()), p=popular / popular.sum())
        here = np.flatnonzero(random.random(USERS) < share)
        users.append(here)
        times.append(np.full(len(here), slot))
        places.append(at[here])
    found = (np.concatenate(each) for each in (users, times, places))
    return Visits(*found, np.zeros(USERS, np.int64), (Requirement(W, E),), BINS, slots)


def _films(bins: int, seed: int, slots: int) -> Visits:
    """Users who come for a few days and go, as in the public data of MovieLens."""
    from streamveil.mechanisms.core.records import Requirement
    from streamveil.pipelines.sample_data.streams import visitors

    drawn = list(visitors(943, slots, np.random.default_rng([seed, bins]), bins=bins))
    users, places = (np.concatenate(each) for each in zip(*drawn, strict=True))
    times = np.repeat(np.arange(slots), [len(here) for here, _ in drawn])
    asked = (Requirement(30, 1.0),)
    return Visits(users, times, places, np.zeros(943, np.int64), asked, bins, slots)


@functools.cache
def _flights(hourly: bool, slots: int | None) -> Visits:
    """Aircraft that leave New York, once in a slot at most, with the requirements of the demo."""
    from streamveil.mechanisms.core.records import Requirement
    from streamveil.pipelines.sample_data import flights

    table = flights.read_flights()
    table = table.filter(table[flights.USER].is_valid())
    names, users = np.unique(table[flights.USER].to_numpy().astype(str), return_inverse=True)
    order = {name: place for place, name in enumerate(flights.DESTINATIONS)}
    places = np.array([order[name] for name in table[flights.VALUE].to_pylist()])
    times = table[flights.TIME].to_numpy().astype("datetime64[h]").astype(np.int64)
    times -= np.datetime64(flights.YEAR[0], "h").astype(np.int64)
    length, unit = (365 * 24, 1) if hourly else (365, 24)
    times //= unit
    _, first = np.unique(users * length + times, return_index=True)
    length = min(slots or length, length)
    first = first[times[first] < length]
    each = [flights.requirement_of(name) for name in names]
    per_day = 24 // unit
    asked = sorted({Requirement(one.window * per_day, one.epsilon) for one in each})
    classes = [asked.index(Requirement(one.window * per_day, one.epsilon)) for one in each]
    return Visits(
        *(users[first], times[first], places[first]),
        np.array(classes),
        tuple(asked),
        len(order),
        length,
        unit * HOUR,
    )


class Released(NamedTuple):
    """What a stream released."""

    counts: Integers
    """Shape (T, d)."""
    stderr: npt.NDArray[np.float64]
    """Shape (T, d)."""
    kept: float
    """Share of the visits that count."""
    share: float
    """The same as it is estimated at the end."""


def released(found: Visits, mechanism: str, key: bytes) -> Released:
    """Without a limit."""
    from streamveil.mechanisms.driver.stream import ReleaseStream

    stream = ReleaseStream(_made(found, found.requirements, mechanism), _noise(key))
    state, releases = stream.start(), []
    for slot, counts in enumerate(found.counts()):
        state, release = stream.release(state, slot, counts)
        releases.append(release)
    return _together(releases, 1.0, 1.0)


def limited(found: Visits, mechanism: str, limits: tuple[Any, ...], key: bytes) -> Released:
    """With a limit for each class."""
    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.core.records import ADD_REMOVE
    from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
    from streamveil.mechanisms.presence.counters import Counters, Rules
    from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
    from streamveil.mechanisms.presence.limits import priced

    rules = Rules.of(limits, found.requirements, ADD_REMOVE)
    counters = Counters(rules, key, found.users[:0])
    classes = found.class_of[found.users]
    layers = counters.layers(found.users, found.slots, classes, found.length)
    some = layers == 0
    in_layers = np.flatnonzero((layers > 0) & (layers <= LAYERS))
    in_layers = in_layers[np.argsort(found.slots[in_layers], kind="stable")]
    starts = np.searchsorted(found.slots[in_layers], np.arange(found.length + 1))
    presence = Presence(limits, Requirements.of(found.requirements), ADD_REMOVE)
    made = _made(found, priced(limits, found.requirements), mechanism)
    stream = PresentStream(made, _noise(key), {}, presence)
    state, releases = stream.start(), []
    for slot, counts in enumerate(found.counts(some)):
        rows = in_layers[starts[slot] : starts[slot + 1]]
        beyond = Beyond(layers[rows], classes[rows], found.places[rows], np.ones_like(rows))
        state, release = stream.release(state, slot, counts, beyond)
        releases.append(release)
    return _together(releases, float(some.mean()), releases[-1].diagnostics["kept_share"])


def _made(found: Visits, requirements: Any, mechanism: str) -> Any:
    from streamveil.mechanisms import registry
    from streamveil.mechanisms.protocol import population_of

    public = population_of(requirements, found.sizes, found.bins)
    return registry.mechanism(mechanism, replace(public, slot_length=found.slot_length))


def _noise(key: bytes) -> Any:
    from streamveil.mechanisms.randomness.noise import NoiseSource

    return NoiseSource(key)


def _together(releases: list[Any], kept: float, share: float) -> Released:
    counts, stderr = (
        np.array([getattr(one, of) for one in releases]) for of in ("counts", "stderr")
    )
    return Released(counts, stderr, kept, share)

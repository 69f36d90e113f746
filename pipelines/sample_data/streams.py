"""Synthetic streams by name, and users to make them of, as counts of each slot, class and bin.

Sin, TLNS and Log are those of Du et al., "Personalized w-event privacy for infinite stream
estimation", Section 6: two bins, and in slot t a user is in the second one with probability p_t.
The others are ours:

- `-fixed`: as many users as expected, instead of a draw for every user and slot.
- `step`: p_t jumps to another level every 200 to 500 slots.
- `city`: 100 places of popularity 1 / rank with a daily cycle; in each slot 5 % of the users move
  to a place drawn anew, and now and then an event draws 3 % of all users a slot into one place.
- `city-sparse`: the same, but only 30 % of the users report in a slot.
- `city-10000`: the same with 10,000 places.
- `sparse`: 19 kinds of things that hardly anybody rates on a given day, about 1.2 % of the users,
  as in the public data of MovieLens. People come back rarely and then for a few days; how often
  has a heavy tail, everybody has a taste of their own, and all come in waves.
- `-correlated`: class and value go together. Users with long windows have up to 50 % more of what
  `p_t` is about (or of the odd places), users with short ones up to 50 % less.

Streams for one budget forever are others, in which all users are alike: shares that stay, drift or
jump. The reference whose figures stand beside ours in `benchmarks/infinite.py` names its streams
and no more: exponents and steps of the drift are such that `constant` and `doubling` err about as
they do there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError, Requirement

Random = np.random.Generator

DAY = 288
MOVING = 0.05
DRAWN_TO_EVENT = 0.03
CORRELATION = 0.5
PRESENT = 11 / 943
"""Share of the users who are in a slot of `sparse`, on average."""
LONGEST_VISIT = 30


def wave(slots: int, random: Random) -> Floats:
    """p_t = 0.05 sin(0.01 t) + 0.075, shape (T,)."""
    return 0.05 * np.sin(0.01 * np.arange(1, slots + 1)) + 0.075


def walk(slots: int, random: Random) -> Floats:
    """A random walk from 0.05 with steps N(0, 0.0025**2), kept within [0, 1], shape (T,)."""
    chances = np.empty(slots)
    p = 0.05
    for t, step in enumerate(random.normal(0, 0.0025, slots)):
        p = min(max(p + step, 0.0), 1.0)
        chances[t] = p
    return chances


def growth(slots: int, random: Random) -> Floats:
    """Growth to a limit, p_t = 0.25 / (1 + exp(-0.01 t)), shape (T,)."""
    return 0.25 / (1 + np.exp(-0.01 * np.arange(1, slots + 1)))


def levels(slots: int, random: Random) -> Floats:
    """Levels drawn from [0.05, 0.25], each for 200 to 500 slots, shape (T,)."""
    chances = np.empty(slots)
    start = 0
    while start < slots:
        length = int(random.integers(200, 501))
        chances[start : start + length] = random.uniform(0.05, 0.25)
        start += length
    return chances


def _two_bins(
    path: Callable[[int, Random], Floats],
    sizes: Integers,
    slots: int,
    random: Random,
    *,
    fixed: bool = False,
    correlation: float = 0.0,
) -> Iterator[Integers]:
    tilt = 1 + correlation * np.linspace(-1, 1, len(sizes))
    for p in path(slots, random):
        chances = np.clip(p * tilt, 0, 1)
        ones = (
            np.rint(sizes * chances).astype(np.int64) if fixed else random.binomial(sizes, chances)
        )
        yield np.stack([sizes - ones, ones], axis=1)


def _city(
    sizes: Integers,
    slots: int,
    random: Random,
    *,
    bins: int = 100,
    reporting: float = 1.0,
    correlation: float = 0.0,
) -> Iterator[Integers]:
    base = 1 / np.arange(1, bins + 1)
    phases = random.uniform(0, 2 * np.pi, bins)
    taste = correlation * np.linspace(-1, 1, len(sizes))
    tilt = 1 + taste[:, None] * np.where(np.arange(bins) % 2, 1.0, -1.0)

    def popularity(t: int) -> Floats:
        p = base * (1 + 0.8 * np.sin(2 * np.pi * t / DAY + phases)) * tilt
        return p / p.sum(axis=1, keepdims=True)

    places = random.multinomial(sizes, popularity(0))
    event_ends, event_at = 0, 0
    for t in range(slots):
        moving = random.binomial(places, MOVING)
        places = places - moving + random.multinomial(moving.sum(axis=1), popularity(t))
        if t >= event_ends and random.random() < 1 / 150:
            event_ends, event_at = t + int(random.integers(15, 41)), int(random.integers(bins))
        if t < event_ends:
            drawn = random.binomial(places, DRAWN_TO_EVENT)
            places = places - drawn
            places[:, event_at] += drawn.sum(axis=1)
        yield places if reporting == 1 else random.binomial(places, reporting)


def visitors(
    users: int, slots: int, random: Random, *, bins: int = 19
) -> Iterator[tuple[Integers, Integers]]:
    """Who is there in each slot of `sparse`, and in which bin: numbers of users, ascending, (n,).

    Args:
        users: how many there are.
        slots: how many slots.
        random: where they are drawn from.
        bins: kinds of things, d.
    """
    often = 1 + random.pareto(1.5, users)
    popularity = np.arange(1, bins + 1) ** -0.8
    tastes = random.dirichlet(5 * popularity / popularity.sum(), users).cumsum(axis=1)
    lengths = np.arange(1, LONGEST_VISIT + 1)
    lasts = lengths**-2.5 / (lengths**-2.5).sum()
    coming = users * PRESENT / (lengths @ lasts)
    ends, wave = np.zeros(users, dtype=np.int64), random.normal(0, 0.6)
    for t in range(-LONGEST_VISIT, slots):
        wave = 0.9 * wave + random.normal(0, 0.6 * (1 - 0.9**2) ** 0.5)
        new = random.poisson(coming * math.exp(wave - 0.6**2 / 2))
        who = random.choice(users, new, p=often / often.sum())
        np.maximum.at(ends, who, t + random.choice(lengths, new, p=lasts))
        here = np.flatnonzero(ends > t)
        liked = (random.random(len(here))[:, None] > tastes[here]).sum(axis=1)
        if t >= 0:
            yield here, np.minimum(liked, bins - 1)


def _visits(sizes: Integers, slots: int, random: Random) -> Iterator[Integers]:
    class_of = np.repeat(np.arange(len(sizes)), sizes)
    bins = 19
    for here, liked in visitors(int(sizes.sum()), slots, random, bins=bins):
        counts = np.zeros((len(sizes), bins), dtype=np.int64)
        np.add.at(counts, (class_of[here], liked), 1)
        yield counts


_WALKS = {"sin": wave, "tlns": walk, "log": growth, "step": levels}

STREAMS: Mapping[str, Callable[[Integers, int, Random], Iterator[Integers]]] = {
    **{name: partial(_two_bins, path) for name, path in _WALKS.items()},
    **{f"{name}-fixed": partial(_two_bins, path, fixed=True) for name, path in _WALKS.items()},
    "city": _city,
    "city-sparse": partial(_city, reporting=0.3),
    "city-10000": partial(_city, bins=10_000),
    "sparse": _visits,
    **{
        f"{name}-correlated": partial(_two_bins, path, correlation=CORRELATION)
        for name, path in _WALKS.items()
    },
    "city-correlated": partial(_city, correlation=CORRELATION),
}


REAL = {"flights": "1d", "flights-hourly": "1h"}
"""Names of real streams, and lengths of their slots."""


def make_stream(name: str, sizes: Integers, slots: int, seed: int) -> Iterator[Integers]:
    """Draw a stream, slot by slot.

    Args:
        name: a key of `STREAMS`.
        sizes: users of each class, shape (K,).
        slots: how many slots T.
        seed: the same seed gives the same stream.

    Returns:
        T tables of counts by class and bin, int64, shape (K, d).

    Raises:
        ConfigurationError: for an unknown name.
    """
    if name not in STREAMS:
        raise ConfigurationError(f"stream {name!r} is unknown: choose one of {', '.join(STREAMS)}")
    return STREAMS[name](sizes, slots, np.random.default_rng([seed, *name.split("-")[0].encode()]))


BINS = 100
JUMP = 200
"""Slots between jumps."""
# Standard deviation of a count around the mean of all, in roots of that mean.
_SPREAD = 0.62


@dataclass(frozen=True)
class InfiniteStream:
    """A stream that has a name."""

    draw: Callable[[Random, int, int], Iterator[Integers]]
    """Makes counts without end, int64, shape (d,), of random numbers, events a slot and bins."""
    events: int
    """Events of a slot unless others are asked for."""
    about: str


def infinite_stream(
    name: str, slots: int, random: Random, events: int | None = None, bins: int = BINS
) -> Iterator[Integers]:
    """Counts of one slot after the other, int64, shape (d,).

    Args:
        name: a key of `INFINITE_STREAMS`.
        slots: how many.
        random: where they are drawn from.
        events: in a slot, about; those of the stream if None.
        bins: number of bins d.
    """
    stream = INFINITE_STREAMS[name]
    drawn = stream.draw(random, stream.events if events is None else events, bins)
    for _ in range(slots):
        yield next(drawn)


def _even(random: Random, events: int, bins: int) -> Iterator[Integers]:
    mean = events / bins
    while True:
        drawn = random.normal(mean, _SPREAD * mean**0.5, bins)
        yield np.maximum(np.rint(drawn), 0).astype(np.int64)


def _drifting(exponent: float, step: float) -> Callable[[Random, int, int], Iterator[Integers]]:
    def draw(random: Random, events: int, bins: int) -> Iterator[Integers]:
        logs = _zipf(exponent, bins)
        while True:
            logs = logs + random.normal(0, step, bins)
            yield _drawn(random, events, logs)

    return draw


def _jumping(random: Random, events: int, bins: int) -> Iterator[Integers]:
    logs = _zipf(1.1, bins)
    while True:
        random.shuffle(logs)
        for _ in range(JUMP):
            yield _drawn(random, events, logs)


def _zipf(exponent: float, bins: int) -> npt.NDArray[np.float64]:
    """Logarithms of rank ** -exponent."""
    return -exponent * np.log(np.arange(1, bins + 1))


def _drawn(random: Random, events: int, logs: npt.NDArray[np.float64]) -> Integers:
    shares = np.exp(logs)
    return random.multinomial(events, shares / shares.sum())


INFINITE_STREAMS: Mapping[str, InfiniteStream] = {
    "even": InfiniteStream(_even, 10_000, "about equal counts"),
    "drifting": InfiniteStream(_drifting(0.95, 0.036), 10_000, "Zipf, drifting"),
    "jumping": InfiniteStream(_jumping, 10_000, f"Zipf, shuffled every {JUMP} slots"),
    "drifting-many": InfiniteStream(_drifting(1.2, 0.034), 1_000_000, "Zipf, drifting"),
}


def population(
    epsilon: float, window: int, users: int
) -> tuple[list[Requirement], npt.NDArray[np.int64]]:
    """Spread users evenly over the budgets E, 4/3 E, 5/3 E and the windows w/3, 2w/3, w.

    Windows are rounded up to whole slots, and classes that become equal are merged.

    Args:
        epsilon: budget E of the strictest users.
        window: longest window w, in slots.
        users: how many there are.

    Returns:
        (requirements, sizes): K distinct requirements, sorted, and int64 of shape (K,).

    Raises:
        ConfigurationError: for a requirement out of range, or fewer users than classes.
    """
    budgets = [epsilon * part / 3 for part in (3, 4, 5)]
    windows = [math.ceil(window * part / 3) for part in (1, 2, 3)]
    asked = sorted(Requirement(w, e) for w, e in itertools.product(windows, budgets))
    if users < len(asked):
        raise ConfigurationError(
            f"{users} users are too few for {len(asked)} kinds of requirements: give more"
        )
    # The remainder goes to the first kinds.
    each = [users // len(asked) + (i < users % len(asked)) for i in range(len(asked))]
    classes = sorted(set(asked))
    sizes = np.zeros(len(classes), dtype=np.int64)
    np.add.at(sizes, [classes.index(one) for one in asked], each)
    return classes, sizes

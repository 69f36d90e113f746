"""Query sets over streams of single users' events: real flights, films, and a city.

Streams have numbers that the same seed gives again; of the flights only the noise differs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Integers

CITY = {"users": 10_000, "places": 100, "districts": 10, "share": 0.3, "moving": 0.02, "day": 96}


@dataclass(frozen=True, eq=False)
class Stream:
    """Events of users, and what is asked about them."""

    users: Integers
    """Of each event, shape (n,)."""
    times: Integers
    """Base slot of each, from 0 on, shape (n,)."""
    columns: Mapping[str, Any]
    """What each says: names of bins, or numbers."""
    class_of: Integers
    """Class of each user."""
    requirements: tuple[Any, ...]
    length: int
    """Base slots."""
    asked: Mapping[str, Any]
    """The file of queries."""

    @property
    def sizes(self) -> Integers:
        """Users of each class, shape (K,)."""
        return np.bincount(self.class_of, minlength=len(self.requirements)).astype(np.int64)

    @functools.cached_property
    def query_set(self) -> Any:
        """What is asked."""
        from streamveil.mechanisms.queries.reading import query_set_of

        return query_set_of(self.asked)

    def bounded(self, query: Any, seed: int) -> tuple[Integers, Integers, Integers]:
        """Which events of whole slots count, in a drawn order; with their slots and bins."""
        slots = self.times // query.slots
        bins = np.zeros(len(slots), np.int64)
        if query.value:
            order = {label: place for place, label in enumerate(query.domain.labels)}
            names, codes = np.unique(self.columns[query.value[0]], return_inverse=True)
            bins = np.array([order[name] for name in names.tolist()])[codes]
        some = np.flatnonzero(slots < self.length // query.slots)
        some = np.random.default_rng(seed).permutation(some)
        group = self.users[some] * (self.length + 1) + slots[some]
        if query.statistic.once:
            _, first = np.unique(group * query.domain.bins + bins[some], return_index=True)
            some, group = some[first], group[first]
        by_group = np.argsort(group, kind="stable")
        group = group[by_group]
        rank = np.arange(len(group)) - np.searchsorted(group, group)
        some = some[by_group[rank < query.max_contributions]]
        return some, slots, bins

    def counts(self, query: Any, seed: int = 0) -> Integers:
        """Bounded histograms of a query, shape (slots, K, cells)."""
        some, slots, bins = self.bounded(query, seed)
        measure, classes = query.measure, len(self.requirements)
        steps = np.zeros(len(some), np.int64)
        if query.statistic.column:
            steps = query.statistic.steps(self.columns[query.statistic.column][some])
        table = np.zeros((self.length // query.slots, classes, measure.size), np.int64)
        rows = slots[some] * classes + self.class_of[self.users[some]]
        places = rows * query.domain.bins + bins[some]
        measure.add(places, steps, np.ones_like(places), table.reshape(-1, measure.size))
        return table


def stream(name: str, seed: int, days: int | None = None) -> Stream:
    """A query set by its name: of `QUERY_SETS`, or `random-` and a number."""
    if name.startswith("random-"):
        return _random(int(name.removeprefix("random-")), seed, days)
    return QUERY_SETS[name](seed, days)


@functools.cache
def _flights(seed: int, days: int | None) -> Stream:
    """Aircraft that leave New York, with the requirements of the demo: hours, days and weeks."""
    from streamveil.mechanisms.core.records import Requirement
    from streamveil.pipelines.sample_data import flights

    table = flights._columns(
        *("year", "month", "day", "hour", flights.USER, flights.VALUE, "carrier", "dep_delay")
    )
    table = table.filter(table[flights.USER].is_valid()).drop_null()
    names, users = np.unique(table[flights.USER].to_numpy().astype(str), return_inverse=True)
    day = np.array(
        [
            np.datetime64(f"2013-{m:02}-{d:02}")
            for m, d in zip(table["month"].to_pylist(), table["day"].to_pylist(), strict=True)
        ]
    )
    day = (day - np.datetime64("2013-01-01")).astype(np.int64)
    times = day * 24 + table["hour"].to_numpy().astype(np.int64)
    days = min(days or 364, 364)
    some = times < days * 24
    wishes = [flights.requirement_of(name) for name in names]
    each = [Requirement(one.window * 24, one.epsilon) for one in wishes]
    asked = sorted(set(each))
    carriers = sorted(set(table["carrier"].to_pylist()))
    delay = {"of": "dep_delay", "statistic": "quantiles", "quantiles": [0.5, 0.95]}
    return Stream(
        users[some],
        times[some],
        {
            "dest": np.array(table[flights.VALUE].to_pylist())[some],
            "carrier": np.array(table["carrier"].to_pylist())[some],
            "dep_delay": table["dep_delay"].to_numpy().astype(np.float64)[some],
        },
        np.array([asked.index(one) for one in each]),
        tuple(asked),
        days * 24,
        {
            "slot": "1h",
            "queries": [
                {"name": "places", "by": "dest", "keys": list(flights.DESTINATIONS)},
                {"name": "carriers", "by": "carrier", "keys": carriers, "every": "1d"}
                | {"max_contributions": flights.CONTRIBUTIONS["day"]},
                {"name": "late", "every": "1w", "edges": [-30, 0, 15, 30, 60, 120, 180], **delay},
            ],
        },
    )


def _films(seed: int, days: int | None) -> Stream:
    """Users who come for a few days and go, as in the public data of MovieLens."""
    from streamveil.mechanisms.core.records import Requirement
    from streamveil.pipelines.sample_data.streams import visitors

    days, genres, people = (days or 210) // 7 * 7, 19, 943
    random = np.random.default_rng([seed, genres])
    drawn = list(visitors(people, days, random, bins=genres))
    users, liked = (np.concatenate(each) for each in zip(*drawn, strict=True))
    return Stream(
        users,
        np.repeat(np.arange(days), [len(here) for here, _ in drawn]),
        {
            "genre": np.array([f"genre-{place:02}" for place in range(genres)])[liked],
            "stars": random.choice(
                np.arange(1.0, 6.0), len(users), p=[0.06, 0.11, 0.27, 0.34, 0.22]
            ),
        },
        np.zeros(people, np.int64),
        (Requirement(30, 1.0),),
        days,
        {
            "slot": "1d",
            "queries": [
                {"name": "genres", "by": "genre"}
                | {"keys": [f"genre-{place:02}" for place in range(genres)]},
                {"name": "visitors", "every": "7d", "statistic": "distinct"},
                {"name": "stars", "every": "7d", "statistic": "mean", "of": "stars"}
                | {"bounds": [1, 5]},
            ],
        },
    )


def _city(seed: int, days: int | None) -> Stream:
    """Users at places of changing popularity: places in quarters, districts in hours, all in days.

    Each is seen in three of ten quarters of an hour, and then and now moves.
    """
    from streamveil.mechanisms.core.records import Requirement

    random = np.random.default_rng([seed, CITY["places"]])
    day, places, people = CITY["day"], CITY["places"], CITY["users"]
    length = (days or 10) * day
    base, phases = 1 / np.arange(1, places + 1), random.uniform(0, 2 * np.pi, places)
    at = random.choice(places, people, p=base / base.sum())
    users, found = [], []
    for slot in range(length):
        popular = base * (1 + 0.8 * np.sin(2 * np.pi * slot / day + phases))
        moving = random.random(people) < CITY["moving"]
        at[moving] = random.choice(places, int(moving.sum()), p=popular / popular.sum())
        here = np.flatnonzero(random.random(people) < CITY["share"])
        users.append(here)
        found.append(at[here])
    where = np.concatenate(found)
    names = np.array([f"place-{place:02}" for place in range(places)])
    districts = np.array([f"district-{place}" for place in range(CITY["districts"])])
    return Stream(
        np.concatenate(users),
        np.repeat(np.arange(length), [len(here) for here in users]),
        {"place": names[where], "district": districts[where % CITY["districts"]]},
        np.zeros(people, np.int64),
        (Requirement(day, 1.0),),
        length,
        {
            "slot": "15m",
            "queries": [
                {"name": "places", "by": "place", "keys": names.tolist()},
                {"name": "districts", "by": "district", "keys": districts.tolist()}
                | {"every": "1h"},
                {"name": "city", "every": "1d", "statistic": "distinct"},
            ],
        },
    )


def _visits(seed: int, days: int | None) -> Stream:
    """The query set of the README: five visits of three people in a week."""
    from streamveil.mechanisms.core.records import Requirement

    return Stream(
        np.array([0, 1, 0, 2, 1]),
        np.array([2, 2, 2, 3, 3]),
        {"place": np.array(["cafe", "park", "park", "cafe", "cafe"])},
        np.array([0, 1, 2]),
        (Requirement(7, 1.0), Requirement(7, 2.0), Requirement(3, 1.0)),
        7,
        {
            "slot": "1d",
            "queries": [
                {"name": "visits", "by": "place", "keys": ["cafe", "park"]}
                | {"max_contributions": 2},
                {"name": "people", "every": "1w", "statistic": "distinct"},
            ],
        },
    )


def _trips(seed: int, days: int | None) -> Stream:
    """The query set of docs/reference/queries.md: trips of a week."""
    from streamveil.mechanisms.core.records import Requirement

    random, people, days = np.random.default_rng([seed, 5]), 3000, min(days or 7, 7)
    trips = people * days
    kinds = random.integers(0, 2, trips)
    hours = np.minimum(23, random.normal(13, 4, trips).astype(np.int64) % 24)
    return Stream(
        np.tile(np.arange(people), days),
        np.repeat(np.arange(days), people) * 24 + hours,
        {
            "place": np.array(["north", "south", "south"])[random.integers(0, 3, trips)],
            "kind": np.array(["bus", "tram"])[kinds],
            "delay": np.round(random.exponential(np.array([8.0, 3.0])[kinds]), 1),
        },
        random.integers(0, 2, people),
        (Requirement(24, 1.0), Requirement(24, 2.0)),
        days * 24,
        {
            "slot": "1h",
            "queries": [
                {"name": "places", "by": "place", "keys": ["north", "south"], "weight": 2},
                {"name": "delay", "by": "kind", "keys": ["bus", "tram"], "every": "1d"}
                | {"statistic": "mean", "of": "delay", "bounds": [0, 30]},
                {"name": "late", "every": "1w", "statistic": "quantiles", "of": "delay"}
                | {"edges": [0, 2, 5, 10, 20, 60], "quantiles": [0.5, 0.95]},
            ],
        },
    )


def _random(number: int, seed: int, days: int | None) -> Stream:
    """Some queries about people who come when they like, by a drawn number."""
    from streamveil.mechanisms.core.records import Requirement

    random = np.random.default_rng([number, 77])
    people, length = int(random.choice([300, 3000, 20_000])), (days or 20) * 24
    chance = float(random.choice([0.01, 0.05, 0.2]))
    window = int(random.choice([6, 24, 72]))
    queries = []
    for q in range(int(random.integers(2, 5))):
        bins = int(random.choice([1, 5, 40]))
        labels = [f"bin-{place:02}" for place in range(bins)]
        found = {"name": f"q{q}", "by": f"c{bins}", "keys": labels}
        slots = int(random.choice([1, 1, 4, 24]))
        found |= {"every": f"{slots}h", "weight": float(random.choice([1, 1, 5]))}
        queries.append(found)
    drawn = np.random.default_rng([seed, number])
    here = [np.flatnonzero(drawn.random(people) < chance) for _ in range(length)]
    users = np.concatenate(here)
    rank = (40 * drawn.random(len(users)) ** 2).astype(np.int64)
    return Stream(
        users,
        np.repeat(np.arange(length), [len(one) for one in here]),
        {
            f"c{n}": np.array([f"bin-{place:02}" for place in range(n)])[rank % n]
            for n in (1, 5, 40)
        },
        np.arange(people) % 2,
        (Requirement(window, 1.0), Requirement(window, 2.0)),
        length,
        {"slot": "1h", "queries": queries},
    )


QUERY_SETS = {
    "flights": _flights,
    "films": _films,
    "city": _city,
    "visits": _visits,
    "trips": _trips,
}

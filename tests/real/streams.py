"""Small generated streams that are shaped like public event files.

Each one is a pure function of its seed. What the events say without any protection is computed by
`truth.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

TABLE = 0.0
"""Population of a stream whose users are all in the requirements table."""


@dataclass(frozen=True)
class Stream:
    """Events of users, what is released of them, and what the releasing person knows."""

    about: str
    draw: Callable[[np.random.Generator], pd.DataFrame]
    """Events with the columns user, time and others, in the order of time."""
    days: int
    window: int
    """Of all requirements, in slots."""
    users: int
    """How many there are at most."""
    population: float | None
    """The USERS of a default requirement as a multiple of `users`; TABLE for a full table, and None
    where the number is left out."""
    start: str = "2024-01-01"
    slot: str = "1d"
    zone: str = "UTC"
    histogram: Mapping[str, Any] = field(default_factory=dict)
    """Value and domain of `sv.release`; empty for streams without it."""
    queries: Sequence[Mapping[str, Any]] = ()
    """Of a query set."""

    @property
    def span(self) -> tuple[str, str]:
        """First day, and the day after the last one."""
        first = pd.Timestamp(self.start)
        return self.start, str((first + pd.Timedelta(days=self.days)).date())

    def requirements(self, epsilon: float) -> dict[str, Any]:
        """Arguments that give every user this budget."""
        if self.population == TABLE:
            table = {f"u{user}": (self.window, epsilon) for user in range(self.users)}
            return {"requirements": table}
        if self.population is None:
            return {"default_requirement": (self.window, epsilon)}
        users = round(self.users * self.population)
        return {"default_requirement": (self.window, epsilon, users)}


def _names(letter: str, number: int) -> list[str]:
    return [f"{letter}{place:03}" for place in range(number)]


def _zipf(number: int, power: float = 1.0) -> np.ndarray:
    weights = np.arange(1.0, number + 1) ** -power
    return weights / weights.sum()


def _frame(start: str, users: Any, hours: Any, **columns: Any) -> pd.DataFrame:
    """Events so many hours after a time, in UTC, in the order of time."""
    times = pd.Timestamp(start, tz="UTC") + pd.to_timedelta(np.asarray(hours, float), "h")
    names = np.char.add("u", np.asarray(users).astype(str)).astype(object)
    frame = pd.DataFrame({"user": names, "time": times, **columns})
    return frame.sort_values("time", kind="stable", ignore_index=True)


def _daily(
    random: np.random.Generator, users: int, expected: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Users and hours: each user at most once a day, and so many a day on average."""
    numbers = np.minimum(random.poisson(expected), users)
    who = [random.choice(users, number, replace=False) for number in numbers]
    days = np.repeat(np.arange(len(numbers)), numbers)
    return np.concatenate(who), days * 24 + random.uniform(6, 22, len(days))


def _riders(random: np.random.Generator) -> pd.DataFrame:
    weekly = np.tile([700, 720, 710, 730, 690, 320, 250], 6)
    users, hours = _daily(random, 1500, weekly)
    return _frame("2024-01-01", users, hours, line=random.choice(_names("l", 5), len(users)))


def _shops(random: np.random.Generator) -> pd.DataFrame:
    users, hours = _daily(random, 900, [500] * 42)
    return _frame(
        "2024-01-01", users, hours, shop=random.choice(_names("s", 40), len(users), p=_zipf(40))
    )


def _ratings(random: np.random.Generator) -> pd.DataFrame:
    number = 1700
    stars = random.choice([1.0, 2, 3, 4, 5], number, p=[0.06, 0.11, 0.27, 0.34, 0.22])
    genres = random.choice(_names("g", 19), number, p=_zipf(19))
    return _frame(
        *("2024-01-01", np.arange(number), random.uniform(0, 42 * 24, number)),
        genre=genres,
        stars=stars,
    )


def _stops(random: np.random.Generator) -> pd.DataFrame:
    busy = np.tile([0, 0, 4, 14, 9, 16, 8, 1], 28)  # of a slot of three hours
    numbers = random.poisson(busy)
    slots = np.repeat(np.arange(len(busy)), numbers)
    users = np.concatenate([random.choice(400, number, replace=False) for number in numbers])
    hours = slots * 3 + random.uniform(0, 3, len(slots))
    return _frame("2024-01-01", users, hours, reason=random.choice(_names("r", 4), len(users)))


def _payments(random: np.random.Generator) -> pd.DataFrame:
    users, hours = _daily(random, 800, [400] * 42)
    amounts = random.lognormal(3, 1, len(users))
    amounts[random.random(len(users)) < 0.05] = np.nan
    return _frame("2024-01-01", users, hours, amount=amounts)


def _logins(random: np.random.Generator) -> pd.DataFrame:
    users, hours = _daily(random, 700, [300] * 42)
    return _frame("2024-01-01", users, hours, ok=random.random(len(users)) < 0.85)


def _devices(random: np.random.Generator) -> pd.DataFrame:
    activity = random.lognormal(-1.0, 1.5, 600)  # a few users cause most events
    numbers = random.poisson(np.tile(activity, (42, 1)))
    days, users = np.nonzero(numbers)
    many = numbers[days, users]
    hours = np.repeat(days, many) * 24 + random.uniform(0, 24, int(many.sum()))
    return _frame("2024-01-01", np.repeat(users, many), hours)


def _alarms(random: np.random.Generator) -> pd.DataFrame:
    level = np.repeat([90.0, 360.0], 28)
    level[[9, 17, 38]] *= 3
    users, hours = _daily(random, 1200, level)
    return _frame(
        *("2024-01-01", users, hours), kind=random.choice(_names("k", 3), len(users), p=_zipf(3))
    )


def _visits(random: np.random.Generator) -> pd.DataFrame:
    # Days of Berlin, one of which has 23 hours: events at all hours, in UTC.
    users, hours = _daily(random, 800, [350] * 42)
    hours = np.floor(hours / 24) * 24 + random.uniform(0, 22.9, len(hours))
    return _frame(
        *("2024-03-10T23:00", users, hours),
        room=random.choice(_names("v", 6), len(users), p=_zipf(6)),
    )


def _issues(random: np.random.Generator) -> pd.DataFrame:
    users, hours = _daily(random, 500, [35] * 42)
    return _frame(
        *("2024-01-01", users, hours),
        label=random.choice(_names("i", 200), len(users), p=_zipf(200)),
    )


def _meters(random: np.random.Generator) -> pd.DataFrame:
    slots = np.repeat(np.arange(20 * 12), 100)  # of two hours
    users = np.concatenate([random.choice(2000, 100, replace=False) for _ in range(20 * 12)])
    hours = slots * 2 + random.uniform(0, 2, len(slots))
    load = random.gamma(4, 5 + 2 * np.sin(hours * np.pi / 12))
    load[random.random(len(load)) < 0.03] = np.nan
    return _frame("2024-01-01", users, hours, load=load)


def _surveys(random: np.random.Generator) -> pd.DataFrame:
    number = 5200
    age = np.clip(random.normal(42, 16, number), 16, 95)
    return _frame(
        *("2024-01-01", np.arange(number), random.uniform(0, 26 * 7 * 24, number)),
        age=age,
        region=random.choice(_names("n", 4), number, p=_zipf(4)),
    )


def _levels(name: str, by: str, keys: Sequence[str], share: float) -> dict[str, Any]:
    return {"name": name, "by": by, "keys": keys, "levels": ["all"], "share": share}


def _distinct(share: float) -> dict[str, Any]:
    return {"name": "users", "statistic": "distinct", "share": share}


def _number(
    statistic: str, column: str, share: float, upper: float, lower: float = 0
) -> dict[str, Any]:
    bounds = {"bounds": [lower, upper]}
    return {"name": statistic, "statistic": statistic, "of": column, "share": share, **bounds}


def _quantiles(column: str, share: float, edges: Any) -> dict[str, Any]:
    asked = {"statistic": "quantiles", "of": column, "edges": edges, "quantiles": [0.5, 0.95]}
    return {"name": "quantiles", "share": share, **asked}


STREAMS: dict[str, Stream] = {
    "riders": Stream(
        *("riders of five lines, less at weekends, all users in the table", _riders, 42, 7, 1500),
        population=TABLE,
        histogram={"value": "line", "domain": _names("l", 5)},
        queries=[_levels("lines", "line", _names("l", 5), 0.6), _distinct(0.4)],
    ),
    "shops": Stream(
        *("visits of 40 shops by Zipf's law, USERS 10 times too large", _shops, 42, 7, 900),
        population=10,
        histogram={"value": "shop", "domain": _names("s", 40)},
        queries=[_levels("shops", "shop", _names("s", 40), 0.3), _distinct(0.7)],
    ),
    "ratings": Stream(
        *("one-event users, 40 ratings a day in 19 genres, USERS a tenth", _ratings, 42, 7, 1700),
        population=0.1,
        histogram={"value": "genre", "domain": _names("g", 19)},
        queries=[
            {"name": "ratings", "share": 0.5},
            _number("mean", "stars", 0.5, 5, lower=1),
        ],
    ),
    "stops": Stream(
        *("traffic stops in slots of three hours, nights nearly empty", _stops, 28, 8, 400),
        population=TABLE,
        slot="3h",
        histogram={"value": "reason", "domain": _names("r", 4)},
        queries=[_levels("reasons", "reason", _names("r", 4), 1.0)],
    ),
    "payments": Stream(
        *("heavy-tailed amounts, one in 20 of them null", _payments, 42, 7, 800),
        population=TABLE,
        queries=[
            _number("sum", "amount", 0.4, 400),
            _number("mean", "amount", 0.3, 400),
            _quantiles("amount", 0.3, {"lower": 1, "upper": 1000, "intervals": 24}),
        ],
    ),
    "logins": Stream(
        *("attempts to log in with a boolean, USERS left out", _logins, 42, 7, 700),
        population=None,
        queries=[
            {"name": "succeeded", "where": {"ok": True}, "share": 0.3},
            {"name": "attempts", "share": 0.7},
        ],
    ),
    "devices": Stream(
        *("a few heavy users cause most events, four of each counted a day", _devices, 42, 7, 600),
        population=TABLE,
        queries=[{"name": "events", "max_contributions": 4, "share": 0.6}, _distinct(0.4)],
    ),
    "alarms": Stream(
        *("a level that quadruples for good, and three bursts of a day", _alarms, 56, 7, 1200),
        population=TABLE,
        histogram={"value": "kind", "domain": _names("k", 3)},
        queries=[_levels("kinds", "kind", _names("k", 3), 1.0)],
    ),
    "visits": Stream(
        *("days of Berlin, one with 23 hours", _visits, 42, 7, 800),
        population=TABLE,
        start="2024-03-11",
        zone="Europe/Berlin",
        histogram={"value": "room", "domain": _names("v", 6)},
    ),
    "issues": Stream(
        *("35 events a day in 200 bins by Zipf's law", _issues, 42, 7, 500),
        population=TABLE,
        histogram={"value": "label", "domain": _names("i", 200)},
        queries=[_levels("labels", "label", _names("i", 200), 0.8), _distinct(0.2)],
    ),
    "meters": Stream(
        *("loads by two hours with a daily wave, some null", _meters, 20, 12, 2000),
        population=TABLE,
        slot="2h",
        queries=[
            _number("sum", "load", 0.4, 60),
            _number("mean", "load", 0.2, 60),
            _number("stddev", "load", 0.2, 60),
            _quantiles("load", 0.2, list(range(0, 64, 4))),
        ],
    ),
    "surveys": Stream(
        *("one-event users by the week, USERS 10 times too large", _surveys, 182, 4, 5200),
        population=10,
        slot="7d",
        histogram={"value": "region", "domain": _names("n", 4)},
        queries=[_quantiles("age", 0.5, list(range(15, 100, 3))), _distinct(0.5)],
    ),
}

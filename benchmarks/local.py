"""Error, time and memory of the local mechanisms, beside reference results.

python benchmarks/local.py

10,000 users with 9 kinds of requirements, drawn uniformly: epsilon of 1.5, 2 or 2.5 over 40, 80 or
120 slots. At slot t a user has value 1 with probability p_t, else 0: the streams Sin, TLNS and Log
of Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream", Section
VI. The error is AMSE: the squared difference of released and true frequencies, averaged over values
and slots. Every number is of simulated devices that report one by one, with their filters.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _measure import begin, measure_case, parser, save, table

WINDOWS = (40, 80, 120)
EPSILONS = (1.5, 2.0, 2.5)
STREAMS = ("sin", "tlns", "log", "bursts")
# AMSE of the reference in units of 1e-5, by stream.
REFERENCE = {
    "lpd": (980, 760, 1600, 3500),
    "lpa": (270, 250, 360, 800),
    "plpd": (270, 310, 1000, 2300),
    "plpa": (150, 110, 290, 550),
    "plpd+": (310, 250, 520, 1400),
    "plpa+": (210, 170, 350, 770),
    "plpa+:project=true": (180, 140, 350, 700),
    "rotation": (9.8, 11, 6.8, 38),
}
CORRELATED = {"rotation": (39, 19), "rotation:robust=true": (12, 9.7), "plpa": (130, None)}
MANY_BINS = ("rotation:oracle=oue", "rotation:oracle=grr")
LAG = 7
REVISED = {
    **dict.fromkeys(STREAMS, ("rotation", "rotation:cycle=24")),
    "hours": ("rotation", "rotation:cycle=24", "rotation:cycle=7"),
}
UNIT = 1e-5
# Modules that keep what devices remember; the others of their folder are the server's.
DEVICE_MODULES = ("devices", "history", "promises")


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--users", type=int, default=10_000)
    add("--slots", type=int, default=2000)
    add("--keys", type=int, default=4, help="draws of users, data and noise in each cell")
    add("--streams", nargs="+", choices=STREAMS, default=STREAMS, help="rows of the first table")
    add("--bins", nargs="+", type=int, default=(100, 1000), help="rows of the third table")
    add("--many", type=int, default=1_000_000, help="users of the last table")
    add("--many_slots", type=int, default=150, help="slots of the last table")
    add("--processes", type=int, default=2)
    given = options.parse_args()
    started = time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        tables = [
            against_reference(given, pool),
            correlated(given, pool),
            many_bins(given, pool),
            revised(given, pool),
            at_scale(given),
        ]
    print(f"\n{time.monotonic() - started:.0f} s in {given.processes} processes")
    names = ("users", "slots", "keys", "streams", "bins", "many", "many_slots", "processes")
    kept = {name: getattr(given, name) for name in names}
    save(given.results, "local", kept, tables)


def against_reference(given, pool):
    """Every mechanism on every stream."""
    errors = table(
        f"AMSE in units of {UNIT:g}, {given.users:,} users, {given.slots:,} slots",
        ["stream", "mechanism", "AMSE", "standard error", "reference", "AMSE / reference"],
        f"Mean and standard error over {given.keys} draws of users, data and noise. `bursts` has "
        "five values of popularity 1 / rank, and about every 200 slots an event draws 30 % of all "
        "users to one of them, for 15 to 40 slots. The reference does not say what its bursts are: "
        "these are such that PLPA errs as it does there. What it calls LBD and LBA divides the "
        "users, not their budgets: here that is LPD and LPA.",
    )
    cases = [{"stream": stream} for stream in given.streams]
    for stream, found in zip(given.streams, _errors(given, pool, cases, REFERENCE), strict=True):
        for mechanism, references in REFERENCE.items():
            mean, error = _mean(found[mechanism])
            reference = references[STREAMS.index(stream)]
            errors.add(stream, mechanism, mean, error, reference, mean / reference)
    return errors


def correlated(given, pool):
    """Where what a user asks for says something about the value."""
    errors = table(
        f"AMSE in units of {UNIT:g} where budget and value go together",
        ["stream", "mechanism", "AMSE", "standard error", "reference", "AMSE / reference"],
        "Users with an epsilon of 1.5 have half of p_t, those with 2.5 one and a half of it.",
    )
    streams = ("sin", "tlns")
    cases = [{"stream": stream, "correlation": 0.5} for stream in streams]
    for stream, found in zip(streams, _errors(given, pool, cases, CORRELATED), strict=True):
        for mechanism, references in CORRELATED.items():
            mean, error = _mean(found[mechanism])
            reference = references[streams.index(stream)]
            ratio = mean / reference if reference else None
            errors.add(stream, mechanism, mean, error, reference, ratio)
    return errors


def many_bins(given, pool):
    """OUE against GRR."""
    slots = given.slots // 4
    errors = table(
        f"AMSE of many values, in units of {UNIT:g}, {slots:,} slots",
        ["values", "mechanism", "AMSE", "standard error", "all shares alike"],
        "Popularity 1 / rank with a daily cycle. What is released without a single report, if all "
        "shares are said to be alike, errs by the last column.",
    )
    cases = [{"stream": "places", "bins": bins, "slots": slots} for bins in given.bins]
    for bins, found in zip(given.bins, _errors(given, pool, cases, MANY_BINS), strict=True):
        for mechanism in MANY_BINS:
            mean, error = _mean(found[mechanism])
            errors.add(bins, mechanism, mean, error, statistics.mean(found["alike"]))
    return errors


def revised(given, pool):
    """Cycles, and what later slots tell of earlier ones."""
    slots = given.slots // 2
    errors = table(
        f"AMSE in units of {UNIT:g} with cycles and revisions {LAG} slots later, {slots:,} slots",
        ["stream", "mechanism", "AMSE", "standard error", "coverage", "revised / AMSE", "coverage"],
        "Coverage is the share of frequencies within 1.645 standard errors, nominally 0.9, of "
        "releases and of revisions. `hours` has nine places of popularity 1 / rank, each with its "
        "busiest hour within the same six, where 40 % of users are on average, 64 % at most.",
    )
    cases = [{"stream": stream, "slots": slots, "revise": LAG} for stream in REVISED]
    for case in cases:
        (found,) = _errors(given, pool, [case], REVISED[case["stream"]])
        for name in REVISED[case["stream"]]:
            (mean, error), (again, _) = _mean(found[name]), _mean(found[f"{name} revised"])
            covers = [
                _mean(found[f"{name} {what}"])[0] * UNIT for what in ("covers", "covers again")
            ]
            errors.add(case["stream"], name, mean, error, covers[0], again / mean, covers[1])
    return errors


def at_scale(given):
    """Seconds and bytes of a large population."""
    cost = table(
        f"Rotation with {given.many:,} users",
        [
            *("values", "first slot (s)", "median slot (s)", "slowest other slot (s)"),
            *("bytes a user: server", "bytes a user: devices"),
        ],
        "CPU seconds of server and devices together, one core; the first slot draws the groups. "
        f"Bytes are what is allocated after {given.many_slots} slots, beside the public population "
        "of 4 bytes a user.",
    )
    for bins in (2, 100):
        case = {"users": given.many, "slots": given.many_slots, "bins": bins}
        timed = _answered({**case, "many": "seconds"})
        held = _answered({**case, "many": "bytes"})
        seconds = timed["seconds"]
        rest = seconds[1:]
        times = (seconds[0], statistics.median(rest), max(rest))
        cost.add(bins, *times, held["server"], held["devices"])
    return cost


def _errors(given, pool, cases, mechanisms):
    """Yield, for each case, the AMSE of each mechanism with each key."""
    size = {"users": given.users, "slots": given.slots, "mechanisms": list(mechanisms)}
    keys = range(given.keys)
    answers = pool.map(_answered, [{**size, **case, "key": key} for case in cases for key in keys])
    for _ in cases:
        found = [next(answers) for _ in keys]
        yield {name: [one[name] / UNIT for one in found] for name in found[0]}


def _answered(case):
    return measure_case("local.py", case, 1).answers[0]


def _mean(values):
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return statistics.mean(values), error


def shares(stream: str, slots: int, bins: int, random):
    """Probability of each value in each slot, shape (T, d)."""
    import numpy as np

    from streamveil.pipelines.sample_data.streams import DAY, growth, walk, wave

    if stream in ("sin", "tlns", "log"):
        ones = {"sin": wave, "tlns": walk, "log": growth}[stream](slots, random)
        return np.stack([1 - ones, ones], axis=1)
    rank = np.arange(1, bins + 1)
    if stream == "hours":
        rank = np.arange(1, 10)
        hour = np.arange(slots)[:, None] + random.integers(0, 6, rank.size)
        places = 0.4 / rank / (1 / rank).sum() * (1 + 0.6 * np.sin(2 * np.pi * hour / 24))
        return np.column_stack([places, 1 - places.sum(axis=1)])
    if stream == "places":
        cycle = 2 * np.pi * (np.arange(slots)[:, None] / DAY + random.random(bins))
        chances = (1 + 0.5 * np.sin(cycle)) / rank
        return chances / chances.sum(axis=1, keepdims=True)
    chances = np.tile(1 / rank / (1 / rank).sum(), (slots, 1))
    end = 0
    for t in range(slots):
        if t >= end and random.random() < 1 / 200:
            end = t + int(random.integers(15, 41))
            chances[t:end] *= 0.7
            chances[t:end, random.integers(bins)] += 0.3
    return chances


def run(
    mechanisms: list[str],
    stream: str,
    key: int,
    users: int,
    slots: int,
    bins: int | None = None,
    correlation: float = 0.0,
    revise: int = 0,
) -> dict[str, float]:
    """AMSE of each mechanism on the same values, and of shares that are all alike.

    With a lag also that of its revisions, and coverages, by name.
    """
    import numpy as np

    from streamveil.mechanisms import simulate_local
    from streamveil.mechanisms.registry import LOCAL_MECHANISMS, parse

    random = np.random.default_rng(key)
    bins = bins or {"bursts": 5, "hours": 10}.get(stream, 2)
    budgets = random.choice(EPSILONS, users)
    requirements = list(zip(random.choice(WINDOWS, users).tolist(), budgets.tolist(), strict=True))
    chances = shares(stream, slots, bins, random)
    values = np.empty((slots, users), np.min_scalar_type(bins))
    for row, chance in zip(values, chances, strict=True):
        if correlation:  # of two values
            lift = 1 + correlation * (budgets - 2) / 0.5
            row[:] = random.random(users) < chance[1] * lift
        else:
            row[:] = np.searchsorted(np.cumsum(chance)[:-1], random.random(users), "right")
    truth = np.stack([np.bincount(row, minlength=bins) for row in values]) / users
    errors = {"alike": float(((1 / bins - truth) ** 2).mean())}
    for mechanism in mechanisms:
        name, options = parse(mechanism, LOCAL_MECHANISMS)
        found = simulate_local(
            name, values, bins, requirements, _key(key), revise=revise, **options
        )
        errors[mechanism] = float(((found.released - truth) ** 2).mean())
        if revise:
            errors[f"{mechanism} revised"] = float(((found.revised - truth) ** 2).mean())
            errors[f"{mechanism} covers"] = covered(found.released, found.stderr, truth)
            errors[f"{mechanism} covers again"] = covered(
                found.revised, found.revised_stderr, truth
            )
    return errors


def covered(released, stderr, truth) -> float:
    """Share of frequencies within 1.645 standard errors."""
    return float((abs(released - truth) <= 1.645 * stderr).mean())


def run_many(many: str, users: int, slots: int, bins: int) -> dict[str, object]:
    """Seconds of every slot of a large population, or bytes a user."""
    import tracemalloc

    import numpy as np

    from streamveil.mechanisms.core.records import Requirement
    from streamveil.mechanisms.local.algorithms.rotation import Rotation
    from streamveil.mechanisms.local.client import population as devices_module
    from streamveil.mechanisms.local.protocol import Users
    from streamveil.mechanisms.randomness.noise import NoiseSource
    from streamveil.mechanisms.simulation import run_slot

    classes = tuple(Requirement(w, e) for w in WINDOWS for e in EPSILONS)
    random = np.random.default_rng(1)
    class_of = random.integers(0, len(classes), users).astype(np.int32)
    values = random.integers(0, bins, users).astype(np.int64)
    source = NoiseSource(_key(1))
    if many == "bytes":
        tracemalloc.start()
    population = Users(classes, class_of, bins)
    mechanism, devices = (
        Rotation("rotation", population),
        devices_module.Devices(population, _key(2)),
    )
    state, seconds = mechanism.start(), []
    for slot in range(slots):
        started = time.process_time()
        state, _, _ = run_slot(
            mechanism, state, slot, values, devices, source.slot(slot, b"server")
        )
        seconds.append(time.process_time() - started)
    if many == "seconds":
        return {"seconds": seconds}
    held = {"server": 0.0, "devices": 0.0}
    for line in tracemalloc.take_snapshot().statistics("filename"):
        file = Path(line.traceback[0].filename)
        if file.parent == Path(devices_module.__file__).parent:
            side = "devices" if file.stem in DEVICE_MODULES else "server"
            held[side] += line.size / users
    return held


def _key(number: int) -> bytes:
    return hashlib.sha256(b"local %d" % number).digest()


if __name__ == "__main__":
    begin(main, lambda **case: run_many(**case) if "many" in case else run(**case))

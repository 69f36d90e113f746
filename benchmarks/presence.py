"""Error of `adaptive` where users count in a few slots only, beside the same without a limit.

python benchmarks/presence.py

Streams are visits of single users (`_visits.py`), limits follow from one rule: in each block, 1.75
times the slots with events that users who come to it have on average. Errors are squared
differences of a bin's release and true count, averaged over bins and slots.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path

from _measure import begin, data_folder, measure, measure_case, parser, save, table

# Stream, mechanism, and what its error must be in parts of that without a limit.
CASES = (
    ("present-1", "adaptive", 0.50),
    ("present-5", "adaptive", 0.55),
    ("ratings", "adaptive", 0.85),
    ("genres", "adaptive", 0.75),
    ("flights-hourly", "adaptive:cycle=auto", 0.80),
    ("present-30", "adaptive", None),
    ("flights", "adaptive", None),
)


HOURS, MOST = 120, 3
COMMAND = (
    *(sys.executable, "-m", "streamveil", "release", "--user_column=user"),
    *("--value_column=value", "--time_column=time", "--slot=1h", "--start=2024-01-01T00:00:00Z"),
    *("--end=2024-01-05T23:00:00Z", "--domain=" + ",".join(f"value-{b:02}" for b in range(100))),
)


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=[4, 5, 6, 7, 8])
    add("--streams", nargs="*", default=[case[0] for case in CASES], help="those to measure")
    add("--slots", type=int, help="slots of each stream (default: all)")
    add("--events", type=int, default=5_000_000, help="of a file that is released; 0 leaves it out")
    add("--users", type=int, default=10_000_000, help="registered users")
    add("--active", type=int, default=1_000_000, help="those of them who have events")
    given = options.parse_args()
    tables = [errors(given)]
    if given.events:
        with data_folder(given.folder) as folder:
            tables.append(costs(given, folder))
    names = ("seeds", "streams", "slots", "events", "users", "active", "repeats")
    kept = {name: getattr(given, name) for name in names}
    save(given.results, "presence", kept, tables)


def errors(given):
    """Every stream with a limit beside the same without one."""
    found = table(
        f"Mean squared error with a limit in parts of that without, {len(given.seeds)} seeds",
        [
            *("stream", "mechanism", "max_slots", "kept", "kept_share"),
            *("error without", "error with", "ratio", "standard error", "must"),
            *("coverage without", "coverage with", "bias without", "bias with", "CPU ms a slot"),
        ],
        "`present-P`: 10,000 users, each in P % of the slots, 20 bins, E = 0.6, w = 120. "
        "`ratings` and `genres`: 943 users who come for some days and go, 11 a day, as in the "
        "public data of MovieLens, 5 and 19 bins, 214 slots, E = 1, w = 30. Flights: 4,043 "
        "aircraft, nine requirements. Ratios are of pairs: the same stream and noise key. Kept: "
        "share of the visits that count, and its private estimate after the last slot. Coverage: "
        "of intervals of 90 %. Bias: sum of all releases less that of true counts, in parts of it. "
        "`present-30` and `flights` show what a limit costs where people are there often: a limit "
        "that such users ask for is refused, or hardly pays.",
    )
    for name, mechanism, must in CASES:
        if name not in given.streams:
            continue
        cases = [
            {"kind": "error", "name": name, "mechanism": mechanism, "seed": seed}
            | {"slots": given.slots}
            for seed in given.seeds
        ]
        runs = [measure_case("presence.py", case, 1).answers[0] for case in cases]
        mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0] if key != "most"}
        ratios = [run["with"] / run["without"] for run in runs]
        spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
        found.add(
            *(name, mechanism, " or ".join(sorted({run["most"] for run in runs}))),
            *(mean["kept"], mean["share"]),
            *(mean["without"], mean["with"], statistics.fmean(ratios), spread, must),
            *(mean["coverage_without"], mean["coverage_with"]),
            *(mean["bias_without"], mean["bias_with"], 1e3 * mean["seconds"]),
        )
    return found


def costs(given, folder: Path):
    """Whole commands with a limit beside the same without one, and what is remembered."""
    found = table(
        f"What a limit costs: {given.events:,} events of {given.active:,} users in {HOURS} slots",
        [
            *("users", "max_slots", "CPU s", "peak MB", "ns an event", "times without a limit"),
            "bytes of state a user in a block",
        ],
        "`streamveil release` in one process, Parquet to releases, 100 bins. Of those outside the "
        f"table nothing is held but digests; the table has {given.users:,} users. Bytes: of what "
        "is saved of an active user, beyond position or digest.",
    )
    events, requirements = folder / "visits.parquet", folder / "requirements.parquet"
    sizes = {"events": given.events, "users": given.users, "active": given.active}
    case = {"kind": "files", "path": str(events), "requirements": str(requirements), **sizes}
    measure_case("presence.py", case, 1)
    for inside in (True, False):
        asked = f"--requirements={requirements}"
        if not inside:
            asked = f"--default_requirement=120,1.0,{given.users}"
        plain = None
        for most in (None, MOST):
            command = [*COMMAND, f"--input={events}", f"--output={folder / 'out.parquet'}", asked]
            command += [] if most is None else [f"--max_slots={most}"]
            ran = measure(command, given.repeats, [folder / "out.parquet"])
            plain, state = plain or ran.cpu, None
            if most is not None:
                case = {"kind": "state", "inside": inside, "active": given.active}
                state = measure_case("presence.py", case, 1).median("bytes")
            found.add(
                *("in the table" if inside else "outside it", most, ran.cpu, ran.peak),
                *(1e9 * ran.cpu / given.events, ran.cpu / plain, state),
            )
    return found


def run_error(name: str, mechanism: str, seed: int, slots: int | None) -> dict[str, float | str]:
    """Figures of one stream and seed."""
    import numpy as np
    from _visits import limited, released, visits

    from streamveil.mechanisms.core.tidy import interval
    from streamveil.pipelines.evaluation.comparison_table import noise_key

    found, key = visits(name, seed, slots), noise_key(seed)
    limits, true = found.limits(), found.counts().sum(axis=1)
    before = time.process_time()
    runs = {"with": limited(found, mechanism, limits, key)}
    seconds = time.process_time() - before
    runs["without"] = released(found, mechanism, key)
    figures = {
        "most": ", ".join(dict.fromkeys(str(one.max_slots) for one in limits)),
        "seconds": seconds / found.length,
        "kept": runs["with"].kept,
        "share": runs["with"].share,
    }
    for how, run in runs.items():
        missed = run.counts - true
        low, high = interval(run.counts, run.stderr)
        known = np.isfinite(low)
        figures[how] = float((missed**2).mean())
        figures[f"bias_{how}"] = float(missed.sum() / true.sum())
        figures[f"coverage_{how}"] = float(((low <= true) & (true <= high))[known].mean())
    return figures


def run_files(
    path: str, requirements: str, events: int, users: int, active: int
) -> dict[str, float]:
    """Write events in time order, and a table of all users, if they are not there."""
    from _events import write_events, write_requirements

    if not Path(requirements).exists():
        write_requirements(Path(requirements), users)
    if not Path(path).exists():
        write_events(Path(path), events, active, HOURS, ordered=True)
    return {}


def run_state(inside: bool, active: int) -> dict[str, float]:
    """Bytes that counters save of each user who is active in a block."""
    import numpy as np

    from streamveil.mechanisms import Requirement
    from streamveil.mechanisms.presence import Counters, Limit
    from streamveil.mechanisms.presence.counters import Rules

    users = np.arange(active)
    if not inside:
        digests = np.random.default_rng(0).bytes(16 * active)
        users = np.unique(np.frombuffer(digests, "S16"))
    rules = Rules.of((Limit(MOST),), (Requirement(120, 1.0),), "add_remove")
    counters = Counters(rules, bytes(32), users[:0])
    slots, classes = np.zeros(len(users), np.int64), np.zeros(len(users), np.int64)
    counters.layers(users, slots, classes, 1)
    _, _, *beside = counters.arrays()
    return {"bytes": sum(array.nbytes for array in beside) / len(users)}


RUNS = {"error": run_error, "files": run_files, "state": run_state}

if __name__ == "__main__":
    begin(main, lambda kind, **case: RUNS[kind](**case))

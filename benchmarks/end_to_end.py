"""Events per CPU second from Parquet to releases: streamveil, a bare loop and PipelineDP.

python benchmarks/end_to_end.py [--pipeline_dp_python=PATH]

PipelineDP may live in an environment of its own: it needs pipeline-dp, apache-beam and pyarrow.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

from _measure import (
    HERE,
    Measured,
    add_pipeline_dp,
    asked_case,
    data_folder,
    measure,
    measure_case,
    parser,
    save,
    table,
)

EVENTS_PER_SLOT = 10_000
FEW, MANY = 10_000, 1_000_000
START_HOUR = 1_704_067_200 // 3600
VALUES = [f"value-{b:02}" for b in range(100)]
# Events for start-up: few enough to cost nothing themselves.
FEWEST = 1000


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--events", type=int, default=10_000_000, help="events of the largest file")
    add("--sizes", type=int, nargs="+", help="other sizes of streamveil's files")
    add("--many_users", type=int, default=MANY, help="users of the file with many")
    add(
        "--pipeline_dp_events",
        type=int,
        default=300_000,
        help="events given to PipelineDP; 0 leaves it out",
    )
    add_pipeline_dp(options)
    given = options.parse_args()
    with data_folder(given.folder) as folder:
        tables = run(Bench(folder, given.repeats), given)
    kept = {n: getattr(given, n) for n in ("events", "many_users", "pipeline_dp_events", "repeats")}
    save(given.results, "end_to_end", kept, tables)


class Bench:
    """Files of events, made when asked for, and the three ways to count them."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self.folder = folder
        self.repeats = repeats

    def events(self, events: int, users: int, ordered: bool = True) -> Path:
        """A file of events, and beside it one of requirements."""
        path = self.folder / f"{events}-{users}-{'sorted' if ordered else 'shuffled'}.parquet"
        for wanted in (path, self.requirements(users)):
            if not wanted.exists():
                slots = max(events // EVENTS_PER_SLOT, 1)
                case = {
                    "path": str(wanted),
                    "users": users,
                    "events": events if wanted is path else 0,
                    "slots": slots,
                    "ordered": ordered,
                }
                measure_case("end_to_end.py", case, 1)
        return path

    def requirements(self, users: int) -> Path:
        """The requirements of so many users."""
        return self.folder / f"requirements-{users}.parquet"

    def streamveil(
        self, events: int, users: int, ordered: bool = True, mechanism: str = "pba"
    ) -> Measured:
        """The real command line."""
        outputs = [self.folder / "releases.parquet", self.folder / "ledger.parquet"]
        first, hours = START_HOUR, max(events // EVENTS_PER_SLOT, 1)
        flags = {
            "input": self.events(events, users, ordered),
            "output": outputs[0],
            "ledger": outputs[1],
            "requirements": self.requirements(users),
            "user_column": "user",
            "value_column": "value",
            "time_column": "time",
            "slot": "1h",
            "start": _iso(first),
            "end": _iso(first + hours),
            "domain": ",".join(VALUES),
            "mechanism": mechanism,
        }
        command = [sys.executable, "-m", "streamveil", "release"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        return measure(command, self.repeats, outputs)

    def bare_loop(self, events: int, users: int) -> Measured:
        """See _bare_loop.py."""
        case = {
            "events": str(self.events(events, users)),
            "requirements": str(self.requirements(users)),
            "values": VALUES,
            "dictionary": users <= FEW,  # ids that repeat in a row group
        }
        return measure_case("_bare_loop.py", case, self.repeats)

    def pipeline_dp(self, events: int, users: int, python: str) -> Measured:
        """See _pipeline_dp.py."""
        case = {
            "path": str(self.events(events, users)),
            "output": str(self.folder / "pipeline_dp.csv"),
            "values": VALUES,
            "first_slot": START_HOUR,
            "slots": max(events // EVENTS_PER_SLOT, 1),
        }
        return measure_case("_pipeline_dp.py", case, self.repeats, python)


def run(bench: Bench, given) -> list:
    many = given.many_users
    columns = [
        *("events", "users", "order", "CPU s", "wall s", "peak MB"),
        *("events per CPU s", "start-up CPU s", "events per CPU s without start-up"),
    ]
    ours = table(
        "streamveil release, pba: Parquet to releases and ledger",
        columns,
        f"The command line in one process. Start-up is the same command on {FEWEST:,} events of "
        "one slot with the same requirements: it holds the imports, the building of the pipeline "
        f"and the reading of the requirements. {EVENTS_PER_SLOT:,} events in each slot, 100 bins, "
        "9 classes of users.",
    )
    rate = {}
    tenth = given.events // 10
    sizes = sorted({*(given.sizes or (tenth, 3 * tenth)), given.events})
    cases = [(size, FEW, True) for size in sizes]
    cases += [
        (given.events, FEW, False),
        *((size, many, True) for size in sorted({sizes[0], given.events})),
    ]
    startup = {users: bench.streamveil(FEWEST, users).cpu for users in sorted({FEW, many})}
    for events, users, ordered in dict.fromkeys(cases):
        found = bench.streamveil(events, users, ordered)
        without = _rate(events, found.cpu - startup[users])
        rate[events, users, ordered] = events / found.cpu, without
        order = "by time" if ordered else "none"
        ours.add(
            *(events, users, order, found.cpu, found.wall, found.peak),
            *(events / found.cpu, startup[users], without),
        )
    bare = table(
        "A bare loop over pyarrow and numpy: counts only",
        [
            *("events", "users", "CPU s", "peak MB", "events per CPU s"),
            *("start-up CPU s", "events per CPU s without start-up"),
            *("times streamveil", "times streamveil, both without start-up"),
        ],
        "Bounds contributions and counts per slot, class and bin; no Beam, no checks of the "
        "input, no budgets, no noise, no files written.",
    )
    for users in sorted({FEW, many}):
        start = bench.bare_loop(FEWEST, users).cpu
        found = bench.bare_loop(given.events, users)
        whole, without = given.events / found.cpu, _rate(given.events, found.cpu - start)
        us = rate[given.events, users, True]
        bare.add(
            *(given.events, users, found.cpu, found.peak, whole, start, without),
            *(whole / us[0], _ratio(without, us[1])),
        )
    tables = [ours, bare]
    if not given.pipeline_dp_events:
        return tables
    python = given.pipeline_dp_python
    versions = _pipeline_dp(python)
    if versions is None:
        where = "that Python" if python != sys.executable else "this environment"
        print(f"\npipeline-dp is not installed in {where}: left out (--pipeline_dp_python=PATH)")
        return tables
    size = given.pipeline_dp_events
    theirs = table(
        "PipelineDP on Beam (FnApiRunner): a private count per slot and bin",
        [
            *("events", "CPU s", "peak MB", "events per CPU s", "start-up CPU s"),
            *("events per CPU s without start-up", "streamveil times faster"),
            *("streamveil times faster, both without start-up",),
        ],
        f"{FEW:,} users; public partitions, one contribution a user and partition, at most one "
        "partition a slot, Laplace noise. The last two columns compare with streamveil on "
        f"{given.events:,} events; PipelineDP has no budgets per window "
        "and per user to account for. Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    )
    start = bench.pipeline_dp(FEWEST, FEW, python).cpu
    us = rate[given.events, FEW, True]
    for events in sorted({max(size // 3, 1), size}):
        found = bench.pipeline_dp(events, FEW, python)
        whole, without = events / found.cpu, _rate(events, found.cpu - start)
        theirs.add(
            *(events, found.cpu, found.peak, whole, start, without),
            *(us[0] / whole, _ratio(us[1], without)),
        )
    return [*tables, theirs]


def _rate(events: int, seconds: float) -> float | None:
    """Events per second; None when start-up was all that could be measured."""
    return events / seconds if seconds > 0 else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _pipeline_dp(python: str) -> dict[str, str] | None:
    """Versions in that Python, or None when it cannot be used there."""
    script = str(HERE / "_pipeline_dp.py")
    asked = subprocess.run([python, script], capture_output=True, text=True, check=False)
    return json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else None


def _iso(hour: int) -> str:
    return dt.datetime.fromtimestamp(hour * 3600, dt.timezone.utc).isoformat()


if __name__ == "__main__":
    asked = asked_case()
    if asked is None:
        main()
    else:
        import _events

        target = Path(asked["path"])
        if asked["events"]:
            _events.write_events(
                target, asked["events"], asked["users"], asked["slots"], asked["ordered"]
            )
        else:
            _events.write_requirements(target, asked["users"])

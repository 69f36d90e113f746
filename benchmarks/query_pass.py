"""What one pass over the events costs for many queries: CPU time and memory.

python benchmarks/query_pass.py
python benchmarks/query_pass.py --runner=FnApiRunner
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import begin, data_folder, measure_case, parser, save, table

HOUR = 3_600_000_000
START = 1_704_067_200_000_000  # 2024-01-01T00:00Z
PLACES, KINDS = 100, ("bus", "car", "train", "walk")
GOAL = 0.4
"""The most that another query may take, in parts of what the first one takes."""
GOAL_OF_MEMORY = 2000  # MB, of 20 queries
WHERE = {
    "": "in memory, as a command without a flag of Beam's does,",
    "FnApiRunner": "in FnApiRunner, as a pipeline of Beam's does,",
}
"""What takes the events through the steps, by the name of the runner."""


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    add("--queries", type=int, nargs="+", default=[1, 2, 5, 20])
    add("--kinds", nargs="+", default=list(KINDS_OF), help="of a second query, after a count")
    add("--users", type=int, default=100_000)
    add("--slots", type=int, default=168, help="base slots of an hour")
    add("--runner", choices=list(WHERE), default="", help="none: in memory")
    given = options.parse_args()
    passes = table(
        f"Many queries in one pass, {given.runner or 'in memory'}",
        [
            *("events", "queries", "CPU s", "CPU us an event", "peak MB"),
            "each further query, in parts of the first one",
        ],
        "CPU time and peak memory of a process that reads a Parquet file, ordered by time, counts "
        f"{WHERE[given.runner]} and releases; times without what the same takes of a few events "
        "alone: start, import and most of what the mechanisms do, whose work depends on slots and "
        "bins; of many events they publish more slots, which is in these times. Queries are of "
        "all kinds, over slots of 1 to 24 hours, in turn. Goals: each further one at most "
        f"{GOAL:.0%} of the first, and 20 queries over 10,000,000 events in {GOAL_OF_MEMORY} MB.",
    )
    seconds = table(
        f"A second query of each kind, {given.runner or 'in memory'}",
        [
            *("events", "second query", "CPU s of both", "peak MB"),
            "second one, in parts of the first one",
        ],
        "As above, after an hourly count by place. Nothing is the same in both but the events and "
        "their users: a second count by place is counted as if it were another.",
    )
    with data_folder(given.folder) as folder:
        few = folder / "few.parquet"
        write_events(few, given.slots, given.users, given.slots)
        for events in given.events:
            path = folder / f"events-{events}.parquet"
            if not path.exists():
                write_events(path, events, given.users, given.slots)

            def spent(asked: list[tuple[str, int]], path: Path = path) -> tuple[float, float]:
                """CPU seconds beyond those of a few events, and peak MB."""
                names = "users", "slots", "runner"
                case = {"asked": asked, **{name: getattr(given, name) for name in names}}
                fixed, ran = (
                    measure_case("query_pass.py", {**case, "path": str(one)}, given.repeats)
                    for one in (few, path)
                )
                return ran.median("cpu") - fixed.median("cpu"), ran.peak

            first, peak = spent(in_turn(1))
            for number in given.queries:
                cpu, peak = (first, peak) if number == 1 else spent(in_turn(number))
                further = (cpu / first - 1) / (number - 1) if number > 1 else None
                passes.add(events, number, cpu, cpu * 1e6 / events, peak, further)
            for kind in given.kinds:
                cpu, peak = spent([(FIRST, 1), (kind, 1)])
                seconds.add(events, kind, cpu, peak, cpu / first - 1)
    kept = {
        name: getattr(given, name) for name in ("events", "queries", "users", "slots", "runner")
    }
    save(given.results, "query_pass", {**kept, "repeats": given.repeats}, [passes, seconds])


def write_events(path: Path, events: int, users: int, slots: int) -> None:
    """Events in order of time, by users, places and kinds at random, each with a speed."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from _events import ROW_GROUP, user_ids

    random = np.random.default_rng(events + users)
    names = user_ids(np.arange(users))
    places, kinds = (
        pa.array([f"place-{i:02}" for i in range(PLACES)]),
        pa.array(KINDS),
    )
    writer = None
    for row in range(0, events, ROW_GROUP):
        rows = np.arange(row, min(row + ROW_GROUP, events))
        made = pa.table(
            {
                "user": names.take(pa.array(random.integers(0, users, len(rows)))),
                "place": places.take(pa.array(random.integers(0, PLACES, len(rows)))),
                "kind": kinds.take(pa.array(random.integers(0, len(KINDS), len(rows)))),
                "speed": random.gamma(4.0, 10.0, len(rows)),
                "time": pa.array(
                    START + rows * (slots * HOUR // events), pa.timestamp("us", "UTC")
                ),
            }
        )
        writer = writer or pq.ParquetWriter(path, made.schema)
        writer.write_table(made, row_group_size=ROW_GROUP)
    if writer is not None:
        writer.close()


_PLACES = {"by": "place", "keys": [f"place-{i:02}" for i in range(PLACES)]}
_KINDS = {"by": "kind", "keys": list(KINDS)}
_SPEEDS = {"of": "speed", "bounds": [0, 120]}
_QUANTILES = {"statistic": "quantiles", "of": "speed", "quantiles": [0.5]}
_QUANTILES["edges"] = list(range(0, 130, 10))
FIRST = "count by place"
KINDS_OF: dict[str, dict[str, Any]] = {
    FIRST: _PLACES,
    "count by kind": _KINDS,
    "daily count by place": {**_PLACES, "every": "1d"},
    "3 events of each user by place": {**_PLACES, "max_contributions": 3},
    "3 places of each user": {**_PLACES, "max_contributions": 3, "keep": "distinct"},
    "users by place": {**_PLACES, "statistic": "distinct"},
    "daily users by place": {**_PLACES, "statistic": "distinct", "every": "1d"},
    "mean by kind": {**_KINDS, "statistic": "mean", **_SPEEDS},
    "mean by place": {**_PLACES, "statistic": "mean", **_SPEEDS},
    "variance by place": {**_PLACES, "statistic": "variance", **_SPEEDS},
    "quantiles": _QUANTILES,
    "quantiles of cars": {**_QUANTILES, "where": {"kind": "car"}},
    "fast places": {
        **_PLACES,
        **{"statistic": "top", "k": 5, "where": {"speed": {"from": 50}}, "every": "6h"},
    },
}
"""As in files of queries, by what a row calls them."""
IN_TURN = (FIRST, "mean by kind", "daily users by place", "quantiles of cars", "fast places")


def in_turn(number: int) -> list[tuple[str, int]]:
    """So many queries of all kinds, each with the events of a user that it counts in a slot."""
    return [(IN_TURN[i % len(IN_TURN)], 1 + i // len(IN_TURN)) for i in range(number)]


def run(
    path: str, asked: list[tuple[str, int]], users: int, slots: int, runner: str
) -> dict[str, Any]:
    """Answer these queries about a file."""
    import apache_beam as beam
    from _events import user_ids

    from streamveil.engine.run.release import release_plan
    from streamveil.engine.stream.query_plan import columns_for
    from streamveil.io.event_sources import ReadEvents
    from streamveil.io.events import file_outputs
    from streamveil.mechanisms import Registry
    from streamveil.mechanisms.queries.reading import query_set_of
    from streamveil.transforms.release_plan import PrivateAnswers

    before = time.process_time()
    queries = [
        {"max_contributions": most, **KINDS_OF[kind], "name": f"query-{i}"}
        for i, (kind, most) in enumerate(asked)
    ]
    query_set = query_set_of({"slot": "1h", "queries": queries})
    registry = Registry.build(user_ids(np.arange(users)), np.full(users, 24), np.full(users, 1.0))
    first = START // HOUR
    columns = columns_for(query_set, "user", "time")
    budgets = registry.classes.budgets
    shares = np.tile(budgets // len(asked), (len(asked), 1))

    source = ReadEvents(path, columns=columns.names)
    transform = PrivateAnswers(
        query_set,
        registry,
        columns,
        shares,
        noise_key=bytes(32),
        first_slot=first,
        last_slot=first + slots - 1,
        max_rejected=1.0,
    )
    if runner:
        with beam.Pipeline(runner=runner) as pipeline:
            _ = (pipeline | source).batches | transform
    else:
        outputs = file_outputs(path, columns.names)
        events = (output.value for output in outputs if output.tag is None)
        for _ in release_plan(transform, events):
            pass
    return {"cpu": time.process_time() - before}


if __name__ == "__main__":
    begin(main, run)

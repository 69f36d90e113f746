"""CPU time, wall time and memory of a release and of exact bounded counts by DuckDB and Polars.

python benchmarks/query_engines.py

Needs duckdb and polars. All take turns, and ratios are medians over the rounds: what else the
machine does then meets them alike.
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
from pathlib import Path

import end_to_end
from _measure import Measured, begin, data_folder, measure_case, parser, save, table

HOUR = 3_600_000_000
MECHANISMS = ("adaptive", "pba")

# At most one event of a user in an hour, then how many there are of each value.
WRITTEN = """
select slot, value, count(*) as n
from (
    select date_trunc('hour', time) as slot, user, any_value(value) as value
    from '{path}' group by all
) group by all
"""
# The fastest that was found: hours are integers, and the least value of a user is kept.
TUNED = WRITTEN.replace("date_trunc('hour', time)", f"epoch_us(time) // {HOUR}")
TUNED = TUNED.replace("any_value(value)", "min(value)")
QUERIES = {"DuckDB": WRITTEN, "DuckDB, tuned": TUNED}


def main() -> None:
    options = parser(__doc__, repeats=5)
    add = options.add_argument
    add("--events", type=int, default=10_000_000)
    add("--users", type=int, nargs="+", default=[end_to_end.FEW, end_to_end.MANY])
    given = options.parse_args()
    columns = [
        *("users", "what", "threads", "CPU s", "wall s", "peak MB"),
        *(f"CPU of {name} / this" for name in MECHANISMS),
        *(f"peak of {name} / this" for name in MECHANISMS),
    ]
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("duckdb", "polars"))
    rows = table(
        f"{given.events:,} events from Parquet: a release, and exact bounded counts",
        columns,
        "Whole processes. streamveil writes releases and a ledger, and uses the cores it finds; "
        "the others bound to one event of a user in an hour, count the events of each hour and "
        f"value, and write that: no requirements, no checks, no noise. {versions}.",
    )
    with data_folder(given.folder) as folder:
        bench = end_to_end.Bench(folder, 1)
        for users in given.users:
            compare(rows, bench, given.events, users, given.repeats)
    kept = {name: getattr(given, name) for name in ("events", "users", "repeats")}
    save(given.results, "query_engines", kept, [rows])


def compare(rows, bench: end_to_end.Bench, events: int, users: int, repeats: int) -> None:
    """Add a row for each that is measured."""
    path = str(bench.events(events, users))
    output = bench.folder / "counts.parquet"
    cases = {(name, 0): {} for name in MECHANISMS}
    for threads in (1, 2):
        for what in (*QUERIES, "Polars"):
            cases[what, threads] = {"path": path, "output": str(output), "what": what}
    runs: dict[tuple[str, int], list[Measured]] = {key: [] for key in cases}
    for _ in range(repeats):
        for (what, threads), case in cases.items():
            if case:
                ran = measure_case("query_engines.py", {**case, "threads": threads}, 1)
                output.unlink()
            else:
                ran = bench.streamveil(events, users, mechanism=what)
            runs[what, threads].append(ran)
    for (what, threads), of in runs.items():
        rows.add(
            *(users, what, threads or "all", *_medians(of)),
            *(_ratio(runs[name, 0], of, "cpu") for name in MECHANISMS),
            *(_ratio(runs[name, 0], of, "peak") for name in MECHANISMS),
        )


def _medians(runs: list[Measured]) -> list[float]:
    return [statistics.median(getattr(r, n) for r in runs) for n in ("cpu", "wall", "peak")]


def _ratio(ours: list[Measured], theirs: list[Measured], name: str) -> float:
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(getattr(one, name) / getattr(other, name) for one, other in pairs)


def count(what: str, path: str, output: str, threads: int) -> dict[str, str]:
    """Count exactly, in this process."""
    if what in QUERIES:
        import duckdb

        query = QUERIES[what].format(path=path)
        connection = duckdb.connect(config={"threads": threads})
        connection.sql(f"copy ({query}) to '{output}'")
        return {}
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    events = pl.scan_parquet(Path(path)).with_columns(slot=pl.col("time").dt.truncate("1h"))
    bounded = events.group_by("slot", "user").agg(pl.col("value").first())
    bounded.group_by("slot", "value").len().sink_parquet(output)
    return {}


if __name__ == "__main__":
    begin(main, count)

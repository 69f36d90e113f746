"""Rows per CPU second from files of events, beside the library that reads each format.

python benchmarks/readers.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from _measure import begin, data_folder, measure_case, parser, save, table

NAMES = ("user", "place", "time")
USERS, BINS = 10_000, 100
EVENTS_PER_HOUR = 10_000
START = 1_704_067_200  # seconds
FORMATS = ("csv", "jsonl", "avro", "parquet")
# What a file of each format is read with when nothing is checked.
LIBRARIES = {
    "csv": "pyarrow.csv",
    "jsonl": "pyarrow.json",
    "avro": "fastavro",
    "parquet": "pyarrow.parquet",
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--events", type=int, default=1_000_000, help="events of each file")
    options.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    given = options.parse_args()
    found = table(
        "User, place and time of events, from a file",
        [
            *("format", "times", "library", "its thousand rows per CPU second"),
            *("read", "times the library", "read and mapped"),
        ],
        "Thousand rows per CPU second of all threads, the best of three passes in a process, and "
        "of those the median over the processes; the library in the same process as streamveil. "
        "Read: to batches, all that is wrong with a row reported. Mapped: to slot, bin and user of "
        f"{USERS:,}. The library gives the same columns and checks nothing; pyarrow.json takes the "
        "types from a schema, fastavro gives objects. Avro is packed by deflate. Times are ISO "
        "8601 in text, or whole seconds; in Avro and Parquet text, or a timestamp.",
    )
    with data_folder(given.folder) as folder:
        for kind in given.formats:
            for times in ("text", "number"):
                case = {"folder": str(folder), "kind": kind, "times": times, "events": given.events}
                measure_case("readers.py", {**case, "step": "write"}, 1)
                answer = measure_case("readers.py", {**case, "step": "read"}, given.repeats)
                bare, read, mapped = (answer.median(n) / 1e3 for n in ("bare", "read", "mapped"))
                found.add(kind, times, LIBRARIES[kind], bare, read, read / bare, mapped)
    kept = {name: getattr(given, name) for name in ("events", "formats", "repeats")}
    save(given.results, "readers", kept, [found])


def events(number: int, times: str):
    """Events of some hours, in order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from _events import user_ids

    random = np.random.default_rng(number)
    seconds = pa.array(START + np.arange(number) * 3600 // EVENTS_PER_HOUR)
    places = pa.array([f"value-{b:02}" for b in range(BINS)])
    instants = seconds.cast(pa.timestamp("s", "UTC"))
    columns = [
        user_ids(np.arange(USERS)).take(pa.array(random.integers(0, USERS, number))),
        places.take(pa.array(random.integers(0, BINS, number))),
        pc.strftime(instants, "%Y-%m-%dT%H:%M:%SZ") if times == "text" else seconds,
    ]
    return pa.table(columns, list(NAMES))


def write(path: Path, kind: str, times: str, number: int) -> None:
    """A file of so many events."""
    import fastavro
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    found = events(number, times)
    if kind == "csv":
        options = pyarrow.csv.WriteOptions(quoting_style="none")
        pyarrow.csv.write_csv(found, path, options)
    elif kind == "jsonl":
        lines = (json.dumps(row) for row in found.to_pylist())
        path.write_text("".join(f"{line}\n" for line in lines))
    elif kind == "avro":
        of_times = {"type": "long", "logicalType": "timestamp-millis"}
        kinds = ("string", "string", "string" if times == "text" else of_times)
        fields = [{"name": n, "type": k} for n, k in zip(NAMES, kinds, strict=True)]
        rows = found.to_pylist()
        for row in rows if times == "number" else ():
            row["time"] *= 1000
        with path.open("wb") as handle:
            schema = {"type": "record", "name": "Event", "fields": fields}
            fastavro.writer(handle, schema, rows, codec="deflate")
    else:
        if times == "number":
            instants = found["time"].cast(pa.timestamp("s", "UTC"))
            found = found.set_column(2, "time", instants.cast(pa.timestamp("us", "UTC")))
        pq.write_table(found, path)


def bare(path: Path, kind: str, times: str) -> int:
    """Rows that the format's own library reads."""
    import fastavro
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    if kind == "csv":
        types = dict.fromkeys(NAMES, pa.string())
        return pyarrow.csv.read_csv(
            path,
            pyarrow.csv.ReadOptions(use_threads=False, block_size=1 << 24),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types),
        ).num_rows
    if kind == "jsonl":
        of_times = pa.string() if times == "text" else pa.int64()
        schema = pa.schema(zip(NAMES, (pa.string(), pa.string(), of_times), strict=True))
        return pyarrow.json.read_json(
            path,
            pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 24),
            pyarrow.json.ParseOptions(explicit_schema=schema),
        ).num_rows
    if kind == "avro":
        with path.open("rb") as handle:
            return sum(1 for _ in fastavro.reader(handle))
    return pq.read_table(path, columns=list(NAMES), use_threads=False).num_rows


def mapper(kind: str, times: str):
    """Of all these users and places."""
    from streamveil.engine.encode.event_mapper import Columns, EventMapper
    from streamveil.mechanisms import Categories, Registry, Requirement, Slots

    registry = Registry.of(
        dict.fromkeys((f"user-{i:07}" for i in range(USERS)), Requirement(7, 1.0)),
        default=(Requirement(7, 1.0), 1000),
    )
    unit = "s" if times == "number" and kind in ("csv", "jsonl") else None
    columns = Columns("user", ("place",), "time", time_unit=unit)
    places = Categories(tuple(f"value-{b:02}" for b in range(BINS)))
    return EventMapper(columns, Slots.of("1h"), places, registry, bytes(32))


def read(path: Path, kind: str, times: str) -> dict[str, float]:
    """Rows per CPU second of the library, of reading and of reading and mapping."""
    from streamveil.io import read_events

    to_codes = mapper(kind, times)
    number = bare(path, kind, times)

    def batches():
        return (batch for batch, rejected in read_events(str(path), NAMES) if not rejected)

    ways = {
        "bare": lambda: bare(path, kind, times),
        "read": lambda: sum(batch.num_rows for batch in batches()),
        "mapped": lambda: sum(len(to_codes.map(batch)[0].slots) for batch in batches()),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, way in ways.items():
            before = time.process_time()
            found = way()
            took[name].append(time.process_time() - before)
            assert found == number, (name, found)
    return {name: number / min(seconds) for name, seconds in took.items()}


def run(folder: str, kind: str, times: str, events: int, step: str) -> dict[str, float]:
    path = Path(folder) / f"{times}.{kind}"
    if step == "read":
        return read(path, kind, times)
    write(path, kind, times, events)
    return {}


if __name__ == "__main__":
    begin(main, run)

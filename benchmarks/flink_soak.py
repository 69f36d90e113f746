"""Run a live stream on Flink, its state in RocksDB, and see memory, lag and state stay flat.

    tests/clusters/flink.sh install flink
    python benchmarks/flink_soak.py --flink_home=flink --minutes=60 --picture=soak.png

A standalone cluster on this machine, with checkpoints, releases slots of a second by the clock, of
events that a few users send too late or too early; slots settle. While it runs, the resident memory
of its processes, the bytes of the last checkpoint and the lag, from the end of the last released
slot to now, are looked at again and again. In the end

- every slot is released, each once or again alike, and no window of slots overspent;
- in the last third of the time memory, state and lag are at most a tenth above those of the third
  before it, in the median.

Exit code 0 if all of that holds. With Beam's runner before 2.76.0 it does not: see
docs/evidence/runners.md. Needs /proc, and matplotlib for the picture.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from _drill import costs, keep, keep_cost, kept, overspent, slot_of, tell
from _flink_stream import Pace, Paced
from _measure import cpu_seconds
from flink_drill import Cluster

from streamveil.io import WriteReleasesToFolder, release_messages
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms, QueryOutputs

BINS = tuple(f"bin-{i}" for i in range(20))
USERS = np.array([f"user-{i}" for i in range(10_000)])
PRESENT = 500  # events a slot
LATE, EARLY = 4, 2  # of them, of another slot than it is
WINDOW, EPSILON = 60, 1.0
SECOND = 1_000_000
LOOK = 5.0  # seconds
STARTING = 120.0  # seconds, at most
MOST = 1.1  # times


def arrived(slot: int) -> pa.RecordBatch:
    """Events that come in a slot."""
    draw = np.random.default_rng(slot)
    times = slot * SECOND + draw.integers(SECOND, size=PRESENT)
    times[:LATE] -= 4 * SECOND
    times[LATE : LATE + EARLY] += 2 * SECOND
    return pa.RecordBatch.from_pydict(
        {
            "user": draw.choice(USERS, PRESENT),
            "value": draw.choice(BINS, PRESENT),
            "time": pa.array(np.maximum(times, 0), pa.timestamp("us", "UTC")),
        }
    )


def build(pipeline: beam.Pipeline, folder: Path) -> Pace:
    """The stream, into a folder of releases and one of all that a sink was ever given."""
    pace = Pace(time.time() + 5, seconds=1.0, clock=True)
    batches = (
        pipeline
        | "Events" >> Paced(pace)
        | "Batches" >> beam.Map(arrived).with_output_types(pa.RecordBatch)
    )
    outputs: QueryOutputs = batches | PrivateHistograms(
        registry=Registry.of(dict.fromkeys(USERS.tolist(), (WINDOW, EPSILON))),
        domain=Categories(BINS),
        slots=Slots.of("1s"),
        columns=Columns("user", ("value",), "time"),
        noise_key=bytes(range(32)),
        first_slot=0,
        allowed_lateness="1s",
        heartbeat=Paced(pace),
        settle="1s",
    )
    for name in ("seen", "releases"):
        (folder / name).mkdir(parents=True)
    _ = outputs.results | "See" >> beam.Map(keep, str(folder / "seen"))
    _ = outputs.ledger | "SeeCosts" >> beam.Map(keep_cost, str(folder / "seen"))
    _ = outputs.results | WriteReleasesToFolder(
        str(folder / "releases"), messages=release_messages(BINS)
    )
    return pace


@dataclass(frozen=True)
class Look:
    """What was seen at a moment."""

    minute: float
    """Since the stream began."""
    memory: dict[str, float]
    """Resident MB, by kind of process."""
    state: float
    """kB of the last checkpoint."""
    lag: float
    """Seconds from the end of the last released slot."""
    cpu: float
    """Seconds that all processes took by then."""


FLAT: dict[str, Callable[[Look], float]] = {
    "MB": lambda look: sum(look.memory.values()),
    "kB of state": lambda look: look.state,
    "s of lag": lambda look: look.lag,
}
"""What must not grow."""


def looks(cluster: Cluster, folder: Path, pace: Pace, minutes: float) -> Iterator[Look]:
    """Look at the stream again and again, from its first release on."""
    last = -1
    while not any((folder / "seen").glob("*.json")):
        if pace.now() > STARTING:
            raise RuntimeError(f"nothing is released after {STARTING:g} s")
        time.sleep(LOOK)
    while pace.now() < minutes * 60:
        time.sleep(LOOK)
        last = max(map(slot_of, (folder / "seen").glob("*.json")), default=last)
        processes = processes_of(cluster)
        ended = cluster.ask(f"/jobs/{cluster.job}/checkpoints")["latest"]["completed"]
        now = pace.now()
        yield Look(
            now / 60,
            {name: sum_of(resident, some) for name, some in processes.items()},
            (ended["state_size"] if ended else 0) / 1e3,
            now - (last + 1),
            sum_of(cpu_seconds, itertools.chain(*processes.values())),
        )


def processes_of(cluster: Cluster) -> dict[str, list[int]]:
    """Process numbers by kind; of the two task managers one is a spare."""
    found: dict[str, list[int]] = {}
    for file in sorted(cluster.work.glob("*.pid")):
        kind = file.stem.partition("-")[0]
        found.setdefault(kind, []).append(int(file.read_text()))
    numbers = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    found["workers"] = [one for one in numbers if group_of(one) == cluster.pool]
    return found


def group_of(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None


def resident(process: int) -> float:
    """MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def sum_of(figure: Callable[[int], float], processes: Iterable[int]) -> float:
    """Of all processes that have not ended meanwhile."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += figure(process)
    return total


def check(seen: Sequence[Look], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """All promises: figures, and what is wrong with them."""
    given = kept(folder)
    slots = sorted(given)
    booked = costs(folder)
    wrong = {
        "lost": slots[-1] + 1 - len(slots),
        "without an entry of the ledger": len(set(slots[:-1]) - dict(booked).keys()),
        "given again otherwise": sum(len(contents) > 1 for contents in given.values()),
        "overspent": len(overspent(booked, WINDOW, EPSILON)),
    }
    figures: dict[str, Any] = {"minutes": round(seen[-1].minute), "slots": len(slots), **wrong}
    figures["CPU ms a slot"] = round(1e3 * seen[-1].cpu / len(slots))
    faults = [f"{name}: {number}" for name, number in wrong.items() if number]
    for name, value in FLAT.items():
        before, after = medians(seen, value)
        figures[name] = f"{before:.1f} then {after:.1f}"
        if after > MOST * before:
            faults.append(f"{name} grew: {figures[name]}")
    return figures, faults


def medians(seen: Sequence[Look], value: Callable[[Look], float]) -> tuple[float, float]:
    """Of the second third of the time, and of the last."""
    third = seen[-1].minute / 3
    second = [value(one) for one in seen if third <= one.minute < 2 * third]
    last = [value(one) for one in seen if one.minute >= 2 * third]
    return statistics.median(second), statistics.median(last)


def draw(seen: Sequence[Look], path: str) -> None:
    """A picture of the three over time."""
    from matplotlib.figure import Figure

    minutes = [one.minute for one in seen]
    figure = Figure(figsize=(8, 7), layout="constrained")
    memory, state, lag = figure.subplots(3, sharex=True)
    names = {
        "taskmanager": "task managers",
        "jobmanager": "job manager",
        "jobserver": "Beam's job server",
        "workers": "Python workers",
    }
    for kind, name in names.items():
        memory.plot(minutes, [one.memory[kind] for one in seen], label=name)
    memory.set_title("Resident memory, MB", loc="left")
    memory.legend(ncols=len(names), fontsize="small", loc="upper right")
    memory.set_ylim(0, 1.3 * max(max(one.memory.values()) for one in seen))
    state.plot(minutes, [one.state for one in seen])
    state.set_title("State in the last checkpoint, kB", loc="left")
    state.set_ylim(bottom=0)
    lag.plot(minutes, [one.lag for one in seen])
    lag.set_title("Lag of the last release, s", loc="left")
    lag.set_ylim(bottom=0)
    lag.set_xlabel("minutes")
    for axes in (memory, state, lag):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--flink_home", required=True, help="what flink.sh install filled")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--backend", choices=("rocksdb", "hashmap"), default="rocksdb")
    parser.add_argument("--looks", help="file for what was seen, as JSON Lines")
    parser.add_argument("--picture", help="file for the picture")
    given = parser.parse_args()
    home = Path(given.flink_home).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with Cluster.started(home, folder / "cluster", given.backend) as cluster:
            pipeline = beam.Pipeline(options=cluster.options())
            pace = build(pipeline, folder)
            pipeline.run()
            seen = []
            for look in looks(cluster, folder, pace, given.minutes):
                seen.append(look)
                if given.looks:
                    with Path(given.looks).open("a") as file:
                        file.write(json.dumps(vars(look)) + "\n")
            cluster.cancel()
            time.sleep(1)
        if given.picture:
            draw(seen, given.picture)
        return tell(*check(seen, folder / "seen"))


if __name__ == "__main__":
    raise SystemExit(main())

"""From the end of a slot to its published file, where a local run follows a stream; catching up.

python benchmarks/following.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _measure import cpu_seconds, data_folder, parser, save, table

from streamveil.mechanisms.core.records import format_time, parse_time

USERS = 200
EVENTS = 100  # in a slot
BINS = ("park", "cafe", "office")
SLOT = 2  # seconds
READY = 0.3  # seconds before its end a slot has its file
WARM = 3  # passes
PASS = 10_000  # slots, where it catches up
LONGEST = 60  # seconds until a run that is stopped has ended


def main() -> None:
    options = parser(__doc__, repeats=5)
    add = options.add_argument
    add("--slots", type=int, default=30, help="slots that are measured in a run")
    add("--old", type=int, nargs="+", default=[0, 3000], help="input files that were read before")
    add("--caught_up", type=int, default=300_000, help=f"slots of the gap, a multiple of {PASS}")
    given = options.parse_args()
    follows = table(
        f"From the end of a slot of {SLOT} s to its file",
        [
            *("old files", "run", "median ms", "largest ms", "CPU ms a pass"),
            "cores busy otherwise",
        ],
        f"`streamveil release --follow=10s`, no lateness. One file of {EVENTS} events a slot is "
        f"renamed into place {READY:g} s before its end; releases, ledger and dead letters are "
        "written. Latency: until the file of releases got its name. Of each run the first "
        f"{WARM} passes are left out, in which Python still warms up. Old files: inputs that were "
        "read before and still lie there. The run in which the cores are least busy with other "
        "work tells most.",
    )
    catches = table(
        f"Catching up, {given.caught_up:,} slots",
        ["slots", "CPU ms a slot", "resident MB", "peak MB", "kB of state"],
        f"One run by a clock that is far ahead, in passes of {PASS:,} slots, nearly all without "
        "events. CPU time: since the row before. Memory and state: when that pass was published.",
    )
    with data_folder(given.folder) as folder:
        for old in given.old:
            for run in range(given.repeats):
                place = folder / f"follow-{old}-{run}"
                follows.add(old, run + 1, *followed(place, given.slots, old))
        for row in caught_up(folder / "gap", given.caught_up):
            catches.add(*row)
    kept = {name: getattr(given, name) for name in ("slots", "old", "caught_up", "repeats")}
    save(given.results, "following", kept, [follows, catches])


class Stream:
    """A folder with a stream of slots from a time on, and the command that releases them."""

    def __init__(self, folder: Path, start: float) -> None:
        self.folder = folder
        self.start = int(start)
        (folder / "events").mkdir(parents=True)
        (folder / "results").mkdir()
        users = (f"user-{i},{5 * (1 + i % 3)},{1 + i % 2}" for i in range(USERS))
        (folder / "users.csv").write_text("\n".join(["user,window,epsilon", *users]) + "\n")

    def write(self, slot: int) -> None:
        """The events of a slot, renamed into place."""
        at = self.start + slot * SLOT
        rows = (
            f"user-{(7 * slot + i) % USERS},{BINS[i % 3]},{at + i * SLOT // EVENTS}"
            for i in range(EVENTS)
        )
        self.write_rows(f"{slot:08}.csv", rows)

    def write_in_time(self, slot: int, child: subprocess.Popen[bytes]) -> None:
        """The same a moment before it ends, while a run goes on."""
        time.sleep(max(0.0, self.start + (slot + 1) * SLOT - READY - time.time()))
        self._check(child)
        self.write(slot)

    def write_rows(self, name: str, rows: Iterator[str]) -> None:
        """A file, renamed into place."""
        part = self.folder / name
        part.write_text("\n".join(["user,place,time", *rows]) + "\n")
        part.rename(self.folder / "events" / name)

    def run(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start the command."""
        named = {
            "input": self.folder / "events" / "*.csv",
            "requirements": self.folder / "users.csv",
            "state": self.folder / "state",
            "output": self.folder / "results" / "releases.jsonl",
            "ledger": self.folder / "results" / "ledger.jsonl",
            "rejected": self.folder / "results" / "rejected.jsonl",
            "slot": f"{SLOT}s",
            "start": _time(self.start),
            "domain": ",".join(BINS),
            "user_column": "user",
            "value_column": "place",
            "time_column": "time",
            "time_unit": "s",
        }
        given = [f"--{name}={value}" for name, value in named.items()]
        command = [sys.executable, "-m", "streamveil", "release", *given, *flags]
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def published(self) -> list[Path]:
        """Files of releases, in order."""
        return sorted((self.folder / "results").glob("releases-*.jsonl"))

    def wait_for(self, passes: int, child: subprocess.Popen[bytes]) -> None:
        """Wait until so many passes are published."""
        while len(self.published()) < passes:
            self._check(child)
            time.sleep(0.02)

    def _check(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll():
            raise RuntimeError(f"the run ended:\n{(self.folder / 'log').read_text()[-4000:]}")


def followed(folder: Path, slots: int, old: int) -> tuple[float, float, float, float]:
    """Median and largest latency and CPU time of a pass, in ms, and cores that others used."""
    stream = Stream(folder, time.time() // SLOT * SLOT)
    for i in range(old):
        stream.write_rows(f"old-{i:08}.csv", iter([f"user-1,park,{stream.start}"]))
    child = stream.run("--follow=10s")
    try:
        slot = 0
        while len(stream.published()) < WARM:
            stream.write_in_time(slot, child)
            slot += 1
        before, first = _now(child), len(stream.published())
        for measured in range(slot, slot + slots):
            stream.write_in_time(measured, child)
        after, published = _now(child), stream.published()[first:]
        child.terminate()
        child.wait(LONGEST)
    finally:
        child.kill()
        child.wait()
    latencies = []
    for path in published:
        named = path.stat().st_ctime  # a rename is a change of the file
        for line in path.read_text().splitlines():
            latencies.append(1e3 * (named - parse_time(json.loads(line)["end"]) / 1e6))
    wall, cpu, busy = (now - then for now, then in zip(after, before, strict=True))
    return (
        statistics.median(latencies),
        max(latencies),
        1e3 * cpu / len(published),
        max(0.0, (busy - cpu) / wall),
    )


def caught_up(folder: Path, slots: int) -> Iterator[tuple[int, float, float, float, float]]:
    """Six times on the way: slots, CPU time of one, memory and state."""
    stream = Stream(folder, parse_time("2024-01-01T00:00:00Z") / 1e6)
    stream.write(0)
    stream.write(slots)
    # One pass more, so that the run has not ended when the last one is looked at.
    (folder / "clock").write_text(_time(stream.start + (slots + PASS) * SLOT))
    child = stream.run(f"--clock_file={folder / 'clock'}", f"--slots_per_pass={PASS}")
    passes = slots // PASS
    before, slots_before = 0.0, 0
    try:
        for n in sorted({-(-passes * sixth // 6) for sixth in range(1, 7)}):
            stream.wait_for(n, child)
            cpu, (now, peak) = cpu_seconds(child.pid), _memory_of(child.pid)
            # What is still being written is gone under its first name soon.
            files = [path for path in (folder / "state").rglob("*") if path.suffix != ".part"]
            state = sum(path.stat().st_size for path in files if path.is_file()) / 1e3
            yield n * PASS, 1e3 * (cpu - before) / (n * PASS - slots_before), now, peak, state
            before, slots_before = cpu, n * PASS
    finally:
        child.kill()
        child.wait()


def _time(seconds: float) -> str:
    return format_time(int(seconds * 1e6))


def _now(child: subprocess.Popen[bytes]) -> tuple[float, float, float]:
    """The time, CPU seconds of a run so far, and those of all processes."""
    return time.monotonic(), cpu_seconds(child.pid), _busy()


def _busy() -> float:
    """CPU seconds of all processes so far."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system = (int(field) for field in first.split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _memory_of(pid: int) -> tuple[float, float]:
    """Memory of a process that is resident now, and the most so far, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) / 1e3 for name in ("VmRSS", "VmHWM"))


if __name__ == "__main__":
    main()

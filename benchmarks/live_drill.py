"""Run a live stream on a busy machine, again and again, and see whether it stalls or doubles.

    python benchmarks/live_drill.py --runs=20 -- --runner=PrismRunner --prism_location=/FOLDER/prism

What is behind `--` are Beam's flags. Each run is a process of its own with a stream in real time:
slots of a second, events of users all the time, heartbeat by the clock. Beside it loops of the
drill's own keep the processors busy. After so many seconds it is stopped. A run

- stalled, if a slot that ended a while before the stop was not released;
- lost a slot, if one between its first and its last is missing, or what it cost;
- doubled, if a slot was released twice with different content;
- overspent, if some window of slots cost more than the users asked for, by the ledger;
- failed, if it ended by itself: then its last words are printed.

Exit code 0 if none did.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
from _drill import costs, keep, keep_cost, kept, overspent, tell
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.utils.timestamp import Timestamp

from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.pipelines.options.beam_flags import FlinkOptions
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms, QueryOutputs

BINS = tuple("abcdef")
USERS = [f"user{i}" for i in range(90)]
WINDOW, EPSILON = 5, 1.0
PATIENCE = 20.0  # seconds from the end of a slot to its release, on a machine that is busy
STOPPED, FAILED = 0, 1  # exit codes of a run


def events(_: object) -> pa.RecordBatch:
    """Some events of now."""
    some = random.sample(USERS, 20)
    return pa.RecordBatch.from_pydict(
        {
            "user": some,
            "value": random.choices(BINS, k=len(some)),
            "time": pa.array([int(time.time() * 1e6)] * len(some), pa.timestamp("us", "UTC")),
        }
    )


def stream(folder: Path, seconds: float, flags: list[str]) -> None:
    """Run the stream in this process; never comes back."""
    options = PipelineOptions([*flags, "--streaming"])
    options.view_as(FlinkOptions)  # makes Beam know them
    pipeline = beam.Pipeline(options=options)
    batches = (
        pipeline
        | "Now" >> PeriodicImpulse(start_timestamp=Timestamp.now(), fire_interval=0.5)
        | "Events" >> beam.Map(events).with_output_types(pa.RecordBatch)
    )
    outputs: QueryOutputs = batches | PrivateHistograms(
        registry=Registry.of(dict.fromkeys(USERS, (WINDOW, EPSILON))),
        domain=Categories(BINS),
        slots=Slots.of("1s"),
        columns=Columns("user", ("value",), "time"),
        noise_key=bytes(range(32)),
        allowed_lateness="1s",
        max_rejected=1.0,
    )
    _ = outputs.results | "Keep" >> beam.Map(keep, str(folder))
    _ = outputs.ledger | "KeepCosts" >> beam.Map(keep_cost, str(folder))
    result = pipeline.run()

    ended = threading.Event()

    def wait() -> None:
        try:
            result.wait_until_finish()
        finally:
            ended.set()

    threading.Thread(target=wait, daemon=True).start()
    by_itself = ended.wait(seconds)
    (folder / "stopped").write_text(str(time.time()))
    if not by_itself:
        threading.Thread(target=result.cancel, daemon=True).start()
        ended.wait(3)
    os._exit(FAILED if by_itself else STOPPED)


def busy(until: float) -> None:
    """Keep a processor busy until a time of the clock."""
    while time.time() < until:
        sum(range(10_000))


def one_run(folder: Path, seconds: float, loops: int, flags: list[str]) -> tuple[set[str], str]:
    """Run the stream once under load: what was wrong with it, and a line that tells of it."""
    until = time.time() + seconds
    load = [multiprocessing.Process(target=busy, args=(until,), daemon=True) for _ in range(loops)]
    for one in load:
        one.start()
    command = [sys.executable, __file__, f"--stream={folder}", f"--seconds={seconds:g}"]
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(
            [*command, "--", *flags], stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = run.wait(seconds + 120)
        finally:  # with the servers that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    for one in load:
        one.join()
    stopped = folder / "stopped"
    until = float(stopped.read_text()) if stopped.exists() else time.time()
    wrong = faults(kept(folder), until, 1.0, costs(folder), WINDOW, EPSILON)
    said = f"{len(kept(folder))} slots"
    if code != STOPPED:
        wrong.add("failed")
        lines = (folder / "log").read_text(errors="replace").splitlines()
        said = next((line for line in reversed(lines) if "Error" in line), "no word")
    return wrong, said


def faults(
    given: Mapping[int, Collection[bytes]],
    stopped: float,
    seconds: float,
    costs: Sequence[tuple[int, float]],
    window: int,
    epsilon: float,
) -> set[str]:
    """What is wrong with the releases of a stream that was stopped at a time of the clock.

    `given` has the different contents of each slot, of so many seconds since 1970, in order, and
    `costs` what each slot cost; the users asked for `epsilon` over `window` slots.
    """
    slots = list(given)
    wrong = set()
    if not slots or (slots[-1] + 1) * seconds < stopped - PATIENCE:
        wrong.add("stalled")
    unpriced = set(slots[:-1]) - dict(costs).keys()
    if slots and (unpriced or len(slots) < slots[-1] - slots[0] + 1):
        wrong.add("lost")
    if any(len(contents) > 1 for contents in given.values()):
        wrong.add("doubled")
    if overspent(costs, window, epsilon):
        wrong.add("overspent")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=45.0, help="of a run, its start included")
    parser.add_argument("--loops", type=int, default=8, help="busy loops beside it")
    parser.add_argument("--stream", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="flags of Beam, behind --")
    given = parser.parse_args()
    if given.stream:
        stream(Path(given.stream), given.seconds, given.flags)
    found: Counter[str] = Counter()
    for number in range(1, given.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            wrong, said = one_run(Path(folder), given.seconds, given.loops, given.flags)
        found.update(wrong)
        print(f"run {number}: {', '.join(sorted(wrong)) or 'fine'}; {said}", flush=True)
    names = ("stalled", "lost", "doubled", "overspent", "failed")
    figures = {"tried": given.runs, **{name: found[name] for name in names}}
    return tell(figures, [f"{found[name]} runs {name}" for name in names if found[name]])


if __name__ == "__main__":
    raise SystemExit(main())

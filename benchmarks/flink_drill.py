"""Kill Flink's task managers in the midst of a stream again and again, and check its releases.

    tests/clusters/flink.sh install flink
    python benchmarks/flink_drill.py --flink_home=flink --kills=10

A standalone cluster on this machine runs a stream with slots of a second and checkpoints. The task
manager that runs it is killed at random moments, a spare one takes over from the last checkpoint,
and a new spare is started. All that a sink is given is kept, each time that it is. In the end:

- every slot is released;
- all that a sink was given of one slot is the same, byte for byte;
- the releases are those of one undisturbed run in this process over the same events;
- no window of slots cost more than the users asked for, each different entry of the ledger
  counted.

With --watermark=clock event time follows the clock, not the events, and what was late at first is
in time when it is read again after a kill, so the undisturbed run says nothing. Then slots must
wait for checkpoints, by --settle, or some are released again with other content. Exit code 0 if all
of that holds.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
from _drill import costs, kept, overspent, slot_of, tell
from _flink_stream import EPSILON, WINDOW, Pace, build, reference
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.pipelines.options.beam_flags import FlinkOptions

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "tests" / "clusters" / "flink.sh"
SECONDS_A_SLOT = 0.4
LONGEST_LIFE = 6.0  # seconds until a kill, after the first release of the life before it
PATIENCE = 120.0  # seconds for a stream to go on
ENDED = ("CANCELED", "FAILED", "FINISHED")
CHECKPOINTS = 2000  # milliseconds
BUNDLES = 100  # milliseconds


@dataclass
class Cluster:
    """A standalone cluster of Flink with a spare task manager, and a pool of Python workers."""

    home: Path
    work: Path
    job_endpoint: str
    flink_master: str
    worker_pool: str
    pool: int
    """Process group of that pool."""

    @classmethod
    @contextlib.contextmanager
    def started(cls, home: Path, work: Path, backend: str = "hashmap") -> Iterator[Cluster]:
        """Start all of it, state in that backend; stop it in the end, come what may."""
        work.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        # The pool starts what is called python on its path.
        scripts, modules = str(Path(sys.executable).parent), str(HERE)
        environment = {
            **os.environ,
            "PATH": os.pathsep.join((scripts, os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join(filter(None, (modules, os.environ.get("PYTHONPATH")))),
        }
        with (work / "workers.log").open("wb") as log:
            pool = subprocess.Popen(
                [
                    *(sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main"),
                    f"--service_port={port}",
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            printed = cls._script("start", home, work, "2", "1", STATE_BACKEND=backend)
            ends = dict(line.split("=", 1) for line in printed.split())
            yield cls(home, work, **ends, worker_pool=f"localhost:{port}", pool=pool.pid)
        finally:
            cls._script("stop", work)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pool.pid, signal.SIGKILL)
            pool.wait()

    @staticmethod
    def _script(*arguments: str | Path, **environment: str) -> str:
        command = [str(SCRIPT), *map(str, arguments)]
        around = os.environ | environment
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=around
        ).stdout

    def options(self) -> PipelineOptions:
        """How to run a stream there."""
        options = PipelineOptions(
            [
                *("--runner=PortableRunner", f"--job_endpoint={self.job_endpoint}"),
                *("--environment_type=EXTERNAL", f"--environment_config={self.worker_pool}"),
                *("--streaming", "--parallelism=1", f"--checkpointing_interval={CHECKPOINTS}"),
                *(f"--max_bundle_time_mills={BUNDLES}", "--finish_bundle_before_checkpointing"),
            ]
        )
        options.view_as(FlinkOptions)  # makes Beam know them
        return options

    def ask(self, path: str, method: str = "GET") -> Any:
        """Ask the job manager."""
        request = urllib.request.Request(f"http://{self.flink_master}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    @property
    def job(self) -> str:
        """The one job that has not ended."""
        (job,) = self._running_jobs()
        return job

    def _running_jobs(self) -> list[str]:
        jobs = self.ask("/jobs")["jobs"]
        return [job["id"] for job in jobs if job["status"] not in ENDED]

    def busy(self) -> str | None:
        """The task manager that runs the job; None while nobody does."""
        job = self.job
        for vertex in self.ask(f"/jobs/{job}")["vertices"]:
            at = f"/jobs/{job}/vertices/{vertex['id']}/taskmanagers"
            for manager in self.ask(at)["taskmanagers"]:
                if manager["status"] == "RUNNING":
                    return manager["taskmanager-id"]
        return None

    def restores(self) -> int:
        """How often the job was restored from a checkpoint."""
        return self.ask(f"/jobs/{self.job}/checkpoints")["counts"]["restored"]

    def kill(self, name: str) -> None:
        """Kill a task manager with SIGKILL and start another one."""
        os.kill(int((self.work / f"{name}.pid").read_text()), signal.SIGKILL)
        self._script("taskmanager", self.home, self.work)

    def cancel(self) -> None:
        """Cancel every running job; the job server's own cancelling does not reach a cluster."""
        for job in self._running_jobs():
            self.ask(f"/jobs/{job}?mode=cancel", "PATCH")
        until = time.monotonic() + PATIENCE
        while self._running_jobs():
            if time.monotonic() > until:
                raise RuntimeError("the job is not cancelled")
            time.sleep(0.1)


@dataclass
class Drill:
    """A stream and what became of it."""

    folder: Path
    clock: bool = False
    settle: str | None = None
    kills: int = 0
    restores: int = 0
    faults: list[str] = field(default_factory=list)

    def run(self, cluster: Cluster, kills: int, draw: random.Random) -> None:
        """Run the stream, kill so many times, and let it go on for a while."""
        for name in ("seen", "releases"):
            (self.folder / name).mkdir(parents=True)
        pipeline = beam.Pipeline(options=cluster.options())
        pace = Pace(time.time() + 5, SECONDS_A_SLOT, self.clock)
        build(pipeline, pace, self.folder, self.settle)
        try:
            pipeline.run()
            for _ in range(kills):
                self._go_on()
                time.sleep(draw.uniform(0, LONGEST_LIFE))
                self._kill(cluster)
            self._go_on(slots=2 * WINDOW)
            self.restores = cluster.restores()
        finally:
            cluster.cancel()

    def _kill(self, cluster: Cluster) -> None:
        name = cluster.busy()
        if name is None:
            raise RuntimeError("nobody runs the job")
        cluster.kill(name)
        self.kills += 1

    def _go_on(self, slots: int = 3) -> None:
        """Wait for so many more slots."""
        until, before = time.monotonic() + PATIENCE, self._last()
        while self._last() < before + slots:
            if time.monotonic() > until:
                raise RuntimeError(f"no release after that of slot {before}")
            time.sleep(0.1)

    def _last(self) -> int:
        return max(map(slot_of, (self.folder / "seen").glob("*.json")), default=-1)

    def check(self) -> dict[str, int]:
        """All promises; gives what there was to look at."""
        given = kept(self.folder / "seen")
        last = max(given)
        lost = [slot for slot in range(last + 1) if slot not in given]
        differing = [slot for slot, contents in given.items() if len(contents) > 1]
        booked = costs(self.folder / "seen")
        unpriced = sorted(given.keys() - dict(booked).keys() - {last})
        over = overspent(booked, WINDOW, EPSILON)
        self._expect(not lost, f"lost slots: {lost}")
        self._expect(not differing, f"slots released again with other content: {differing}")
        self._expect(not unpriced, f"slots without an entry of the ledger: {unpriced}")
        self._expect(not over, f"overspent windows end at {[end for end, *_ in over]}")
        figures = {
            "kills": self.kills,
            "restores": self.restores,
            "slots": len(given),
            "lost": len(lost),
            "given again alike": sum(sum(c.values()) - len(c) for c in given.values()),
            "given again otherwise": len(differing),
            "overspent": len(over),
        }
        if not self.clock:
            figures["unlike the undisturbed run"] = self._check_reference(given, last)
        return figures

    def _check_reference(self, given: dict[int, collections.Counter[bytes]], last: int) -> int:
        """Compare with an undisturbed run; gives the number of slots that differ.

        A release goes to both sinks, one after the other, so when the job was cancelled either of
        them may have been a slot ahead.
        """
        folder = self.folder / "releases"
        released = [f.read_bytes().strip() for f in sorted(folder.glob("[!.]*"))]
        path = self.folder / "undisturbed.jsonl"
        reference(max(last, len(released) - 1), str(path))
        wanted = path.read_bytes().splitlines()
        unlike = [slot for slot, contents in given.items() if set(contents) != {wanted[slot]}]
        self._expect(not unlike, f"not as in the undisturbed run: {unlike}")
        alike = released == wanted[: len(released)]
        self._expect(alike, "the folder of releases is not as it should be")
        self._expect(len(released) >= last, "the folder of releases misses some")
        return len(unlike)

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--flink_home", required=True, help="what flink.sh install filled")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watermark", choices=("events", "clock"), default="events")
    parser.add_argument("--settle", help="how often to look for checkpoints that slots wait for")
    parser.add_argument("--folder", help="a new folder to work in, which is kept")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary) / "drill"
        drill = Drill(folder, given.watermark == "clock", given.settle)
        with Cluster.started(Path(given.flink_home).resolve(), folder / "cluster") as cluster:
            drill.run(cluster, given.kills, random.Random(given.seed))
        figures = drill.check()
    print(f"in {time.monotonic() - began:.0f} s:", end=" ")
    return tell(figures, drill.faults)


if __name__ == "__main__":
    raise SystemExit(main())

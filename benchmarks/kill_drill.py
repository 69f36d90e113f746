"""Kill a local stream with SIGKILL again and again, and check that nothing of it went wrong.

    python benchmarks/kill_drill.py --kills=50
    python benchmarks/kill_drill.py --kills=50 --max_slots=1,1    # users count in a few slots only

A writer puts files of events into a folder and moves a clock on, for as long as it takes;
`streamveil release --follow` releases the slots that close. It is killed at random moments, half of
them right after it touched its state, and started again with --resume. In the end:

- every slot is released, and once;
- releases and ledger are those of one undisturbed run over the same files with the same key;
- no file that readers could see ever changed or vanished;
- no window of any class of users is overspent, added up anew from the ledger;
- every bad or late event is in the dead letters, once;
- no file is left over.

Exit code 0 if all of that holds.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _drill import overspent, tell

from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement, format_time, parse_time
from streamveil.mechanisms.presence import Limit

START = parse_time("2024-01-01T00:00:00Z")
SECOND = 1_000_000
LATENESS = 2  # slots of a second
BINS = "abcdef"
CLASSES = [(2, 0.5), (5, 1.0), (12, 2.0)]
USERS = [f"user{i}" for i in range(90)]
SECONDS_A_SLOT = 0.12
LONGEST_LIFE = 5.0  # seconds until a kill that waits for nothing

# What a kill waits for, and how long it waits after that at most: a commit takes milliseconds.
SIGNS = {
    "a pass began": 0.5,
    "results whole": 0.01,
    "manifest begun": 0.001,
    "committed": 0.001,
    "results moved": 0.001,
}


@dataclass
class Drill:
    """A folder with the events, the results, and what is to be expected of them."""

    folder: Path
    draw: random.Random
    """What the writer draws from."""
    slots: int = 0
    """Slots whose events are all written."""
    late: list[tuple[str, int]] = field(default_factory=list)
    """File and line of every event that was written too late."""
    seen: dict[str, str] = field(default_factory=dict)
    """Digest of every result that readers could see."""
    faults: list[str] = field(default_factory=list)
    limit: Limit | None = None
    """In how many slots users count."""

    def path(self, *names: str) -> Path:
        """Path of something in the folder."""
        return self.folder.joinpath(*names)

    def prepare(self) -> None:
        """Make folders, users, a key and a clock."""
        for name in ("events", "results"):
            self.path(name).mkdir(parents=True)
        rows = ["user,window,epsilon"]
        for i, user in enumerate(USERS):
            window, epsilon = CLASSES[i % len(CLASSES)]
            rows.append(f"{user},{window},{epsilon}")
        self.path("users.csv").write_text("\n".join(rows) + "\n")
        self.path("key").write_text("5e" * 32)
        self.path("key").chmod(0o600)
        self.path("clock").write_text(format_time(START))

    # ---- the writer ----------------------------------------------------------------------------

    def write_slot(self, ahead: int = 3) -> None:
        """One more file, with events of a slot and of slots around it; then the clock."""
        slot, draw = self.slots, self.draw
        lines = []
        for user in draw.sample(USERS, draw.randint(0, len(USERS))):
            at = max(0, slot + draw.choice((0, 0, 0, 0, -1, min(1, ahead), ahead)))
            value = draw.choice(BINS[: 2 + slot // 40 % 4]) if draw.random() < 0.99 else "?"
            lines.append(self._line(user, value, at))
        if draw.random() < 0.1:
            lines += ["user1,a,yesterday", "no record"]
        self._write_file(f"{slot:06}.csv", lines)
        if draw.random() < 0.2:
            self._write_late(slot)
        self.slots += 1
        self._replace(self.path("clock"), format_time(START + self.slots * SECOND))

    def _write_late(self, slot: int) -> None:
        """A file with events of slots that are committed, and one of the present."""
        manifest = self.path("state", "manifest.json")
        if not manifest.exists():
            return
        released = json.loads(manifest.read_text())["next_slot"] - START // SECOND
        if released < 1:
            return
        name = f"late-{slot:06}.csv"
        missed = [self._line("user2", "b", self.draw.randrange(released)) for _ in range(2)]
        self._write_file(name, missed)
        self.late += [(name, 2), (name, 3)]

    def _line(self, user: str, value: str, slot: int) -> str:
        return f"{user},{value},{format_time(START + slot * SECOND + self.draw.randrange(SECOND))}"

    def _write_file(self, name: str, lines: list[str]) -> None:
        self._replace(self.path("events", name), "\n".join(["user,value,time", *lines]) + "\n")

    def _replace(self, path: Path, text: str) -> None:
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        part.rename(path)

    def writing(self, stop: threading.Event) -> None:
        """Write slot after slot until it is stopped."""
        while not stop.wait(SECONDS_A_SLOT):
            self.write_slot()

    # ---- the runs ------------------------------------------------------------------------------

    def command(self, folder: str, pattern: str, *options: str) -> list[str]:
        """A command that writes to a folder what it makes of some of the files."""
        results = {
            flag: f"--{flag}={self.path(folder, name)}"
            for flag, name in (
                ("output", "releases.jsonl"),
                ("ledger", "ledger.jsonl"),
                ("rejected", "rejected.jsonl"),
            )
        }
        return [
            *(sys.executable, "-m", "streamveil", "release"),
            *(f"--input={self.path('events', pattern)}", *results.values()),
            *("--user_column=user", "--value_column=value", "--time_column=time", "--slot=1s"),
            *(f"--start={format_time(START)}", f"--domain={','.join(BINS)}", "--layout=rows"),
            *(f"--requirements={self.path('users.csv')}", f"--noise_key=file:{self.path('key')}"),
            *([f"--max_slots={self.limit.max_slots},{self.limit.blocks}"] if self.limit else []),
            *options,
        ]

    def follow(self, *options: str) -> list[str]:
        """The command that is killed."""
        resume = ["--resume"] if self.path("state", "manifest.json").exists() else []
        return self.command(
            "results",
            "*.csv",
            *(f"--state={self.path('state')}", "--follow=100ms"),
            *(f"--allowed_lateness={LATENESS}s", f"--clock_file={self.path('clock')}"),
            *resume,
            *options,
        )

    def kill_once(self, draw: random.Random) -> str:
        """Start a run and kill it, at a sign or at any time; says what it was doing."""
        log = self.path("log")
        with log.open("wb") as out:
            child = subprocess.Popen(self.follow(), stdout=out, stderr=subprocess.STDOUT)
        try:
            self._await_end(draw, child)
            if child.poll() is not None:
                raise RuntimeError(f"the run ended by itself:\n{log.read_text()}")
        finally:
            child.kill()
            child.wait()
        doing = self._doing()
        self.look()
        return doing

    def _await_end(self, draw: random.Random, child: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + draw.uniform(0, LONGEST_LIFE)
        if draw.random() < 0.5:
            sign, longest = draw.choice(list(SIGNS.items()))
            self._await_sign(sign, child)
            until = time.monotonic() + draw.uniform(0, longest)
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.0005)

    def _await_sign(self, sign: str, child: subprocess.Popen[bytes]) -> None:
        state, results = self.path("state"), self.path("results")
        manifest, part = state / "manifest.json", state / "manifest.json.part"
        look: Callable[[], object] = {
            "a pass began": lambda: sorted(state.glob("pass-*")),
            "results whole": lambda: [len(list(f.glob("[!.]*"))) for f in state.glob("pass-*")],
            "manifest begun": part.exists,
            "committed": lambda: manifest.exists() and manifest.stat().st_mtime_ns,
            "results moved": lambda: len(list(results.glob("[!.]*"))),
        }[sign]
        done = {"results whole": lambda now: 5 in now}.get(sign, lambda now: now != before)
        before = look()
        while child.poll() is None and not done(look()):
            pass  # a sign may last less than any sleep

    def _doing(self) -> str:
        """What a killed run left half done."""
        state = self.path("state")
        manifest = state / "manifest.json"
        if not manifest.exists():
            return "before its first commit"
        if (state / "manifest.json.part").exists():
            return "writing the manifest"
        record = json.loads(manifest.read_text())
        committed = state / f"pass-{record['passes']:08d}"
        left = [name for name in record["results"] if (committed / name).exists()]
        if left or committed.with_name(f"{committed.name}.part").exists():
            return "moving committed results"
        others = [path for path in state.glob("pass-*") if path != committed]
        if any(path < committed for path in others):
            return "removing the pass before"
        if others:
            whole = all((others[0] / name).exists() for name in record["results"])
            return "a pass, results whole" if whole else "a pass"
        return "starting or waiting"

    def finish(self) -> None:
        """Close all slots and let a run release them to the end; it must end by itself, well."""
        for ahead in (2, 1, 0):  # up to the last slot that has events
            self.write_slot(ahead)
        closed = START + (self.slots + LATENESS) * SECOND
        self._replace(self.path("clock"), format_time(closed))
        self._run(self.follow(f"--end={self._end()}"))
        self.look()

    def run_undisturbed(self) -> None:
        """One run over the same events, without those that came too late."""
        self.path("once").mkdir()
        self._run(self.command("once", "[0-9]*.csv", f"--end={self._end()}"))

    def _end(self) -> str:
        return format_time(START + self.slots * SECOND)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")

    # ---- the checks ----------------------------------------------------------------------------

    def look(self) -> None:
        """Take note of what readers can see; it must never change."""
        for name, digest in self.seen.items():
            path = self.path("results", name)
            now = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            self.expect(now == digest, f"{name} changed after readers could see it")
        for path in self.path("results").glob("[!.]*-*"):  # the card grows with every pass
            self.seen[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()

    def expect(self, holds: bool, fault: str) -> None:
        """Note a fault unless all is well."""
        if not holds:
            self.faults.append(fault)

    def rows(self, folder: str, pattern: str) -> list[dict[str, Any]]:
        """Rows of some files, in the order of their names."""
        return [
            json.loads(line)
            for path in sorted(self.path(folder).glob(pattern))
            for line in path.read_text().splitlines()
        ]

    def check(self) -> dict[str, int]:
        """All promises; gives what there was to look at."""
        releases = self.rows("results", "releases-*.jsonl")
        first = START // SECOND
        times = collections.Counter(row["slot"] for row in releases)
        wanted = range(first, first + self.slots)
        lost = [slot for slot in wanted if slot not in times]
        double = [slot for slot, number in times.items() if number > 1]
        self.expect(not lost, f"lost slots: {lost}")
        self.expect(not double, f"slots released twice: {double}")
        self.expect(
            set(times) <= set(wanted), f"slots from nowhere: {sorted(set(times) - set(wanted))}"
        )
        once = self.rows("once", "releases.jsonl")
        differ = [a["slot"] for a, b in zip(releases, once, strict=False) if a != b]
        self.expect(not differ, f"not as in the undisturbed run: {differ}")
        ledger = self.rows("results", "ledger-*.jsonl")
        self.expect(ledger == self.rows("once", "ledger.jsonl"), "the ledgers differ")
        overspent = self.overspent(ledger)
        self.expect(not overspent, f"overspent windows end at {overspent}")
        letters = self.check_dead_letters()
        self.check_leftovers()
        return {
            "slots": len(releases),
            "lost": len(lost),
            "double": len(double),
            "differing": len(differ),
            "overspent": len(overspent),
            "dead letters": letters,
            "of them late": len(self.late),
        }

    def overspent(self, ledger: list[dict[str, Any]]) -> list[tuple[int, int, float]]:
        """Windows in which a class spent more than its users asked for."""
        found: list[tuple[int, int, float]] = []
        for window, epsilon in CLASSES:
            spent = [
                (row["slot"], row["spent"])
                for row in ledger
                if (row["window"], row["epsilon"]) == (window, epsilon)
            ]
            self.expect(len(spent) == self.slots, f"the ledger of {window, epsilon} has gaps")
            found += self._overspent(spent, Requirement(window, epsilon))
        return found

    def _overspent(
        self, spent: list[tuple[int, float]], asked: Requirement
    ) -> list[tuple[int, int, float]]:
        limit = self.limit
        if limit is None or not limit.pays(asked):
            return overspent(spent, asked.window, asked.epsilon)
        found = []
        for last in range(len(spent)):
            within = spent[max(0, last + 1 - limit.reach(asked, ADD_REMOVE)) : last + 1]
            dearest = sorted(amount for _, amount in within)[-limit.slots(asked) :]
            if sum(dearest) > asked.epsilon + 1e-9:
                found.append((spent[last][0], asked.window, sum(dearest)))
        return found

    def check_dead_letters(self) -> int:
        """Bad and late events, each once; gives their number."""
        found = collections.Counter(
            (os.path.basename(row["source"]), row["row"], row["reason"])
            for row in self.rows("results", "rejected-*.jsonl")
        )
        expected = collections.Counter((name, row, "late") for name, row in self.late)
        for row in self.rows("once", "rejected.jsonl"):
            expected[os.path.basename(row["source"]), row["row"], row["reason"]] += 1
        self.expect(
            found == expected, f"dead letters differ: {(found - expected, expected - found)}"
        )
        return sum(found.values())

    def check_leftovers(self) -> None:
        """Nothing is in the folders but what belongs there."""
        state = self.path("state")
        passes = json.loads((state / "manifest.json").read_text())["passes"]
        folder = f"pass-{passes:08d}"
        found = sorted(str(path.relative_to(state)) for path in state.rglob("*"))
        kept = ("card.json", "manifest.json", "state.parquet", "users.parquet", "waiting.parquet")
        wanted = ["manifest.json", folder, *(f"{folder}/{name}" for name in kept), "status.json"]
        self.expect(found == wanted, f"the state holds {found}")
        results = sorted(path.name for path in self.path("results").iterdir())
        kinds = ("ledger", "rejected", "releases")
        numbered = [f"{kind}-{n:08d}.jsonl" for kind in kinds for n in range(1, passes + 1)]
        self.expect(
            results == [".releases.jsonl.witness", *numbered, "releases.jsonl.card.json"],
            "the results are not numbered without a gap",
        )


def run_drill(
    folder: Path, kills: int, seed: int, limit: Limit | None = None
) -> tuple[Drill, dict[str, int]]:
    """Kill so many times, then go on to the end; gives also how often it was doing what."""
    drill = Drill(folder, random.Random(seed), limit=limit)
    drill.prepare()
    stop = threading.Event()
    writer = threading.Thread(target=drill.writing, args=(stop,))
    writer.start()
    doing: collections.Counter[str] = collections.Counter()
    draw = random.Random(seed + 1)
    try:
        for _ in range(kills):
            doing[drill.kill_once(draw)] += 1
    finally:
        stop.set()
        writer.join()
    drill.finish()
    drill.run_undisturbed()
    return drill, doing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_slots", help="M,BLOCKS: users count in a few slots only")
    parser.add_argument("--folder", help="a new folder to work in, which is kept")
    given = parser.parse_args()
    limit = Limit(*map(int, given.max_slots.split(","))) if given.max_slots else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        drill, doing = run_drill(Path(given.folder or temporary), given.kills, given.seed, limit)
        figures = drill.check()
    print(f"{given.kills} kills in {time.monotonic() - began:.0f} s, in the midst of:")
    for what, number in sorted(doing.items(), key=lambda item: -item[1]):
        print(f"  {number:3} {what}")
    return tell(figures, drill.faults)


if __name__ == "__main__":
    raise SystemExit(main())

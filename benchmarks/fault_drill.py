"""What the world does to the folder of a stream, fault by fault, and what became of the stream.

    python benchmarks/fault_drill.py --faults=200

A stream with `--state` is released slot by slot. Before a slot one fault happens: a kill, an old
copy of the folder, a deleted one, a full disk, input that is gone, a wrong clock, a bit that
flipped. The run must then refuse, with one line that names what is wrong, or release what is due.
The fault is mended, and the stream goes on. After every fault:

- lost: slots that are due and not released, or changed after readers could see them;
- doubled: slots that were released twice, or not as by one undisturbed run with the same key;
- overspent: windows of a class that cost more than its users asked for, added up from the ledger;
- unclear: a fault that should be refused and was not, or whose line does not name it;
- tracebacks: output that is one.

Faults that stand for a disk come from Python's audit hooks, so nothing has to be mounted. Each run
is a process of its own, forked after the imports. Exit code 0 if all of that is zero.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import errno
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _drill import overspent

from streamveil.mechanisms.core.records import format_time, parse_time
from streamveil.pipelines import main
from streamveil.pipelines.commands import release  # noqa: F401  the runs import nothing more

START = parse_time("2024-01-01T00:00:00Z")
SECOND = 1_000_000
DAY = 86_400 * SECOND
BINS = "abc"
CLASSES = [(1, 0.5), (3, 1.0), (7, 2.0)]
USERS = [f"user{i}" for i in range(30)]
MOST_STEPS = 36  # operations by which a pass changes files, about
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}

# What a command says of a refusal, but not how far it has come.
_ERROR = re.compile(r"streamveil \w+: (?![\d,]+ events? read)")

Step = Callable[[], None]
COLUMNS = ("tried", "refused", "went on", "lost", "doubled", "overspent", "unclear", "tracebacks")


@dataclass(frozen=True)
class Outcome:
    """What a run said, and how it ended."""

    code: int
    """Of the process; -9 if it was killed."""
    text: str
    """All that it printed, without warnings of the log."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to a stream."""

    kind: str
    words: Sequence[str] = ()
    """Of the refusal: one of them must be there."""
    options: Sequence[str] = ()
    """Of the run that it happens to, in place of the usual ones."""
    in_run: Step | None = None
    """Happens at a random operation on a file of the run, and in all after it."""
    once: bool = False
    """Whether only at the first of them."""
    resume: bool = True


@dataclass
class Drill:
    """A stream, all of whose events are known from the start."""

    folder: Path
    draw: random.Random
    slots: int
    done: int = 0
    """Slots that are due."""
    once: list[dict[str, Any]] = field(default_factory=list)
    """Releases of one undisturbed run."""
    seen: dict[str, bytes] = field(default_factory=dict)
    """Results that readers could see."""
    table: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults_found: list[str] = field(default_factory=list)

    def path(self, *names: str) -> Path:
        """Path of something in the folder."""
        return self.folder.joinpath(*names)

    # ---- the stream ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Users, a key, the events of all slots, and what an undisturbed run makes of them."""
        for name in ("events", "all", "results", "once"):
            self.path(name).mkdir()
        asked = zip(USERS, itertools.cycle(CLASSES), strict=False)
        rows = [f"{user},{window},{epsilon}" for user, (window, epsilon) in asked]
        self.path("users.csv").write_text("\n".join(["user,window,epsilon", *rows]) + "\n")
        self.path("key").write_text("5e" * 32)
        self.path("key").chmod(0o600)
        for slot in range(self.slots):
            lines = ["user,value,time"]
            for user in self.draw.sample(USERS, 20):
                at = START + (slot + self.draw.choice((0, 0, 1))) * SECOND
                lines.append(f"{user},{self.draw.choice(BINS)},{format_time(at)}")
            self.path("all", f"{slot:05}.csv").write_text("\n".join(lines) + "\n")
        outcome = self.run([], folder="once", pattern="all/*.csv", state=False)
        if outcome.code:
            raise RuntimeError(outcome.text)
        self.once = self.rows("once", "releases.jsonl")

    def advance(self) -> None:
        """The file of one more slot appears, and the slot is over."""
        name = f"{self.done:05}.csv"
        shutil.copy2(self.path("all", name), self.path("events", name))
        self.done += 1
        self.clock(START + self.done * SECOND)

    def clock(self, now: int) -> None:
        """Set the clock of the stream."""
        self.path("clock").write_text(format_time(now))

    def run(
        self,
        options: Sequence[str],
        *,
        folder: str = "results",
        pattern: str = "events/*.csv",
        state: bool = True,
        resume: bool = True,
        hook: Callable[[str, tuple[Any, ...]], None] | None = None,
    ) -> Outcome:
        """One run, in a process of its own."""
        usual = {
            "input": self.path(pattern),
            "output": self.path(folder, "releases.jsonl"),
            "ledger": self.path(folder, "ledger.jsonl"),
            "rejected": self.path(folder, "rejected.jsonl"),
            "user_column": "user",
            "value_column": "value",
            "time_column": "time",
            "slot": "1s",
            "start": format_time(START),
            "end": format_time(START + self.slots * SECOND),
            "domain": ",".join(BINS),
            "requirements": self.path("users.csv"),
            "noise_key": f"file:{self.path('key')}",
            "max_rejected": 1,
            "layout": "rows",
        }
        if state:
            usual |= {"state": self.path("state"), "clock_file": self.path("clock")}
        given = dict(option.partition("=")[::2] for option in options)
        arguments = [f"--{name}={value}" for name, value in {**usual, **given}.items()]
        if state and resume and self.path("state", "manifest.json").exists():
            arguments.append("--resume")
        return self._forked(["release", *arguments], hook)

    def _forked(
        self, arguments: list[str], hook: Callable[[str, tuple[Any, ...]], None] | None
    ) -> Outcome:
        log = self.path("log")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                if hook is not None:
                    sys.addaudithook(hook)
                code = main.main(arguments)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            traceback.print_exc()
            os._exit(70)
        _, status = os.waitpid(child, 0)
        lines = log.read_text().splitlines()
        return Outcome(
            os.waitstatus_to_exitcode(status),
            "\n".join(line for line in lines if not line.startswith("WARNING ")),
        )

    def rows(self, folder: str, pattern: str) -> list[dict[str, Any]]:
        """Rows of some files, in the order of their names."""
        return [
            json.loads(line)
            for path in sorted(self.path(folder).glob(pattern))
            for line in path.read_text().splitlines()
        ]

    # ---- a fault -------------------------------------------------------------------------------

    def suffer(self, fault: Fault, mend: Step) -> None:
        """Let a run meet it, mend it, let the stream go on, and take note of what came of it."""
        row = self.table[fault.kind]
        row["tried"] += 1
        hook = self._hook(fault) if fault.in_run else None
        outcome = self.run(fault.options, hook=hook, resume=fault.resume)
        refused = outcome.code != 0
        row["refused" if refused else "went on"] += 1
        errors = [line for line in outcome.text.splitlines() if _ERROR.match(line)]
        unclear = outcome.code >= 0 and (
            (not fault.in_run and not refused)
            or (refused and len(errors) != 1)
            or (refused and not any(word in errors[0] for word in fault.words))
        )
        self._count(fault, "unclear", unclear, outcome.text)
        self._count(fault, "tracebacks", "Traceback" in outcome.text, outcome.text)
        mend()
        self.look(fault)

    def go_on(self, fault: Fault) -> None:
        """A run without a fault: what is due is released."""
        outcome = self.run([])
        self._count(fault, "unclear", outcome.code != 0, f"after it was mended: {outcome.text}")
        self.look(fault)
        missing = self.done - len(self.rows("results", "releases-*.jsonl"))
        self._count(fault, "lost", missing > 0, f"{missing} slots are lost")

    def look(self, fault: Fault) -> None:
        """Compare all that readers can see with the undisturbed run."""
        changed = [
            name
            for name, content in self.seen.items()
            if not (path := self.path("results", name)).exists() or path.read_bytes() != content
        ]
        self._count(fault, "lost", bool(changed), f"changed or gone: {changed}")
        self.seen |= {p.name: p.read_bytes() for p in self.path("results").glob("[!.]*-*")}
        releases = self.rows("results", "releases-*.jsonl")
        wrong = releases != self.once[: len(releases)] or len(releases) > self.done
        self._count(fault, "doubled", wrong, "not as the undisturbed run")
        ledger = self.rows("results", "ledger-*.jsonl")
        for window, epsilon in CLASSES:
            spent = [
                (row["slot"], row["spent"])
                for row in ledger
                if (row["window"], row["epsilon"]) == (window, epsilon)
            ]
            found = overspent(spent, window, epsilon)
            self._count(fault, "overspent", bool(found), f"{found}")

    def _count(self, fault: Fault, column: str, wrong: bool, what: str) -> None:
        if wrong:
            self.table[fault.kind][column] += 1
            self.faults_found.append(
                f"{fault.kind}, {column}: {' or '.join(fault.words)}: ...{what[-400:]}"
            )

    def _hook(self, fault: Fault) -> Callable[[str, tuple[Any, ...]], None]:
        """What makes the fault happen at a random operation on a file of the stream."""
        at, numbers = self.draw.randrange(MOST_STEPS), itertools.count()
        ours = tuple(str(self.path(name)) for name in ("state", "results"))
        step, once = fault.in_run, fault.once
        assert step is not None

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            written = event in WRITES or (event == "open" and _writes(arguments))
            if not written or not str(arguments[0]).startswith(ours):
                return
            number = next(numbers)
            if number == at or (number > at and not once):
                step()

        return hook

    # ---- the faults ----------------------------------------------------------------------------

    def kill(self) -> None:
        """A kill at any moment of a pass."""
        fault = Fault("kill -9", in_run=lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.suffer(fault, _nothing)
        self.go_on(fault)

    def refuse_writes(self) -> None:
        """A disk that is full, or read-only, from some moment of a pass on."""
        number, kind = self.draw.choice(
            [(errno.ENOSPC, "full disk"), (errno.EROFS, "read-only disk"), (errno.EIO, "bad disk")]
        )

        def refuse() -> None:
            raise OSError(number, os.strerror(number), str(self.path("state")))

        fault = Fault(kind, ["No space left", "Read-only", "Input/output error"], in_run=refuse)
        self.suffer(fault, _nothing)
        self.go_on(fault)

    def replace_folder(self) -> None:
        """The folder is moved away while a run holds it, and an empty or old one has its name."""
        copy, away = self.path("copy"), self.path("away")
        shutil.copytree(self.path("state"), copy)
        empty = self.draw.random() < 0.5

        def replace() -> None:
            os.rename(self.path("state"), away)
            if empty:
                os.mkdir(self.path("state"), 0o700)
            else:
                os.rename(copy, self.path("state"))

        def mend() -> None:
            if away.exists():
                shutil.rmtree(self.path("state"), ignore_errors=True)
                away.rename(self.path("state"))
            shutil.rmtree(copy, ignore_errors=True)

        fault = Fault(
            "replaced folder",
            [
                "replaced while this run used it",
                "No such file",
                "has no state to resume",
            ],
            in_run=replace,
            once=True,
        )
        self.suffer(fault, mend)
        self.go_on(fault)

    def old_copy(self) -> None:
        """A backup is put back: of the folder, or of its manifest alone."""
        backup = self.path("backups", f"{self.draw.choice(self.backups[:-1]):05}")
        state, newest = self.path("state"), self.path("newest")
        shutil.copytree(state, newest)
        moved = []
        if self.draw.random() < 0.5:
            shutil.rmtree(state)
            shutil.copytree(backup, state)
            words = ["an old copy of the folder was put back"]
            if self.draw.random() < 0.5:  # nothing but the witness is left to tell
                moved = self._archive()
        else:
            shutil.copy2(backup / "manifest.json", state / "manifest.json")
            words = ["is older: it is at pass"]

        def mend() -> None:
            self._put_back(newest, moved)

        self.suffer(Fault("rollback", words), mend)

    def deleted(self) -> None:
        """The folder is deleted, and somebody begins anew with the same outputs."""
        newest = self.path("newest")
        self.path("state").rename(newest)
        moved = self._archive() if self.draw.random() < 0.5 else []
        witness = self.path("results", ".releases.jsonl.witness")
        kept = witness.read_bytes()
        if not moved and self.draw.random() < 0.5:
            witness.unlink()
        words = ["bring its folder back", "restore that folder"]

        def mend() -> None:
            self._put_back(newest, moved)
            witness.write_bytes(kept)

        self.suffer(Fault("deleted state", words, resume=self.draw.random() < 0.5), mend)

    def _archive(self) -> list[Path]:
        """Move all results away."""
        self.path("archive").mkdir(exist_ok=True)
        return [
            path.rename(self.path("archive", path.name))
            for path in self.path("results").glob("[!.]*")
        ]

    def _put_back(self, newest: Path, moved: Sequence[Path]) -> None:
        shutil.rmtree(self.path("state"), ignore_errors=True)
        newest.rename(self.path("state"))
        for path in moved:
            path.rename(self.path("results", path.name))

    def input_gone(self) -> None:
        """Input is not there, or is not what it was."""
        events, newest = self.path("events"), self.path("events", f"{self.done - 2:05}.csv")
        away = self.path("events-away")
        whole = newest.read_bytes()
        times = newest.stat()
        case = self.draw.choice(["folder", "empty", "pattern", "waiting", "longer", "other"])
        words, options = ["the input is missing"], []
        if case in ("folder", "empty"):
            events.rename(away)
            if case == "empty":
                events.mkdir()
        elif case == "pattern":
            options = [f"input={self.path('event', '*.csv')}"]
        elif case == "waiting":
            newest.unlink()
        else:
            words = ["when it was read", "since it was read"]
            newest.write_bytes(whole + b"\n" if case == "longer" else whole.replace(b"a", b"b"))

        def mend() -> None:
            if away.exists():
                shutil.rmtree(events, ignore_errors=True)
                away.rename(events)
            newest.write_bytes(whole)
            os.utime(newest, ns=(times.st_atime_ns, times.st_mtime_ns))

        self.suffer(Fault("missing input", words, options), mend)

    def wrong_clock(self) -> None:
        """A clock that is ahead, went back, or says nothing."""
        machine = parse_time(self._now())
        text, words = self.draw.choice(
            [
                (format_time(machine + 2 * DAY), ["days ahead of the clock of this machine"]),
                (format_time(machine + 400 * DAY), ["days ahead of the clock of this machine"]),
                (format_time(START - 2 * DAY), ["the clock went back, or it was far ahead then"]),
                ("1970-01-01T00:00:00Z", ["the clock went back, or it was far ahead then"]),
                ("", ["gives no time"]),
                ("soon", ["gives no time"]),
            ]
        )
        self.path("clock").write_text(text)
        self.suffer(Fault("wrong clock", words), lambda: self.clock(START + self.done * SECOND))

    def _now(self) -> str:
        return dt.datetime.now(dt.timezone.utc).isoformat()

    def corrupt(self) -> None:
        """A file of the state is cut, lost, or has another bit."""
        files = [path for path in self.path("state").rglob("*") if path.is_file()]
        files = [path for path in files if path.parent.name != "state" or "manifest" in path.name]
        files = [p for p in files if p.name != "manifest.json" or p.parent == self.path("state")]
        path = self.draw.choice([*files, self.path("results", ".releases.jsonl.witness")])
        whole = path.read_bytes()
        case = self.draw.choice(["bit", "cut", "gone"])
        is_witness = path.suffix == ".witness"
        if case == "bit" or is_witness:
            first = whole.rindex(b"\n", 0, -1) + 1 if is_witness and whole.count(b"\n") > 1 else 0
            changed = bytearray(whole)
            changed[self.draw.randrange(first, len(whole))] ^= 1 << self.draw.randrange(8)
            path.write_bytes(changed)
        elif case == "cut":
            path.write_bytes(whole[: self.draw.randrange(len(whole))])
        else:
            path.unlink()
        words = ["backup", "put back the copy that the pass keeps", "another stream"]
        resume_missing = path.name == "manifest.json" and case == "gone"
        if resume_missing:
            words.append("recorded slots")

        def mend() -> None:
            path.write_bytes(whole)

        self.suffer(Fault("corrupt file", words), mend)

    def wrong_options(self) -> None:
        """Options of another stream."""
        option, words = self.draw.choice(
            [
                ("slot=2s", ["--slot=2s"]),
                ("domain=a,b", ["the bins"]),
                ("mechanism=pba", ["the mechanism"]),
                ("start=2024-01-01T00:00:01Z", ["--start"]),
                ("max_contributions=2", ["contributions of a user"]),
                ("value_column=user", ["the columns"]),
            ]
        )
        self.suffer(Fault("other options", words, [option]), _nothing)

    @property
    def backups(self) -> list[int]:
        """Slots that a backup was made before."""
        return sorted(int(path.name) for path in self.path("backups").iterdir())

    def back_up(self) -> None:
        """Copy the folder as it is."""
        shutil.copytree(self.path("state"), self.path("backups", f"{self.done:05}"))


def _nothing() -> None:
    """There is nothing to mend."""


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 else 0
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def rounds(drill: Drill, faults: int) -> Iterator[str]:
    """Make the faults: of those that change a run one to a slot, of the others some."""
    in_runs = itertools.cycle(
        [drill.kill, drill.refuse_writes, drill.kill, drill.refuse_writes, drill.replace_folder]
    )
    before = itertools.cycle(
        [
            *(drill.old_copy, drill.deleted, drill.input_gone, drill.wrong_clock, drill.corrupt),
            *(drill.wrong_options, drill.corrupt, drill.input_gone),
        ]
    )
    made = 0
    while made < faults:
        drill.advance()
        for _ in range(min(2, faults - made - 1)):
            next(before)()
            made += 1
        next(in_runs)()
        made += 1
        if drill.done % 3 == 0:
            drill.back_up()
        yield f"{made} faults"


def tell(table: dict[str, Counter[str]]) -> str:
    """The table as text."""
    total: Counter[str] = Counter()
    for row in table.values():
        total.update(row)
    lines = [f"{'fault':16}" + "".join(f"{name:>11}" for name in COLUMNS)]
    for kind, row in [*sorted(table.items()), ("all", total)]:
        lines.append(f"{kind:16}" + "".join(f"{row[name]:>11}" for name in COLUMNS))
    return "\n".join(lines)


def run(folder: Path, faults: int, seed: int) -> Drill:
    """The whole drill."""
    draw = random.Random(seed)
    drill = Drill(folder, draw, slots=faults // 3 + 8)
    drill.prepare()
    drill.path("backups").mkdir()
    for _ in range(2):
        drill.advance()
        drill.go_on(Fault("none"))
        drill.back_up()
    drill.table.clear()
    for progress in rounds(drill, faults):
        print(f"\r{progress}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return drill


def command() -> int:
    """Read the options, run the drill, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drill = run(Path(folder), given.faults, given.seed)
    print(tell(drill.table))
    for fault in drill.faults_found:
        print(f"FAULT: {fault}")
    return 1 if drill.faults_found else 0


if __name__ == "__main__":
    raise SystemExit(command())

"""A local run that goes on: slots are released as they close, in passes over a committed state.

Local runners keep no checkpoints. So every pass is a small bounded pipeline over the slots that
closed since the last one; it starts from the state that the last one left, and its results count
once the folder of the state says so (`io/snapshot.py`). A pass that dies before that is run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import InputFile, Snapshot, StateFolder, check_outputs, is_stream, list_files
from streamveil.mechanisms.records import (
    ConfigurationError,
    format_time,
    parse_duration,
    parse_time,
)
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.keys import KeyFile
from streamveil.pipelines.launch import Summary
from streamveil.pipelines.passes import PassJob, state_after
from streamveil.transforms import PrivateHistograms, metrics
from streamveil.transforms.due import Pass
from streamveil.transforms.keys import SameKey

_SECONDS_BETWEEN_LOOKS = 0.1

FOLLOW_OPTIONS = ("state", "resume", "restart_budget", "follow", "clock_file")


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run that keeps its state."""
    add = parser.add_argument
    add(
        "--state",
        metavar="FOLDER",
        help="release the slots that have closed, keep the state in this folder, and write "
        "results to numbered files beside the names of the outputs",
    )
    add(
        "--resume",
        nargs="?",
        const="true",
        default="false",
        metavar="true|false",
        help="go on from the state in the folder",
    )
    add(
        "--restart_budget",
        nargs="?",
        const="true",
        default="false",
        metavar="true|false",
        help="with --resume and --guarantee=infinite: grant the whole budget once more, from the "
        "next slot on; users lose epsilon AGAIN, and every later release says `restarts`",
    )
    add(
        "--follow",
        metavar="INTERVAL",
        help="with --state: look again for files and closed slots after so long (10s, 1m), "
        "up to --end or Ctrl-C",
    )
    add(
        "--clock_file",
        metavar="FILE",
        help="with --state: take the time that closes slots from this file, ISO 8601, in place "
        "of the machine's clock",
    )


@dataclass(frozen=True)
class Clock:
    """The time that closes slots: the machine's, or what a file says."""

    file: str | None = None

    def __call__(self) -> int:
        """Microseconds since the epoch. Raises ConfigurationError for a file without a time."""
        if self.file is None:
            return time.time_ns() // 1000
        try:
            with open(self.file, encoding="utf-8") as file:
                return parse_time(file.read())
        except (OSError, UnicodeDecodeError, ConfigurationError) as error:
            raise ConfigurationError(
                f"--clock_file={self.file} gives no time: {error}: write one such as "
                "2024-05-01T12:00:00Z to a file beside it and rename it into place"
            ) from None


@dataclass(frozen=True)
class Following:
    """When slots are released, and where the state is."""

    state: str
    resume: bool
    restart: bool
    """Whether a budget for ever is granted once more before the first pass."""
    interval: int | None
    """Microseconds between two looks; None for one pass."""
    lateness: int
    """Microseconds from the end of a slot until it closes."""
    clock: Clock

    @classmethod
    def of(cls, given: Any, own: Any) -> Following | None:
        """Read the options of the job and of :func:`add_follow_options`; None without a state.

        Raises ConfigurationError.
        """
        resume = is_true("resume", own.resume)
        restart = is_true("restart_budget", own.restart_budget)
        if restart and not resume:
            raise ConfigurationError(
                "--restart_budget is for a stream that goes on: give --state and --resume"
            )
        if not own.state:
            for name in ("follow", "clock_file"):
                if getattr(own, name) is not None:
                    raise ConfigurationError(f"--{name} needs a folder for the state: --state")
            if resume:
                raise ConfigurationError("--resume needs the folder of the state: --state")
            return None
        follow = own.follow
        return cls(
            own.state,
            resume,
            restart,
            None if follow is None else _duration("follow", follow, least=1),
            _duration("allowed_lateness", given.allowed_lateness),
            Clock(own.clock_file),
        )

    @property
    def unrestarted(self) -> Following:
        """The same after the budget was granted once more."""
        return dataclasses.replace(self, restart=False)


def _duration(name: str, text: str, least: int = 0) -> int:
    micros = parse_duration(text)
    if micros is None or micros < least:
        above = " above 0" if least else ""
        raise ConfigurationError(
            f"--{name}={text} is not a whole number{above} with a unit: write 10s, 5m or 2h"
        )
    return micros


@dataclass(frozen=True)
class Follow:
    """A stream of releases, made in passes."""

    input: str
    outputs: Mapping[str, str]
    """`releases`, and `ledger` and `rejected` if wanted, to the names that the user gave."""
    transform: PrivateHistograms
    """For the whole stream."""
    following: Following
    folder: StateFolder

    def run(self, options: PipelineOptions) -> None:
        """Release what has closed; then look again, if asked to follow, until the end.

        Raises ConfigurationError and what a pass raises; passes before it stay committed.
        """
        snapshot, key = self._start()
        keyed = dataclasses.replace(
            self, transform=dataclasses.replace(self.transform, noise_key=key)
        )
        interval, last = self.following.interval, self.transform.last_slot
        with _stopping(gently=interval is not None) as stopped_within:
            while True:
                before, snapshot = snapshot, keyed._advance(snapshot, options)
                if snapshot is not before:
                    keyed = dataclasses.replace(keyed, following=self.following.unrestarted)
                if interval is None and snapshot is before:
                    print("no slot has closed that was not released: nothing to do")
                if interval is None or (last is not None and snapshot.next_slot > last):
                    return
                if stopped_within(interval / 1e6):
                    return

    def _start(self) -> tuple[Snapshot, Any]:
        """The state to go on from, or a new one that is committed, and the noise key."""
        self._refuse_streams()
        snapshot, first = self._resumed(), self.transform.first_slot
        check_outputs(list(self._targets(1 + (snapshot.passes if snapshot else 0)).values()))
        key = self.transform.noise_key or KeyFile(self.folder.key(create=snapshot is None))
        checks = SameKey.of(key).check
        later = tuple((slot, check.hex()) for slot, check in checks.later)
        if snapshot is None:
            if first is None:
                raise ConfigurationError("--start is missing: a stream with --state needs it")
            snapshot = Snapshot(first, first, checks.first.hex(), later_keys=later)
            self.folder.commit(snapshot)
        else:
            keyed = Snapshot(0, snapshot.next_slot, checks.first.hex(), later_keys=later)
            self._refuse_other_keys(snapshot, keyed)
            snapshot = dataclasses.replace(snapshot, later_keys=later)
        # Refuses other options than the state was written with, before anything is read.
        dataclasses.replace(
            self.transform,
            noise_key=key,
            first_slot=snapshot.next_slot,
            last_slot=None,
            resume=self._state(snapshot),
        )
        return snapshot, key

    def _refuse_other_keys(self, snapshot: Snapshot, keyed: Snapshot) -> None:
        """Refuse other keys than those of the slots that are released."""
        where = f"--state={self.following.state}"
        if keyed.key_check != snapshot.key_check:
            raise ConfigurationError(
                f"the noise key is not the one that the stream of {where} began with: give that "
                "one (--noise_key)"
            )
        if keyed.used_keys != snapshot.used_keys:
            when = format_time(self.transform.slots.start(snapshot.next_slot))
            raise ConfigurationError(
                f"the noise keys are not those that the stream of {where} has used: give those "
                "(--noise_key); another key can only take their place from slot "
                f"{snapshot.next_slot}, of {when}, on"
            )

    def _refuse_streams(self) -> None:
        for name, place in {"input": self.input, **self.outputs}.items():
            if is_stream(place):
                raise ConfigurationError(
                    f"{name} {place} is not files, and --state makes passes over files: give a "
                    "glob, or leave --state to a runner that keeps checkpoints"
                )

    def _resumed(self) -> Snapshot | None:
        """The state to go on from, as the user said; None to begin."""
        where, resume = f"--state={self.following.state}", self.following.resume
        snapshot, first = self.folder.read(), self.transform.first_slot
        if snapshot is None and resume:
            raise ConfigurationError(
                f"{where} holds no state to resume: name the folder of the earlier run, or leave "
                "--resume out to begin a stream whose users have spent nothing yet"
            )
        if snapshot is None or not (resume or snapshot.passes):  # nothing was released
            return None
        if not resume:
            raise ConfigurationError(
                f"{where} holds the state of a stream: go on from it with --resume, or name "
                "another folder to begin anew, which spends the users' budgets again"
            )
        if first not in (None, snapshot.first_slot):
            begun = format_time(self.transform.slots.start(snapshot.first_slot))
            raise ConfigurationError(
                f"--start is not in the slot that the stream began with, that of {begun}: give "
                "that time, or leave --start out"
            )
        return snapshot

    def _state(self, snapshot: Snapshot) -> bytes | None:
        if not snapshot.passes:
            return None
        return state_after(self.folder.of_pass(snapshot.passes))[1]

    def _going_on(self, snapshot: Snapshot) -> bytes | None:
        """The state that a pass starts from."""
        state = self._state(snapshot)
        if state is None or not self.following.restart:
            return state
        return self.transform.restarted(state)

    def _targets(self, number: int) -> dict[str, str]:
        """Where readers look for the results of a pass, by kind."""
        targets = {}
        for kind, path in self.outputs.items():
            root, extension = os.path.splitext(os.path.abspath(path))
            place = os.path.dirname(root)
            if "://" in path or (os.path.isdir(place) and not self.folder.beside(place)):
                raise ConfigurationError(
                    f"{path} is not on the filesystem of --state={self.following.state}, from "
                    "where files are renamed: put both on one"
                )
            targets[kind] = f"{root}-{number:08d}{extension}"
        return targets

    def _advance(self, snapshot: Snapshot, options: PipelineOptions) -> Snapshot:
        """Release and commit all slots that have closed; gives what is committed then."""
        slots, end = self.transform.slots, self.transform.last_slot
        closed = slots.index(self.following.clock() - self.following.lateness) - 1
        until = closed if end is None else min(closed, end)
        if until < snapshot.next_slot:
            return snapshot
        found = self._input_files(snapshot)  # after the clock was read: what comes later is late
        number = snapshot.passes + 1
        targets = self._targets(number)
        check_outputs(list(targets.values()))
        job = PassJob(
            due=Pass(snapshot.first_slot, snapshot.next_slot, until),
            transform=self.transform,
            fresh=[path for path in found if path not in snapshot.inputs],
            again=[
                path
                for path, known in snapshot.inputs.items()
                if path in found and known.waiting is not None and known.waiting <= until
            ],
            folder=self.folder.begin(number),
            results={kind: kind + os.path.splitext(path)[1] for kind, path in targets.items()},
            resume=self._going_on(snapshot),
        )
        summary = job.run(options)
        waiting = job.waiting()
        read = {*job.fresh, *job.again}
        committed = Snapshot(
            snapshot.first_slot,
            until + 1,
            snapshot.key_check,
            number,
            {job.results[kind]: target for kind, target in targets.items()},
            {
                path: InputFile(size, waiting.get(path)) if path in read else snapshot.inputs[path]
                for path, size in found.items()
            },
            snapshot.later_keys,
        )
        self.folder.commit(committed)
        self._tell(job.due, summary, targets)
        return committed

    def _input_files(self, snapshot: Snapshot) -> dict[str, int]:
        """Size of each input file that is there, by path, the known ones unchanged."""
        found = {}
        for file in list_files(self.input):
            path = file.path if "://" in file.path else os.path.abspath(file.path)
            known = snapshot.inputs.get(path)
            if known is not None and known.size != file.size_in_bytes:
                raise ConfigurationError(
                    f"{path} had {known.size} bytes when it was read and has "
                    f"{file.size_in_bytes} now: bring it back as it was, and put new events into "
                    "files of their own, renamed into place when they are whole"
                )
            found[path] = file.size_in_bytes
        return found

    def _tell(self, due: Pass, summary: Summary, targets: Mapping[str, str]) -> None:
        slots, counted = self.transform.slots, summary.counters
        rejected = sum(
            number for name, number in counted.items() if name.startswith(metrics.REJECTED_PREFIX)
        )
        print(
            f"{format_time(slots.start(due.first_slot))} to "
            f"{format_time(slots.end(due.last_slot))}: "
            f"{due.last_slot - due.first_slot + 1:,} slots released, "
            f"{counted.get(metrics.EVENTS_ACCEPTED, 0):,} events accepted, {rejected:,} rejected, "
            f"{counted.get(metrics.EVENTS_LATE, 0):,} late; wrote {', '.join(targets.values())}",
            flush=True,
        )


@contextmanager
def _stopping(gently: bool) -> Iterator[Callable[[float], bool]]:
    """Gives a way to wait so many seconds, and to know whether Ctrl-C or SIGTERM came meanwhile.

    If `gently`, the first of these signals lets a pass end; the next one acts as ever.
    """
    asked = False
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        restore()

    def stopped_within(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))
        return asked

    if gently:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield stopped_within
    finally:
        restore()

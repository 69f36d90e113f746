"""A local run that goes on: slots are released as they close, in passes over a committed state.

A process keeps nothing when it ends. So every pass is a small bounded run over the slots that
closed since the last one; it starts from the state that the last one left, and its results count
once the folder of the state says so (`io/snapshot.py`). A pass that dies before that is run again.
"""

from __future__ import annotations

import dataclasses
import glob
import logging
import os
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamveil.engine import metrics
from streamveil.engine.count.loss_limit import tally_in
from streamveil.engine.encode.passes import Pass
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.noise_keys import SameKey
from streamveil.io import (
    LAYOUTS,
    UNREADABLE,
    CsvDialect,
    Snapshot,
    StateFolder,
    check_events,
    check_outputs,
    label_of,
    refuse_witness,
    witness_of,
)
from streamveil.io.filesystems import FoundFile
from streamveil.io.places import may_hold_files
from streamveil.io.snapshot import INBOX, OUTBOX
from streamveil.io.tables import remove_unfinished
from streamveil.mechanisms.core.local_days import CalendarSlots
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    InputLost,
    Lifetime,
    MachineFault,
    NothingChosen,
    Slots,
    format_duration,
    format_time,
)
from streamveil.pipelines.cards.facts import CLOCK as BY_CLOCK
from streamveil.pipelines.cards.files import IN_FOLDER, card_beside, read_card, write_card
from streamveil.pipelines.cards.launched import card_at_launch
from streamveil.pipelines.cards.promises import Record
from streamveil.pipelines.cards.statement import check_card_place
from streamveil.pipelines.cards.writing import after_choice, card_of_pass
from streamveil.pipelines.clocks import Clock
from streamveil.pipelines.close_by import CloseBy
from streamveil.pipelines.errors import in_one_line, may_pass, reason_of
from streamveil.pipelines.exporting import Exports
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.incoming import IGNORE, STOP, WAIT, Found, Incoming, InputMissing
from streamveil.pipelines.jobs import Told, refuse_streams
from streamveil.pipelines.keys import KeyFile
from streamveil.pipelines.live.board import Board
from streamveil.pipelines.live.history import History, of_releases
from streamveil.pipelines.live.server import serving
from streamveil.pipelines.live.warnings import Warnings
from streamveil.pipelines.logs import heard_by, tell
from streamveil.pipelines.monitor import Monitor, monitored
from streamveil.pipelines.options import SLOTS_PER_PASS
from streamveil.pipelines.overlaps import refuse_in_input, refuse_state_in_input
from streamveil.pipelines.passes import PassJob, state_after, users_after
from streamveil.pipelines.roll import Roll
from streamveil.pipelines.signals import ending, stopping
from streamveil.pipelines.summary import Summary, write_summary
from streamveil.pipelines.values import (
    CLOCK,
    check_summary,
    dialect_of,
    duration_of,
    page_address_of,
)

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.io import Inbox, Outbox

_LOGGER = logging.getLogger("streamveil")

# How long a machine is waited for, in seconds, before a pass is tried again.
_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
_STOPPED = "stopped by a signal: what is released is committed; go on with --resume"
_PUBSUB = "pubsub:"
# What goes to a topic, a message for each line of its file.
_PUBLISHED = ("releases", "revisions")
# A run that never ends must not grow.
_PASSES_TOLD = 1_000


@dataclass(frozen=True)
class Following:
    """When slots are released, and where the state is."""

    state: str
    resume: bool
    restart: int | None
    """Which grant of a budget forever, beyond the first, comes before the next pass."""
    interval: int | None
    """Microseconds from one look to the next, at most; None for one pass."""
    lateness: int
    """Microseconds from the end of a slot until it closes."""
    clock: Clock
    close_by: CloseBy
    """What closes a slot whose time is over."""
    exports: Exports
    """Where figures of the stream go."""
    missing: str = STOP
    """What happens when input is missing: see :class:`Incoming`."""
    most_slots: int = SLOTS_PER_PASS
    """That one pass releases."""
    serve: tuple[str, int] | None = None
    """Address and port of the page for operators; None for no page."""

    @classmethod
    def of(cls, given: Any) -> Following:
        """Read the options of the job and of `add_follow_options`; raises ConfigurationError."""
        return cls(
            given.state,
            is_true("resume", given.resume),
            given.restart_budget,
            None if given.follow is None else duration_of("follow", given.follow, least=1),
            duration_of("allowed_lateness", given.allowed_lateness),
            Clock(given.clock_file),
            CloseBy.of(given.close_by or CLOCK),
            Exports.of(given),
            given.missing_input or STOP,
            SLOTS_PER_PASS if given.slots_per_pass is None else given.slots_per_pass,
            page_address_of(given),
        )

    @property
    def unrestarted(self) -> Following:
        """The same after the budget was granted once more."""
        return dataclasses.replace(self, restart=None)


@dataclass
class Passes:
    """What became of the events in the passes of a run."""

    total: Summary = dataclasses.field(default_factory=Summary)
    last: deque[tuple[Pass, Summary]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_PASSES_TOLD)
    )
    told_of_users: bool = False
    """Whether it was said that releases contradict the guess of how many users there are."""

    def add(self, due: Pass, summary: Summary) -> None:
        """Take one more pass."""
        self.total = Summary.total([self.total, summary])
        self.last.append((due, summary))


@dataclass(frozen=True)
class Follow:
    """A stream of releases, made in passes."""

    input: str
    outputs: Mapping[str, str]
    """`releases`, and `revisions`, `ledger` and `rejected` if wanted, to the names that the user
    gave."""
    plan: UserPlan
    """For the whole stream."""
    following: Following
    folder: StateFolder
    monitor: Monitor
    command: str = "release"
    """What the run is called."""
    changes: str | None = None
    """Files with changes of requirements."""
    roll: Roll | None = None
    """Who is in the stream, and what changes with the next pass: once it is known."""
    layout: str = LAYOUTS[0]
    """Of the releases, and of the revisions."""
    summary: str | None = None
    """File for the figures of the passes of this run."""
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    card_place: str | None = None
    """Where the user wants the card."""
    passes: Passes = dataclasses.field(default_factory=Passes)
    """Those of this run."""
    board: Board | None = None
    """What is shown on the page of the run, if it has one."""
    inbox: Inbox | None = None
    """Where messages come, whose files are the input then."""
    outbox: Outbox | None = None
    """Where results wait for their topics, which are among the outputs then."""

    make_pass: ClassVar[type[PassJob]] = PassJob

    def run(self) -> None:
        """Release what has closed; then look again, if asked to follow, until the end.

        Raises ConfigurationError and what a pass raises; passes before it stay committed.
        """
        with self._shown() as board:
            dataclasses.replace(self, board=board)._run()

    def _run(self) -> None:
        snapshot, key, roll, following = self._start()
        slots, end = self.plan.slots, self.plan.last_slot
        if self.board is not None:
            self.board.begun({kind: self._numbered(kind) for kind in self._shown_kinds})
        self.monitor.begun(snapshot, slots, self.following.lateness, end)
        self._write_summary()
        plan = roll.plan_of(self.plan, key.source)
        stream = dataclasses.replace(self, plan=plan, roll=roll, following=following)
        if not snapshot.passes:
            stream._show_promise()
        interval, last = self.following.interval, self.plan.last_slot
        told, waits = None, iter(_WAITS)
        held = _until_ended(self.folder) if interval is None else stopping()
        with held as stopped_within:
            while True:
                before, waiting, again = snapshot, None, None
                try:
                    over, now = stream._over(snapshot)
                    stream._publish()  # what a killed process had committed
                    if not stream._receive(lambda: stopped_within(0)):
                        tell(_STOPPED)
                        return
                    for passed in stream._passes(snapshot, over, now, key):
                        stream, snapshot = passed
                        stream._settle(snapshot)
                        waits = iter(_WAITS)
                        if stopped_within(0):
                            break
                    waiting = stream._waits_for(snapshot, over)
                    waits = iter(_WAITS)
                except InputMissing as error:
                    if self.following.missing != WAIT:
                        raise
                    waiting = f"slots wait: {error}"
                except Exception as error:
                    again = next(waits, None) if self._may_try_again(error, snapshot) else None
                    if again is None:
                        raise
                    self._tell_of_fault(error, again)
                if again is not None:
                    if stopped_within(again):
                        tell(_STOPPED)
                        return
                    continue
                told = stream._end_of_look(waiting, told)
                if interval is None and snapshot is before and waiting is None:
                    tell("no slot has closed that was not released: nothing to do")
                if interval is None or (last is not None and snapshot.next_slot > last):
                    return
                # What waits for files may go on at any time; else no slot is due before it closes.
                closes = slots.end(snapshot.next_slot) + self.following.lateness
                wait = interval if waiting else self.following.clock.wait_for(closes, interval)
                if stopped_within(wait / 1e6):
                    tell(_STOPPED)
                    return

    def _may_try_again(self, error: Exception, snapshot: Snapshot) -> bool:
        """Whether the machine failed a pass of which nothing is committed."""
        if self.following.interval is None or not may_pass(error):
            return False
        with suppress(Exception):
            committed = self.folder.read()
            return committed is not None and committed.passes == snapshot.passes
        return False

    def _tell_of_fault(self, error: Exception, wait: float) -> None:
        """Say that the machine failed, and that the run tries again after so many seconds."""
        self.monitor.failed(error)
        ours = isinstance(error, ConfigurationError)
        tell(
            f"warning: {in_one_line(str(error)) if ours else reason_of(error)}: no slot is closed "
            f"by this; trying again in {wait:g} s",
            logging.WARNING,
        )

    @contextmanager
    def _shown(self) -> Iterator[Board | None]:
        """The board of the run, which is served while the block lasts; None if nobody asked."""
        address, interval = self.following.serve, self.following.interval
        if address is None or interval is None:
            yield None
            return
        warnings = Warnings()
        board = Board(
            self.command,
            self.plan.slots,
            self._histories(),
            lambda: self.monitor.status,
            self._told,
            warnings,
            interval,
            self.following.clock.file is not None,
        )
        with heard_by(warnings), serving(address, board):
            yield board

    def _histories(self) -> Sequence[History]:
        """What is shown of the slots that were released."""
        assert self.plan.plan_kind is not PlanKind.QUERIES
        series = of_releases(self.plan.slots, self.plan.domain.labels)
        revisions = "revisions" if "revisions" in self.outputs else None
        return [
            History(
                "counts", "Events in each bin.", "events", True, [series], "releases", revisions
            )
        ]

    @property
    def _shown_kinds(self) -> list[str]:
        """The outputs that the page shows: all but raw ones."""
        return [kind for kind in self.outputs if kind != "rejected"]

    def _end_of_look(self, waiting: str | None, told: str | None) -> str | None:
        """Say what the next slot waits for, unless that was told; gives what is told now."""
        waiting = waiting or self.following.clock.silence
        if waiting not in (None, told):
            tell(waiting)
        self.monitor.looked(waiting)
        return waiting

    def _start(self) -> tuple[Snapshot, SameKey, Roll, Following]:
        """The state to go on from, or a new one that is committed, the key, users and options."""
        self._refuse_streams()
        snapshot, first = self._resumed(), self.plan.first_slot
        self._refuse_unread(snapshot)
        if snapshot is not None:
            self._refuse_other_slots(snapshot)
        begun = first if snapshot is None else snapshot.first_slot
        if begun is not None:
            self.following.close_by.check(self.plan.slots, begun)
        passes = snapshot.passes if snapshot else 0
        if snapshot is None:
            refuse_witness(self._witness, self.folder.path)
        self._refuse_results_beyond(passes)
        check_outputs(list(self._targets(1 + passes).values()))
        self._refuse_in_input()
        if snapshot is None and self.plan.first_slot is None:
            raise ConfigurationError("--start is missing: a stream with --state needs it")
        key = SameKey.of(self.plan.noise_key or KeyFile(self.folder.key(create=snapshot is None)))
        snapshot = self._begun(key) if snapshot is None else self._known(snapshot, key)
        resume = self._state(snapshot)
        before = users_after(self.folder.of_pass(snapshot.passes))
        roll = Roll.of(self.plan, before, resume, bool(self.changes))
        whole = roll.plan_of(self.plan, key.source)
        # Refuses other options than the state was written with, before anything is read.
        dataclasses.replace(
            whole,
            first_slot=snapshot.next_slot,
            last_slot=None,
            resume=resume,
        )
        self._refuse_other_start(snapshot.first_slot)
        self._warn_of_no_revisions(snapshot)
        following = dataclasses.replace(self, plan=whole)._to_grant(resume)
        roll.tell(self.plan.slots, snapshot.next_slot)
        return snapshot, key, roll, following

    def _begun(self, key: SameKey) -> Snapshot:
        """The first state of a new stream, committed."""
        first = self.plan.first_slot
        assert first is not None
        keyed = self._keyed(first, key)
        begun = dataclasses.replace(
            keyed,
            stream=secrets.token_hex(16),
            witness=self._witness,
            slots=_described(self.plan.slots),
            until=self.plan.slots.start(first),
        )
        return self.folder.commit(begun, key().first)

    def _known(self, snapshot: Snapshot, key: SameKey) -> Snapshot:
        """The state of a stream that goes on, proven, with the keys that are given now."""
        keyed = self._keyed(snapshot.next_slot, key)
        self._refuse_other_keys(snapshot, keyed)
        proven = self.folder.recover(key().first, self._witness)
        self._show_card(proven)  # of a pass that was killed before it could
        return dataclasses.replace(proven, later_keys=keyed.later_keys)

    def _keyed(self, slot: int, key: SameKey) -> Snapshot:
        """A stream that begins in that slot, with these keys."""
        later = tuple((start, check.hex()) for start, check in key.check.later)
        return Snapshot(slot, slot, key.check.first.hex(), later_keys=later)

    @property
    def _witness(self) -> str:
        return witness_of(self._beside)

    @property
    def _beside(self) -> str:
        """That beside which witness and card are: the releases, or the folder of the state."""
        return str(self.folder.path) if "releases" in self._topics else self.outputs["releases"]

    @property
    def _topics(self) -> Mapping[str, str]:
        """The topics of results, by kind."""
        return {} if self.outbox is None else self.outbox.topics

    def _refuse_other_keys(self, snapshot: Snapshot, keyed: Snapshot) -> None:
        """Refuse other keys than those of the slots that are released."""
        where = f"--state={self.following.state}"
        if keyed.key_check != snapshot.key_check:
            remedy = (
                "give that one (--noise_key)"
                if self.plan.noise_key
                else "the one in the folder was damaged or exchanged, bring it back from a backup"
            )
            raise ConfigurationError(
                f"the noise key is not the one that the stream of {where} began with: {remedy}"
            )
        if keyed.used_keys != snapshot.used_keys:
            when = format_time(self.plan.slots.start(snapshot.next_slot))
            raise ConfigurationError(
                f"the noise keys are not those that the stream of {where} has used: give those "
                "(--noise_key); another key can only take their place from slot "
                f"{snapshot.next_slot}, of {when}, on"
            )

    def _refuse_in_input(self) -> None:
        """Refuse results of passes that the next pass would read."""
        written = [
            *(path for number in (1, 2) for path in self._targets(number).values()),
            *(self.summary, self._card),
        ]
        refuse_in_input([self.input, self.changes], written)

    def _refuse_streams(self) -> None:
        inputs = {"input": self.input, "requirement_changes": self.changes}
        refuse_streams({**inputs, **self.outputs})

    def _refuse_unread(self, snapshot: Snapshot | None) -> None:
        """Refuse to leave messages behind that an earlier run has acknowledged."""
        if self.inbox is not None:
            return
        known = {} if snapshot is None else snapshot.inputs
        for path in sorted(map(str, self.folder.path.glob(f"{INBOX}/*.parquet"))):
            if path not in known or known[path].waiting is not None:
                raise ConfigurationError(
                    f"{path} has messages of Pub/Sub that no pass has counted: go on with "
                    "--input=pubsub: as before, or move the file away, and those events are lost"
                )
        shutil.rmtree(self.folder.path / INBOX, ignore_errors=True)

    def _publish(self) -> None:
        """Give topics what they have not got of what is committed."""
        if self.outbox is not None:
            self.outbox.publish()

    def _receive(self, stopped: Callable[[], bool]) -> bool:
        """Take in what was sent before now; False where stopped before that is done.

        Raises InputMissing where that cannot be done, unless it is ignored, and MachineFault for
        what may pass.
        """
        if self.inbox is None:
            return True
        missing = self.following.missing
        try:
            return self.inbox.receive(stopped)
        except (ConfigurationError, MachineFault) as error:
            problem = f"the input is missing: {error}"
            if missing == IGNORE:
                _LOGGER.warning("%s: released without it, as --missing_input=ignore says", problem)
                return True
            if isinstance(error, MachineFault) and missing == STOP:
                raise
            raise InputMissing(problem) from error

    def _settle(self, snapshot: Snapshot) -> None:
        """After a pass: give topics their results, and let go what is released of the inbox."""
        if self.inbox is not None:
            done = {path for path, file in snapshot.inputs.items() if file.waiting is None}
            self.inbox.forget(done)
        self._publish()

    def _resumed(self) -> Snapshot | None:
        """The state to go on from, as the user said; None to begin."""
        where, resume = f"--state={self.following.state}", self.following.resume
        snapshot = self.folder.read()
        if snapshot is None and resume:
            raise ConfigurationError(
                f"{where} holds no state to resume: name the folder of the earlier run, mount its "
                "disk, or bring back its newest backup; only a stream that never released anything "
                "may begin without --resume"
            )
        if snapshot is None or not (resume or snapshot.passes):  # nothing was released
            return None
        if not resume:
            raise ConfigurationError(
                f"{where} holds the state of a stream: go on from it with --resume, or name "
                "another folder to begin anew, which spends the users' budgets again"
            )
        return snapshot

    def _refuse_other_slots(self, snapshot: Snapshot) -> None:
        """Refuse slots that are cut otherwise, by what differs, before they are counted."""
        asked = _described(self.plan.slots)
        for name, before in snapshot.slots.items():
            if asked[name] == before:
                continue
            what = {
                "slot": self._slots_as_given,
                "slot_zone": f"--slot_zone={asked['slot_zone']}",
                "origin": f"slots that begin with {asked['origin']} (--origin, --start)",
            }[name]
            raise ConfigurationError(
                f"another configuration: the slots changed: {what}, but those of the stream of "
                f"--state={self.following.state} are of {name} {before}: give that, or begin a "
                "stream in another folder, which spends the users' budgets again"
            )

    @property
    def _slots_as_given(self) -> str:
        """How long slots are, as the user says it."""
        return f"--slot={format_duration(self.plan.slots.length)}"

    def _refuse_other_start(self, begun: int) -> None:
        if self.plan.first_slot not in (None, begun):
            when = format_time(self.plan.slots.start(begun))
            raise ConfigurationError(
                f"--start is not in the slot that the stream began with, that of {when}: give "
                "that time, or leave --start out"
            )

    def _warn_of_no_revisions(self, snapshot: Snapshot) -> None:
        """Say what it means that slots are revised no more."""
        before = any(os.path.splitext(name)[0] == "revisions" for name in snapshot.results)
        if before and "revisions" not in self.outputs:
            tell(
                "warning: the run before had --revise, and this one has not: slots that were still "
                "to be revised never will be",
                logging.WARNING,
            )

    def _state(self, snapshot: Snapshot) -> bytes | None:
        if not snapshot.passes:
            return None
        return state_after(self.folder.of_pass(snapshot.passes))[1]

    def _going_on(self, snapshot: Snapshot) -> bytes | None:
        """The state that a pass starts from."""
        state, restart = self._state(snapshot), self.following.restart
        if state is None or restart is None:
            return state
        assert self.plan.plan_kind is PlanKind.HISTOGRAMS
        return self.plan.restarted(state)

    def _to_grant(self, state: bytes | None) -> Following:
        """The options, without a grant of the budget that was made before, which is told.

        Whatever starts a command again, such as systemd, must not grant the budget again. Raises
        ConfigurationError for a grant that is not the next one.
        """
        restart = self.following.restart
        if restart is None:
            return self.following
        assert self.plan.plan_kind is PlanKind.HISTOGRAMS
        granted = 0 if state is None else self.plan.restarts(state)
        if restart == granted:
            tell(
                f"--restart_budget={restart}: that was granted before, and is not granted again; "
                f"the next one is {granted + 1}"
            )
            return self.following.unrestarted
        if restart != granted + 1 or state is None:
            raise ConfigurationError(
                f"--restart_budget={restart} is not the next grant of this stream: nothing is "
                "released, so its budget is whole; leave it out"
                if state is None
                else f"--restart_budget={restart} is not the next grant of this stream, whose "
                f"releases say restarts {granted}: give {granted + 1} if users are to lose epsilon "
                "once more, or leave it out"
            )
        return self.following

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
            if kind not in self._topics:
                self.folder.refuse_inside(path)
            targets[kind] = f"{root}-{number:08d}{extension}"
        return targets

    def _refuse_results_beyond(self, passes: int) -> None:
        """Refuse a state that is older than the results which are there."""
        for kind, path in self.outputs.items():
            extension = os.path.splitext(path)[1]
            for found in self._numbered(kind):
                if int(found.removesuffix(extension)[-8:]) > passes:
                    raise self._older_than(found, passes)

    def _numbered(self, kind: str) -> list[str]:
        """The results of passes that are there, in their order."""
        root, extension = os.path.splitext(os.path.abspath(self.outputs[kind]))
        # Passes have not come to eight digits, but dates have.
        return sorted(glob.glob(f"{glob.escape(root)}-0{'[0-9]' * 7}{glob.escape(extension)}"))

    def _older_than(self, result: str, passes: int) -> ConfigurationError:
        """Says of a result that is there that a state of so many passes knows nothing of it."""
        where = f"--state={self.following.state}"
        if not passes:
            return ConfigurationError(
                f"{result} exists already, but {where} knows of no pass: it is a result of "
                "a stream whose state is elsewhere; bring its folder back, or name it, and "
                "go on with --resume. If it is lost for good, begin a stream that shares "
                "no window with the released slots: a later --start, by the longest "
                "window that any user of either stream may ask for, another --state and another "
                "--output; a budget forever cannot be had again"
            )
        return ConfigurationError(
            f"{result} exists already, but {where} is at pass {passes}: an old copy "
            "of the folder was put back, and to go on from it would release slots again "
            "and spend the users' budgets again; bring back the newest one"
        )

    def _passes(
        self, snapshot: Snapshot, over: int, now: int, key: SameKey
    ) -> Iterator[tuple[Follow, Snapshot]]:
        """Release all slots that have closed, of those up to `over`, so many in a pass.

        Gives after every pass the stream that goes on and what is committed.
        """
        stream = self
        following, slots = self.following, self.plan.slots
        until = following.close_by.until(slots, snapshot.next_slot, over, now)
        while snapshot.next_slot <= until:
            last = min(until, snapshot.next_slot + following.most_slots - 1)
            snapshot = stream._pass(snapshot, last, key)
            stream = stream._gone_on(key)
            yield stream, snapshot

    def _gone_on(self, key: SameKey) -> Follow:
        """The same after a pass, which has taken what was new with the start."""
        assert self.roll is not None
        roll = self.roll.settled
        return dataclasses.replace(
            self,
            plan=roll.plan_of(self.plan, key.source),
            following=self.following.unrestarted,
            roll=roll,
        )

    def _pass(self, snapshot: Snapshot, until: int, key: SameKey) -> Snapshot:
        """Release and commit the slots up to one that has closed; gives what is committed then."""
        self.monitor.passing()
        # After the clock was read: what comes later is late.
        found = self._incoming.look(snapshot, self.plan.slots)
        self._refuse_behind(found)
        assert self.roll is not None
        number = snapshot.passes + 1
        targets = self._targets(number)
        for target in targets.values():  # all others were looked at when the run began
            if os.path.lexists(target):
                raise self._older_than(target, snapshot.passes)
        check_outputs(list(targets.values()))
        fresh = found.fresh(found.events)
        again = [
            path
            for path, known in found.known.items()
            if path in found.events and known.waiting is not None and known.waiting <= until
        ]
        plan = self.plan
        goes_on = self.following.interval is not None or self.inbox is not None
        if goes_on and snapshot.passes:
            # The options are right, and whoever sends events late must not hold a slot back.
            plan = dataclasses.replace(plan, max_rejected=1.0)
        job = self.make_pass(
            due=Pass(snapshot.first_slot, snapshot.next_slot, until),
            plan=plan,
            fresh=fresh,
            again=[path for path in again if not found.known[path].broken],
            broken=[path for path in again if found.known[path].broken],
            folder=self.folder.begin(number),
            results={kind: kind + os.path.splitext(path)[1] for kind, path in targets.items()},
            command=self.command,
            resume=self._going_on(snapshot),
            layout=self.layout,
            users=self.roll.users,
            moved=self.roll.moved(snapshot.next_slot),
            changes=found.fresh(found.changes),
            dialect=self.dialect,
            lenient=self.inbox is None
            and self.following.interval is not None
            and self._reads(fresh, found),
            messages=None if self.inbox is None else self.inbox.source,
        )
        self._warn_of_silence(job, found.events)
        read = {*fresh, *again, *job.changes}
        try:
            summary = job.run()
        except InputLost as error:
            self.passes.add(job.due, Summary.of_tally(tally_in(str(error))))
            self._write_summary()
            raise
        except NothingChosen:
            self.folder.commit(dataclasses.replace(snapshot, looked=True), key().first, snapshot)
            raise
        except Exception:
            self.folder.refuse_replaced()  # these say more than a file that was not found
            self._incoming.refuse_moved(found, read)
            raise
        self._incoming.refuse_moved(found, read)
        try:
            self._state_card(job, snapshot, number)
        except OSError:
            self.folder.refuse_replaced()  # this says more, as above
            raise
        waiting, broken = job.waiting(), job.unreadable()
        slots = self.plan.slots
        committed = dataclasses.replace(
            snapshot,
            next_slot=until + 1,
            passes=number,
            results={job.results[kind]: target for kind, target in targets.items()},
            inputs={
                path: found.read(path, waiting.get(label_of(path)), label_of(path) in broken)
                if path in read
                else found.known[path]
                for path in (*found.events, *found.changes)
            },
            witness=self._witness,
            slots=_described(slots),
            until=slots.end(until),
            apart=self._apart(until),
            mounts=found.mounts,
        )
        committed = self.folder.commit(committed, key().first, snapshot)
        self.passes.add(job.due, summary)
        if self.board is not None:
            self.board.wrote({kind: targets[kind] for kind in self._shown_kinds})
        self.monitor.passed(job.due, summary)
        self._write_summary()
        self._tell(job.due, summary, targets)
        self._show_card(committed)
        self._show(committed)
        return committed

    def _show(self, snapshot: Snapshot) -> None:
        """Show people what there is after a pass that is committed."""

    @property
    def _card(self) -> str:
        """Where readers look for the card of the stream."""
        return self.card_place or self._card_beside

    @property
    def _card_beside(self) -> str:
        """Where that is, if the user does not say it."""
        return card_beside(self._beside)

    def _state_card(self, job: PassJob, snapshot: Snapshot, number: int) -> None:
        """Write the card of the stream to the folder of a pass: it is committed with the pass."""
        assert self.roll is not None
        state = state_after(job.folder)[1]
        plan = after_choice(self.plan, job.due.last_slot + 1, state)
        before = self.folder.of_pass(snapshot.passes) / IN_FOLDER
        card = card_of_pass(
            self.command,
            plan,
            read_card(str(before)) if before.exists() else None,
            (job.due.first_slot, job.due.last_slot),
            number,
            {kind: (self._place(kind), job.folder / name) for kind, name in job.results.items()},
            begun=snapshot.first_slot,
            drawn=self.folder.has_key,
            grants=self._grants(state),
            changes=self.roll.changing,
        )
        write_card(str(job.folder / IN_FOLDER), card)

    def _place(self, kind: str) -> str:
        """Where results go, as the user gave it."""
        topic = self._topics.get(kind)
        return self.outputs[kind] if topic is None else f"pubsub:{topic}"

    def _grants(self, state: bytes) -> int:
        """How often the budget of a stream was granted again, up to a state."""
        whole = self.plan
        if whole.plan_kind is not PlanKind.HISTOGRAMS or whole.limits is not None:
            return 0
        return whole.restarts(state) if whole.population.requirements.forever else 0

    def _show_card(self, snapshot: Snapshot) -> None:
        """Give readers the card that the last pass left. That it cannot be is said."""
        kept = self.folder.of_pass(snapshot.passes) / IN_FOLDER
        if kept.exists():
            self._put_card(read_card(str(kept)))

    def _show_promise(self) -> None:
        """Give readers the card of a stream of which nothing is released."""
        assert self.roll is not None
        card = card_at_launch(
            self.command,
            self.plan,
            {},
            decided_by=BY_CLOCK,
            drawn=self.folder.has_key,
            changes=self.roll.changing,
        )
        self._put_card(card)

    def _put_card(self, card: Record) -> None:
        """Write it to where readers look. That it cannot be is said."""
        remove_unfinished(self._card)  # this run alone has the stream: a killed one left it
        try:
            write_card(self._card, card)
        except OSError as error:
            tell(
                f"warning: the card {self._card} cannot be written ({reason_of(error)}): the run "
                "goes on without it, and the next pass tries again",
                logging.WARNING,
            )

    @property
    def _incoming(self) -> Incoming:
        missing, may_be_empty = self.following.missing, self.inbox is not None
        return Incoming(self.input, self.changes, missing, may_be_empty)

    def _reads(self, fresh: Sequence[str], found: Found) -> bool:
        """Whether a file was read well, so that one that cannot be is not for wrong options."""
        if found.known.keys() & found.events.keys():
            return True
        for path in fresh:
            with suppress(ConfigurationError):
                check_events(glob.escape(path), self.plan.columns.names, dialect=self.dialect)
                return True
        return False

    def _apart(self, until: int) -> int | None:
        """From when on no user's window holds a slot up to that one."""
        registry = self.plan.registry
        if any(isinstance(one, Lifetime) for one in registry.classes):
            return None
        longest = getattr(self.plan, "longest_window", None) or 0
        return self.plan.slots.start(until + max(registry.classes.longest, longest))

    def _refuse_behind(self, found: Found) -> None:
        """Refuse a machine's clock that the newest of the files contradicts."""
        dated = [file for file in found.events.values() if file.last_updated_in_seconds]
        if dated:
            newest = max(dated, key=lambda file: file.last_updated_in_seconds)
            self.following.clock.check_files(self.following.clock(), _changed(newest), newest.path)

    def _over(self, snapshot: Snapshot) -> tuple[int, int]:
        """The last slot of the stream whose time is over, lateness included, and that of now."""
        following, slots, end = self.following, self.plan.slots, self.plan.last_slot
        clock = following.clock()
        following.clock.check(clock, snapshot.until, begun=snapshot.passes > 0)
        over = slots.index(clock - following.lateness) - 1
        return over if end is None else min(over, end), slots.index(clock)

    def _waits_for(self, snapshot: Snapshot, over: int) -> str | None:
        """What the next slot waits for, if it is of those up to `over`, whose time is over."""
        if self.following.close_by.rule == CLOCK or over < snapshot.next_slot:
            return None
        return self.following.close_by.waits_for(self.plan.slots, snapshot.next_slot, over)

    def _warn_of_silence(self, job: PassJob, found: Mapping[str, FoundFile]) -> None:
        """Name the slots that the clock alone closes, without a file that can be of them."""
        if self.following.close_by.rule != CLOCK or job.again or job.broken or self.inbox:
            return
        slots, due = self.plan.slots, job.due
        newest = max((_changed(found[path]) for path in job.fresh), default=None)
        first = due.first_slot
        if newest is not None:
            first = max(first, slots.index(newest) + 1)
        if first > due.last_slot:
            return
        rest = due.last_slot - first
        _LOGGER.warning(
            "no input file has come since the slot of %s began%s: by the clock it is released "
            "without events now, and what comes for it later is late; to wait for files give "
            "--close_by",
            format_time(slots.start(first)),
            f", nor for the next {rest:,}" if rest else "",
        )

    def _tell(self, due: Pass, summary: Summary, targets: Mapping[str, str]) -> None:
        slots = self.plan.slots
        waiting = summary.counters.get(metrics.EVENTS_WAITING, 0)
        tell(
            f"{format_time(slots.start(due.first_slot))} to "
            f"{format_time(slots.end(due.last_slot))}: "
            f"{self._released(due, summary)}"
            f"{f'; {waiting:,} wait for a later slot' if waiting else ''}; wrote "
            f"{', '.join(self._place(k) if k in self._topics else t for k, t in targets.items())}"
        )
        counted = summary.counters
        if counted.get(metrics.CHANGES_READ):
            refused = sum(
                number
                for name, number in counted.items()
                if name.startswith(metrics.CHANGES_REJECTED_PREFIX)
            )
            tell(
                f"changes of requirements: {counted.get(metrics.CHANGES_ACCEPTED, 0):,} accepted, "
                f"{refused:,} rejected, {counted.get(metrics.CHANGES_LATE, 0):,} late, which hold "
                f"from {format_time(slots.start(due.first_slot))} on"
            )
        limits = summary.limits_text()
        if limits:
            tell(limits)
        unreadable = summary.rejected.get(UNREADABLE, 0)
        if unreadable:
            tell(
                f"warning: {number_of(unreadable, 'file')} could not be read, or not to the end: "
                "the dead letters (--rejected) say which and why; mended, each belongs under a "
                "name of its own",
                logging.WARNING,
            )
        users = None if self.passes.told_of_users else summary.users_text()
        self.passes.told_of_users |= users is not None
        lost = summary.loss(self.plan.max_rejected)
        for warning in (lost, *self._warnings(summary), users):
            if warning:
                tell(f"warning: {warning}", logging.WARNING)

    def _released(self, due: Pass, summary: Summary) -> str:
        """What a pass has released, and what became of its events."""
        number = due.last_slot - due.first_slot + 1
        return f"{number_of(number, 'slot')} released, {summary.events_text()}"

    def _warnings(self, summary: Summary) -> Sequence[str | None]:
        """What to do where most of the events of a pass do not count."""
        return [summary.warning()]

    def _told(self, summary: Summary) -> Told:
        """What is said of one pass or of several."""
        return summary

    def _write_summary(self) -> None:
        """Tell the figures of the passes of this run."""
        slots = self.plan.slots
        each = [
            {
                "start": format_time(slots.start(due.first_slot)),
                "end": format_time(slots.end(due.last_slot)),
                **self._told(summary).figures(),
            }
            for due, summary in self.passes.last
        ]
        write_summary(self.summary, {**self._told(self.passes.total).figures(), "passes": each})


def follow(
    command: str,
    given: Any,
    plan: HistogramPlan | LocalPlan,
    following: Following,
    changes: str | None = None,
    revisions: str | None = None,
) -> None:
    """Make the passes of a command, from its options. Raises ConfigurationError, as they do."""
    outputs = {
        "releases": given.output,
        "revisions": revisions,
        "ledger": given.ledger,
        "rejected": given.rejected,
    }
    wanted = {kind: path for kind, path in outputs.items() if path}
    with held(given, following) as (folder, monitor):
        inbox = inbox_of(given, plan, folder)
        outbox = _outbox_of(given, wanted, plan, following, folder)
        topics = () if outbox is None else outbox.topics
        Follow(
            given.input if inbox is None else inbox.pattern,
            {**wanted, **{kind: outbox.place(kind) for kind in topics if outbox}},
            plan,
            following,
            folder,
            monitor,
            command=command,
            changes=changes,
            layout=given.layout,
            summary=given.summary,
            dialect=dialect_of(given),
            card_place=given.card,
            inbox=inbox,
            outbox=outbox,
        ).run()


def inbox_of(given: Any, plan: Any, folder: StateFolder) -> Inbox | None:
    """Where the messages come of an input that is a subscription; None for files.

    Raises ConfigurationError.
    """
    if not given.input.startswith(_PUBSUB):
        return None
    from streamveil.io import Inbox, source_of  # Google's libraries come with it

    names = plan.columns.names
    return Inbox.opened(source_of(given.input, names, dialect=dialect_of(given)), folder.path)


def _outbox_of(
    given: Any,
    wanted: Mapping[str, str],
    plan: HistogramPlan | LocalPlan,
    following: Following,
    folder: StateFolder,
) -> Outbox | None:
    """Where results wait for topics, if there are such. Raises ConfigurationError."""
    places = {
        kind: place
        for kind, place in wanted.items()
        if kind in _PUBLISHED and place.startswith(_PUBSUB)
    }
    if not places and not (folder.path / OUTBOX).exists():
        return None
    from streamveil.io import Outbox, revision_sink_of, sink_of

    sinks = {"releases": sink_of, "revisions": revision_sink_of}
    labels = plan.domain.labels
    topics = {
        kind: sinks[kind](place, labels, layout=given.layout).topic
        for kind, place in places.items()
    }
    if topics and following.serve is not None:
        raise ConfigurationError(
            f"--serve shows files of results, and they go to {', '.join(places.values())}: leave "
            "it out, or write to a file"
        )
    above = folder.path.parent
    if topics and not may_hold_files(str(above)):
        raise ConfigurationError(
            f"--state={following.state} is in {above}, where this user may not write the witness "
            "of the stream: name a folder in one that it may write to"
        )
    return Outbox.opened(topics, folder.path)


@contextmanager
def held(given: Any, following: Following) -> Iterator[tuple[StateFolder, Monitor]]:
    """The folder of the state, and what tells of the run, as long as the block lasts.

    Raises ConfigurationError.
    """
    changes = getattr(given, "requirement_changes", None)
    refuse_state_in_input([given.input, changes], following.state)
    with (
        StateFolder.held(following.state, create=not following.resume) as folder,
        monitored(folder, following.clock, following.exports) as monitor,
    ):
        check_summary(given.summary)
        if given.summary:
            folder.refuse_inside(given.summary)
        if given.card:
            check_card_place(given.card)
            folder.refuse_inside(given.card)
        yield folder, monitor


def _described(slots: Slots) -> dict[str, str]:
    """How time is cut, in words of the options."""
    return {
        "slot": format_duration(slots.length),
        "slot_zone": slots.zone if isinstance(slots, CalendarSlots) else "none",
        "origin": format_time(slots.start(0)),
    }


def _changed(file: FoundFile) -> int:
    """When a file was last written, in microseconds; far ahead where nobody knows."""
    seconds = file.last_updated_in_seconds
    return int(seconds * 1e6) if seconds else np.iinfo(np.int64).max


@contextmanager
def _until_ended(folder: StateFolder) -> Iterator[Callable[[float], bool]]:
    """The same as :func:`stopping` for a run that does not follow: a signal ends it at once."""
    with ending(
        lambda: (
            f"what is committed in {folder.path} stays, and the next run with --resume removes "
            "what is not"
        )
    ):
        yield lambda _: False

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamveil.engine.capabilities import OF_GROWING
from streamveil.engine.count.loss_limit import tally_in
from streamveil.engine.encode.passes import Pass
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.noise_keys import SameKey
from streamveil.io import (
    CsvDialect,
    Snapshot,
    StateFolder,
    check_events,
    check_outputs,
    label_of,
    refuse_witness,
    witness_of,
)
from streamveil.io.found_file import FoundFile
from streamveil.io.places import may_hold_files
from streamveil.io.snapshot import INBOX, OUTBOX
from streamveil.mechanisms.core.local_days import time_text
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    InputLost,
    Lifetime,
    MachineFault,
    NothingChosen,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.pipelines.cards.run_card import check_card_place
from streamveil.pipelines.console.errors import in_one_line, may_pass, reason_of
from streamveil.pipelines.console.logs import heard_by, tell
from streamveil.pipelines.console.signals import ending, stopping
from streamveil.pipelines.jobs.checks import refuse_streams
from streamveil.pipelines.monitoring.board import Board
from streamveil.pipelines.monitoring.monitor import Monitor, monitored
from streamveil.pipelines.monitoring.server import serving
from streamveil.pipelines.monitoring.warnings import Warnings
from streamveil.pipelines.options.noise_keys import KeyFile
from streamveil.pipelines.options.parsers import CLOCK, check_summary, dialect_of
from streamveil.pipelines.outputs.of_plan import outputs_of
from streamveil.pipelines.outputs.outputs import Outputs
from streamveil.pipelines.plans.overlaps import refuse_in_input, refuse_state_in_input
from streamveil.pipelines.reports.plan_texts import about_discovered
from streamveil.pipelines.reports.summary import Summary, write_summary
from streamveil.pipelines.state_runs.input_files import (
    IGNORE,
    STOP,
    WAIT,
    Found,
    Incoming,
    InputMissing,
)
from streamveil.pipelines.state_runs.pass_log import PassLog
from streamveil.pipelines.state_runs.pass_results import PassResults
from streamveil.pipelines.state_runs.passes import PassJob, state_after, users_after
from streamveil.pipelines.state_runs.settings import Following
from streamveil.pipelines.state_runs.state_checks import StateChecks, slots_described
from streamveil.pipelines.state_runs.stream_card import StreamCard
from streamveil.pipelines.state_runs.user_changes import Roll

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.io import Inbox, Outbox

_LOGGER = logging.getLogger("streamveil")

# How long a machine is waited for, in seconds, before a pass is tried again.
_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
_STOPPED = "stopped by a signal: what is released is committed; resume with --resume"
_PUBSUB = "pubsub:"


@dataclass(frozen=True)
class Follow:
    """A stream of releases, made in passes."""

    input: str
    output: str
    """File of releases, or folder of answers, as the user gave it."""
    places: Mapping[str, str]
    """Kinds of results, as of :class:`Outputs`, and `rejected`, to the names that the user gave."""
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
    layout: str | None = None
    """Of releases and revisions; None is tidy."""
    summary: str | None = None
    """File for the figures of the passes of this run."""
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    card_place: str | None = None
    """Where the user wants the card."""
    page: str | None = None
    """File that shows all results which are there, after every pass."""
    log: PassLog = dataclasses.field(default_factory=PassLog)
    """Of the passes of this run."""
    board: Board | None = None
    """What is shown on the page of the run, if it has one."""
    inbox: Inbox | None = None
    """Where messages come, whose files are the input then."""
    outbox: Outbox | None = None
    """Where results wait for their topics, which are among the outputs then."""

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
            self.board.begun({kind: self._results.numbered(kind) for kind in self._results.shown})
        self.monitor.begun(snapshot, slots, self.following.lateness, end)
        self._write_summary()
        plan = roll.plan_of(self.plan, key.source)
        stream = dataclasses.replace(self, plan=plan, roll=roll, following=following)
        if not snapshot.passes:
            stream._stream_card.show_promise()
        interval, last = self.following.interval, self.plan.last_slot
        reported, waits = None, iter(_WAITS)
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
                reported = stream._end_of_look(waiting, reported)
                if interval is None and snapshot is before:
                    stream._end_without_pass(snapshot, waiting)
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
            self._outputs.histories(self.places),
            lambda: self.monitor.status,
            lambda summary: summary.for_plan(self.plan),
            warnings,
            interval,
            self.following.clock.file is not None,
        )
        with heard_by(warnings), serving(address, board):
            yield board

    @property
    def _outputs(self) -> Outputs:
        """What the results are."""
        changes = self.roll is not None and self.roll.changing
        return outputs_of(self.plan, self.layout, changes=changes)

    @property
    def _results(self) -> PassResults:
        """Where they are for readers."""
        return PassResults(self.places, self._topics, self.folder, self.following.state)

    @property
    def _stream_card(self) -> StreamCard:
        changes = self.roll is not None and self.roll.changing
        path = self.card_place or self._outputs.card_beside(self._beside)
        return StreamCard(self.command, path, self.plan, self.folder, self._results, changes)

    @property
    def _checks(self) -> StateChecks:
        return StateChecks(self.plan, self.following, self.folder, self._outputs)

    def _write_summary(self) -> None:
        """Tell the figures of the passes of this run."""
        write_summary(self.summary, self.log.figures(self.plan))

    def _end_without_pass(self, snapshot: Snapshot, waiting: str | None) -> None:
        """End a run in which no slot has closed: a page that is asked for shows earlier passes."""
        if snapshot.passes:
            self._show_page(snapshot)
        if waiting is None:
            tell("no new slot has closed: nothing to do")

    def _end_of_look(self, waiting: str | None, reported: str | None) -> str | None:
        """Log what the next slot waits for, unless that was logged; return the last text."""
        waiting = waiting or self.following.clock.silence
        if waiting not in (None, reported):
            tell(waiting)
        self.monitor.looked(waiting)
        return waiting

    def _start(self) -> tuple[Snapshot, SameKey, Roll, Following]:
        """The state to go on from, or a new one that is committed, the key, users and options."""
        self._refuse_streams()
        snapshot = self._checks.begin()
        self._refuse_unread(snapshot)
        passes = snapshot.passes if snapshot else 0
        if snapshot is None:
            refuse_witness(self._witness, self.folder.path)
        self._results.refuse_beyond(passes)
        check_outputs(list(self._results.targets(1 + passes).values()))
        self._refuse_in_input()
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
        self._checks.refuse_other_start(snapshot.first_slot)
        self._warn_of_no_revisions(snapshot)
        following = dataclasses.replace(self._checks, plan=whole).to_grant(resume)
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
            slots=slots_described(self.plan.slots),
            until=self.plan.slots.start(first),
        )
        return self.folder.commit(begun, key().first)

    def _known(self, snapshot: Snapshot, key: SameKey) -> Snapshot:
        """The state of a stream that goes on, proven, with the keys that are given now."""
        keyed = self._keyed(snapshot.next_slot, key)
        self._checks.refuse_other_keys(snapshot, keyed)
        proven = self.folder.recover(key().first, self._witness)
        self._stream_card.show(proven)  # of a pass that was killed before it could
        return dataclasses.replace(proven, later_keys=keyed.later_keys)

    def _keyed(self, slot: int, key: SameKey) -> Snapshot:
        """A stream that begins in that slot, with these keys."""
        later = tuple((start, check.hex()) for start, check in key.check.later)
        return Snapshot(slot, slot, key.check.first.hex(), later_keys=later)

    @property
    def _witness(self) -> str:
        return witness_of(self._outputs.beside(self._beside))

    @property
    def _beside(self) -> str:
        """That beside which witness and card are: the releases, or the folder of the state."""
        return str(self.folder.path) if "releases" in self._topics else self.output

    @property
    def _topics(self) -> Mapping[str, str]:
        """The topics of results, by kind."""
        return {} if self.outbox is None else self.outbox.topics

    def _refuse_in_input(self) -> None:
        """Refuse results of passes that the next pass would read."""
        written = [
            *(path for number in (1, 2) for path in self._results.targets(number).values()),
            *(self.summary, self._stream_card.path, self.page),
        ]
        refuse_in_input([self.input, self.changes], written)

    def _refuse_streams(self) -> None:
        inputs = {"input": self.input, "requirement_changes": self.changes}
        refuse_streams({**inputs, **self.places})

    def _refuse_unread(self, snapshot: Snapshot | None) -> None:
        """Refuse to leave messages behind that an earlier run has acknowledged."""
        if self.inbox is not None:
            return
        known = {} if snapshot is None else snapshot.inputs
        for path in sorted(map(str, self.folder.path.glob(f"{INBOX}/*.parquet"))):
            if path not in known or known[path].waiting is not None:
                raise ConfigurationError(
                    f"{path} has Pub/Sub messages that no run has counted: resume with "
                    f"{opt.input}=pubsub: as before, or move the file away, and those events are "
                    f"lost"
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
                _LOGGER.warning(
                    f"%s: released without it, as {opt.missing_input}=ignore says", problem
                )
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

    def _warn_of_no_revisions(self, snapshot: Snapshot) -> None:
        """Say what it means that slots are revised no more."""
        before = any(os.path.splitext(name)[0] == "revisions" for name in snapshot.results)
        if before and "revisions" not in self.places:
            tell(
                f"warning: the previous run had {opt.revise} and this run does not: slots that "
                "were not revised yet never will be",
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
        targets = self._results.targets(number)
        for target in targets.values():  # all others were looked at when the run began
            if os.path.lexists(target):
                raise self._results.older_than(target, snapshot.passes)
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
        job = PassJob(
            due=Pass(snapshot.first_slot, snapshot.next_slot, until),
            plan=plan,
            outputs=self._outputs,
            fresh=fresh,
            again=[path for path in again if not found.known[path].broken],
            broken=[path for path in again if found.known[path].broken],
            folder=self.folder.begin(number),
            results={kind: kind + os.path.splitext(path)[1] for kind, path in targets.items()},
            command=self.command,
            resume=self._going_on(snapshot),
            topics=tuple(self._topics),
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
            self.log.add(job.due, Summary.of_tally(tally_in(str(error))))
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
            self._stream_card.write_of_pass(job, snapshot, number)
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
            slots=slots_described(slots),
            until=slots.end(until),
            apart=self._apart(until),
            mounts=found.mounts,
        )
        committed = self.folder.commit(committed, key().first, snapshot)
        self.log.add(job.due, summary)
        if self.board is not None:
            self.board.wrote({kind: targets[kind] for kind in self._results.shown})
        self.monitor.passed(job.due, summary)
        self._write_summary()
        written = [self._results.place(kind, target) for kind, target in targets.items()]
        letters = self.places.get("rejected")
        self.log.tell(job.due, summary, self.plan, self._outputs, written, letters)
        self._tell_discovered(committed)
        self._stream_card.show(committed)
        self._show_page(committed)
        return committed

    def _tell_discovered(self, snapshot: Snapshot) -> None:
        """Print how many keys are listed after a pass. This number is public."""
        if self.plan.plan_kind is PlanKind.QUERIES and self.plan.discovers:
            for text, level in about_discovered(self._after(snapshot)):
                tell(text, level)

    def _after(self, snapshot: Snapshot) -> UserPlan:
        """The plan after the passes so far, with the limits, bounds and keys from these passes."""
        return dataclasses.replace(
            self.plan,
            first_slot=snapshot.next_slot,
            last_slot=None,
            resume=self._state(snapshot),
        )

    def _show_page(self, snapshot: Snapshot) -> None:
        """Write the page again. If this fails, print a warning and continue the stream."""
        if not self.page:
            return
        from streamveil.pipelines.reports.page import write_page

        after = self._after(snapshot)
        part = f"{self.page}.part"
        try:
            tables = {kind: self._results.table(kind) for kind in self._results.shown}
            outputs = dataclasses.replace(self, plan=after)._outputs
            write_page(part, outputs.report(tables, self.log.total))
            os.replace(part, self.page)
        # Results may have been moved away.
        except (OSError, ConfigurationError, MachineFault) as error:
            tell(
                f"warning: {opt.page}={self.page} cannot be written ({reason_of(error)}): the "
                "run continues without it",
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
            "no input file has come since the slot of %s began%s: the clock closes it now "
            "without events, and events that arrive later are late; to wait for files use "
            f"{opt.close_by}",
            time_text(slots.start(first), slots),
            f", nor for the next {rest:,}" if rest else "",
        )


def follow(command: str, given: Any, plan: UserPlan, following: Following) -> None:
    """Make the passes of a command, from its options. Raises ConfigurationError, as they do."""
    _refuse_page_of_discovered(plan, following)
    outputs = outputs_of(plan, given.layout)
    outputs.prepare(given.output, in_passes=True)
    places = {
        **outputs.places(given.output),
        "revisions": given.revisions,
        "ledger": given.ledger,
        "rejected": given.rejected,
    }
    wanted = {kind: path for kind, path in places.items() if path}
    with _held(given, following) as (folder, monitor):
        inbox = _inbox_of(given, plan, folder)
        outbox = _outbox_of(wanted, outputs, following, folder)
        topics = () if outbox is None else outbox.topics
        Follow(
            given.input if inbox is None else inbox.pattern,
            given.output,
            {**wanted, **{kind: outbox.place(kind) for kind in topics if outbox}},
            plan,
            following,
            folder,
            monitor,
            command=command,
            changes=given.requirement_changes,
            layout=given.layout,
            summary=given.summary,
            dialect=dialect_of(given),
            card_place=given.card,
            page=given.page,
            inbox=inbox,
            outbox=outbox,
        ).run()


def _refuse_page_of_discovered(plan: UserPlan, following: Following) -> None:
    """Refuse to serve a page whose bins are not known when serving begins."""
    if plan.plan_kind is PlanKind.QUERIES and plan.discovers and following.serve is not None:
        query = discovering(plan.query_set)[0].name
        raise ConfigurationError(f"query {query!r}: {OF_GROWING['serve']}")


def _inbox_of(given: Any, plan: Any, folder: StateFolder) -> Inbox | None:
    """Where the messages come of an input that is a subscription; None for files.

    Raises ConfigurationError.
    """
    if not given.input.startswith(_PUBSUB):
        return None
    from streamveil.io import Inbox, source_of  # Google's libraries come with it

    names = plan.columns.names
    return Inbox.opened(source_of(given.input, names, dialect=dialect_of(given)), folder.path)


def _outbox_of(
    wanted: Mapping[str, str], outputs: Outputs, following: Following, folder: StateFolder
) -> Outbox | None:
    """Where results wait for topics, if there are such. Raises ConfigurationError."""
    topics = outputs.topics(wanted)
    if not topics and not (folder.path / OUTBOX).exists():
        return None
    from streamveil.io import Outbox

    if topics and following.serve is not None:
        places = ", ".join(wanted[kind] for kind in topics)
        raise ConfigurationError(
            f"{opt.serve} shows files of results, and they go to {places}: leave it out, or write "
            f"to a file"
        )
    above = folder.path.parent
    if topics and not may_hold_files(str(above)):
        raise ConfigurationError(
            f"{opt.state}={following.state} is in {above}, where this user cannot write the "
            "stream's high-water mark: choose a folder inside one that this user can write to"
        )
    return Outbox.opened(topics, folder.path)


@contextmanager
def _held(given: Any, following: Following) -> Iterator[tuple[StateFolder, Monitor]]:
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
        if given.page:
            folder.refuse_inside(given.page)
        if given.card:
            check_card_place(given.card)
            folder.refuse_inside(given.card)
        yield folder, monitor


def _changed(file: FoundFile) -> int:
    """When a file was last written, in microseconds; far ahead where nobody knows."""
    seconds = file.last_updated_in_seconds
    return int(seconds * 1e6) if seconds else np.iinfo(np.int64).max


@contextmanager
def _until_ended(folder: StateFolder) -> Iterator[Callable[[float], bool]]:
    """The same as :func:`stopping` for a run that does not follow: a signal ends it at once."""
    with ending(
        lambda: (
            f"what is committed in {folder.path} stays, and the next run with {opt.resume} removes "
            "what is not"
        )
    ):
        yield lambda _: False

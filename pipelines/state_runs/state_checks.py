"""Whether a run fits the state that it would go on from: its options, keys and slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import Snapshot, StateFolder
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    Slots,
    format_time,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.outputs.outputs import Outputs
from streamveil.pipelines.state_runs.settings import Following

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan


@dataclass(frozen=True)
class StateChecks:
    """Refuses a state that is not that of the stream which options ask for."""

    plan: UserPlan
    """For the whole stream."""
    following: Following
    folder: StateFolder
    outputs: Outputs

    def begin(self) -> Snapshot | None:
        """The state to go on from, or None to begin, as far as options alone can be checked.

        No file is changed. Raises ConfigurationError for options that do not fit the state, and
        for a new stream without a start.
        """
        snapshot, first = self.resumed(), self.plan.first_slot
        if snapshot is not None:
            self.refuse_other_slots(snapshot)
        begun = first if snapshot is None else snapshot.first_slot
        if begun is None:
            raise ConfigurationError(f"{opt.start} is missing: a stream with {opt.state} needs it")
        self.following.close_by.check(self.plan.slots, begun)
        return snapshot

    def resumed(self) -> Snapshot | None:
        """The state to go on from, as the user said; None to begin."""
        where, resume = f"{opt.state}={self.following.state}", self.following.resume
        snapshot = self.folder.read()
        # Whatever starts a command again must not spend that part of the budget again.
        if snapshot is not None and snapshot.looked and self.outputs.chooses_bounds:
            raise ConfigurationError(
                f"the stream of {where} has tried to estimate bounds (bounds: auto) and chose "
                "none. This spent a part of every user's budget and is not repeated. Give "
                "bounds: [LOW, HIGH], or start with more events in another folder, which spends "
                "that part once more"
            )
        if snapshot is None and resume:
            raise ConfigurationError(
                f"{where} has no state to resume: name the folder of the earlier run, mount its "
                "disk, or restore its newest backup; only a stream that never released anything "
                f"may start without {opt.resume}"
            )
        if snapshot is None or not (resume or snapshot.passes):  # nothing was released
            return None
        if not resume:
            raise ConfigurationError(
                f"{where} has the state of a stream: resume it with {opt.resume}, or name "
                "another folder to start a new stream, which spends the users' budgets again"
            )
        return snapshot

    def refuse_other_slots(self, snapshot: Snapshot) -> None:
        """Refuse slots that are cut otherwise, by what differs, before they are counted."""
        asked = slots_described(self.plan.slots)
        for name, before in snapshot.slots.items():
            if asked[name] == before:
                continue
            what = {
                "slot": self.outputs.slot,
                "slot_zone": f"{opt.slot_zone}={asked['slot_zone']}",
                "origin": f"slots that begin with {asked['origin']} ({opt.origin}, {opt.start})",
            }[name]
            raise ConfigurationError(
                f"another configuration: the slots changed: {what}, but those of the stream of "
                f"{opt.state}={self.following.state} are of {name} {before}: use that, or start "
                "a stream in another folder, which spends the users' budgets again"
            )

    def refuse_other_start(self, begun: int) -> None:
        """Refuse a start that is not in the slot that the stream started with."""
        if self.plan.first_slot not in (None, begun):
            when = format_time(self.plan.slots.start(begun))
            raise ConfigurationError(
                f"{opt.start} is not in the slot that the stream started with, that of {when}: "
                f"give that time, or leave {opt.start} out"
            )

    def refuse_other_keys(self, snapshot: Snapshot, keyed: Snapshot) -> None:
        """Refuse other keys than those of the slots that are released."""
        where = f"{opt.state}={self.following.state}"
        if keyed.key_check != snapshot.key_check:
            remedy = (
                f"give that one ({opt.noise_key})"
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
                f"({opt.noise_key}); another key can only follow from slot "
                f"{snapshot.next_slot}, of {when}, on"
            )

    def to_grant(self, state: bytes | None) -> Following:
        """The options, without a grant of the budget that was made before, which is logged.

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
                f"{opt.restart_budget}={restart}: this was granted before and is not granted "
                f"again; the next number is {granted + 1}"
            )
            return self.following.unrestarted
        if restart != granted + 1 or state is None:
            raise ConfigurationError(
                f"{opt.restart_budget}={restart} is not the next grant of this stream: nothing is "
                "released, so its budget is whole; leave it out"
                if state is None
                else f"{opt.restart_budget}={restart} is not the next grant of this stream, whose "
                f"releases say restarts {granted}: give {granted + 1} if users are to lose epsilon "
                "once more, or leave it out"
            )
        return self.following


def slots_described(slots: Slots) -> dict[str, str]:
    """How time is cut, in words of the options."""
    return {
        "slot": slots.text,
        "slot_zone": zone_of(slots) or "none",
        "origin": format_time(slots.start(0)),
    }

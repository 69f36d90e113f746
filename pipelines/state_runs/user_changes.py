"""Who is in a stream with a kept state, and what the table of users changes when it goes on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.drivers import is_joined
from streamveil.engine.stream.played_devices import PopulationMoves
from streamveil.io import TableChanges, UserTable
from streamveil.mechanisms.core.records import ConfigurationError, Slots, format_time, leave_shares
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.randomness.noise import NoiseKeys
from streamveil.mechanisms.registry import DYNAMIC_MECHANISMS, LOCAL_MECHANISMS, only_dynamic
from streamveil.pipelines.console.logs import tell

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.engine.stream.query_plan import QueryPlan


@dataclass(frozen=True, eq=False)
class Roll:
    """The users of a stream, whose table may differ from the one that it began with."""

    users: UserTable | None
    """None where no table can change: under a budget forever, and of queries that began without
    changes."""
    changing: bool = False
    """Whether requirements change, or have changed before."""
    changes: TableChanges | None = None
    """What the table changes from the next pass on."""
    before: UserTable | None = None
    """The users after the last pass, where something changes."""
    limited: bool = False
    """Whether users pay by classes that they move between: where presence is limited, and of
    queries."""

    @classmethod
    def of(
        cls,
        plan: UserPlan,
        before: UserTable | None,
        resume: bytes | None,
        changing: bool,
    ) -> Roll:
        """Compare the table with that of the last pass.

        Args:
            plan: as the user asks for it now.
            before: the users after the last pass; None before the first.
            resume: the state after it.
            changing: whether changes of requirements are given beside the table.

        Raises ConfigurationError for a change that the stream cannot follow.
        """
        joined = resume is not None and is_joined(resume)
        if plan.plan_kind is PlanKind.QUERIES:
            _check_begun(plan, resume, joined)
            if not plan.changing and not joined:
                return cls(None)
            changing = True  # also where the longest window alone says so
        elif plan.plan_kind is PlanKind.HISTOGRAMS and plan.registry.classes.forever:
            return cls(None)
        central = None if plan.plan_kind is PlanKind.LOCAL else plan
        local = central is None
        users, changes = UserTable.begin(plan.registry, local=local), None
        if before is not None:
            users, changes = before.changed_to(plan.registry)
        own = users.begun.max_slots.any() or users.now.max_slots.any()
        if changes and central and (own or isinstance(central.limit, Auto)):
            raise ConfigurationError(
                f"the table of requirements has changed ({changes}), and it cannot with limits "
                f"user by user or chosen by a run (a column max_slots, {opt.max_slots}=auto): "
                "give the table that the stream started with, or start a stream in another "
                "folder, which spends the users' budgets again"
            )
        count = plan if plan.plan_kind is PlanKind.HISTOGRAMS else None
        dynamic = count is not None and only_dynamic(count.mechanism)
        roll = cls(
            users,
            changing or joined or bool(changes),
            changes or None,
            before if changes else None,
            central is not None and (count is None or count.limits is not None),
        )
        following = [name for name, spec in LOCAL_MECHANISMS.items() if spec.follows]
        if not roll.limited:
            assert plan.plan_kind is not PlanKind.QUERIES
            able = following if local else [*DYNAMIC_MECHANISMS]
            roll._check_mechanism(plan.mechanism, able)
        if local:
            settled = before is not None and before.longest_window is not None
        else:
            # Without a longest window in it the state is of another mechanism, which is reported
            # later.
            known = resume is not None and users.longest_window is not None
            settled = joined or (known and dynamic)
        longest = _longest_window(
            roll,
            plan.longest_window,
            settled,
            needed=dynamic or roll.changing,
            grows=not roll.limited,  # or blocks would be others
        )
        roll = roll._up_to(longest)
        sensitivity = 1 if count is None else count.population.sensitivity
        roll._check_changes(sensitivity, settled or roll.limited)
        return roll

    @property
    def settled(self) -> Roll:
        """The same after the pass that the table changed with."""
        return dataclasses.replace(self, changes=None, before=None)

    def _up_to(self, longest_window: int | None) -> Roll:
        assert self.users is not None
        users = dataclasses.replace(self.users, longest_window=longest_window)
        return dataclasses.replace(self, users=users)

    def plan_of(self, plan: UserPlan, noise_key: Callable[[], bytes | NoiseKeys]) -> UserPlan:
        """The same over the registry that the stream started with."""
        if self.users is None:
            return dataclasses.replace(plan, noise_key=noise_key)
        if plan.plan_kind is PlanKind.LOCAL:
            return dataclasses.replace(
                plan,
                noise_key=noise_key,
                registry=self.users.registry(),
                longest_window=self.users.longest_window,
                begun=self.users.members,
                moves=self._population_moves(),
            )
        return dataclasses.replace(
            plan,
            noise_key=noise_key,
            registry=self.users.registry(),
            longest_window=self.users.longest_window,
            changing=self.changing,
        )

    def _population_moves(self) -> PopulationMoves | None:
        if self.changes is None:
            return None
        assert self.users is not None
        assert self.before is not None
        return PopulationMoves(self.before.registry(), *self.users.moves(self.changes))

    def moved(self, slot: int) -> pa.RecordBatch | None:
        """What the table changes, as changes of requirements from a slot on."""
        return None if self.changes is None else self.changes.batch(slot)

    def tell(self, slots: Slots, next_slot: int) -> None:
        """Say what the table changes."""
        if self.changes is not None:
            tell(
                f"the table of requirements has changed: {self.changes}; in force from "
                f"{format_time(slots.start(next_slot))} on"
            )
        if self.limited and self.users is not None:
            now, least = self.users.now, self.users.least
            few = int(((now.windows > 0) & (now.epsilons < least)).sum())
            if few:
                tell(
                    f"warning: {few:,} of the users in the table ask for less than epsilon "
                    f"{least:g}, the least epsilon of the table that the stream started with, so "
                    "their events are rejected",
                    logging.WARNING,
                )

    def _check_mechanism(self, mechanism: str, following: Collection[str]) -> None:
        if self.changes is not None and mechanism.partition(":")[0] not in following:
            raise ConfigurationError(
                "this state belongs to another configuration: the table of users changed "
                f"({len(self.changes):,} users: {self.changes}), and mechanism {mechanism!r} "
                "needs the table that its stream started with: give that table, or start a "
                f"stream with {', '.join(following)} ({opt.mechanism}) in another folder, which "
                "spends the users' budgets again"
            )

    def _check_changes(self, sensitivity: int, settled: bool) -> None:
        """Refuse what would not be taken as a change, rather than leave somebody out."""
        if self.changes is None or self.users is None:
            return
        asked, longest = self.changes.asked, self.users.longest_window
        assert longest is not None
        remedy = (
            "which was settled when requirements began to change: ask for less, or begin a stream "
            f"with a larger {opt.longest_window} in another folder, which spends the users' "
            f"budgets again"
            if settled
            else f"which a larger {opt.longest_window} changes as long as nobody's requirement did"
        )
        for good, what in (
            (asked.windows <= longest, f"the longest window of this stream is {longest} slots"),
            (
                (asked.windows == 0) | leave_shares(asked.epsilons, longest, sensitivity),
                "that leaves less than 2**-40 for a slot of the longest window of this stream, "
                f"{longest} slots",
            ),
        ):
            if not good.all():
                row = int(good.argmin())
                raise ConfigurationError(
                    f"the table of requirements: user {self.changes.users[row].as_py()!r} asks for "
                    f"epsilon {asked.epsilons[row]:g} over {asked.windows[row]} slots, but {what}, "
                    f"{remedy}"
                )


def _check_begun(plan: QueryPlan, resume: bytes | None, joined: bool) -> None:
    """Refuse changes in a stream of queries that began without. Raises ConfigurationError."""
    if plan.changing and resume is not None and not joined:
        raise ConfigurationError(
            "this stream of queries began without changes of requirements "
            f"({opt.requirement_changes}, {opt.longest_window}), and with changes users spend "
            "their budgets differently: leave both out, or start a stream in another folder, "
            "which spends the users' budgets again"
        )


def _longest_window(
    roll: Roll, wanted: int | None, settled: bool, *, needed: bool, grows: bool
) -> int | None:
    """The longest window that may be asked for, None while nobody said or needs it.

    It is settled with the first slot that was released by what follows changes. Until then it
    grows with what the table asks for, or not.
    """
    users = roll.users
    assert users is not None
    known = users.longest_window
    if settled:
        assert known is not None
        if wanted not in (None, known):
            raise ConfigurationError(
                f"{opt.longest_window}={wanted} is not that of the stream, which is {known}: it "
                f"cannot change once requirements do; leave it out"
            )
        return known
    if wanted is not None or known is not None:
        return known if wanted is None else wanted
    if not needed:
        return None
    asked = 0
    if grows and roll.changes is not None:
        asked = int(roll.changes.asked.windows.max(initial=0))
    return max(users.longest, asked)

"""Who is in which cohort: the users of a shard who ever asked for something else than before.

All others are in the class that the registry has them in. Everything here is a function of the
public changes, so that who is present steers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.bounding import runs
from streamveil.engine.count.changes import NEVER, Changes, Keys, strictest
from streamveil.engine.count.event_codes import MEMBERS, ShardCounts
from streamveil.engine.messages import arrays_from_bytes, arrays_to_bytes
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.cohorts import GONE, NEWCOMER, Moves

_ALWAYS = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class CohortState:
    """All that a shard remembers between slots: public."""

    users: Keys
    """Those who ever moved, ascending: shape (n,)."""
    cohort_of: Integers
    """Cohort of each, `GONE` for one who must not be taken for a user of a class again."""
    since: Integers
    """First slot of the change that put each there, shape (n,)."""
    cohorts: Integers
    """Numbers of the cohorts made here that have users, ascending: shape (c,)."""
    requirements: Integers
    """What each asks for, as in `Moves`: shape (c, 4)."""
    left: Integers
    """First slot without each, `NEVER` for those who did not leave: shape (c,)."""
    made: int = 0
    """Cohorts made here so far."""

    @property
    def first_left(self) -> int:
        """The first slot that those had left by who may be forgotten first."""
        return int(self.left.min(initial=NEVER))


@dataclass(frozen=True, eq=False)
class Cohorts:
    """The cohorts of one kind of users in one shard.

    Of two changes of a user the one from the later slot counts, and of two from one slot what
    keeps both (`changes.strictest`), so the order of arrival does not matter. A change to what is
    asked for already moves nobody. Who leaves is forgotten after `horizon` slots.
    """

    SCHEMAS = {1: state_codec.record_schema("Cohorts", made="long", arrays="bytes")}

    kind: int
    """MEMBERS or STRANGERS."""
    number: int
    """This shard's among `shards`, from 0."""
    shards: int
    """Shards of both kinds together."""
    classes: Integers
    """What the classes of the registry ask for, as in `Moves`: shape (K, 4)."""
    class_of: npt.NDArray[np.int32]
    """Class of each member."""
    default_class: int | None
    """Class of a stranger who asked for nothing."""
    horizon: int
    """Slots after which nobody's windows reach back: the longest window."""
    bins: int

    def start(self) -> CohortState:
        """State before the first slot."""
        nobody = np.zeros(0, np.int64)
        users = nobody if self.kind == MEMBERS else np.zeros(0, "S16")
        none = np.zeros((0, 4), np.int64)
        return CohortState(users, nobody, nobody, nobody, none, nobody)

    def next_forgotten(self, state: CohortState) -> int:
        """Slot that :meth:`move` must see to forget in time, `NEVER` if there is none."""
        return NEVER if state.first_left == NEVER else state.first_left + self.horizon

    def move(self, state: CohortState, slot: int, changes: Changes) -> tuple[CohortState, Moves]:
        """Apply changes, each from its own slot or an earlier one, and forget who left long ago.

        Args:
            state: that of an earlier slot.
            slot: the slot that begins.
            changes: those that were not applied so far, from slots up to this one.
        """
        state, changed = self._apply(state, slot, _one_each(changes))
        state, forgotten = self._forget(state, slot)
        return state, Moves(*map(np.concatenate, zip(changed, forgotten, strict=True)))

    def count(
        self,
        state: CohortState,
        slot: int,
        moves: Moves,
        users: Keys,
        bins: Integers,
        kept: Integers,
    ) -> tuple[ShardCounts, int]:
        """Counts by cohort of the bounded events of a slot, and events of users in none.

        Args:
            state: that of the slot, after :meth:`move`.
            slot: the slot.
            moves: those of the slot.
            users: user of each group of events, shape (n,).
            bins: bin of each.
            kept: events of each.
        """
        cohort, _ = self._now(state, users)
        at = self._places(state, cohort)
        in_force = self._asked(state)[at, 1] > 0
        cells = at[in_force] * self.bins + bins[in_force]
        order = np.argsort(cells, kind="stable")
        cells = cells[order]
        starts, _ = runs(cells)
        cells = cells[starts]
        counts = np.add.reduceat(kept[in_force][order], starts) if len(starts) else cells
        at, bins = np.divmod(cells, self.bins)
        starts, lengths = runs(at)
        position = np.repeat(np.arange(len(starts)), lengths)
        numbers = np.append(np.arange(len(self.classes)), state.cohorts)[at[starts]]
        shard_counts = ShardCounts(
            slot, self.number, moves, numbers, position * self.bins + bins, counts
        )
        return shard_counts, int(kept[~in_force].sum())

    def encode(self, state: CohortState) -> bytes:
        """Bytes of the state."""
        arrays = arrays_to_bytes(
            state.users,
            state.cohort_of,
            state.since,
            state.cohorts,
            state.requirements,
            state.left,
        )
        return state_codec.pack(self.SCHEMAS, {"made": state.made, "arrays": arrays})

    def decode(self, data: bytes) -> CohortState:
        """State of bytes."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        users, cohort_of, since, cohorts, asked, left = arrays_from_bytes(record["arrays"])
        return CohortState(users, cohort_of, since, cohorts, asked, left, record["made"])

    def _asked(self, state: CohortState) -> Integers:
        """What classes, cohorts made here and, at last, nobody asks for: shape (K + c + 1, 4)."""
        return np.concatenate([self.classes, state.requirements, np.zeros((1, 4), np.int64)])

    def _places(self, state: CohortState, cohort: Integers) -> Integers:
        """Row of each cohort in :meth:`_asked`."""
        made = len(self.classes) + np.searchsorted(state.cohorts, cohort)
        return np.where(cohort < len(self.classes), cohort, made)

    def _now(self, state: CohortState, users: Keys) -> tuple[Integers, Integers]:
        """Cohort of each of some users, and the slot since which it was to be."""
        since = np.full(len(users), _ALWAYS)
        if self.kind == MEMBERS:
            cohort = self.class_of[users].astype(np.int64)
        else:
            other = NEWCOMER if self.default_class is None else self.default_class
            cohort = np.full(len(users), other, np.int64)
        if len(state.users):
            at = np.searchsorted(state.users, users)
            found = state.users[np.minimum(at, len(state.users) - 1)] == users
            cohort[found] = state.cohort_of[at[found]]
            since[found] = state.since[at[found]]
        return cohort, since

    def _apply(
        self, state: CohortState, slot: int, changes: Changes
    ) -> tuple[CohortState, tuple[Integers, ...]]:
        """Move the users of changes, one for each; rows of Moves."""
        cohort, since = self._now(state, changes.users)
        now = self._asked(state)[self._places(state, cohort)]
        wanted = changes.requirements.copy()
        tied = np.flatnonzero(changes.slots == since)
        pairs = np.stack((wanted[tied], now[tied]), axis=1).reshape(-1, 4)
        wanted[tied] = strictest(pairs, np.arange(0, len(pairs), 2))
        # A change from before the one in force has been overtaken; who was never here cannot leave.
        heard = (changes.slots >= since) & ((cohort >= 0) | (wanted[:, 1] > 0))
        users, cohort, wanted = changes.users[heard], cohort[heard], wanted[heard]
        moving = np.flatnonzero((wanted != now[heard]).any(axis=1))
        order = moving[np.lexsort((*wanted[moving].T, cohort[moving]))]
        rows = np.column_stack((cohort, wanted))[order]
        fresh = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]
        starts = np.flatnonzero(fresh)
        numbers = np.arange(state.made, state.made + len(starts)) * self.shards + self.number
        children = len(self.classes) + numbers
        group = np.cumsum(fresh) - 1
        parents, asked = rows[starts, 0], rows[starts, 1:]
        cohort[order] = children[group]
        state = replace(
            state,
            cohorts=np.append(state.cohorts, children),
            requirements=np.append(state.requirements, asked, axis=0),
            left=np.append(state.left, np.where(asked[:, 1] > 0, NEVER, slot)),
            made=state.made + len(starts),
        )
        state = _record(state, users, cohort, changes.slots[heard])
        return state, (parents, children, np.diff(starts, append=len(rows)), asked)

    def _forget(self, state: CohortState, slot: int) -> tuple[CohortState, tuple[Integers, ...]]:
        """Forget who left at least a horizon ago, and cohorts without users; rows of Moves."""
        at = np.searchsorted(state.cohorts, state.cohort_of)
        made = np.flatnonzero(state.cohort_of >= len(self.classes))
        size = np.bincount(at[made], minlength=len(state.cohorts))
        over = (size > 0) & (state.left <= slot - self.horizon)
        parents, users = state.cohorts[over], size[over]
        moves = (
            parents,
            np.full(len(parents), GONE, np.int64),
            users,
            np.zeros((len(parents), 4), np.int64),
        )
        gone = np.zeros(len(state.users), bool)
        gone[made] = over[at[made]]
        kept = (size > 0) & ~over
        state = replace(
            state,
            cohorts=state.cohorts[kept],
            requirements=state.requirements[kept],
            left=state.left[kept],
        )
        if self.kind == MEMBERS or self.default_class is not None:
            return replace(state, cohort_of=np.where(gone, GONE, state.cohort_of)), moves
        return (
            replace(
                state,
                users=state.users[~gone],
                cohort_of=state.cohort_of[~gone],
                since=state.since[~gone],
            ),
            moves,
        )


def _one_each(changes: Changes) -> Changes:
    """What each user asks for last; users ascending."""
    order = np.lexsort((changes.slots, changes.users))
    users, slots = changes.users[order], changes.slots[order]
    starts, lengths = runs(users)
    last = slots[starts + lengths - 1]
    newest = slots == np.repeat(last, lengths)
    users = users[newest]
    asked = changes.requirements[order[newest]]
    starts, _ = runs(users)
    return Changes(users[starts], last, strictest(asked, starts))


def _record(state: CohortState, users: Keys, cohort: Integers, since: Integers) -> CohortState:
    """Note the cohorts of some users, ascending and distinct."""
    at = np.searchsorted(state.users, users)
    known = np.zeros(len(users), bool)
    if len(state.users):
        known = state.users[np.minimum(at, len(state.users) - 1)] == users
    cohort_of, since_of = state.cohort_of.copy(), state.since.copy()
    cohort_of[at[known]], since_of[at[known]] = cohort[known], since[known]
    new = ~known
    return replace(
        state,
        users=np.insert(state.users, at[new], users[new]),
        cohort_of=np.insert(cohort_of, at[new], cohort[new]),
        since=np.insert(since_of, at[new], since[new]),
    )

"""What a mechanism is: counts of one slot in, a private histogram and its price out.

States move, here and in all rooms: whoever is given one may change it in place, and gives back the
one to go on with; the one that was given is not used again. A filter owns what it booked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import ConfigurationError, Estimate, Requirement, Revised
from streamveil.mechanisms.randomness.noise import SlotNoise

S = TypeVar("S")


class Crowd(Protocol):
    """Who is counted in a slot, by class or ledger: public."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Public number of users, shape (K,)."""

    @property
    def bins(self) -> int:
        """Number of bins d of the histogram."""

    @property
    def sensitivity(self) -> int:
        """How much one user can change a slot's histogram in L1."""

    @property
    def quantum(self) -> int:
        """The most that one event adds to a bin: counts in these are like counts of events."""

    @property
    def guessed_users(self) -> int:
        """How many users are only guessed."""

    def shape_of(self, weights: npt.NDArray[np.int64]) -> bytes:
        """Bytes of the weights of all users, for a digest: other weights get other noise."""

    @property
    def assumed(self) -> bool:
        """Whether sizes are assumed rather than known, or others may join: they bound no counts."""

    @property
    def guessed(self) -> int | None:
        """The class or ledger whose size is a guess; None if all are known."""

    @property
    def summed(self) -> bool:
        """Whether counts of slots are added up, and releases say how errors last."""

    @property
    def totals(self) -> int:
        """How many of the last bins are sums of others."""


@dataclass(frozen=True)
class Population:
    """The public facts about users and bins that a mechanism for fixed requirements may use."""

    requirements: Requirements
    """Requirement of each class, shape (K,)."""
    sizes: npt.NDArray[np.int64]
    """Public number of users in each class, shape (K,)."""
    bins: int
    """Number of bins d of the histogram."""
    sensitivity: int = 1
    """The most by which one user can change a slot's histogram, in the L1 norm. This is the
    contribution bound per slot, doubled for replace-one adjacency."""
    slot_length: int | None = None
    """Length of a slot in microseconds, if it is known."""
    joined: bool = False
    """Whether other users may join. If so, sizes are not upper bounds on counts, and only say how
    large classes are relative to each other."""
    quantum: int = 1
    """The most that one event adds to a bin."""
    ratio: int = 0
    """Number of consecutive bins that together make one ratio, such as a mean, or 0 for counts."""
    summed: bool = False
    """Whether counts of several slots are added up. If so, releases describe how errors persist."""
    graded: tuple[bool, ...] = (False,)
    """For each part of an event, whether the part adds any amount up to a quantum (true), or either
    nothing or a whole quantum (false). The parts of an event are consecutive bins."""
    totals: int = 0
    """Number of bins at the end that are sums of other bins. If it is 1, the last bin is the sum of
    all others. In any case, `sensitivity` includes the changes of these bins."""
    guessed: int | None = None
    """The class whose size is assumed, such as the class of unregistered users, or None if all
    sizes are known. If a size is assumed, sizes are not upper bounds on counts."""

    @property
    def assumed(self) -> bool:
        """Whether the number of users of at least one class is assumed, not known.

        If this property is true, the true number of users of a class may be larger than the number
        in the field `sizes`.
        """
        return self.joined or self.guessed is not None

    @property
    def guessed_users(self) -> int:
        """The assumed number of users in the class `guessed`, or 0 if all class sizes are known."""
        return 0 if self.guessed is None else int(self.sizes[self.guessed])

    def shape_of(self, weights: npt.NDArray[np.int64]) -> bytes:
        """Encode class weights as bytes, see :class:`Crowd`."""
        return weights.tobytes()

    def __post_init__(self) -> None:
        """Check that the fields fit together."""
        object.__setattr__(self, "requirements", Requirements.of(self.requirements))
        if not self.requirements:
            raise ConfigurationError("there are no requirements: no user could be counted")
        if self.sizes.shape != (len(self.requirements),) or (self.sizes < 0).any():
            raise ConfigurationError(
                f"{len(self.requirements)} requirements need as many sizes, none negative; "
                f"got {self.sizes.tolist()}"
            )
        for name in ("bins", "sensitivity", "quantum"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} {getattr(self, name)} must be 1 or more")
        if not self.graded or self.bins % len(self.graded):
            raise ConfigurationError(
                f"{self.bins} bins are not made of events with {len(self.graded)} parts each"
            )


@dataclass(frozen=True)
class Members:
    """Who is counted in a slot when requirements change: public."""

    asked: Units
    """window_backward, epsilon_backward, window_forward, epsilon_forward of each ledger, epsilons
    in units, all 0 for users who have left: shape (L, 4)."""
    sizes: npt.NDArray[np.int64]
    """Public number of users of each ledger, 0 for those who have left: shape (L,)."""
    bins: int
    sensitivity: int = 1
    quantum: int = 1
    guessed: int | None = None
    """The ledger of users who are in no table, if these count; other sizes are of the slot."""
    guessed_users: int = 0
    """How many users of that ledger are a guess. Others come to share it, and when equal ledgers
    merge must not change what is released."""
    summed: ClassVar[bool] = False
    totals: ClassVar[int] = 0

    @property
    def assumed(self) -> bool:
        """As in :class:`Crowd`."""
        return self.guessed is not None

    def shape_of(self, weights: npt.NDArray[np.int64]) -> bytes:
        """As in :class:`Crowd`, whether ledgers that have become equal are merged by now or not."""
        distinct, place = np.unique(weights, return_inverse=True)
        users = np.bincount(place, self.sizes).astype(np.int64)
        return distinct.tobytes() + users.tobytes()


@dataclass(frozen=True)
class SlotInput:
    """The counts of a slot after contribution bounding.

    The field `counts` is secret. The field `members`, which describes the users, is public.
    """

    slot: int
    """Number of the slot."""
    counts: npt.NDArray[np.int64]
    """Number of events of each class or ledger in each bin, shape (K, d)."""
    members: Members | None = None
    """The users whose events are counted, for a :class:`DynamicMechanism`."""


@dataclass(frozen=True, eq=False)
class Observed:
    """What noise left of the counts of some slots, before any forecast had a part in it: public."""

    counts: npt.NDArray[np.float64]
    """Mean over these slots, shape (bins,); may be negative."""
    variances: npt.NDArray[np.float64]
    """Of them, independent of those of all other observations: shape (bins,)."""
    slots: int = 1
    """Of how many slots, the last one that of the release."""


@dataclass(frozen=True, eq=False)
class Lasting:
    """How errors go on from slot to slot, as sums over slots need it: arrays of shape (bins,)."""

    kept: npt.NDArray[np.float64]
    """How much of an error that has lasted so far is still in this slot's count: 0 where it was
    published anew, 1 where nothing was learnt of it."""
    part: npt.NDArray[np.float64]
    """Of the variance of this slot's error, what may last: the rest is of this slot alone."""


@dataclass(frozen=True, eq=False)
class SlotRevision(Revised):
    """What a mechanism makes of an earlier slot again: as public as its releases are."""

    unshrunk: Observed | None = None
    """As of :class:`SlotRelease`."""
    common: float = 0.0
    """As of :class:`SlotRelease`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotRelease(Estimate):
    """The public result of a mechanism for one slot, and the budget that this slot spends."""

    observed: tuple[Observed, ...] | None = None
    """All noisy observations of this slot, or None if they are the result itself."""
    spent: Units
    """Budget units that this slot spends from every user in each class, present or not, shape
    (K,)."""
    revisions: tuple[SlotRevision, ...] = ()
    """Revisions of earlier slots. Each slot is revised once."""
    unshrunk: Observed | None = None
    """The estimates before shrinkage and before clamping at 0, or None if they equal the result.
    Sums over many bins are made from these estimates."""
    lasting: Lasting | None = None
    """None of a mechanism that does not say, and where counts are not added up: see
    `queries/times.py`."""
    common: float = 0.0
    """Relative standard error of the factor by which all counts were scaled. It is not included in
    any `stderr`. See `queries/limits.py`."""


class Mechanism(Protocol[S]):
    """The interface of mechanisms for fixed requirements.

    A mechanism object never changes, because each method receives the state of the stream as an
    argument.

    For privacy, the result of `step` may depend only on `population`, on values in the state that
    were already released, and on noisy measurements of the current slot. Before a result is
    released, the privacy filter records the budget in the result's field `spent`. The filter
    refuses a slot that spends more than the upper bound that `price` returned.
    """

    name: str
    """Name of the mechanism."""
    population: Population
    """The public facts about users and bins."""

    def start(self) -> S:
        """Return the state before the first slot."""

    def price(self, state: S) -> Units:
        """Return an upper bound on the budget that the next slot spends from each class.

        The returned bound holds for any counts. The bound is in units, and has the shape (K,). One
        unit is an epsilon of 2**-40. The bound may depend only on data that `step` may use too (see
        :class:`Mechanism`), and must not affect any release.
        """

    def step(self, state: S, slot_input: SlotInput, noise: SlotNoise) -> tuple[S, SlotRelease]:
        """Release one slot."""

    def encode(self, state: S) -> bytes:
        """Encode the state of the mechanism as bytes, which include the version of the format."""

    def decode(self, data: bytes) -> S:
        """Decode a state."""


@runtime_checkable
class Revising(Protocol):
    """A mechanism of either kind that can revise earlier slots when it knows more of them."""

    revise: int
    """How many slots later it revises a slot: `step` gives them; 0 for never."""

    def rest(self, state: Any) -> tuple[SlotRevision, ...]:
        """The slots that are still to be revised, with what there is: the stream ends."""


@runtime_checkable
class Resizable(Protocol):
    """A mechanism over fixed requirements that can go on with another budget."""

    @property
    def least(self) -> Units:
        """What a window costs whatever the budget, which is to be a few times that: shape (K,)."""

    def resized(self, caps: Units, pace: Units) -> Any:
        """The same mechanism, which goes on with any state of this one.

        Every slot that costs something leaves the window that it ends at `caps` at most.

        Args:
            caps: what a window may cost a user of each class, shape (K,).
            pace: what a window costs if every slot gets an even part; `caps` at most.
        """


@runtime_checkable
class Growing(Protocol):
    """A mechanism over fixed requirements that can continue with other bins."""

    def grown(self, state: Any, origin: npt.NDArray[np.int64]) -> Any:
        """Turn a state of the same mechanism with other bins into a state of this one.

        The budget that was spent stays as it is. The state contains nothing about new bins, and
        nothing about bins that left. A sum over slots that has begun is dropped without a release,
        because its slots were counted in other bins.

        Args:
            state: the state after the last slot with the earlier bins. It is not used again.
            origin: for each bin of this mechanism, its earlier number, or -1 for a new bin, shape
                (d,). Earlier bins whose numbers are missing have left.
        """


def carried(
    fresh: npt.NDArray[Any], before: npt.NDArray[Any], origin: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Values by bin of a :class:`Growing` mechanism after bins were added or left.

    Args:
        fresh: values at the start of a stream, used for new bins, shape (..., d).
        before: values of the earlier bins, shape (..., number of these).
        origin: see :meth:`Growing.grown`.
    """
    return np.where(origin < 0, fresh, before[..., origin]).astype(before.dtype)


@dataclass(frozen=True)
class Setting:
    """The public facts about a stream whose requirements change."""

    bins: int
    """Number of bins d of the histogram."""
    horizon: int
    """The longest window that may be asked for, in slots."""
    sensitivity: int = 1
    """As in :class:`Population`."""
    slot_length: int | None = None
    """As in :class:`Population`."""

    def __post_init__(self) -> None:
        """Check all fields."""
        for name in ("bins", "horizon", "sensitivity"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} {getattr(self, name)} must be 1 or more")


class DynamicMechanism(Protocol[S]):
    """A release mechanism over requirements that change, for ledgers that come and go.

    What was said of :class:`Mechanism` holds; `slot_input.members` says what each ledger asks for.
    """

    name: str
    setting: Setting

    def start(self) -> S:
        """State before the first slot, without any ledger."""

    def regroup(self, state: S, parents: npt.NDArray[np.int64]) -> S:
        """Continue ledger `parents[j]` as ledger j, `open_windows.FRESH` for a new one."""

    def canonical(self, state: S, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on, shape (A, S)."""

    def price(self, state: S, members: Members) -> Units:
        """The most that the next slot can cost a user of each ledger, whatever its counts: (L,)."""

    def step(self, state: S, slot_input: SlotInput, noise: SlotNoise) -> tuple[S, SlotRelease]:
        """Release one slot."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


def population_of(
    requirements: Sequence[Requirement], sizes: npt.ArrayLike, bins: int, sensitivity: int = 1
) -> Population:
    """Make a Population from plain sequences."""
    asked = Requirements.of(requirements)
    return Population(asked, np.asarray(sizes, dtype=np.int64), bins, sensitivity)

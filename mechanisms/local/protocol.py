"""What server and devices say to each other in a slot, and what a local mechanism is.

The server asks some users; their devices report perturbed values; the server sums the reports up
by class and either asks again, in a second round of the same slot, or releases. A mechanism sees
tallies of reports only, and who is asked follows from public facts and earlier reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.randomness.noise import SlotNoise, digest

S = TypeVar("S")

# Oracles by which a device can report: see `oracles`.
GRR = "grr"
OUE = "oue"
OUE0 = "oue0"


@dataclass(frozen=True, eq=False)
class Users:
    """The public population: who asks for what, and what a device can report."""

    classes: Requirements
    """The distinct requirements, shape (K,)."""
    class_of: npt.NDArray[np.int32]
    """Class of each user, shape (n,). A user is the index in this array."""
    symbols: int
    """Number d of values of which a device reports one: bins, and perhaps that there is none."""
    begun: int | None = None
    """How many of them, the first ones, take part from the beginning, and at least one of every
    class that there was then; None for all. The others are away until they join, and what their
    class is before that says nothing. Classes that nobody began with are behind the others."""
    asked: Requirements | None = None
    """What each class asks for, shape (K,), where devices tell one event of a window: then
    `classes` is what their reports may cost. See `accounting/one_event.py`."""

    def __post_init__(self) -> None:
        """Take the requirements in columns."""
        object.__setattr__(self, "classes", Requirements.of(self.classes))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Users of each class, shape (K,)."""
        return np.bincount(self.class_of, minlength=len(self.classes)).astype(np.int64)

    @property
    def promised(self) -> Requirements:
        """What each class asks for, shape (K,)."""
        return self.classes if self.asked is None else self.asked

    def identity(self) -> bytes:
        """Of who has which requirement: see `mechanisms/core/identity.py`."""
        users = encoded("users") + digest(np.ascontiguousarray(self.class_of, "<i4").tobytes())
        return users if self.asked is None else users + encoded(self.asked)


@dataclass(frozen=True, eq=False)
class Ask:
    """Whom the server asks in one round of a slot, and for what: public."""

    slot: int
    round: int
    """1, or 2 for those asked after the reports of the first round."""
    users: npt.NDArray[np.int32]
    """Ascending, shape (m,)."""
    epsilons: Units
    """What a report costs a user of each class, shape (K,)."""
    oracles: tuple[str, ...]
    """How users of each class report, shape (K,)."""


@dataclass(frozen=True, eq=False)
class Tally:
    """The reports to one ask, summed up: they are perturbed, so anyone may see them."""

    supports: npt.NDArray[np.int64]
    """Reports of each class that support each symbol, shape (K, d)."""
    reports: npt.NDArray[np.int64]
    """Reports of each class, shape (K,)."""


@dataclass(frozen=True, eq=False)
class LocalRevised:
    """What later reports tell of an earlier slot: public."""

    slot: int
    frequencies: npt.NDArray[np.float64]
    """As those of a :class:`LocalRelease`, shape (d,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error of each, shape (d,)."""
    users: int
    """How many took part in that slot."""


@dataclass(frozen=True, eq=False)
class LocalRelease:
    """What a local mechanism makes of a slot: public."""

    frequencies: npt.NDArray[np.float64]
    """Estimated share of the users with each symbol, shape (d,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error of each, shape (d,); NaN before anything was published."""
    status: str
    """A status of `records.Release`."""
    published_slot: int | None
    epsilon: float
    """Largest price of a report that the publication rests on."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    revisions: tuple[LocalRevised, ...] = ()
    """Of earlier slots, each of which is revised once."""


class LocalMechanism(Protocol[S]):
    """The server's side: frozen configuration, state apart.

    Every slot is `begin`, then `take` with the tally of each ask until there is a release. The
    state can be encoded at any point in between. `random` draws users; it need not be secret for
    privacy, only unpredictable for those who would forge.
    """

    name: str
    users: Users

    def start(self) -> S:
        """State before the first slot."""

    def begin(self, state: S, slot: int, random: SlotNoise) -> tuple[S, Ask]:
        """Ask for the first reports of the next slot."""

    def take(self, state: S, tally: Tally, random: SlotNoise) -> tuple[S, Ask | LocalRelease]:
        """Use the reports to the last ask."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


@runtime_checkable
class LocalRevising(Protocol):
    """A local mechanism that can revise earlier slots when it knows more of them."""

    revise: int
    """How many slots later it revises a slot: `take` gives them; 0 for never."""

    def rest(self, state: Any) -> tuple[LocalRevised, ...]:
        """The slots that are still to be revised, with what there is: the stream ends."""


def rest_of(mechanism: Any, state: Any) -> tuple[LocalRevised, ...]:
    """What is still to be revised of a local mechanism with this state."""
    return mechanism.rest(state) if isinstance(mechanism, LocalRevising) else ()

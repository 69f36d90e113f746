"""A step of an unbounded input, key by key: what it does, and what it may keep.

A step is given messages as they come, and is called again when the time comes that it waits for.
It keeps nothing of a key itself: its host does, and gives it what was kept of the key.
`transforms/in_time.py` is the host on Beam.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from streamveil.engine.messages import Message, Output
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded


class StateWentBack(BudgetExceeded):
    """A step was given state that is older than what was written, or not all of one time."""


def went_back(what: str) -> StateWentBack:
    """That state is not what it was."""
    return StateWentBack(
        f"{what}: the runner loses updates of state, so the ledger may have forgotten what was "
        "spent, and nothing more is released. Go on from a checkpoint that ended before, on a "
        "runner that docs/reference/runners.md names for streams"
    )


class Bag(Protocol):
    """Messages of a key, in any order."""

    def read(self) -> Iterable[Message]:
        """All of them."""

    def add(self, message: Message) -> None:
        """Add one."""

    def clear(self) -> None:
        """Forget all."""


class Cell(Protocol):
    """A value of a key: numbers, text, bytes, None, or tuples and dictionaries of such."""

    def read(self) -> Any:
        """The value; None before it was written."""

    def write(self, value: Any) -> None:
        """Write it."""

    def clear(self) -> None:
        """Forget it."""


class KeyState(Protocol):
    """What a step keeps of a key."""

    @property
    def waiting(self) -> Bag:
        """Messages that wait for others, or for their slot to close."""

    @property
    def changes(self) -> Bag:
        """Changes of requirements that are not due yet."""

    @property
    def progress(self) -> Cell:
        """How far the step is, read before it is written: the other cells are checked against it.

        Reading it raises StateWentBack where it is older than what was written.
        """

    @property
    def state(self) -> Cell:
        """What the step remembers from slot to slot."""

    @property
    def taken(self) -> Cell:
        """What the parts of the slots taken last were."""

    @property
    def now(self) -> int:
        """The time on the wall, in microseconds since 1970."""

    def close_at(self, at: int) -> None:
        """Have the step's `close` called once event time has passed this, in microseconds."""


class StreamStep(Protocol):
    """Turns messages into outputs, key by key. It is pickled before it is used."""

    def take(self, key: Any, message: Message, at: int | None, kept: KeyState) -> Iterable[Output]:
        """A message comes.

        Args:
            key: the key of the message.
            message: what came; messages come in any order.
            at: its event time in microseconds; None at the end of all time.
            kept: what is kept of the key.
        """

    def close(self, key: Any, kept: KeyState) -> Iterable[Output]:
        """The time has come that the step waits for: see :meth:`KeyState.close_at`."""

"""What came to a stage that takes each slot once, in order, when it has all of its parts.

Every part says which it is, so that one which comes twice takes the place of no other. A runner
should deliver each just once. Where it does not, a part that comes again as it was is dropped. One
that comes again with other content fails the stage: one of the two is wrong, and nobody knows
which. Of a slot that was taken, whatever comes is dropped, for it must not be released again: not
even a failure then tells what was in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any

from streamveil.engine.messages import Message
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

# Of so many slots that were taken last, the stage knows what their parts were.
REMEMBERED = 16
_DIGEST = 8  # bytes
_NAMED = 10  # parts


class Arrival(Enum):
    """What is to be done with a part."""

    NEW = "new"
    """It waits for the others of its slot."""
    REPEATED = "repeated"
    """It was there before, as it is: drop it."""
    AFTER_RELEASE = "after release"
    """Its slot was taken, with other content or longer ago than is remembered: drop it."""


@dataclass
class Arrivals:
    """Which parts came of which slots, of so many parts each."""

    parts: int
    first: int | None = None
    """First slot of the stream; None before it is known."""
    next_slot: int | None = None
    """First slot that was not taken; None before it is known."""
    came: dict[int, int] = field(default_factory=dict)
    """By slot that waits, a bit for each of its parts that came."""
    since: float | None = None
    """From when on parts wait for the slot that comes next, in seconds since 1970; None if none
    do."""

    @classmethod
    def read(cls, parts: int, written: Any) -> Arrivals:
        """What :attr:`written` gave; the start for None."""
        return cls(parts) if written is None else cls(parts, *written)

    @property
    def written(self) -> tuple[int | None, int | None, dict[int, int], float | None]:
        """What a runner can keep."""
        return self.first, self.next_slot, self.came, self.since

    @property
    def waiting(self) -> int:
        """How many parts wait."""
        return sum(bits.bit_count() for bits in self.came.values())

    def start(self, slot: int) -> None:
        """The stream starts with this slot. Raises ConfigurationError where it started already."""
        if self.first is None:
            self.first = self.next_slot = slot
        elif self.first != slot:
            raise another_start(slot, self.first)

    def arrive(
        self,
        part: Message,
        waiting: Callable[[], Iterable[Message]],
        taken: Callable[[], Mapping[int, bytes] | None],
        now: float,
    ) -> Arrival:
        """A part comes: what is to be done with it.

        Args:
            part: what came.
            waiting: reads all parts that wait, which is done only if it came before.
            taken: reads what :func:`remembered` gave, only if its slot was taken.
            now: the time on the wall, in seconds since 1970.

        Raises ConfigurationError for a part of another number of parts, and for one that waits
        with other content.
        """
        if part.shards != self.parts or not part.shard < part.shards:
            raise ConfigurationError(
                f"of slot {part.slot} came part {part.shard} of {part.shards}, and this run has "
                f"{self.parts}: use the {opt.shards} that the stream started with"
            )
        if self.next_slot is not None and part.slot < self.next_slot:
            known = (taken() or {}).get(part.slot, b"")[part.shard * _DIGEST :][:_DIGEST]
            return Arrival.REPEATED if known == _digest(part) else Arrival.AFTER_RELEASE
        bit = 1 << part.shard
        before = self.came.get(part.slot, 0)
        if not before & bit:
            self.came[part.slot] = before | bit
            self.since = now if self.since is None else self.since
            return Arrival.NEW
        if part not in waiting():
            raise contradiction(part)
        return Arrival.REPEATED

    def whole(self) -> Iterator[int]:
        """The slots that come next and miss nothing, in order."""
        slot, every = self.next_slot, (1 << self.parts) - 1
        while slot is not None and self.came.get(slot) == every:
            yield slot
            slot += 1

    def take(self, slots: Iterable[int], next_slot: int | None, now: float) -> None:
        """Slots are taken, and which one comes next."""
        self.next_slot = next_slot
        for slot in slots:
            del self.came[slot]
        self.since = now if self.came else None

    def waited(self, now: float) -> float:
        """For how many seconds parts have waited for the slot that comes next."""
        return 0.0 if self.since is None else now - self.since

    @property
    def missing(self) -> str:
        """What the slot that comes next waits for, for a person."""
        if self.next_slot is None:
            return "the start of the stream"
        came = self.came.get(self.next_slot, 0)
        numbers = [number for number in range(self.parts) if not came >> number & 1]
        some = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if numbers[_NAMED:] else "")
        return f"{len(numbers)} of {self.parts} parts of slot {self.next_slot} (parts {some})"


def remembered(
    taken: Mapping[int, bytes] | None, parts: Mapping[int, list[Message]]
) -> dict[int, bytes]:
    """What is known of the slots taken last: of each, what its parts were, in order.

    Args:
        taken: what was known before; None for nothing.
        parts: all parts of each slot that is taken now.
    """
    known = dict(taken or {})
    for slot, some in parts.items():
        known[slot] = b"".join(map(_digest, sorted(some, key=attrgetter("shard"))))
    return {slot: known[slot] for slot in sorted(known)[-REMEMBERED:]}


def another_start(slot: int, first: int) -> ConfigurationError:
    """That a stream gets a second start."""
    return ConfigurationError(
        f"the stream shall start with slot {slot}, and it started with slot {first}: {_ONCE}"
    )


def contradiction(part: Message) -> ConfigurationError:
    """That a part came twice, with different content."""
    return ConfigurationError(
        f"part {part.shard} of {part.shards} of slot {part.slot} came twice with different "
        f"content, so the slot is not released: {_ONCE}"
    )


_ONCE = (
    "the runner does not process each element exactly once; let it (on Flink "
    "--checkpointing_mode=EXACTLY_ONCE), and go on from its last checkpoint"
)


def _digest(part: Message) -> bytes:
    return hashlib.blake2b(part.to_bytes(), digest_size=_DIGEST).digest()

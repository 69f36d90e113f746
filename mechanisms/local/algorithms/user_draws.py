"""Drawing and recycling users: nobody is asked again before a number of slots has passed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.randomness.noise import RandomWords

Indexes = npt.NDArray[np.int32]

_NEVER = np.iinfo(np.int32).min


@dataclass(eq=False)
class Pool:
    """When each user was last asked: 4 bytes for a user, and nothing else."""

    last: npt.NDArray[np.int32]
    """Slots from the stream's first one to the one in which each user was last asked, shape (n,);
    the least int32 for never."""

    @classmethod
    def of(cls, users: int) -> Pool:
        """Nobody has been asked yet."""
        return cls(np.full(users, _NEVER, np.int32))

    def available(self, slot: int, gap: int) -> Indexes:
        """Users who were last asked `gap` slots ago or longer, ascending."""
        return np.flatnonzero(self.last <= np.int32(slot - gap)).astype(np.int32)

    def draw(self, size: int, slot: int, gap: int, words: RandomWords) -> Indexes:
        """Draw `size` of the available users, all sets as likely: ascending. Nobody leaves yet."""
        return choose(self.available(slot, gap), size, words)

    def spend(self, users: Indexes, slot: int) -> None:
        """Take users out of the pool: they have been asked."""
        self.last[users] = slot

    def encode(self) -> bytes:
        """4 bytes for each user."""
        return np.ascontiguousarray(self.last, "<i4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Pool:
        """The pool of bytes."""
        return cls(np.frombuffer(data, "<i4").astype(np.int32))


def choose(users: Indexes, size: int, words: RandomWords) -> Indexes:
    """Draw `size` of the users without replacement: ascending."""
    drawn = generator(words).choice(users, size, replace=False, shuffle=False)
    return np.sort(drawn)


def generator(words: RandomWords) -> np.random.Generator:
    """A generator seeded by a keyed stream.

    It is for what privacy does not rest on: who is asked, and post-processing of reports.
    """
    return np.random.Generator(np.random.Philox(key=words.draw(2).astype(np.uint64)))

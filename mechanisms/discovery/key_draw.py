"""Which keys of a user are counted in a discovery slot: a keyed draw from the user's own keys.

The draw takes the keys with the lowest ranks. The rank of a key is a function of a secret, the user
and the key, so it depends neither on the order of events nor on other users. A limit on the number
of keys of all users would not be private, because the new keys of one user could then displace a
key of a thousand users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.price import Draw
from streamveil.mechanisms.randomness.noise import keyed_words

Words = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)

MOST_PAIRS = 1 << 25
"""The largest number of pairs of a key and a user in a discovery slot. If no users share a key,
these take about 10 GB."""


class TooManyPairs(ConfigurationError):  # noqa: N818 - the name says what happened
    """A discovery slot has more pairs of a key and a user than fit in memory."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Which users had which unlisted keys in the base slots of a discovery slot, in any order."""

    users: Words
    """Two words that identify the user, shape (n, 2)."""
    classes: Integers
    """Class of the user, shape (n,)."""
    base_slots: Integers
    """Shape (n,)."""
    keys: Integers
    """Place of the key in `digests`, shape (n,)."""
    digests: Words
    """Two words that identify each key, shape (v, 2)."""

    def of(self, rows: Flags | Integers) -> Pairs:
        """Some of the pairs."""
        return Pairs(
            self.users[rows],
            self.classes[rows],
            self.base_slots[rows],
            self.keys[rows],
            self.digests,
        )

    @property
    def size(self) -> int:
        """Number of pairs."""
        return len(self.users)


def check_pairs(size: int, most: int) -> None:
    """Raise TooManyPairs if there are more pairs than fit in memory. No pair is ever dropped."""
    if size > most:
        raise TooManyPairs(
            f"a discovery slot has more than {most:,} pairs of a key and a user, which do not fit "
            "in memory, so nothing was published: give a smaller sample of the keys, such as "
            "keys: {discover: {sample: 0.1}}, or shorter discovery slots (fewer windows, or a "
            "shorter budget window)"
        )


def sampled_keys(digests: Words, rate: float, key: bytes) -> Flags:
    """A sample of the keys at a public rate, the same in every slot: shape (v,).

    Whether a key is in the sample is a function of the secret and the key only.
    """
    if rate >= 1:
        return np.ones(len(digests), bool)
    words = keyed_words(key, digests[:, 0], digests[:, 1])
    return words < np.uint64(int(rate * (1 << 64)))


def drawn(pairs: Pairs, draws: Sequence[Draw], key: bytes) -> Pairs:
    """The pairs of each user with each of their drawn keys, once.

    Args:
        pairs: of a discovery slot, of keys that are not listed.
        draws: of each class.
        key: secret of the draws of this slot, 32 bytes.
    """
    if not pairs.size:
        return pairs
    by_base_slot = np.array([draw.by_base_slot for draw in draws])[pairs.classes]
    places = np.array([draw.places for draw in draws], np.int64)[pairs.classes]
    groups = np.where(by_base_slot, pairs.base_slots, 0)
    ranks = keyed_words(key, pairs.users[:, 0], pairs.digests[pairs.keys, 0])
    order = _by_user(pairs, groups, ranks)
    del ranks  # 16 bytes of each pair
    users, groups, keys = pairs.users[order], groups[order], pairs.keys[order]
    fresh_group = changes(*users.T, groups)
    fresh_key = fresh_group | changes(keys)
    position = np.cumsum(fresh_key)  # of the key, over all groups
    before = np.maximum.accumulate(np.where(fresh_group, position - 1, 0))
    kept = order[fresh_key & (position - before <= places[order])]
    found = pairs.of(kept)
    if by_base_slot.any():  # a key may be drawn in several base slots
        found = found.of(distinct(found.keys, *found.users.T))
    return found


def weighted_counts(pairs: Pairs, weights: Integers) -> Integers:
    """The sum of the weights of the distinct users of each key, of drawn pairs: shape (v,)."""
    # Sums of floats are exact here: they stay far below 2**53.
    sums = np.bincount(pairs.keys, weights[pairs.classes], len(pairs.digests))
    return sums.astype(np.int64)


def distinct(*columns: npt.NDArray[Any]) -> Integers:
    """One row of each set of equal rows.

    Rows are sorted by a hash of the columns. In the rare case that different rows have the same
    hash, they are sorted by all columns.
    """
    hashed = _hashed(columns)
    order = np.argsort(hashed)
    fresh = changes(*(one[order] for one in columns))
    if (~changes(hashed[order]) & fresh).any():
        order = np.lexsort(columns)
        fresh = changes(*(one[order] for one in columns))
    return order[fresh]


def changes(*columns: npt.NDArray[np.generic]) -> Flags:
    """Whether each row differs from the row before. The first row does: shape (n,)."""
    found = np.ones(len(columns[0]), bool)
    found[1:] = np.any([one[1:] != one[:-1] for one in columns], axis=0)
    return found


def _by_user(pairs: Pairs, groups: Integers, ranks: Words) -> Integers:
    """An order in which the pairs of each user and group are adjacent, and ordered by rank.

    Pairs are sorted by a hash of user and group. If different users or groups have the same hash,
    or if two keys of a user have the same rank, pairs are sorted by all columns and by the key.
    """
    of_group = (*pairs.users.T, groups)
    hashed = _hashed(of_group)
    order = np.lexsort((ranks, hashed))
    same = ~changes(hashed[order])
    mixed = same & changes(*(one[order] for one in of_group))
    tied = same & ~changes(ranks[order]) & changes(pairs.keys[order])
    if (mixed | tied).any():
        return np.lexsort((pairs.digests[pairs.keys, 1], ranks, groups, *pairs.users.T))
    return order


def _hashed(columns: Sequence[npt.NDArray[Any]]) -> Words:
    """A hash of each row, which need not be cryptographic."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = (found ^ column.astype(np.uint64)) * _ODD
        found ^= found >> np.uint64(32)
    return found

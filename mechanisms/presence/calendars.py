"""The calendar of a user: which block a slot is in, and how many slots of it count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.presence.limits import Limit
from streamveil.mechanisms.randomness.noise import Words, keyed_words

Keys = npt.NDArray[Any]
"""Users as what sorts: int64 for members, 16 bytes (`S16`) for strangers."""


@dataclass(frozen=True, eq=False)
class Rules:
    """Both rules for each class of users. All arrays have shape (K,)."""

    lengths: Integers
    """Slots of a block; 1 where there is no limit to blocks."""
    most: Integers
    """Slots of a block that count."""
    in_life: Integers
    """Slots forever that count; `UNLIMITED` for all."""

    @classmethod
    def of(
        cls, limits: Iterable[Limit], requirements: Iterable[Requirement], adjacency: str
    ) -> Rules:
        """What the limit of each class is for those who ask for this."""
        both = zip(limits, requirements, strict=True)
        rules = [limit.rule(one, adjacency) for limit, one in both]
        return cls(*np.array(rules, np.int64).reshape(-1, 3).T)


def keys_of(users: Keys, names: Keys | None) -> Keys:
    """Users by their numbers among some names, or as they are: shape (n,)."""
    return users if names is None else names[users]


def block_ends(
    key: bytes, users: Keys, slots: Integers, lengths: Integers, names: Keys | None = None
) -> Integers:
    """First slot after the block of each visit, in blocks of these lengths: shape (n,).

    Visits of a user stand together, and have one length. Users: see :func:`keys_of`.
    """
    if not len(users):
        return np.zeros(0, np.int64)
    firsts = np.flatnonzero(np.append(True, steps(users)))
    mine = phases(key, keys_of(users[firsts], names), lengths[firsts])
    shift = np.repeat(mine, np.diff(firsts, append=len(users)))
    return ((slots + shift) // lengths + 1) * lengths - shift


def phases(key: bytes, users: Keys, lengths: Integers) -> Integers:
    """Phase of each user in blocks of these lengths: from 0, below the length; shape (n,).

    A function of the key and of the user alone, whoever asks, whenever and wherever.
    """
    if users.dtype.kind == "S":
        digests = np.ascontiguousarray(users).view(">u8").reshape(-1, 2).astype(np.uint64)
        words = keyed_words(key, digests[:, 0], digests[:, 1])
    else:
        numbers: Words = users.astype(np.uint64)
        words = keyed_words(key, numbers, np.zeros_like(numbers))
    return (words % lengths.astype(np.uint64)).astype(np.int64)


def steps(values: npt.NDArray[Any]) -> Flags:
    """Where neighbours differ, shape (n - 1,)."""
    found: Flags = values[1:] != values[:-1]
    return found


def placed(known: Keys, users: Keys) -> tuple[Integers, Flags]:
    """Where users are among those known, or would be, and which are there: both of shape (n,).

    Both are ascending; of those known there is one each.
    """
    at = _searched(known, users)
    there = at < len(known)
    there[there] = known[at[there]] == users[there]
    return at, there


def _searched(known: Keys, users: Keys) -> Integers:
    """Where users are or would be: what `np.searchsorted` tells, three times as fast of digests."""
    if known.dtype.kind != "S" or not len(known):
        return np.searchsorted(known, users)
    heads, wanted = _heads(known), _heads(users)
    if (heads[1:] == heads[:-1]).any():  # hardly ever: digests are of 16 bytes
        return np.searchsorted(known, users)
    at = np.searchsorted(heads, wanted)
    alike = np.flatnonzero(heads[np.minimum(at, len(heads) - 1)] == wanted)
    at[alike] += known[at[alike]] < users[alike]
    return at


def _heads(digests: Keys) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of each as a number, which sorts alike."""
    return np.ascontiguousarray(digests).view(">u8")[::2].astype(np.uint64)


def inserted(
    at: Integers, old: Sequence[npt.NDArray[Any]], new: Sequence[npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    """Arrays with new values before some places, ascending: `np.insert` of several at once."""
    places = at + np.arange(len(at))
    stays = np.ones(len(old[0]) + len(at), np.bool_)
    stays[places] = False
    merged = []
    for before, values in zip(old, new, strict=True):
        array = np.empty(len(stays), before.dtype)
        array[places], array[stays] = values, before
        merged.append(array)
    return merged

"""Which ledger a user is in, and how many are in each: users with the same history share one.

The counting side names cohorts (`cohorts.py`); several of them may have come to the same ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.open_windows import FRESH
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.cohorts import GONE, NEWCOMER, Moves


@dataclass
class Interned:
    """C cohorts in L ledgers: public."""

    cohorts: Integers
    """Numbers, ascending, shape (C,)."""
    ledgers: Integers
    """Ledger of each cohort, shape (C,)."""
    users: Integers
    """Users of each cohort, shape (C,)."""
    asked: Units
    """What each ledger asks for now (`Moves.requirements`), shape (L, 4)."""

    FIELDS: ClassVar[dict[str, Any]] = {
        "cohorts": state_codec.LONGS,
        "ledgers": state_codec.LONGS,
        "users": state_codec.LONGS,
        "asked": state_codec.LONGS,
    }

    @classmethod
    def of_classes(cls, asked: Units, sizes: Integers) -> Interned:
        """Each class of the registry is a cohort with a ledger of its own."""
        classes = np.arange(len(sizes))
        return cls(classes, classes.copy(), np.array(sizes, np.int64), np.array(asked, np.int64))

    @property
    def sizes(self) -> Integers:
        """Users of each ledger who are counted, shape (L,)."""
        members = np.bincount(self.ledgers, weights=self.users, minlength=len(self.asked))
        return np.where(self.asked[:, 2] > 0, members, 0).astype(np.int64)

    def ledgers_of(self, cohorts: Integers) -> Integers:
        """Ledgers of some cohorts. Raises ValueError for one that does not exist."""
        place = np.searchsorted(self.cohorts, cohorts)
        known = place < len(self.cohorts)
        known[known] = self.cohorts[place[known]] == cohorts[known]
        if not known.all():
            raise ValueError(f"cohort {cohorts[~known][0]} does not exist: its move is missing")
        return self.ledgers[place]

    def ledger_of(self, cohort: int | None) -> int | None:
        """The ledger of a cohort; None without one."""
        return None if cohort is None else int(self.ledgers_of(np.array([cohort]))[0])

    def move(self, moves: Moves, default: int | None) -> tuple[Interned, Integers]:
        """Move users and fork their ledgers.

        Args:
            moves: of the slot.
            default: cohort of users outside the registry, which stays even if empty: their public
                number may be too small. All others end with their last user.

        Returns:
            (who is where now, the ledger that each ledger continues or FRESH, shape (L',)).
            Ledgers without cohorts are dropped; what stays keeps its order.

        Raises ValueError for moves that do not fit the cohorts.
        """
        if not len(moves.users):
            return self, np.arange(len(self.asked))
        leaving = moves.parents != NEWCOMER
        staying = moves.children != GONE
        cohorts, place = np.unique(
            np.concatenate([self.cohorts, moves.children[staying]]), return_inverse=True
        )
        old, child = place[: len(self.cohorts)], place[len(self.cohorts) :]
        _check_children(moves, staying, cohorts, old, child)
        parent = np.searchsorted(cohorts, moves.parents[leaving])
        from_parents = np.full(len(moves.users), FRESH)
        from_parents[leaving] = self.ledgers_of(moves.parents[leaving])
        users = np.zeros(len(cohorts), np.int64)
        users[old] = self.users
        np.add.at(users, child, moves.users[staying])
        np.subtract.at(users, parent, moves.users[leaving])
        users[cohorts == default] = np.maximum(users[cohorts == default], 0)
        if (users < 0).any():
            raise ValueError(f"more users leave cohort {cohorts[users < 0][0]} than are in it")
        # Every cohort continues a ledger and asks for something: equal pairs share a ledger.
        origin = np.full(len(cohorts), FRESH)
        asked = np.zeros((len(cohorts), 4), np.int64)
        origin[child], asked[child] = from_parents[staying], moves.requirements[staying]
        origin[old], asked[old] = self.ledgers, self.asked[self.ledgers]
        kept = (users > 0) | (cohorts == default)
        cohorts, users, origin, asked = (a[kept] for a in (cohorts, users, origin, asked))
        first = equal_columns(np.column_stack([origin, asked]).T)
        distinct = np.flatnonzero(first == np.arange(len(first)))
        new = np.where(origin == FRESH, len(self.asked), origin)
        distinct = distinct[np.argsort(new[distinct], kind="stable")]
        ledgers = np.empty(len(first), np.int64)
        ledgers[distinct] = np.arange(len(distinct))
        moved = Interned(cohorts, ledgers[first], users, asked[distinct])
        return moved, origin[distinct]

    def alike(self, glance: Units) -> Integers:
        """Ledgers that ask for the same and look like another one at a glance, (A, L)."""
        first = equal_columns(np.concatenate([self.asked.T, glance]))
        times = np.bincount(first, minlength=len(first))
        return np.flatnonzero(times[first] > 1)

    def merge(self, some: Integers, canonical: Units) -> tuple[Interned, Integers] | None:
        """Merge ledgers that ask for the same and have equal columns.

        Args:
            some: ledgers to compare, ascending, shape (S,).
            canonical: all that the future of each of them depends on, shape (A, S).

        Returns as :meth:`move` does, or None if no two are equal.
        """
        first = np.arange(len(self.asked))
        first[some] = some[equal_columns(np.concatenate([self.asked[some].T, canonical]))]
        distinct, ledgers = np.unique(first, return_inverse=True)
        if len(distinct) == len(first):
            return None
        merged = Interned(self.cohorts, ledgers[self.ledgers], self.users, self.asked[distinct])
        return merged, distinct

    def record(self) -> dict[str, Any]:
        """Values of `FIELDS`."""
        return {name: getattr(self, name).ravel().tolist() for name in vars(self)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Interned:
        """Read the values of `FIELDS` back."""
        cohorts, ledgers, users, asked = (
            np.array(record[name], np.int64) for name in ("cohorts", "ledgers", "users", "asked")
        )
        return cls(cohorts, ledgers, users, asked.reshape(-1, 4))


def equal_columns(table: Units) -> Integers:
    """The first column that each column of an (A, L) table equals, shape (L,).

    A 64-bit fingerprint finds candidates; what counts is that they are equal.
    """
    weights = np.random.default_rng(0).integers(1 << 63, size=len(table), dtype=np.uint64)
    prints = weights | np.uint64(1)
    marks = np.zeros(table.shape[1], np.uint64)
    for row, weight in zip(table, prints, strict=True):
        marks += row.astype(np.uint64) * weight
    _, firsts, place = np.unique(marks, return_index=True, return_inverse=True)
    first: Integers = firsts[place.reshape(-1)]
    others = np.flatnonzero(first != np.arange(len(first)))
    differ = (table[:, others] != table[:, first[others]]).any(axis=0)
    first[others[differ]] = others[differ]
    return first


def _check_children(
    moves: Moves, staying: npt.NDArray[np.bool_], cohorts: Integers, old: Integers, child: Integers
) -> None:
    """Refuse cohorts of more than one history: the filter could not tell its users apart.

    `old` and `child` are the places in `cohorts` of those there are and of the children.
    """
    if (moves.users < 1).any():
        raise ValueError(f"{moves.users.min()} users cannot move: give 1 or more")
    exists = np.zeros(len(cohorts), bool)
    exists[old] = True
    if exists[child].any():
        known = cohorts[child[exists[child]][0]]
        raise ValueError(f"cohort {known} exists already: give the child a new number")
    rows = np.column_stack([moves.parents, moves.requirements])[staying]
    parents = np.empty((len(cohorts), rows.shape[1]), np.int64)
    parents[child] = rows
    mixed = (parents[child] != rows).any(axis=1)
    if mixed.any():
        raise ValueError(
            f"cohort {cohorts[child[mixed][0]]} has more than one parent or requirement: give each "
            "its own child"
        )

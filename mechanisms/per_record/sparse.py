"""What is kept of records where the value itself matters: how many have a code and a domain.

A part is int64 of shape (m, 3): code, domain, count, sorted by code and domain, which are unique
together. Parts are added up by merging; their size is that of what is different.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.per_record.protocol import Part

CODE, DOMAIN, COUNT = range(3)


def tally(codes: Integers, domains: Integers, cells: Integers, number: int) -> Sequence[Part]:
    """Parts of records by cell.

    Args:
        codes: of the values, shape (n,).
        domains: from 0, shape (n,).
        cells: where each record belongs, from 0 to `number` - 1, shape (n,).
        number: of cells.
    """
    order = np.lexsort((domains, codes, cells))
    rows = np.stack([codes[order], domains[order], np.ones(order.size, np.int64)], axis=1)
    ends = np.searchsorted(cells[order], np.arange(1, number))
    return [_merged(part) for part in np.split(rows, ends)]


def add(parts: Iterable[Part]) -> Part:
    """The part of all records of some parts."""
    rows = np.concatenate([np.zeros((0, 3), np.int64), *parts])
    return _merged(rows[np.lexsort((rows[:, DOMAIN], rows[:, CODE]))])


def counts(part: Part, number: int) -> Integers:
    """Records by domain, shape (number,)."""
    # Sums of floats that are whole numbers below 2**53 are exact.
    return np.bincount(part[:, DOMAIN], part[:, COUNT], number).astype(np.int64)


def kept(part: Part, first: int) -> Part:
    """The rows of a domain or a later one."""
    return part[part[:, DOMAIN] >= first]


def float_codes(values: Floats) -> Integers:
    """Codes of floats at least 0, in their order: their bits."""
    return (np.asarray(values, np.float64) + 0.0).view(np.int64)  # + 0.0: there is one zero


def code_floats(codes: Integers) -> Floats:
    """The floats of codes."""
    return np.ascontiguousarray(codes).view(np.float64)


def _merged(rows: Part) -> Part:
    """Sorted rows, those with the same code and domain merged."""
    if not len(rows):
        return rows
    new = np.any(rows[1:, :COUNT] != rows[:-1, :COUNT], axis=1)
    starts = np.flatnonzero(np.concatenate([[True], new]))
    merged = rows[starts]
    merged[:, COUNT] = np.add.reduceat(rows[:, COUNT], starts)
    return merged


class ByValue:
    """What base mechanisms have in common for which the values themselves matter: see `Base`."""

    def codes(self, values: Floats) -> Integers:
        """What stands for each value, shape (n,): all of it, unless a mechanism rounds."""
        return float_codes(values)

    def tally(
        self, values: Floats, domains: Integers, cells: Integers, number: int
    ) -> Sequence[Part]:
        """Parts of records by cell: see `Base.tally`."""
        return tally(self.codes(values), domains, cells, number)

    def add(self, parts: Iterable[Part]) -> Part:
        """The part of all records of some parts: see `Base.add`."""
        return add(parts)

    def counts(self, part: Part, number: int) -> Integers:
        """Records by domain: see `Base.counts`."""
        return counts(part, number)

    def left_out(self, records: Floats, largest: Floats) -> float:
        """How many records are left out, at most, and so different values: see `Base.left_out`."""
        return float(records.sum())

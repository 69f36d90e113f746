"""Counts added up over slots and bins: how much of the error is left, and what it is made of.

Noise is too high in one slot and too low in the next, so it fades in a sum. Events that do not
count are missing from every sum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS
from streamveil.pipelines.report import Report

_SPANS = {"day": MICROSECONDS["d"], "week": 7 * MICROSECONDS["d"]}
BUSIEST = 10
"""Bins whose error is shown by itself, as that of the rare ones would hide it."""
TURN = 0.1
"""A rise or a fall of at least this part is one that a reader would look for."""


class Sums(NamedTuple):
    """Released sums beside true ones, over all bins of a kind and all spans of a length."""

    of: str
    """Of which bins."""
    span: str
    """Over what: `day`, `week`."""
    true: float
    """Mean of the true sums."""
    error: float
    """Mean distance of the released sums from them."""
    share: float
    """Sum of these distances in parts of all that is true; NaN where nothing was counted."""
    noise: float
    """What the distance from what counts makes alone, likewise."""
    missing: float
    """What the events that do not count make alone, likewise."""


class Turns(NamedTuple):
    """Changes from one span to the next that are worth noticing, and who shows them."""

    number: int
    released: int
    """Those that go the same way in the releases."""
    revised: int | None
    """Those that go the same way in the revisions; None if there are none."""


def spans(report: Report) -> dict[str, int]:
    """Slots of a slot and of every longer span that is there at least twice, by name."""
    length = report.slots.length
    longer = {
        name: span // length
        for name, span in _SPANS.items()
        if span > length and span % length == 0 and 2 * (span // length) <= len(report.releases)
    }
    return {report.slot_name: 1, **longer}


def longest(report: Report) -> tuple[str, int] | None:
    """Name and slots of the longest span; None if nothing is longer than a slot."""
    name, size = list(spans(report).items())[-1]
    return (name, size) if size > 1 else None


def in_spans(counts: npt.NDArray[Any], size: int) -> npt.NDArray[np.int64]:
    """Sums of so many slots in a row, shape (T // size, bins); slots left over are left out."""
    number = len(counts) // size
    added: npt.NDArray[np.int64] = (
        counts[: number * size].reshape(number, size, -1).sum(axis=1, dtype=np.int64)
    )
    return added


def all_sums(report: Report) -> list[list[Sums]]:
    """Of busy bins, of rare ones, of each bin and of all together: for each, over every span.

    The last is of each bin where there is only one.
    """
    counts = (report.true_counts, report.counted, report.released)
    rows = []
    for of, bins in _kinds(report).items():
        taken = [one.sum(axis=1, keepdims=True) if bins is None else one[:, bins] for one in counts]
        rows.append(
            [
                _sums(of, span, *(in_spans(one, size) for one in taken))
                for span, size in spans(report).items()
            ]
        )
    return rows


def _kinds(report: Report) -> dict[str, list[int] | None]:
    """Bins by what they are called; None for the sum of all of them."""
    bins, name = len(report.labels), report.bin_name
    kinds: dict[str, list[int] | None] = {}
    if bins >= 2 * BUSIEST:
        kinds[f"each of the {BUSIEST} busiest {name}s"] = report.busiest[:BUSIEST]
        kinds[f"each of the {bins // 2:,} rarest {name}s"] = report.busiest[-(bins // 2) :]
    kinds[f"each of {number_of(bins, name)}"] = report.busiest
    if bins > 1:
        kinds[f"all {name}s together"] = None
    return kinds


def _sums(
    of: str,
    span: str,
    true: npt.NDArray[np.int64],
    counted: npt.NDArray[np.int64],
    released: npt.NDArray[np.int64],
) -> Sums:
    total = int(true.sum())

    def part(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
        return float(np.abs(one - other).sum()) / total if total else math.nan

    error = float(np.abs(released - true).mean())
    shares = part(released, true), part(released, counted), part(counted, true)
    return Sums(of, span, float(true.mean()), error, *shares)


def turns(report: Report, size: int) -> Turns:
    """Of the busiest bins: changes of at least TURN from one span to the next."""
    bins = report.busiest[:BUSIEST]
    true = in_spans(report.true_counts[:, bins], size)
    change = np.diff(true, axis=0)
    seen = (np.abs(change) >= TURN * true[:-1]) & (true[:-1] > 0)

    def same(counts: npt.NDArray[np.int64]) -> int:
        told = np.diff(in_spans(counts[:, bins], size), axis=0)
        return int((np.sign(told) == np.sign(change))[seen].sum())

    revised = same(report.revised) if report.revisions else None
    return Turns(int(seen.sum()), same(report.released), revised)

"""The total of all bins as a separate cell, for a tree whose top is one group of all bins.

The mechanism follows the total with a filter (`total_filter.py`), so nothing more is released for
this cell: neither the sensitivity of a slot nor its noise grows. The cell has the filter's estimate
and its standard error.

If slots are short, the cell is released with the bins instead. Short slots are often released as a
sum over many slots. The total of such a sum has less noise than the sum of the totals of its slots.

Until the usual size of the total is known, it is estimated from the first noisy totals. Slots are
then assumed to deviate from a common level by about as much as counts usually rise and fall.

Everything in this module is post-processing of noisy results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.intervals import SWING
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import MICROSECONDS
from streamveil.mechanisms.protocol import Lasting, Observed, SlotRelease, SlotRevision

R = TypeVar("R", SlotRevision, SlotRelease)

# The shortest slots whose totals are computed and not released.
SHORTEST = 6 * MICROSECONDS["h"]
# Variance of rounding to whole counts.
ROUNDING = 1 / 12


class SlotTotal(NamedTuple):
    """Estimate and variance of the total of a slot."""

    mean: float
    variance: float
    follows: float = 0.0
    """Weight of the slot's own noisy totals in the mean, from 0 to 1."""


UNKNOWN = SlotTotal(0.0, float("nan"))
"""Before any noisy total."""


def tells_total(slot_length: int | None) -> bool:
    """Whether totals of slots of this length (microseconds) are computed, and not released."""
    return slot_length is None or slot_length >= SHORTEST


def by_first(first: npt.ArrayLike, slot: int) -> SlotTotal:
    """The total of a slot, estimated from the first noisy totals of the stream.

    Args:
        first: slot, total and variance of each, shape (n, 3).
        slot: the slot whose total is estimated.
    """
    slots, totals, variances = np.reshape(first, (-1, 3)).T
    if not len(slots):
        return UNKNOWN
    own = slots == slot
    waves = (SWING * max(float(np.average(totals, weights=1 / variances)), 0.0)) ** 2
    # The slot's own totals, and the mean of other slots, from which it deviates as they do.
    weights = np.where(own, 0.0, 1 / (variances + waves))
    mean, precision = 0.0, 0.0
    if not own.all():
        mean = float(np.average(totals, weights=weights))
        precision = 1 / (waves + 1 / float(weights.sum()))
    of_slot = float((own / variances).sum())
    seen = float((totals * own / variances).sum())
    whole = precision + of_slot
    return SlotTotal((precision * mean + seen) / whole, 1 / whole, of_slot / whole)


def with_total(release: SlotRelease, total: SlotTotal, quantum: int, most: int) -> SlotRelease:
    """Add the cell of the total to a release, and say how its error lasts: see `with_cell`."""
    last = release.lasting
    return replace(
        with_cell(release, total, quantum, most),
        observed=tuple(
            Observed(_summed(observed.counts), _summed(observed.variances), observed.slots)
            for observed in release.observed or ()
        ),
        lasting=last
        and Lasting(np.append(last.kept, 1 - total.follows), np.append(last.part, 1.0)),
    )


def with_cell(result: R, total: SlotTotal, quantum: int, most: int) -> R:
    """Add the cell of the total after the bins of a release or a revision.

    A revision smooths the bins alone, and its total is the one of the release.

    Args:
        result: of the bins alone.
        total: of its slot, in quanta.
        quantum: the most that one event adds to a cell.
        most: the largest total that there can be.
    """
    mean, variance = total.mean * quantum, total.variance * quantum**2
    value = min(max(mean, 0.0), float(most))
    plain = result.unshrunk
    if plain is None and value != mean:
        plain = Observed(result.values, result.stderr**2)
    if plain is not None:
        plain = Observed(np.append(plain.counts, mean), np.append(plain.variances, variance))
    return replace(
        result,
        counts=np.append(result.counts, round(value)),
        stderr=np.append(result.stderr, (variance + ROUNDING) ** 0.5),
        estimates=np.append(result.values, value),
        unshrunk=plain,
    )


def _summed(cells: Floats) -> Floats:
    return np.append(cells, cells.sum())

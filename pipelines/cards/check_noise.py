"""Whether releases have as much noise as the epsilon beside them asks for.

Whoever rewrites costs in releases and ledger, and digests in the card, still has the standard
errors there: noise for an epsilon has a variance that follows from it, and a count with that noise
has no smaller one. Mechanisms that publish what they drew say so in every publication. Others
draw counts towards earlier ones: of these the first publication of the stream is looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import PUBLISHED, REPLACE
from streamveil.mechanisms.randomness.noise import laplace_variance
from streamveil.pipelines.cards.read import Fault, Read, column, floats, numbers
from streamveil.pipelines.guarantees import USER, WINDOWS

Record = Mapping[str, Any]

AS_DRAWN = ("pba", "pbd", "ba", "bd", "uniform", "sample", "spas", "dpba", "dpbd")
"""Mechanisms that publish counts as they were drawn."""
# Errors are written with at least so many digits; and of a first publication that is drawn towards
# what was expected before, so much of the noise is left at least.
ROUNDING, FIRST = 1e-6, 0.4


def noise_faults(card: Record, read: Read) -> Iterator[str]:
    """The first publication with less noise than its epsilon asks for, of each file."""
    if card["promise"]["guarantee"] not in (WINDOWS, USER):
        return
    inputs = 2 if card["promise"]["adjacency"] == REPLACE else 1
    sensitivity = int(card["data"].get("max_contributions", 1)) * inputs
    first = _begins(read)
    for path, table in read.of("releases"):
        if not {"stderr", "epsilon", "published_slot", "mechanism"} <= set(table.column_names):
            continue
        for slot, epsilon, error, mechanism in _publications(path, table):
            drawn = mechanism.partition(":")[0] in AS_DRAWN
            if not (drawn or first):
                continue
            first = False
            noise = _noise(epsilon, sensitivity)
            if error < noise * (1 - ROUNDING if drawn else FIRST):
                yield (
                    f"{path}: slot {slot} says epsilon {epsilon:.6g} beside a standard error of "
                    f"{error:.4g}, and noise for that epsilon has one of {noise:.4g}: the release "
                    f"cost about {noise / max(error, 1e-12):.3g} times as much, or one of the two "
                    "was changed; restore the releases that the run wrote"
                )
                break


def _begins(read: Read) -> bool:
    """Whether the ledger begins with the stream: later, releases are drawn towards earlier ones."""
    for path, table in read.of("ledger"):
        if not {"slot", "spent", "spent_in_window"} <= set(table.column_names):
            return False
        slots = numbers(path, table, "slot")
        spent, within = floats(path, table, "spent"), floats(path, table, "spent_in_window")
        return bool(slots.size) and bool((spent == within)[slots == slots[0]].all())
    return False


def _publications(path: str, table: pa.Table) -> Iterator[tuple[int, float, float, str]]:
    """Slot, epsilon, largest standard error of a bin and mechanism of what was published anew."""
    slots, published = numbers(path, table, "slot"), numbers(path, table, "published_slot")
    epsilons, status = floats(path, table, "epsilon"), column(path, table, "status")
    mechanisms = column(path, table, "mechanism")
    errors: dict[int, tuple[float, float, str]] = {}
    for at, value in enumerate(column(path, table, "stderr")):
        slot = int(slots[at])
        if slot != published[at] or status[at] != PUBLISHED:
            continue
        largest = max(_errors(path, value), default=math.nan)
        if not math.isnan(largest):
            before = errors.get(slot, (0.0, 0.0, ""))
            error = max(before[1], largest)
            errors[slot] = float(epsilons[at]), error, str(mechanisms[at])
    for slot, told in sorted(errors.items()):
        yield slot, *told


def _errors(path: str, value: Any) -> list[float]:
    """Standard errors of a row: of a bin, or of all bins as a list."""
    try:
        found = json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
        some = found if isinstance(found, list) else [found]
        return [float(one) for one in some if one not in (None, "")]
    except (TypeError, ValueError):
        raise Fault(f"{path}: the column stderr holds what is no number") from None


def _noise(epsilon: float, sensitivity: int) -> float:
    """Standard deviation of the least noise that such a publication can have had."""
    return math.sqrt(laplace_variance(max(int(to_units(epsilon)) // sensitivity, 1)))

"""What the drills that kill a stream share: how its releases are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def overspent(
    spent: Sequence[tuple[int, float]], window: int, epsilon: float
) -> list[tuple[int, int, float]]:
    """Windows of slots, given in order with what each spent, that cost more than was asked for.

    Gives (last slot, window, spent) of each.
    """
    found = []
    for last in range(len(spent)):
        total = sum(amount for _, amount in spent[max(0, last + 1 - window) : last + 1])
        if total > epsilon + 1e-9:
            found.append((spent[last][0], window, total))
    return found


def tell(figures: Mapping[str, Any], faults: Sequence[str]) -> int:
    """Print what came out; gives the exit code."""
    print(", ".join(f"{name} {number}" for name, number in figures.items()))
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0

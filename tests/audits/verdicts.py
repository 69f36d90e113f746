"""What a mutant's trial comes to: by the filters, by `streamveil audit`, and by two worlds.

Where a filter refuses what a mutant does, no run of it comes to an end, and nothing is left to
audit. So audits of these are made without filters: what they would see if none stood there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
import pytest

from streamveil.mechanisms import BudgetExceeded
from streamveil.pipelines.audit import rounds
from tests.audits.mutants import MUTANTS, Mutant
from tests.audits.scenes import COMMANDS, SCENES, Shown, no_filters
from tests.mechanisms.test_audit import audit


@dataclass(frozen=True)
class Verdict:
    """Of some audits."""

    audits: int
    """How many, each of another seed."""
    refused: str
    """What a filter, or the price that was stated before, says; nothing if all passes."""
    charges: int | None
    """In how many audits the charges of a window add up to more than its budget; None of worlds."""
    guesses: int
    """In how many more is proven than was charged, or asked for."""
    times: float
    """What is proven in parts of the claim: the middle of all audits."""


def verdict(name: str, seeds: int) -> Verdict:
    """On a mutant."""
    mutant = MUTANTS[name]
    try:
        return _verdict(mutant.scene, seeds, mutant)
    except BudgetExceeded as error:
        return _verdict(mutant.scene, seeds, mutant, str(error))


def innocent(scene: str, seeds: int) -> Verdict:
    """On a scene in which nothing is wrong."""
    return _verdict(scene, seeds)


def _verdict(scene: str, seeds: int, mutant: Mutant | None = None, refused: str = "") -> Verdict:
    with _arranged(mutant, bool(refused)):
        if scene in COMMANDS:
            found = [COMMANDS[scene].findings(seed) for seed in range(seeds)]
            proven = [max(check.times for check in one.checks) for one in found]
            charges = sum(one.overspent > 1 for one in found)
        else:
            proven, charges = [worlds(scene, seed) for seed in range(seeds)], None
    return Verdict(seeds, refused, charges, sum(times > 1 for times in proven), median(proven))


@contextmanager
def _arranged(mutant: Mutant | None, open_doors: bool) -> Iterator[None]:
    with ExitStack() as stack:
        # What replays see is in `test_replay.py`, mutant by mutant.
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(rounds, "replayed", lambda *_: None)
        if open_doors:
            stack.enter_context(no_filters())
        if mutant:
            stack.enter_context(mutant.patched())
        yield


# Parts of what is shown that an attacker looks at.
MOST_PARTS = 8


def worlds(scene: str, seed: int) -> float:
    """What the two worlds of a scene prove, in parts of its claim: see `test_audit.audit`.

    The half of the runs that chooses there what is counted chooses here which parts tell most.
    """
    case = SCENES[scene]
    both = [case.world(there, case.runs, str(seed)) for there in (True, False)]
    telling = np.argsort([-_apart(*(one[: case.runs // 2, i] for one in both)) for i in _of(both)])
    return audit(*(one[:, telling[:MOST_PARTS]] for one in both)) / case.claim


def _of(both: list[Shown]) -> range:
    return range(both[0].shape[1])


def _apart(one: Shown, other: Shown) -> float:
    """How far the outcomes of a part are apart in two worlds, from 0 to 2."""
    values = np.unique(np.concatenate([one, other]))
    shares = [
        np.bincount(np.searchsorted(values, each), minlength=len(values)) for each in (one, other)
    ]
    return float(np.abs(shares[0] - shares[1]).sum()) / len(one)

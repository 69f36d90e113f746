"""Scores of canaries: the log-likelihood ratio of all that a run shows, with and without each.

The noise is known: discrete Laplace on counts, whose scale follows from what was charged; on top of
sampling, where a mechanism samples. What other canaries do to a reading is taken at half of each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.guesses import Guesses
from streamveil.pipelines.audit.looks import Look, looks
from streamveil.pipelines.audit.readings import Reading, readings
from streamveil.pipelines.audit.runs import Transcript, published
from streamveil.pipelines.audit.shown import figures_of

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64] | npt.NDArray[np.float64]

# Of a group of more users, how many are kept is taken to be what is expected.
_MOST_SAMPLED = 200


def guesses_of(seen: Transcript, others: Counts, canaries: Canaries, *, alone: bool) -> Guesses:
    """What an attacker makes of the canaries of a run, beside what their slots were charged.

    Args: see :func:`scores`.
    """
    until = np.concatenate([[0], published(seen).cumsum()])
    return Guesses(
        scores(seen, others, canaries, alone=alone),
        canaries.there,
        canaries.charged(seen.spent[:, canaries.class_index]),
        canaries.users,
        until[canaries.end] > until[canaries.first],
        figures_of(seen, canaries.halved(others), canaries, alone=alone),
    )


def scores(seen: Transcript, others: Counts, canaries: Canaries, *, alone: bool) -> Floats:
    """Score of each canary, shape (n,): above 0 where it was more likely there.

    Args:
        seen: the run.
        others: counts (T, K, d) of everybody else, whom the attacker knows.
        canaries: the groups; their coins are not used.
        alone: whether at most one canary is there at a time, so that looks tell of it.
    """
    expected = canaries.halved(others)
    found = list(readings(seen))
    total = np.zeros(canaries.users.size)
    for reading in found:
        total += _score_of(reading, expected, canaries, seen.population.sizes)
    if alone:
        at = looks(seen, found, expected)
        total += [
            sum(
                _look_score(at[slot], others[slot].astype(np.float64), canaries, i, slot)
                for slot in range(canaries.first[i], canaries.end[i])
                if slot in at
            )
            for i in range(canaries.users.size)
        ]
    return total


def _score_of(reading: Reading, expected: Floats, canaries: Canaries, sizes: Integers) -> Floats:
    k, total = canaries.class_index, np.zeros(canaries.users.size)
    slots = np.arange(reading.first, reading.end)
    rest = reading.values - reading.expected(expected)
    if reading.kept is None and len(sizes) > 1:
        rest = rest - np.median(rest)  # what is corrected for bias is the same in most bins
    for mark in canaries.marks:
        near = mark.near(reading.first, reading.end)
        met = (slots[:, None] >= mark.first[near]) & (slots[:, None] < mark.end[near])
        shifts, added = reading.shifts[:, k] @ met, canaries.added(mark)[near]
        touched = np.flatnonzero(shifts * added > 0)
        moved, at = (shifts * added)[touched], mark.cells[near][touched]
        if reading.kept is None or reading.kept[k] >= 1:
            beyond = mark.sign * rest[at] + moved / 2
            total[near.start + touched] += laplace_odds(beyond, moved, reading.blur[at])
        else:
            # What is there without a canary goes with it: noise is symmetrical, counts are not.
            beyond = rest[at] + moved / 2
            total[near.start + touched] += mark.sign * _sampled_odds(
                beyond, added[touched], float(reading.kept[k]), reading.blur[at]
            )
    return total


def laplace_odds(beyond: Floats, moved: Floats, blur: Floats) -> Floats:
    """Log-likelihood ratio of what Laplace noise moved by `moved`, or by nothing, left."""
    found: Floats = (np.abs(beyond) - np.abs(beyond - moved)) / blur
    return found


def _sampled_odds(beyond: Floats, events: Integers, kept: float, blur: Floats) -> Floats:
    """The same where each event is kept with a probability only."""
    found = np.zeros(beyond.size)
    for number in np.unique(events):
        of = np.flatnonzero(events == number)
        if number > _MOST_SAMPLED:
            found[of] = laplace_odds(beyond[of], np.full(of.size, number * kept), blur[of])
            continue
        some = np.arange(number + 1)
        weights = stats.binom.logpmf(some, number, kept)
        inside = weights - np.abs(beyond[of, None] - some) / blur[of, None]
        found[of] = special.logsumexp(inside, axis=1) + np.abs(beyond[of]) / blur[of]
    return found


def _look_score(look: Look, counts: Floats, canaries: Canaries, i: int, slot: int) -> float:
    without, with_canary = counts.copy(), counts.copy()
    for mark in canaries.marks:
        if mark.first[i] <= slot < mark.end[i]:
            here = with_canary if mark.there else without
            here[canaries.class_index, mark.cells[i]] += canaries.users[i] * mark.amount
    return look.odds(without, with_canary)

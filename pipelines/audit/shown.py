"""What the published record of a run shows of its canaries, and odds that are learnt of it.

Nothing is assumed here of how a release was made, and nothing internal is read: figures are made of
counts before they are rounded, errors, revisions, and where one canary is alone, of status and
diagnostics. What everybody else adds is taken off, as an attacker knows it. Which figures tell of a
canary is learnt from runs that do not count, beside runs without it: see `learned_odds.py`. So a
mistake shows wherever it leaves: also in what a mechanism publishes beside, or in place of, its
noisy results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.protocol import SlotRelease
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.guesses import Guesses, apart, joined
from streamveil.pipelines.audit.learned_odds import LearnedOdds
from streamveil.pipelines.audit.runs import Transcript

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Slots before and after those of a canary whose counts are looked at, too.
_BEFORE, _AFTER = 3, 1
# Diagnostics that are looked at, in the order of their names.
_MOST_DIAGNOSTICS = 16
# The least part of an estimate that is taken to be new.
_LEAST_NEW = 0.1
# Added to what figures have to do with each other, so that those that are alike do no harm.
_DOUBT = 1e-3
# So many times as much as known scores must a figure tell: what is learnt is flattered.
_BETTER = 1.1


def figures_of(seen: Transcript, expected: Floats, canaries: Canaries, *, alone: bool) -> Floats:
    """Figures of each canary, NaN where nothing is told: shape (n, a), a the same in all runs.

    Args:
        seen: the run.
        expected: counts (T, K, d) of everybody else, with a half of each canary.
        canaries: the groups; their coins are not used.
        alone: whether at most one canary is there at a time, so that status and diagnostics tell
            of it.
    """
    usual = expected.sum(axis=1)
    values = np.stack([one.values for one in seen.releases]) - usual
    revised = np.full(values.shape, np.nan)
    for one in (each for release in seen.releases for each in release.revisions):
        revised[one.slot] = one.values - usual[one.slot]
    errors = np.stack([one.stderr for one in seen.releases])
    errors = errors - np.median(errors, axis=1, keepdims=True)
    k, sizes, spent = canaries.class_index, seen.population.sizes, seen.spent
    paid = spent @ sizes
    weights = np.where(paid[:, None] > 0, spent * sizes.sum(), 1.0)
    weights = weights / np.where(paid > 0, paid, 1.0)[:, None]
    fresh = _fresh(seen, paid / sizes.sum()) - np.einsum("tk,tkd->td", weights, expected)
    if len(sizes) > 1:  # what is corrected for bias is the same in most bins
        fresh -= np.median(fresh, axis=1, keepdims=True)
    found = [
        _odds(fresh, weights[:, k], spent[:, k], canaries),
        _odds(values, np.ones(len(values)), spent[:, k], canaries),
        _means(values, canaries),
        _means(np.stack([one.counts for one in seen.releases]) - usual, canaries),
        _means(revised, canaries),
        _means(errors, canaries),
    ]
    found += [
        _at(values, canaries, shift) for shift in (*range(-_BEFORE, 0), *range(1, _AFTER + 1))
    ]
    if alone:
        found += _besides(seen.releases, usual.sum(axis=1), canaries)
    return np.stack(found, axis=1)


def learnt(runs: Sequence[Guesses]) -> list[Guesses]:
    """The same canaries, guessed by what tells most: their scores, or a figure of the record."""
    return [
        replace(run, scores=odds.scores(run))
        for run, odds in zip(runs, apart(runs, _RecordOdds), strict=True)
    ]


class _RecordOdds:
    """What tells most of canaries, learnt from some runs.

    Either their scores, which are of noise as it is known to be; or odds that are learnt of a
    figure, or of all figures on the line on which both worlds are farthest apart.
    """

    def __init__(self, runs: Sequence[Guesses]) -> None:
        known = joined(runs)
        second = np.arange(known.there.size) % 2 == 1
        tried, rest = known.where(~second), known.where(second)
        # What was learnt of one half is tried on the other: a line fits what it is drawn by.
        signs = np.where(rest.there, 1.0, -1.0)
        columns = _Columns(tried)
        scored = bool(known.scores.any())
        worth = [float(signs @ rest.scores) if scored else -np.inf]
        for place, column in enumerate(columns(rest.figures).T):
            worth.append(float(signs @ columns.odds(tried, place).scores(column[:, None])))
        best = int(np.argmax(worth))
        self._place = None if scored and worth[best] <= _BETTER * worth[0] else best - 1
        self._columns = _Columns(known)
        if self._place is not None:
            self._odds = self._columns.odds(known, self._place)

    def scores(self, run: Guesses) -> Floats:
        """Of each canary, above 0 where it was likelier there: shape (n,)."""
        if self._place is None:
            return run.scores
        return self._odds.scores(self._columns(run.figures)[:, self._place, None])


class _Columns:
    """Figures, and the line that some canaries give."""

    def __init__(self, known: Guesses) -> None:
        self._even = _Even(known.figures)
        self._line = self._even.line(known.figures, np.where(known.there, 1.0, -1.0))

    def __call__(self, figures: Floats) -> Floats:
        found: Floats = np.column_stack([figures, self._even(figures) @ self._line])
        return found

    def odds(self, known: Guesses, place: int) -> LearnedOdds:
        """What a column tells, learnt from these canaries."""
        column = self(known.figures)[:, place, None]
        odds = LearnedOdds(column, surely=False)
        odds.learn(column, known.there)
        return odds


class _Even:
    """Figures about 0 and as wide as each other; 0 where nothing is told."""

    def __init__(self, figures: Floats) -> None:
        told = [column[~np.isnan(column)] for column in figures.T]
        self._middle = np.array([np.median(one) if one.size else 0.0 for one in told])
        self._width = np.array([np.std(one) if one.size else 0.0 for one in told])

    def __call__(self, figures: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            even = (figures - self._middle) / self._width
        found: Floats = np.where(np.isfinite(even), even, 0.0)
        return found

    def line(self, figures: Floats, signs: Floats) -> Floats:
        """On which signs are farthest apart, by least squares: shape (a,)."""
        even = self(figures)
        products = even.T @ even + _DOUBT * (1 + len(even)) * np.eye(even.shape[1])
        found: Floats = np.linalg.solve(products, even.T @ signs).astype(np.float64)
        return found


def _odds(table: Floats, shifts: Floats, costs: Floats, canaries: Canaries) -> Floats:
    """As if a table (T, d) had Laplace noise of what slots cost: shape (n,).

    Args:
        table: counts with noise, less what is expected with a half of each canary.
        shifts: by how much an event moves a count, shape (T,).
        costs: what each slot was charged, epsilon, shape (T,).
        canaries: the groups.
    """
    total = np.zeros(canaries.users.size)
    for mark in canaries.marks:
        which, slots = mark.spread()
        moved = np.maximum(canaries.added(mark)[which] * shifts[slots], 1e-9)
        rest = table[slots, mark.cells[which]] / (mark.sign * moved)
        odds = np.abs(rest + 0.5) - np.abs(rest - 0.5)
        np.add.at(total, which, odds * costs[slots] * canaries.users[which])
    return total


def _means(table: Floats, canaries: Canaries) -> Floats:
    """Mean of a table (T, d) over all cells of each canary, a canary being 1: shape (n,)."""
    total, many = np.zeros(canaries.users.size), np.zeros(canaries.users.size)
    for mark in canaries.marks:
        which, slots = mark.spread()
        added = mark.sign * canaries.added(mark)[which]
        with np.errstate(invalid="ignore", divide="ignore"):
            np.add.at(total, which, table[slots, mark.cells[which]] / added)
        np.add.at(many, which, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = total / many
    return found


def _at(table: Floats, canaries: Canaries, shift: int) -> Floats:
    """The table (T, d) so many slots before the first slot of each, or after the last: (n,)."""
    if not canaries.marks:  # an input may be too short for any
        return np.full(canaries.users.size, np.nan)
    mark = canaries.marks[0]
    slots = canaries.first + shift if shift < 0 else canaries.end - 1 + shift
    inside = (slots >= 0) & (slots < len(table))
    found = table[np.where(inside, slots, 0), mark.cells] / np.maximum(canaries.added(mark), 1)
    return np.where(inside, mark.sign * found, np.nan)


def _besides(releases: Sequence[SlotRelease], usual: Floats, canaries: Canaries) -> list[Floats]:
    """Status and diagnostics where each begins: these as they are, and less all that is there."""
    names = sorted({name for one in releases for name in one.diagnostics})[:_MOST_DIAGNOSTICS]
    states = sorted({one.status for one in releases})
    found = [np.array([float(states.index(one.status)) for one in releases])]
    for place in range(_MOST_DIAGNOSTICS):
        told = np.full(len(releases), np.nan)
        if place < len(names):
            told = np.array([one.diagnostics.get(names[place], np.nan) for one in releases])
        found += [told, told - usual]
    return [one[canaries.first] for one in found]


def _fresh(seen: Transcript, paid: Floats) -> Floats:
    """What each slot tells anew, where its counts are drawn to those before: shape (T, d).

    By how much they are drawn follows from their errors, and from the noise of what was paid for a
    slot, epsilon, shape (T,).
    """
    values = np.stack([one.values for one in seen.releases])
    errors = np.stack([one.stderr for one in seen.releases])
    part = np.clip((errors * paid[:, None]) ** 2 / 2, _LEAST_NEW, 1.0)
    before = np.concatenate([values[:1], values[:-1]])
    found: Floats = before + (values - before) / np.where(np.isnan(part), 1.0, part)
    return found

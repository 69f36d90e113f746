"""What the published record of a run shows of its canaries, and odds that are learnt of it.

Nothing internal is read: figures are made of counts before they are rounded, errors, revisions, and
where one canary is alone, of status and diagnostics. What everybody else adds is taken off, as an
attacker knows it. Scores that need no learning take a slot's news for counts with the Laplace noise
that was paid for, and a slot without news for a sign that nothing had changed. Whether these or
other figures tell most of a canary is learnt from runs that do not count, beside runs without it:
see `learned_odds.py`. So a mistake shows wherever it leaves: also in what a mechanism publishes
beside, or in place of, its noisy results. What is wrong here makes the attacker weaker, and never a
bound wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.guesses import Guesses, apart, joined
from streamveil.pipelines.audit.learned_odds import LearnedOdds
from streamveil.pipelines.audit.runs import Transcript

Counts = npt.NDArray[np.int64] | npt.NDArray[np.float64]

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


def guesses_of(seen: Transcript, others: Counts, canaries: Canaries, *, alone: bool) -> Guesses:
    """What an attacker makes of the canaries of a run, beside what their slots were charged.

    Args:
        seen: the run.
        others: counts (T, K, d) of everybody else, whom the attacker knows.
        canaries: the groups; their coins are not used for scores or figures.
        alone: whether at most one canary is there at a time, so that status and diagnostics tell
            of it.
    """
    until = np.concatenate([[0], seen.published.cumsum()])
    scores, figures = _shown(seen, canaries.halved(others), canaries, alone=alone)
    return Guesses.of(
        scores,
        canaries.there,
        canaries.charged(seen.spent) * canaries.users,
        users=canaries.users,
        published=until[canaries.end] > until[canaries.first],
        figures=figures,
    )


def _shown(
    seen: Transcript, expected: Floats, canaries: Canaries, *, alone: bool
) -> tuple[Floats, Floats]:
    """Scores of canaries, shape (n,), and figures of each, NaN where a value is missing.

    Figures are of shape (n, a), a the same in all runs. Counts `expected` (T, K, d) are those of
    everybody else, with a half of each canary.
    """
    usual = expected.sum(axis=1)
    released = np.stack([one.values for one in seen.releases])
    before = np.concatenate([np.zeros_like(released[:1]), released[:-1]])
    values, news = released - usual, (released != before).any(axis=1)
    revised = np.full(values.shape, np.nan)
    for one in (each for release in seen.releases for each in release.revisions):
        revised[one.slot] = one.values - usual[one.slot]
    errors = np.stack([one.stderr for one in seen.releases])
    errors = errors - np.median(errors, axis=1, keepdims=True)
    sizes, spent = seen.sizes, seen.spent
    paid = spent @ sizes
    weights = np.where(paid[:, None] > 0, spent * sizes.sum(), 1.0)
    weights = weights / np.where(paid > 0, paid, 1.0)[:, None]
    anew = []
    for fresh in _fresh(seen, before, paid / sizes.sum()):
        fresh -= np.einsum("tk,tkd->td", weights, expected)
        if len(sizes) > 1:  # what is corrected for bias is the same in most bins
            fresh -= np.median(fresh, axis=1, keepdims=True)
        anew.append(fresh)
    rates = spent / seen.sensitivity
    scores = _odds(anew[0], weights, np.where(news[:, None], rates, 0.0), canaries)
    found = [
        scores,
        _odds(anew[1], weights, rates, canaries),
        _odds(values, np.ones_like(rates), rates, canaries),
        _means(values, canaries),
        _means(np.stack([one.counts for one in seen.releases]) - usual, canaries),
        _means(revised, canaries),
        _means(errors, canaries),
    ]
    found += [
        _at(values, canaries, shift) for shift in (*range(-_BEFORE, 0), *range(1, _AFTER + 1))
    ]
    if alone:
        farther = _farther(usual - before, rates, canaries)
        looked = np.where(news[canaries.first], farther, -farther)
        found += [looked, *_besides(seen.releases, usual.sum(axis=1), farther, canaries)]
        if not news.all():
            scores = scores + looked
    return scores, np.stack(found, axis=1)


def learnt(runs: Sequence[Guesses]) -> list[Guesses]:
    """The same canaries, guessed by what tells most: their scores, or a figure of the record."""
    return [
        replace(run, scores=odds.scores(run))
        for run, odds in zip(runs, apart(runs, _RecordOdds), strict=True)
    ]


def learnt_of_all(runs: Sequence[Guesses]) -> list[Guesses]:
    """The same canaries, guessed by all figures as if these were independent."""
    return [
        replace(run, scores=odds.scores(run.figures))
        for run, odds in zip(runs, apart(runs, _odds_of_all), strict=True)
    ]


def _odds_of_all(runs: Sequence[Guesses]) -> LearnedOdds:
    known = joined(runs)
    odds = LearnedOdds(known.figures, surely=False)
    odds.learn(known.figures, known.there)
    return odds


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
            if np.isnan(column).all():  # there are fewer diagnostics
                worth.append(-np.inf)
                continue
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
    """Figures about 0 and as wide as each other; 0 where a value is missing."""

    def __init__(self, figures: Floats) -> None:
        columns = [column[~np.isnan(column)] for column in figures.T]
        self._middle = np.array([np.median(one) if one.size else 0.0 for one in columns])
        self._width = np.array([np.std(one) if one.size else 0.0 for one in columns])

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


def _odds(table: Floats, shifts: Floats, rates: Floats, canaries: Canaries) -> Floats:
    """As if a table (T, d) had Laplace noise at some rates: shape (n,).

    Args:
        table: counts with noise, less what is expected with a half of each canary.
        shifts: by how much an event moves a count, shape (T, K).
        rates: epsilon that each slot was charged for an event, shape (T, K).
        canaries: the groups.
    """
    total = np.zeros(canaries.users.size)
    for mark in canaries.marks:
        added = canaries.added(mark)
        moved = np.maximum(added * canaries.of(mark, shifts), 1e-9)
        rest = table[mark.slots, mark.cells] / (mark.sign * moved)
        odds = np.abs(rest + 0.5) - np.abs(rest - 0.5)
        np.add.at(total, mark.groups, odds * canaries.of(mark, rates) * added)
    return total


def _means(table: Floats, canaries: Canaries) -> Floats:
    """Mean of a table (T, d) over all cells of each canary, a canary being 1: shape (n,)."""
    total, many = np.zeros(canaries.users.size), np.zeros(canaries.users.size)
    for mark in canaries.marks:
        added = mark.sign * canaries.added(mark)
        with np.errstate(invalid="ignore", divide="ignore"):
            np.add.at(total, mark.groups, table[mark.slots, mark.cells] / added)
        np.add.at(many, mark.groups, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = total / many
    return found


def _at(table: Floats, canaries: Canaries, shift: int) -> Floats:
    """The table (T, d) so many slots before the first slot of each, or after the last: (n,)."""
    if not canaries.marks:  # an input may be too short for any
        return np.full(canaries.users.size, np.nan)
    mark, cells = canaries.marks[0], np.zeros(canaries.users.size, np.int64)
    cells[mark.groups[::-1]] = mark.cells[::-1]  # the first of each
    slots = canaries.first + shift if shift < 0 else canaries.end - 1 + shift
    inside = (slots >= 0) & (slots < len(table))
    added = mark.sign * np.maximum(canaries.users * mark.amount, 1)
    return np.where(inside, table[np.where(inside, slots, 0), cells] / added, np.nan)


def _farther(rest: Floats, rates: Floats, canaries: Canaries) -> Floats:
    """By how much each canary takes slots farther from what was released before: shape (n,).

    Args:
        rest: what is expected with a half of each canary, less what was released before, (T, d).
        rates: epsilon that each slot was charged for an event, shape (T, K).
        canaries: the groups.
    """
    total = np.zeros(canaries.users.size)
    for mark in canaries.marks:
        away, half = rest[mark.slots, mark.cells], canaries.added(mark) / 2
        moved = np.abs(away + half) - np.abs(away - half)
        np.add.at(total, mark.groups, mark.sign * moved / 2 * canaries.of(mark, rates))
    return total


def _besides(
    releases: Sequence[SlotRelease], usual: Floats, farther: Floats, canaries: Canaries
) -> list[Floats]:
    """Status and diagnostics where each begins.

    Diagnostics are looked at as they are, less all that is there, and beside how far each canary
    takes a slot from what was released before.
    """
    names = sorted({name for one in releases for name in one.diagnostics})[:_MOST_DIAGNOSTICS]
    states = sorted({one.status for one in releases})
    found = [np.array([float(states.index(one.status)) for one in releases])]
    for place in range(_MOST_DIAGNOSTICS):
        values = np.full(len(releases), np.nan)
        if place < len(names):
            values = np.array([one.diagnostics.get(names[place], np.nan) for one in releases])
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # all values of a diagnostic may be missing
            middle = np.nanmedian(values)
        found += [values, values - usual, values - middle]
    found = [one[canaries.first] for one in found]
    return [one * farther if place % 3 == 0 and place else one for place, one in enumerate(found)]


def _fresh(seen: Transcript, before: Floats, paid: Floats) -> Iterator[Floats]:
    """What each slot tells anew, where its counts are drawn to those before: shape (T, d).

    By how much they are drawn follows from their errors, and from the noise of what was paid for a
    slot, epsilon, shape (T,): as it is of whole numbers, and as it would be of any, which is more.
    """
    values = np.stack([one.values for one in seen.releases])
    errors = np.stack([one.stderr for one in seen.releases])
    rate = np.minimum(paid / seen.sensitivity, 100.0)[:, None]
    for precision in (2 * np.sinh(rate / 2) ** 2, rate**2 / 2):
        part = np.clip(errors**2 * precision, _LEAST_NEW, 1.0)
        part[0] = 1.0
        yield before + (values - before) / np.where(np.isnan(part), 1.0, part)

"""Guesses of an attacker, and the check that they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TypeVar

import numpy as np

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.core.records import Requirement
from streamveil.pipelines.audit.bounds import times_at_least, times_of, visible_from
from streamveil.pipelines.audit.findings import Check

Seen = TypeVar("Seen")
Odds = TypeVar("Odds")

# So many of so many runs, of each kind of world one, choose which guesses are made; the others
# count them.
CHOOSING, OF = 2, 8
# Guesses are made where a score is at least such a part of what is claimed to be possible.
# The first ones are taken where none is better.
CONFIDENT = (0.8, 0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
# And where the claimed loss is within such limits: beyond, a guess tells little.
LOSSES = ((0.4, 6.0), (0.05, 12.0), (0.8, 4.0), (1.5, 3.0), (1.0, 8.0))
# The same where canaries cannot be made to lose as much as tells most: any loss at all.
ANY_LOSS = (*LOSSES, (1e-4, 1e4))


@dataclass(frozen=True)
class Doubt:
    """Probability, at most, that a bound is above the truth."""

    shown: float
    """Of a bound that is shown."""
    sure: float
    """Of a bound that a verdict takes."""

    def __truediv__(self, parts: float) -> Doubt:
        """An even part of it, of so many."""
        return Doubt(self.shown / parts, self.sure / parts)


@dataclass(frozen=True, eq=False)
class Guesses:
    """Of the canaries of one run or of several: arrays of shape (n,)."""

    scores: Floats
    there: Flags
    losses: Floats
    """Claimed loss of each canary, epsilon of its whole group."""
    users: Integers
    published: Flags
    """Whether one of its slots published something."""
    figures: Floats
    """What the published record shows of each, shape (n, a): see `shown.py`."""

    whole: Floats
    """Of each, all that is promised of it, epsilon of its whole group."""

    @classmethod
    def of(
        cls,
        scores: Floats,
        there: Flags,
        losses: Floats,
        *,
        users: Integers | None = None,
        published: Flags | None = None,
        figures: Floats | None = None,
        whole: Floats | None = None,
    ) -> Guesses:
        """Canaries of one user each, who always publish and are not guessed by the record.

        What is promised of them is what they lose: all that is not said otherwise.
        """
        number = scores.size
        return cls(
            scores,
            there,
            losses,
            np.ones(number, np.int64) if users is None else users,
            np.ones(number, np.bool_) if published is None else published,
            np.zeros((number, 0)) if figures is None else figures,
            losses if whole is None else whole,
        )

    def where(self, which: Flags) -> Guesses:
        """Some of them."""
        return Guesses(*(getattr(self, one.name)[which] for one in fields(self)))

    def only(self, published: bool) -> Guesses:
        """Those whose slots published something, or not."""
        return self.where(self.published == published)

    def promised(self, epsilon: float | Floats) -> Guesses:
        """The same where so much is promised of a user, of all canaries or of each."""
        return replace(self, whole=epsilon * self.users.astype(np.float64))

    def made(self, confident: float, least: float, most: float) -> Guesses:
        """Those where a guess is made."""
        inside = (self.losses >= least) & (self.losses <= most) & (self.scores != 0)
        return self.where(inside & (np.abs(self.scores) >= confident * self.losses))

    @property
    def right(self) -> int:
        """How many are right."""
        return int(((self.scores > 0) == self.there).sum())


def joined(several: Sequence[Guesses]) -> Guesses:
    """Those of all runs."""
    return Guesses(
        *(np.concatenate([getattr(one, name.name) for one in several]) for name in fields(Guesses))
    )


def together(queries: Sequence[Guesses], epsilon: float) -> Guesses:
    """About canaries that are in all of some queries, whose noise is independent: scores add up.

    Of a user so much is promised of all queries.
    """
    first = queries[0]
    return Guesses.of(
        np.sum([one.scores for one in queries], axis=0),
        first.there,
        np.sum([one.losses for one in queries], axis=0),
        users=first.users,
        published=np.any([one.published for one in queries], axis=0),
    ).promised(epsilon)


def apart(runs: Sequence[Seen], learn: Callable[[list[Seen]], Odds]) -> Iterator[Odds]:
    """What scores each run, learnt from the runs that choose.

    Of these one half is scored by what the other half taught, as those that count will be.
    """
    open_eyed = [i for i in range(len(runs)) if i % OF < CHOOSING]
    learnt = learn([runs[i] for i in open_eyed])
    halves = [learn([runs[i] for i in open_eyed if i % 2 != j]) for j in (0, 1)]
    for i in range(len(runs)):
        yield halves[i % 2] if i in open_eyed else learnt


def check(
    part: str,
    claim: str,
    requirement: Requirement,
    runs: Sequence[Guesses],
    doubt: Doubt,
    query: str = "",
    *,
    subject: str = "",
    limits: Sequence[tuple[float, float]] = LOSSES,
) -> Check:
    """Choose by some of the runs which guesses to make, and count those of the others.

    Args:
        part: what the canaries met.
        claim: what their losses are of.
        requirement: of their class.
        runs: guesses of each run.
        doubt: of the bounds.
        query: by whose results, or `TOGETHER`; empty without queries.
        subject: whose loss it is, as of `Check`.
        limits: of the losses where guesses are made, to choose from; with `ANY_LOSS` any that are
            made are better than none.
    """
    choosing = joined([one for i, one in enumerate(runs) if i % OF < CHOOSING])
    counting = joined([one for i, one in enumerate(runs) if i % OF >= CHOOSING])
    ways = [(confident, *limits) for confident, limits in product(CONFIDENT, limits)]
    some_are_better = limits is ANY_LOSS

    tried = [choosing.made(*way) for way in ways]

    def counted(flakiness: float) -> Guesses:
        """The guesses that are worth most at such a probability of an error."""
        worth = [(_bound(one, flakiness), some_are_better and one.losses.size > 0) for one in tried]
        return counting.made(*ways[max(range(len(ways)), key=worth.__getitem__)])

    made = counted(doubt.shown)
    # Half a guess more and less: if all are right, any loss at all would do.
    reached = times_of((made.right + 0.5) / (made.losses.size + 1), made.losses)
    return Check(
        query,
        requirement,
        part,
        claim,
        float(np.median(made.losses / made.users)) if made.losses.size else 0.0,
        made.losses.size,
        made.right,
        _bound(made, doubt.shown),
        reached,
        visible_from(min(reached, 1.0), made.losses, doubt.shown),
        subject=subject,
        surely=_bound(counted(doubt.sure), doubt.sure),
    )


def _bound(made: Guesses, flakiness: float) -> float:
    return times_at_least(made.right, made.losses, flakiness) if made.losses.size else 0.0

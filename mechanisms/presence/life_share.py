"""How much is left out where users count in so many slots of their lives: a private estimate.

Number the visits of a user, which are the slots with events of theirs, from the first on and never
anew. The first M count. The next M are a layer above, and M more are a second one: events of these
two layers are near. With the visit after them, the (3 M + 1)-th, a user goes beyond: of all later
visits only the events of this one are counted.

Theorem. If all events of a user are added or removed, the near events change by at most 2 M C over
all slots, and the events beyond by C, where C events of a user count in a slot; twice as much if
they are replaced.
Proof. However long the stream, a user has at most M visits in a layer, of at most C events each,
and one that is the (3 M + 1)-th. Other users' visits keep their numbers. To replace events is to
remove those of one life and to add those of another.

Each visit is in one answer of a kind. So noise of rate a for a near event and b for one beyond
costs a user at most (2 M a + b) C for ever, however often it is asked: answers never end, and never
get worse. When it is asked depends on the age of the stream alone. What counts need not be asked:
releases tell it.

A figure may be made of a part of the cells, such as a sum. Then the near events are asked in two
answers, those in these cells and those in the others. Each is in one of the two, so together they
change by no more than the near events do, at the same cost. Their sum gives the share of all events
that is near, which noise hides less, and this is the prior of the share of the part.

**Near events.** A slot may have the same number of them for ever, or more and more as those who
stay use up their slots. So answers are averaged over several memories (`MEMORIES`), and each of
these is believed as far as it foretold the answers so far.

**Events beyond.** What users do after 3 M visits is in no figure: to measure it would cost more the
longer the stream is. It is guessed from how many went beyond. Whoever did so at an age of t slots
had come in one slot of t / (3 M), or more often; and that somebody who came until t still comes at
T is taken for as likely as t / T. Then each of them has (3 M + 1) / T events missing in a slot, or
fewer, as most came late and leave soon. Half of that is taken, give or take a third. Events beyond
are asked ever more rarely, since only the sum of the answers is of use, and each adds noise.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond, Rates, drawn
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace, laplace_variance

NEAR, BEYOND, OTHERS = 0, 1, 2
"""Numbers of an answer."""
DIFFER = 0.3
"""By how much the share of a part differs from that of all events, before anything is known."""
GUESS, DOUBT = 0.11, 0.15
"""Near events for each that counts if a limit was chosen with care, and the error of that."""
WIDE = 3.0
"""What is left out if it was not, in parts of what ever counted, is about half as much."""
REST = 0.02
"""The error of none at all, of the events of users who are beyond."""
EVERY = 20
"""Slots from one answer to the next; there are two more early ones."""
MEMORIES = np.array([1.0, 0.9, 0.6, 0.3])
"""Weights of the answer before."""
FORGETTING = 0.8
"""Weight of how well answers were foretold one answer earlier."""
# The least variance of an answer that floats tell from none, which large budgets have.
_SURE = 2.0**-52
LOW = 0.5
"""A share below this is worth a warning."""


def due(age: int, in_life: int) -> npt.NDArray[np.bool_]:
    """What is asked at the end of a slot, near events and those beyond: shape (2,).

    Args:
        age: slots of the stream so far, this one included.
        in_life: slots M in which a user counts.
    """
    often = age > in_life and (age % EVERY == 0 or age in (2 * in_life, 4 * in_life))
    lives, part = divmod(age, LAYERS * in_life)
    return np.array([often, not part and _before(lives + 1) == lives])


def _before(lives: int) -> int:
    """The last of 1, 2, 3, 4, 6, 8, 12, 16, ... that is below a number; 0 if none is."""
    step = 1 << max((lives - 1).bit_length() - 2, 0)
    return (lives - 1) // step * step


@dataclass(frozen=True)
class LifeQuery:
    """What it costs to ask about lives of a class, and the answers."""

    in_life: int
    """Slots M in which a user counts."""
    sensitivity: int
    """How much one user can change a slot."""
    part: npt.NDArray[np.bool_] | None = None
    """Cells that the figure is made of, shape (d,); None for all."""
    unit: int = 1
    """The most that an event adds, in what is counted."""

    every = EVERY

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return 2 if self.part is None else 3

    @property
    def sensitivities(self) -> tuple[int, int]:
        """By how much neighbours change all answers about near events together, and beyond."""
        return (LAYERS - 1) * self.in_life * self.sensitivity, self.sensitivity

    def rates(self, budget: int) -> Rates:
        """What costs at most so many units for ever: half for near events, half for beyond."""
        near, beyond = self.sensitivities
        return Rates(0, budget // 2 // near, budget // 2 // beyond, 0)

    def sums(self, counts: Integers, beyond: Beyond, mine: npt.NDArray[np.bool_]) -> Integers:
        """What a slot adds to the next answer, shape (width,): `mine` are the rows of the class."""
        events, is_near = beyond.events[mine], beyond.layers[mine] < LAYERS
        if self.part is None:
            return np.array([events[is_near].sum(), events[~is_near].sum()])
        own = self.part[beyond.bins[mine]]
        each = is_near & own, ~is_near & own, is_near & ~own
        return np.array([events[one].sum() for one in each])

    def answer(
        self, sums: Integers, asked: npt.NDArray[np.bool_], rates: Rates, words: RandomWords
    ) -> Integers:
        """The sums that are asked with noise, and 0 for the others: shape (width,)."""
        noisy = np.where(self.asked(asked), sums, 0)
        for one, rate in ((NEAR, rates.layers), (BEYOND, rates.rest), (OTHERS, rates.layers)):
            if one < self.width and asked[one % OTHERS]:
                noisy[one : one + 1] += discrete_laplace(rate, 1, words)
        return noisy

    def asked(self, due: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which numbers of an answer are asked, shape (width,), by what is due of each kind."""
        return np.append(due, due[NEAR])[: self.width]


class Missing(NamedTuple):
    """Events of a slot that do not count, and the variance of that."""

    events: float
    variance: float


LIKELY = Missing(GUESS, DOUBT**2)
"""Near events for each that counts."""


@dataclass(frozen=True, eq=False)
class LifeShare:
    """What is known of the events left out: a function of answers and releases, so public."""

    query: LifeQuery
    slots: Floats
    """Slots that answers were about, older ones with less weight: by memory, shape (4,)."""
    near: Floats
    """Near events of these, as answered, (4,)."""
    noise: Floats
    """Variance of that, (4,)."""
    beliefs: Floats
    """Logarithms of how well each memory foretold, (4,)."""
    misfits: Floats
    """Squares of what answers differ from what was foretold, in parts of the expected, (4,)."""
    since: Floats
    """Slots and released events since the last answer, (2,)."""
    counted: Floats
    """The same between the two answers before, and up to the last one, (4,)."""
    gone: Floats
    """Events beyond so far, and the variance of that, (2,)."""

    @classmethod
    def unknown(cls, query: LifeQuery) -> LifeShare:
        """Before the first slot."""
        nothing = np.zeros(len(MEMORIES))
        return cls(query, *(nothing,) * 4, nothing + 1, np.zeros(2), np.zeros(4), np.zeros(2))

    def released(self, events: float) -> LifeShare:
        """With one more slot, in which so many events count."""
        return replace(self, since=self.since + np.array([1.0, events]))

    def updated(self, answer: Integers, asked: npt.NDArray[np.bool_], rates: Rates) -> LifeShare:
        """With one more answer to noise of these rates."""
        noise = laplace_variance(rates.layers)
        known = self.updated_near(int(answer[NEAR]), noise) if asked[NEAR] else self
        if not asked[BEYOND]:
            return known
        more = np.array([answer[BEYOND], laplace_variance(rates.rest)])
        return replace(known, gone=known.gone + more)

    def updated_near(self, answer: int, noise: float) -> LifeShare:
        """With one more answer about near events, to noise of this variance."""
        slots, misfits = self.since[0], self.misfits
        beliefs = FORGETTING * self.beliefs
        if self.slots[0]:
            share = slots / self.slots
            foretold = self.near * share
            chance = self.query.unit * np.maximum(foretold, 0)
            variance = noise + share**2 * self.noise + chance
            variance = np.maximum(variance, _SURE)
            missed = (answer - foretold) ** 2 / variance
            beliefs = beliefs - (np.log(variance) + missed) / 2
            misfits = FORGETTING * misfits + (1 - FORGETTING) * missed
        return replace(
            self,
            slots=MEMORIES * self.slots + slots,
            near=MEMORIES * self.near + answer,
            noise=MEMORIES**2 * self.noise + noise,
            beliefs=beliefs - beliefs.max(),
            misfits=misfits,
            since=np.zeros(2),
            counted=np.append(self.since, self.counted[2:] + self.since),
        )

    @property
    def weights(self) -> Floats:
        """How much each memory is believed, shape (4,)."""
        chances = np.exp(self.beliefs)
        found: Floats = chances / chances.sum()
        return found

    @property
    def counting(self) -> tuple[float, float]:
        """Released events of a slot that count: of late, and in the mean of all."""
        (slots, events), (all_slots, all_events) = self.counted.reshape(2, 2) + self.since
        return float(events / max(slots, 1)), float(all_events / max(all_slots, 1))

    def missing(self, age: int, likely: Missing = LIKELY) -> Missing:
        """What is left out of a slot at this age.

        What is measured is drawn to what is to be expected of a limit, by as much as it is
        uncertain: see :func:`drawn`. In the first M slots nothing can be left out, and in the next
        M little is.

        Args:
            age: slots of the stream so far.
            likely: near events for each that counts, before anything is measured.
        """
        near = self.missing_near(age, likely)
        if not age > self.query.in_life:
            return near
        ever = self.counting[1]
        left, doubted = float(self.gone[0]), float(self.gone[1])
        often = (LAYERS * self.query.in_life + 1) / age  # that one of them comes, in a slot
        most = Missing(left * often, doubted * often**2 if doubted else float("inf"))
        rest = _drawn(most, Missing(0.0, (REST * max(ever, 1.0)) ** 2), max(ever, most.events, 1.0))
        doubt = rest.variance / 4 + rest.events**2 / 9
        return Missing(near.events + rest.events / 2, near.variance + doubt)

    def missing_near(self, age: int, likely: Missing = LIKELY) -> Missing:
        """The near ones of these."""
        later = min(max(age / self.query.in_life - 1, 0.0), 1.0)
        of_late, ever = self.counting
        if not later:
            return Missing(0.0, 0.0)
        measured, noise = 0.0, np.inf
        if self.slots[0]:
            each, weights = self.near / self.slots, self.weights
            measured = float(weights @ each)
            variances = self.noise / self.slots**2 * np.maximum(self.misfits, 1.0)
            noise = float(weights @ (variances + (each - measured) ** 2))
        careful = later * of_late
        return _drawn(
            Missing(measured, noise),
            Missing(likely.events * careful, likely.variance * careful**2),
            WIDE * max(ever, measured, 1.0),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, to be saved."""
        of_memories = (self.slots, self.near, self.noise, self.beliefs, self.misfits)
        others = (self.since, self.counted, self.gone)
        return tuple(float(one) for one in np.concatenate((*of_memories, *others)))

    def of_numbers(self, numbers: Floats) -> LifeShare:
        """One of the same query that was saved."""
        ends = np.cumsum([len(MEMORIES)] * 5 + [2, 4])
        return LifeShare(self.query, *np.split(np.asarray(numbers, np.float64), ends))

    @property
    def beyond(self) -> tuple[float, float]:
        """Events with which users went beyond the layers so far, and the standard error of that."""
        return max(float(self.gone[0]), 0.0), float(np.sqrt(self.gone[1]))


@dataclass(frozen=True, eq=False)
class PartShare:
    """What is known of the events left out of a part of the cells: see the module."""

    own: LifeShare
    """Of the part."""
    whole: LifeShare
    """Near events of all cells."""

    @classmethod
    def unknown(cls, query: LifeQuery) -> PartShare:
        """Before the first slot."""
        return cls(LifeShare.unknown(query), LifeShare.unknown(query))

    def released(self, part: float, events: float) -> PartShare:
        """With one more slot: the events of the part that count, and all that do."""
        return PartShare(self.own.released(part), self.whole.released(events))

    def updated(self, answer: Integers, asked: npt.NDArray[np.bool_], rates: Rates) -> PartShare:
        """With one more answer to noise of these rates."""
        whole = self.whole
        if asked[NEAR]:
            near = int(answer[NEAR] + answer[OTHERS])
            whole = whole.updated_near(near, 2 * laplace_variance(rates.layers))
        return PartShare(self.own.updated(answer, asked, rates), whole)

    def missing(self, age: int) -> Missing:
        """What is left out of a slot of the part at this age."""
        near, counting = self.whole.missing_near(age), max(self.whole.counting[0], 1.0)
        likely, known = near.events / counting, near.variance / counting**2
        return self.own.missing(age, Missing(likely, known + (DIFFER * likely) ** 2))

    @property
    def counting(self) -> tuple[float, float]:
        """As of :class:`LifeShare`, of the part."""
        return self.own.counting

    @property
    def beyond(self) -> tuple[float, float]:
        """The same."""
        return self.own.beyond

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it, to be saved."""
        return self.own.numbers + self.whole.numbers

    def of_numbers(self, numbers: Floats) -> PartShare:
        """One of the same query that was saved."""
        own, whole = np.split(np.asarray(numbers), 2)
        return PartShare(self.own.of_numbers(own), self.whole.of_numbers(whole))


def unknown(query: LifeQuery) -> LifeShare | PartShare:
    """What is known before the first slot."""
    return LifeShare.unknown(query) if query.part is None else PartShare.unknown(query)


def _drawn(measured: Missing, likely: Missing, unit: float) -> Missing:
    """What was measured drawn to what is likely, where half a unit is nothing unheard of."""
    (events, noise), (guess, doubt) = measured, likely
    found, variance = drawn(events / unit, noise / unit**2, guess / unit, doubt / unit**2)
    return Missing(found * unit, variance * unit**2)


@dataclass(frozen=True, eq=False)
class LivesLeftOut:
    """How much is left out of the slots of some classes together."""

    missing: Missing
    counting: float
    """Events of a slot that count."""
    floor: Floats
    """Of each bin, events that noise alone may be: shape (d,)."""

    @classmethod
    def of(cls, known: Sequence[LifeShare | PartShare], age: int, floor: Floats) -> LivesLeftOut:
        """What is known at this age; all classes see the same releases."""
        each = [one.missing(age) for one in known]
        missing = Missing(sum(one.events for one in each), sum(one.variance for one in each))
        return cls(missing, known[0].counting[0], floor)

    @property
    def share(self) -> tuple[float, float]:
        """The share of the events that counts, and its standard error."""
        events = self.counting + self.missing.events
        if not events:
            return 1.0, 0.0
        return self.counting / events, self.counting * self.missing.variance**0.5 / events**2

    @property
    def factor(self) -> tuple[float, float]:
        """What scales figures of all bins alike to all there was, and the variance of that."""
        whole = self._whole
        return 1 + self.missing.events / whole, self.missing.variance / whole**2

    @property
    def _whole(self) -> float:
        return max(self.counting + float(self.floor.sum()), 1.0)

    def made_up(self, counts: npt.ArrayLike, variances: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Counts of what counts as counts of all there was, and their variances: shape (d,).

        What is left out is in the bins in which the others are, and more where these are. Where
        hardly anything counts, it is what it is.
        """
        counts, missing, whole = np.asarray(counts, np.float64), self.missing, self._whole
        parts, each = (counts + self.floor) / whole, missing.events / whole
        known = np.asarray(variances) * (1 + each) ** 2 + parts**2 * missing.variance
        return counts + missing.events * parts, known


def mostly_left_out(diagnostics: Mapping[str, float], events: int) -> bool:
    """Whether it seems that more is left out of a slot than counts: a function of a release.

    That is if the share is below `LOW`, or if more is surely beyond the layers than there is in the
    slot: these users may all still be there.

    Args:
        diagnostics: of the release.
        events: that it says there were, in all bins.
    """
    surely = diagnostics["events_beyond"] - 2 * diagnostics["events_beyond_stderr"]
    return diagnostics["kept_share"] < LOW or surely > max(events, 0)

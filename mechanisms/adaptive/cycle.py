"""The cycle of a stream, such as the hours of a day: how all its counts rise and fall together.

Over complete cycles the weighted total of every phase is added up, and released once with noise
(`running_sum.py`): phases are the bins of this sum release. Each slot is charged for it, at a share
of what the slot may spend. A span is one cycle at first, and then twice as many each time: the
noise on a phase falls with the square of the cycles.

The profile is computed from these releases: the totals of the phases, as multiples of their mean,
and shrunk towards it as far as noise may have caused their differences. There is no profile until
evidence is strong enough: phases must differ in the same way span after span, by more than noise
and trend explain. A long cycle is first measured in phases of four slots, whose noise is smaller.

A daily cycle is also looked for without the option `cycle`, with a smaller share of the budget, if
noise hides the total of a slot, so that no common factor can be measured (`factor.py`). For hourly
flights by destination (37 an hour), this multiplies the error by 0.78.

Lengths, shares, spans and what is looked for are functions of noisy results: see `fixed.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.budget_plan import Terms, part
from streamveil.mechanisms.adaptive.filter_bank import RARE, Bank, Observed
from streamveil.mechanisms.adaptive.kalman import LAST_SLOT, BankState, Forecast
from streamveil.mechanisms.adaptive.own_slot import of_the_slot
from streamveil.mechanisms.adaptive.running_sum import RunningSum, SumRelease
from streamveil.mechanisms.adaptive.weighting import NO_RISK
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Flags, Floats, Singles
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import SlotNoise

NONE, AUTO = "none", "auto"
LONGEST = 672
DAY, WEEK = 86_400_000_000, 7 * 86_400_000_000
# Looked for where the length of a slot is not known: days of a week and hours of a day.
USUAL = (7, 24)
# A week of more slots is not looked for: a daily cycle explains most of it.
SLOTS_OF_WEEK = 28

# Share of a slot's budget for a cycle that is given or looked for, as long as it is not seen.
LOOKED_FOR = 0.15
# The same if the option `cycle` is not set, until spans have `UNASKED_CYCLES` cycles. Then it falls
# as spans grow, so that noise on a phase stays the same: what has not shown by then is worth
# little.
UNASKED, UNASKED_CYCLES = 0.1, 8
# Least and largest share.
LEAST, MOST = 0.01, 0.3
# What the cycle must be worth, or it gets a smaller share: while the level itself is hardly known.
WORTHWHILE = 0.125
# What each standard deviation of evidence after the first adds to a share, as a fraction of it.
EAGERNESS = 1.0
# Share for each part of the error that is left to gain: it falls as the profile becomes known.
PER_DOUBT = 2.0
# Standard deviations of evidence that a cycle takes to be found, and below which it is lost.
FOUND, LOST = 3.0, 1.0
# Weight of evidence after the next span, relative to its weight before.
MEMORY = 0.7
# Variance of a phase's step from span to span, in parts of the variance between phases.
STEP = 0.01
# A cycle of `LONG` slots or more is first measured in phases of `COARSE` slots.
LONG, COARSE = 12, 4
# How well coarse phases must be known for finer ones, and the variance within them in parts of that
# between them.
KNOWN, WITHIN = 0.9, 0.25
# No slot varies less than this part of the mean one.
QUIET = 0.01
# Slots with less than this part of the mean slot show nothing about the level.
FAINT = 0.2
# Variance of a bin's depth, and of its step from release to release.
DEPTHS, DEPTH_STEP = 0.25, 5e-4
# The longest span, in cycles and in slots.
MOST_CYCLES, MOST_SLOTS = 64, 1536


def lengths_of(name: str, cycle: str, slot_length: int | None) -> tuple[int, ...]:
    """The lengths that an option asks to look for, in slots.

    Args:
        name: of the mechanism, for errors.
        cycle: a number of slots, `auto` or `none`.
        slot_length: of a slot in microseconds, if it is known.

    Raises:
        ConfigurationError: for another option, or slots that make neither days nor weeks.
    """
    if cycle == NONE:
        return ()
    if cycle == AUTO:
        if slot_length is None:
            return USUAL
        for whole, most in ((WEEK, SLOTS_OF_WEEK), (DAY, LONGEST)):
            slots, rest = divmod(whole, slot_length)
            if not rest and 2 <= slots <= most:
                return (slots,)
        raise ConfigurationError(
            f"mechanism {name!r}: cycle=auto looks for days and weeks of 2 to {LONGEST} slots, and "
            f"slots of {slot_length / 1e6:g} s make neither: give a number of slots, or {NONE}"
        )
    if not (cycle.isascii() and cycle.isdigit()) or not 2 <= int(cycle) <= LONGEST:
        raise ConfigurationError(
            f"mechanism {name!r}: cycle is {cycle!r}, give a number of slots from 2 to {LONGEST}, "
            f"{AUTO} or {NONE}"
        )
    return (int(cycle),)


class Profile(NamedTuple):
    """Of a cycle, arrays of shape (length,): slot t is at t modulo the length."""

    ratios: Floats
    """Of a slot's counts to their mean over the cycle."""
    variance: Floats
    """Of the ratios."""


@dataclass
class Candidate:
    """What is known of a cycle of one length."""

    length: int
    """Slots."""
    mean: Floats
    """Total of each phase per slot, shape (phases,)."""
    variance: Floats
    """Of `mean`."""
    cycles: int = 1
    """Cycles of the span that runs, or of the next one."""
    spans: int = 0
    """That were released."""
    level: float = 0.0
    """Total per slot of the last span."""
    slots: int = 0
    """Of the last span."""
    evidence: float = 0.0
    """Discounted sum of how phases agreed, span by span, in standard deviations."""
    weight: float = 0.0
    """Discounted sum of squares of what they count for."""
    share: float = 0.0
    """Fraction of a slot's budget that the span costs."""
    running: RunningSum | None = None
    known: Profile | None = field(default=None, init=False)
    """What :meth:`profile` returned last: not saved."""

    SCHEMA = state_codec.record_schema(
        "Candidate",
        length="long",
        mean="bytes",
        variance="bytes",
        cycles="long",
        spans="long",
        level="double",
        slots="long",
        evidence="double",
        weight="double",
        share="double",
        running=["null", "RunningSum"],  # a name that the schema of the state defines
    )

    @classmethod
    def of(cls, length: int) -> Candidate:
        """Nothing known."""
        phases = length // COARSE if length >= LONG else length
        return cls(length, np.zeros(phases), np.zeros(phases))

    def record(self) -> dict[str, Any]:
        """Avro record of the candidate, under `SCHEMA`."""
        kept = {name: value for name, value in vars(self).items() if name != "known"}
        beliefs = {"mean": self.mean.tobytes(), "variance": self.variance.tobytes()}
        return {**kept, **beliefs, "running": self.running and self.running.record()}

    @classmethod
    def read(cls, record: dict[str, Any]) -> Candidate:
        """The candidate of a record."""
        mean, variance = (np.frombuffer(record[name]).copy() for name in ("mean", "variance"))
        running = record["running"] and RunningSum.read(record["running"], len(mean))
        return cls(**{**record, "mean": mean, "variance": variance, "running": running})

    @property
    def coarse(self) -> bool:
        """Whether slots of the cycle share phases."""
        return len(self.mean) < self.length

    def phase(self, slot: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Phases of slots."""
        phases: npt.NDArray[np.int64] = np.mod(slot, self.length) * len(self.mean) // self.length
        return phases

    @property
    def _widths(self) -> npt.NDArray[np.int64]:
        """Slots of each phase in a cycle."""
        return np.bincount(self.phase(np.arange(self.length)))

    @property
    def certainty(self) -> float:
        """Part of the variance between phases that is not noise: 0 to 1."""
        noise = float(self.variance.mean())
        return self._between / (self._between + noise) if self._between else 0.0

    @property
    def _between(self) -> float:
        """Variance between phases, less that of noise."""
        return max(float(self.mean.var(ddof=1)) - float(self.variance.mean()), 0.0)

    @property
    def sure(self) -> float:
        """Evidence in standard deviations."""
        return self.evidence / self.weight**0.5 if self.weight else 0.0

    @property
    def positive(self) -> bool:
        """Whether the mean of all phases is known to be above 0."""
        error = float(self.variance.mean()) / len(self.mean)
        return float(self.mean.mean()) > FOUND * error**0.5

    def learn(self, released: SumRelease, first: int, users: float | None) -> None:
        """Learn from the totals of a span that began with the slot `first`.

        No slot has more than `users` users; None where it is not known how many there are.
        """
        per_phase = self._widths * self.cycles
        slots = int(per_phase.sum())
        stretch = slots / per_phase
        level = float(released.mean.sum())
        white = max(level, 0.0)
        if users is not None:
            share = min(max(level / users, 0.0), 1.0)
            white = users * share * (1 - share)
        white *= 1 + released.scatter * slots
        noise = released.noise * stretch**2 + white / per_phase
        totals: Floats = released.mean * stretch
        if self.spans:
            slope = (level - self.level) / ((slots + self.slots) / 2)
            totals -= slope * self._offsets(first)
            self._compare(totals, noise)
        else:
            self.mean, self.variance = totals, noise
        self.spans, self.level, self.slots = self.spans + 1, level, slots
        most = max(min(MOST_CYCLES, MOST_SLOTS // self.length), 1)
        self.cycles = min(2 * self.cycles, most)
        if self.coarse and self.sure > FOUND and self.certainty > KNOWN:
            self._refine()
        self.known = None

    def _offsets(self, first: int) -> Floats:
        """Slots from the middle of a cycle that begins with `first`, by phase: shape (phases,)."""
        slots = np.arange(self.length)
        offsets: Floats = (
            np.bincount(self.phase(first + slots), slots - slots.mean()) / self._widths
        )
        return offsets

    def _compare(self, totals: Floats, noise: Floats) -> None:
        """Learn whether, and how, phases differ as they did before."""
        before, now = self.mean - self.mean.mean(), totals - totals.mean()
        freedom = len(totals) - 1
        alike = float(before @ now) / freedom
        # What neither noise nor the cycle explains, such as a curve that wanders.
        known = max(alike, 0.0) + float((noise + self.variance).mean())
        unlike = float(now @ now) / freedom - known
        noise = noise + max(unlike, 0.0)
        chance = float(before**2 @ noise) ** 0.5
        self.evidence = MEMORY * self.evidence + (alike * freedom / chance if chance else 0.0)
        self.weight = MEMORY**2 * self.weight + 1
        variance = self.variance + STEP * self._between
        gain = variance / (variance + noise)
        self.mean = self.mean + gain * (totals - self.mean)
        self.variance = variance * (1 - gain)

    def _refine(self) -> None:
        """Go on with a phase for each slot."""
        phases = self.phase(np.arange(self.length))
        within = WITHIN * self._between
        self.mean, self.variance = self.mean[phases], self.variance[phases] + within

    def profile(self) -> Profile:
        """What is known of each slot of the cycle."""
        if self.known is None:
            phases, certainty = self.phase(np.arange(self.length)), self.certainty
            totals, error = self.mean[phases], certainty * self.variance[phases]
            shrunk = np.maximum(totals.mean() + certainty * (totals - totals.mean()), 0.0)
            self.known = Profile(shrunk / shrunk.mean(), error / shrunk.mean() ** 2)
        return self.known


@dataclass
class Depths:
    """How deep the cycle goes in each bin, arrays of shape (d,): 1 is as deep as in the total.

    A bin's ratio is 1 + depth (r - 1), r being that of the total. Depths are learnt from releases
    alone: those of parts of a cycle show them, sums of complete cycles do not.
    """

    mean: Singles
    variance: Singles

    SCHEMA = state_codec.record_schema("Depths", mean="bytes", variance="bytes")

    @classmethod
    def start(cls, bins: int) -> Depths:
        """As in the total, perhaps."""
        return cls(np.ones(bins, np.float32), np.full(bins, DEPTHS, np.float32))

    def ratios(self, ratio: float) -> Floats:
        """Of each bin where the total has this one."""
        return np.maximum(1 + self.mean.astype(np.float64) * (ratio - 1), 0.0)

    def doubt(self, ratio: float) -> Floats:
        """Variance of :meth:`ratios`."""
        return self.variance.astype(np.float64) * (ratio - 1) ** 2

    def learn(self, missed: Floats, lever: Floats, error: Floats, able: Flags) -> None:
        """Learn from a release.

        Args:
            missed: by what was expected of it, shape (d,).
            lever: what a depth that is 1 more adds to it.
            error: variance of `missed` without the depth's.
            able: which bins learn from it.
        """
        gain = self.variance * lever / (self.variance * lever**2 + error)
        self.mean = np.where(able, self.mean + gain * missed, self.mean).astype(np.float32)
        left = np.minimum(self.variance * (1 - gain * lever) + DEPTH_STEP, DEPTHS)
        self.variance = np.where(able, left, self.variance).astype(np.float32)


@dataclass
class CycleState:
    """Candidates, and which of them has been found."""

    candidates: list[Candidate] = field(default_factory=list)
    depths: Depths = field(default_factory=lambda: Depths.start(0))
    found: int | None = None

    SCHEMA = state_codec.record_schema(
        "Cycle",
        candidates={"type": "array", "items": Candidate.SCHEMA},
        depths=Depths.SCHEMA,
        found=["null", "long"],
    )

    def record(self) -> dict[str, Any]:
        """Avro record of the state, under `SCHEMA`."""
        return {
            "candidates": [candidate.record() for candidate in self.candidates],
            "depths": {name: part.tobytes() for name, part in vars(self.depths).items()},
            "found": self.found,
        }

    def read(self, written: dict[str, Any]) -> None:
        """Read a record into a fresh state. Earlier versions looked for a cycle only on request.

        Raises ConfigurationError for cycles of other lengths.
        """
        if not written["candidates"]:
            return
        read = [Candidate.read(candidate) for candidate in written["candidates"]]
        before, now = ([candidate.length for candidate in each] for each in (read, self.candidates))
        if before != now:
            raise ConfigurationError(
                f"the state is for cycles of {before} slots, not {now}: it belongs to another "
                "configuration; use the options that it was written with, or start a new stream, "
                "which spends the users' budgets again"
            )
        self.candidates, self.found = read, written["found"]
        parts = (np.frombuffer(part, np.float32).copy() for part in written["depths"].values())
        self.depths = Depths(*parts)

    @property
    def chosen(self) -> Candidate | None:
        """The cycle that has been found."""
        return None if self.found is None else self.candidates[self.found]

    @property
    def looked_at(self) -> list[Candidate]:
        """Candidates that are measured."""
        return self.candidates if self.chosen is None else [self.chosen]


@dataclass(frozen=True, eq=False)
class CycleSlot:
    """The inputs of a slot."""

    slot: int
    counts: npt.NDArray[np.int64]
    """Of each class in each bin, shape (K, d): private, unlike the rest."""
    noise: SlotNoise
    rate: Units
    """What a slot may spend of which the cycle takes its share, shape (K,)."""
    terms: Terms


@dataclass(frozen=True, eq=False)
class CyclicBank:
    """A bank of filters whose counts are levels times what the cycle makes of a slot."""

    bank: Bank
    ratios: Floats
    """Of the slots since the last observation, up to the present one."""
    variance: float
    """Of the present slot's ratio."""
    depths: Depths

    def forecast(self, state: BankState) -> Forecast:
        """As the bank's."""
        return self.of_level(self.bank.forecast(state))

    def of_level(self, level: Forecast) -> Forecast:
        """What a level makes the counts of the present slot."""
        ratio = float(self.ratios[-1])
        each = self.depths.ratios(ratio)
        doubt = (self.variance + self.depths.doubt(ratio)) * level.mean**2
        quiet = np.maximum(each, QUIET)
        variance = level.variance * each**2 + doubt
        return Forecast(level.mean * each, variance, level.white * quiet, level.scale * quiet)

    def observe(
        self,
        state: BankState,
        counts: Floats,
        noise: float,
        error: Floats,
        shares: Floats = LAST_SLOT,
        *,
        alarmed: bool = False,
        rarity: float = RARE,
    ) -> Observed:
        """As the bank's."""
        level = self.bank.forecast(state)
        now = self.of_level(level)
        parts = shares * self.ratios[-len(shares) :]
        whole, ratio = float(parts.sum()), float(self.ratios[-1])
        own = len(shares) == 1
        scale = np.maximum(self.depths.ratios(whole), FAINT)
        if whole < FAINT:
            # It shows nothing about the level, but as much about the slot as any release.
            alone = Observed(
                *(np.zeros(counts.shape, bool), now.mean, now.variance + now.white),
                *(now.variance + now.white, counts, now.mean, now.variance + now.white),
                *(noise, error * scale),
                slots=len(shares),
            )
            return of_the_slot(alone) if own else alone
        doubt = self.depths.doubt(whole) * level.mean**2
        seen = self.bank.observe(
            state,
            counts / scale,
            noise / scale**2,
            error / scale + doubt / scale**2,
            parts / whole,
            alarmed=alarmed,
            rarity=rarity,
        )
        usual = noise + error + level.variance * scale**2 + level.white * float(shares @ shares)
        missed = counts - level.mean * scale
        self.depths.learn(missed, level.mean * (whole - 1), usual, ~seen.jumped)
        each = self.depths.ratios(ratio)
        doubt = (self.variance + self.depths.doubt(ratio)) * seen.mean**2
        observed = Observed(
            seen.jumped,
            seen.mean * each,
            seen.variance * each**2 + doubt,
            now.variance + now.white,
            counts,
            seen.expected * scale,
            seen.foreseen * scale**2,
            noise,
            seen.error * scale**2,
            seen.taken,
            len(shares),
        )
        if not own or seen.taken is None:
            return observed
        opened = seen.taken.opened * scale**2
        foreseen = now.variance + now.white
        slot = replace(observed, expected=now.mean, foreseen=foreseen, error=error * scale)
        return of_the_slot(slot, opened)


class Cycle:
    """Looks for a cycle of one of some lengths; the first one that is evident is kept.

    Args:
        lengths: in slots.
        unasked: whether the option `cycle` is not set, so the search must cost little.
    """

    def __init__(self, lengths: Sequence[int], *, unasked: bool = False) -> None:
        self.lengths = tuple(lengths)
        self.unasked = unasked

    @classmethod
    def of(cls, name: str, cycle: str, slot_length: int | None) -> Cycle | None:
        """As an option asks, None for `none`: see :func:`lengths_of`. Raises ConfigurationError."""
        lengths = lengths_of(name, cycle, slot_length)
        return cls(lengths) if lengths else None

    @classmethod
    def of_hours(cls, slot_length: int | None) -> Cycle | None:
        """The daily cycle of slots that divide a day, for a search without the option `cycle`."""
        slots, rest = divmod(DAY, slot_length or DAY)
        return cls([slots], unasked=True) if not rest and LONG <= slots <= LONGEST else None

    def start(self, bins: int) -> CycleState:
        """Nothing known."""
        return CycleState([Candidate.of(n) for n in self.lengths], Depths.start(bins))

    def over(self, state: CycleState, bank: Bank, slot: int, elapsed: int) -> Bank | CyclicBank:
        """The bank as it sees a slot.

        Args:
            state: belief.
            bank: of levels.
            slot: the present one.
            elapsed: slots since the last observation.
        """
        if state.chosen is None:
            return bank
        profile, length = state.chosen.profile(), state.chosen.length
        slots = (slot - np.arange(max(elapsed, 1))[::-1]) % length
        doubt = float(profile.variance[slot % length])
        return CyclicBank(bank, profile.ratios[slots], doubt, state.depths)

    def spans(self, state: CycleState, gap: int) -> bool:
        """Whether a gap is about a cycle that has been found, or longer."""
        return state.chosen is not None and 2 * gap >= state.chosen.length

    def whole(self, state: CycleState, gap: int) -> int:
        """The gap rounded to complete cycles; unchanged if it is much shorter than a cycle."""
        if state.chosen is None or not self.spans(state, gap):
            return gap
        length = state.chosen.length
        return min(max(round(gap / length), 1), LONGEST // length) * length

    def share(self, state: CycleState, bank: Bank, beliefs: BankState) -> float:
        """Share of the slot's budget, for all candidates together.

        Args:
            state: spans that begin here are given their share.
            bank: of levels.
            beliefs: its state.
        """
        beginning = [candidate for candidate in state.looked_at if candidate.running is None]
        if beginning:
            level = bank.forecast(beliefs)
            # Before the first release anything is possible, and this is taken to be likely.
            variance = np.minimum(level.variance, bank.users**2 / (2 * bank.bins**1.5))
            worth = float((level.mean**2).mean() / (variance + level.white).mean())
            for candidate in beginning:
                candidate.share = self._share(state, candidate, worth)
        return sum(candidate.share for candidate in state.looked_at)

    def _share(self, state: CycleState, candidate: Candidate, worth: float) -> float:
        """Share of a slot's budget for the next span of a candidate.

        Args:
            state: belief.
            candidate: of a length.
            worth: squared error of not knowing a ratio of 1, as a fraction of the present error.
        """
        if state.chosen is not None:
            at_stake = min(float(candidate.profile().ratios.var()) * worth, 1.0)
            share = PER_DOUBT * (1 - candidate.certainty) * at_stake
            return float(np.clip(share, LEAST, MOST))
        looked_for = LOOKED_FOR
        if self.unasked:
            looked_for = UNASKED / max(candidate.cycles / UNASKED_CYCLES, 1.0)
        eager = looked_for * (1 + EAGERNESS * max(candidate.sure - 1, 0.0))
        share = eager * min(worth / WORTHWHILE, 1.0)
        return float(np.clip(share, LEAST, MOST)) / len(state.candidates)

    def step(self, state: CycleState, here: CycleSlot, room: Units) -> Units:
        """Add a slot to all spans, and release those that it ends.

        Args:
            state: changed in place.
            here: the slot.
            room: what is left for it, shape (K,).

        Returns units spent, shape (K,).
        """
        crowd, spent, learnt = here.terms.crowd, np.zeros_like(room), False
        totals = here.counts.sum(axis=1)
        for candidate in state.looked_at:
            offers = here.terms.fair(np.minimum(part(here.rate, candidate.share), room - spent))
            if candidate.running is None:
                candidate.running = _begun(candidate, here, offers)
            if candidate.running is None:
                continue
            weighting = candidate.running.weighting(offers, crowd)
            placed = np.zeros((len(totals), len(candidate.mean)), np.int64)
            placed[:, int(candidate.phase(here.slot))] = totals
            candidate.running.add(weighting, placed)
            spent = spent + weighting.spent
            if len(candidate.running.totals) == candidate.cycles * candidate.length:
                running, candidate.running = candidate.running, None
                released = running.release(here.noise, "cycle")
                if released:
                    most = None if crowd.assumed else max(float(crowd.sizes.sum()), 1.0)
                    candidate.learn(released, running.first, most)
                    learnt = True
        if learnt:
            self._choose(state)
        return spent

    def _choose(self, state: CycleState) -> None:
        """Find a cycle, or lose it again."""
        if state.chosen is None:
            sure = [candidate.sure if candidate.positive else 0.0 for candidate in state.candidates]
            if sure and max(sure) > FOUND:
                state.found = int(np.argmax(sure))
                for candidate in state.candidates:
                    if candidate is not state.chosen:
                        candidate.running = None
        elif state.chosen.sure < LOST or not state.chosen.positive:
            state.found = None


def _begun(candidate: Candidate, here: CycleSlot, offers: Units) -> RunningSum | None:
    """Begin a span, with the most accurate weights; None if no class has budget."""
    possible = here.terms.choices(offers)
    if not possible.thresholds.size:
        return None
    slots = candidate.cycles * candidate.length
    threshold = possible.best(max(candidate.level, 0.5), NO_RISK, slots // len(candidate.mean))
    return RunningSum.begin(here.slot, threshold, slots, here.terms.crowd, len(candidate.mean))

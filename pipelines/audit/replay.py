"""Replay: the noisy results of one world are forced on another one, and all that leaves compared.

A release must be a function of public facts and of noisy results alone: of counts with their noise,
of which side of a noisy threshold a distance is on, of what was drawn by the exponential mechanism.
So a world is run, and what the noise source gave is written down: where, at which rate, on what,
and the result. In the other world the same results come out, whatever is put in. Then

- everything public must be the same in both: whatever is not, was made of data without noise;
- the noise source must be asked for the same, in the same order, sizes, purposes and rates: what is
  asked is public, too;
- no words are drawn twice, and where counts differ, so does the key of the noise;
- the logarithm of how much likelier these results are in one world than in the other is at most a
  sum, over all results, of the rate times the L1 change of what the noise was added to. It is added
  up in whole units, and may not be above what was charged.

The first two are true of any two worlds; the sum is compared with charges where the worlds are
neighbours. What a rate is worth is not believed: :func:`noise_too_small` tests the noise itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import FINE_BITS, RandomWords, WatchedWords, looking_on
from streamveil.pipelines.audit.clock import TimeOver, check_clock, part_of_time, stopping_at

LAPLACE, CHOICE, REPORTS, ARMED, PASSED = "noise", "choice", "reports", "threshold", "comparison"

Play = Callable[[], Iterable[tuple[int, Any]]]
"""Runs a world: gives the number of each slot, and all that it publishes."""


class Violation(Exception):  # noqa: N818
    """What a replay found: one line."""


@dataclass
class Event:
    """What the noise source was asked for, and its answer."""

    kind: str
    slot: int
    key: bytes
    """Of the noise of the slot."""
    purpose: str
    rate: int
    value: Any
    """What noise was added to, or what was chosen by, or compared."""
    result: Any
    kept: list[tuple[Integers, list[int]]] = field(default_factory=list)
    """Of sampled counts: what was sampled of them before, with thresholds."""

    @property
    def asked(self) -> tuple[Any, ...]:
        """What is public of it."""
        return self.kind, self.purpose, self.rate, np.shape(self.value)

    def __str__(self) -> str:
        return f"{self.kind} {self.purpose!r} of size {np.size(self.value)} at {self.rate} units"


class Tape:
    """What the noise source gave in one world; and, played, what it gives in another one."""

    def __init__(self) -> None:
        self.slot = 0
        self.events: list[Event] = []
        self.thinnings: list[tuple[str, Integers, list[int], Integers]] = []
        self.losses: dict[int, int] = {}
        """Units by the slot of the result, of the world that is played."""
        self._playing = False
        self._place = self._thinned = 0
        self._words: set[tuple[bytes, str]] = set()
        self._sampled: list[tuple[Integers, list[int]]] = []
        self._epoch = _Epoch()

    @property
    def playing(self) -> bool:
        """Whether results are forced."""
        return self._playing

    @property
    def loss(self) -> int:
        """Units, of all results of the world that was played."""
        return sum(self.losses.values()) + self._epoch.loss

    def rewind(self) -> None:
        """Play from the beginning."""
        self._playing, self._place, self._thinned, self.slot = True, 0, 0, 0
        self.losses, self._words, self._sampled = {}, set(), []
        self._epoch = _Epoch()

    def look(self, key: bytes, purpose: str, words: RandomWords) -> RandomWords:
        """See :func:`looking_on`."""
        check_clock()
        if (key, purpose) in self._words:
            raise Violation(
                f"slot {self.slot}: the same random words are drawn twice, for {purpose!r}"
            )
        self._words.add((key, purpose))
        return _Seen(self, key, purpose, words)

    def check_end(self) -> None:
        """Raise :class:`Violation` if less was asked for than in the first world."""
        if self._playing and self._place < len(self.events):
            raise Violation(
                f"slot {self.events[self._place].slot}: {self.events[self._place]} is asked for in "
                "one world alone"
            )

    # ---- what words tell --------------------------------------------------------------------

    def result(self, kind: str, words: _Seen, rate: int, value: Any, fresh: Any) -> Any:
        """The result that is returned: written down, or as it was."""
        here = Event(
            *(kind, self.slot, words.key, words.purpose, rate, value, fresh), self._sampled
        )
        self._sampled = []
        if not self._playing:
            self.events.append(here)
            return fresh
        if self._place == len(self.events):
            raise Violation(f"slot {self.slot}: {here} is asked for in one world alone")
        there = self.events[self._place]
        self._place += 1
        if here.asked != there.asked or here.slot != there.slot:
            raise Violation(
                f"slot {self.slot}: the noise source is asked for {here} in one world, and in the "
                f"neighbouring one in slot {there.slot} for {there}"
            )
        if not np.array_equal(here.value, there.value) and here.key == there.key:
            raise Violation(
                f"slot {self.slot}: the noise {here.purpose!r} is the same on other data"
            )
        self._lose(here, there)
        return there.result

    def thin(
        self, purpose: str, counts: Integers, thresholds: Sequence[int], kept: Integers
    ) -> Integers:
        """What is kept: of what is alike in both worlds the same, of all else what tells most."""
        if not self._playing:
            self.thinnings.append((purpose, counts, list(thresholds), kept))
            return kept
        if self._thinned == len(self.thinnings):
            raise Violation(f"slot {self.slot}: {purpose!r} is sampled in one world alone")
        before, others, rates, was = self.thinnings[self._thinned]
        self._thinned += 1
        if (before, rates, others.shape) != (purpose, list(thresholds), counts.shape):
            raise Violation(f"slot {self.slot}: {purpose!r} is sampled otherwise in both worlds")
        more = counts - others
        found: Integers = np.maximum(was + more, 0)
        self._sampled = [*self._sampled, (np.abs(found - was).sum(axis=1), list(thresholds))]
        return found

    def _lose(self, here: Event, there: Event) -> None:
        if here.kind == ARMED:
            self._epoch_ends()
            self._epoch.rate = here.rate
        elif here.kind == PASSED:
            self._epoch.add(abs(int(here.value) - int(there.value)), here.rate, there.result)
        elif here.kind == LAPLACE:
            self._book(_laplace_loss(here, there))
        elif here.kind == CHOICE:
            self._book(_choice_loss(here, there))
        elif here.kind == REPORTS:
            self._book(_reports_loss(here, there))

    def _epoch_ends(self) -> None:
        self._book(self._epoch.loss)
        self._epoch = _Epoch()

    def _book(self, units: int) -> None:
        if units:
            self.losses[self.slot] = self.losses.get(self.slot, 0) + units


@dataclass
class _Epoch:
    """Comparisons with one noisy threshold: it is moved by the largest change, for all of them."""

    rate: int = 0
    most: int = 0
    above: list[tuple[int, int]] = field(default_factory=list)
    """Change and rate of each comparison that was passed."""

    def add(self, change: int, rate: int, above: bool) -> None:
        self.most = max(self.most, change)
        if above:
            self.above.append((change, rate))

    @property
    def loss(self) -> int:
        return self.rate * self.most + sum(
            rate * (change + self.most) for change, rate in self.above
        )


class _Seen(WatchedWords):
    """Words of which a tape sees what they are used for."""

    def __init__(self, tape: Tape, key: bytes, purpose: str, words: RandomWords) -> None:
        self.tape, self.key, self.purpose, self._inner = tape, key, purpose, words

    def draw(self, size: int) -> npt.NDArray[np.uint64]:
        """The next words: what is made of them without telling is no noisy result."""
        return self._inner.draw(size)

    def laplace(self, noise: Integers, units: int) -> Integers:
        """Noise that the tape sees added."""
        return _Noise.of(noise, self, units)

    def thinned(self, counts: Integers, thresholds: Sequence[int], kept: Integers) -> Integers:
        """As the tape has it."""
        return self.tape.thin(self.purpose, counts, thresholds, kept)

    def reported(self, symbols: Integers, thresholds: Sequence[int], reports: Integers) -> Integers:
        """As the tape has it."""
        self.tape._sampled = []  # which reports are true shows in the reports alone
        seen = _Symbols(symbols, list(thresholds))
        found: Integers = self.tape.result(REPORTS, self, 0, seen, reports)
        return found

    def chosen(self, losses: Integers, rate: int, found: Integers) -> Integers:
        """As the tape has it."""
        choice: Integers = self.tape.result(CHOICE, self, rate, losses, found)
        return choice

    def armed(self, rate: int) -> None:
        """A threshold, which has no data."""
        self.tape.result(ARMED, self, rate, 0, 0)

    def passed(self, value: int, rate: int, above: bool) -> bool:
        """As the tape has it."""
        return bool(self.tape.result(PASSED, self, rate, int(value), above))


@dataclass(frozen=True, eq=False)
class _Symbols:
    symbols: Integers
    thresholds: list[int]

    def __array__(self, *_: Any, **__: Any) -> Integers:
        return self.symbols


class _Noise(npt.NDArray[np.int64]):
    """Laplace noise: what it is added to is the noiseless input, and the sum a noisy result.

    Whatever else is done with it gives plain numbers, and so no noisy result.
    """

    _use: Callable[[Any, Any], Any] | None = None

    @classmethod
    def of(cls, noise: Integers, words: _Seen, units: int) -> _Noise:
        made = noise.view(cls)
        made._use = lambda value, result: words.tape.result(LAPLACE, words, units, value, result)
        return made

    def __array_finalize__(self, _: Any) -> None:
        self._use = None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        use = self._use
        plain = [one.view(np.ndarray) if isinstance(one, _Noise) else one for one in inputs]
        out = given.get("out", ())
        if out:
            given["out"] = tuple(
                one.view(np.ndarray) if isinstance(one, _Noise) else one for one in out
            )
        if ufunc is not np.add or method != "__call__" or use is None or len(inputs) != 2:
            return getattr(ufunc, method)(*plain, **given)
        (value,) = [one for one in inputs if one is not self] or [None]
        if isinstance(value, _Noise) or np.shape(value) != self.shape:
            return getattr(ufunc, method)(*plain, **given)
        value = np.array(value)  # before it is changed in place
        self._use = None
        found = use(value, value + self.view(np.ndarray))
        if out:
            out[0][...] = found
            return out[0]
        return found.copy()


# ---- losses ---------------------------------------------------------------------------------


def _laplace_loss(here: Event, there: Event) -> int:
    """Units times the change; of what was sampled before, what each event may have revealed."""
    change = _l1(here.value, there.value)
    sampled = 0
    loss = 0
    for changes, thresholds in here.kept:
        for events, threshold in zip(changes.tolist(), thresholds, strict=True):
            sampled += events
            loss += events * sampled_loss(here.rate, threshold) if events else 0
    return loss + max(change - sampled, 0) * here.rate


def _choice_loss(here: Event, there: Event) -> int:
    """Of each draw: what changes of the candidate that was drawn, and of all together."""
    moved = [abs(a - b) for a, b in zip(here.value.tolist(), there.value.tolist(), strict=True)]
    fine = sum(moved[one] + max(moved, default=0) for one in there.result.tolist()) * here.rate
    return -(-fine >> FINE_BITS - UNIT_BITS)


def _reports_loss(here: Event, there: Event) -> int:
    symbols = here.value.symbols
    moved = np.abs(symbols - there.value.symbols).sum(axis=1).tolist()
    return sum(
        -(-events // 2) * report_loss(threshold, symbols.shape[1])
        for events, threshold in zip(moved, here.value.thresholds, strict=True)
        if events
    )


def _l1(one: Any, other: Any) -> int:
    """Of whole numbers of any size."""
    return sum(
        abs(int(a) - int(b))
        for a, b in zip(np.ravel(one).tolist(), np.ravel(other).tolist(), strict=True)
        if a != b
    )


@lru_cache(maxsize=1 << 12)
def sampled_loss(units: int, threshold: int) -> int:
    """Units, rounded up, that noise tells of an event that was kept with threshold / 2**64."""
    with localcontext() as context:
        context.prec = 60
        kept = Decimal(threshold) / (1 << 64)
        whole = (Decimal(units) / (1 << UNIT_BITS)).exp() - 1
        return math.ceil((1 + kept * whole).ln() * (1 << UNIT_BITS))


@lru_cache(maxsize=1 << 12)
def report_loss(threshold: int, symbols: int) -> int:
    """Units, rounded up, that a report tells which is true with threshold / 2**64, else any."""
    with localcontext() as context:
        context.prec = 60
        truth = Decimal(threshold) / (1 << 64)
        return math.ceil((1 + truth * symbols / (1 - truth)).ln() * (1 << UNIT_BITS))


# ---- two worlds -----------------------------------------------------------------------------


class Replay:
    """A world that was run, to be held against others."""

    def __init__(self, play: Play, until: float = math.inf) -> None:
        """Run it to its end, or until a moment by `time.monotonic`: what was run is held then."""
        self.tape, self._published = Tape(), []
        self.whole, self.compared = True, 0
        for slot, public in self._played(play):
            self._published.append((slot, public))
            if time.monotonic() > until:
                self.whole = False
                break

    @property
    def published(self) -> list[Any]:
        """All that was published, slot by slot."""
        return [public for _, public in self._published]

    def against(self, play: Play) -> int:
        """Force the results of this world on another one; gives the units that these lose.

        Raises :class:`Violation` with the first thing that is not a function of noisy results.
        Raises TimeOver when there is not a time left, with what was compared so far in `compared`.
        """
        self.tape.rewind()
        self.compared = 0
        for slot, public in self._played(play):
            place = self.compared
            if place == len(self._published) or self._published[place][0] != slot:
                raise Violation(f"slot {slot} is published in one world alone")
            found = difference(self._published[place][1], public)
            if found:
                raise Violation(f"slot {slot}: {found}")
            self.compared += 1
            if not self.whole and self.compared == len(self._published):
                return self.tape.loss
        self.tape.check_end()
        if self.compared < len(self._published):
            slot, _ = self._published[self.compared]
            raise Violation(f"slot {slot} is published in one world alone")
        return self.tape.loss

    def _played(self, play: Play) -> Iterator[tuple[int, Any]]:
        made = iter(play())
        while True:
            check_clock()
            # Only here: between slots others may draw noise that is none of ours.
            with looking_on(self.tape.look):
                try:
                    slot, public = next(made)
                except StopIteration:
                    return
                except (Violation, TimeOver):
                    raise
                except Exception as error:
                    if not self.tape.playing:
                        raise
                    raise Violation(
                        f"slot {self.tape.slot}: fails in one world alone: {error}"
                    ) from error
            self.tape.slot = slot + 1
            yield slot, public


def difference(one: Any, other: Any) -> str | None:
    """The first place where two public records differ, and how; None if they are alike."""
    return next(_differences(one, other, ""), None)


def _differences(one: Any, other: Any, at: str) -> Iterator[str]:
    if is_dataclass(one) and not isinstance(one, type) and type(one) is type(other):
        for each in fields(one):
            where = f"{at}.{each.name}" if at else each.name
            yield from _differences(getattr(one, each.name), getattr(other, each.name), where)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            yield _difference(at, list(one), list(other))
        for key in one.keys() & other.keys():
            yield from _differences(one[key], other[key], f"{at}[{key!r}]" if at else str(key))
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            yield _difference(at, f"{one.dtype} of {one.shape}", f"{other.dtype} of {other.shape}")
        elif one.dtype == object:
            yield from _differences(one.tolist(), other.tolist(), at)
        else:
            same = one == other
            if one.dtype.kind == "f":
                same |= np.isnan(one) & np.isnan(other)
            for place in np.flatnonzero(~same.ravel())[:1]:
                yield _difference(f"{at}[{place}]", one.ravel()[place], other.ravel()[place])
    elif isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        if len(one) != len(other):
            yield _difference(at, f"{len(one)} entries", f"{len(other)}")
        for place, pair in enumerate(zip(one, other, strict=False)):
            yield from _differences(*pair, f"{at}[{place}]")
    elif type(one) is not type(other):
        yield _difference(at, f"a {type(one).__name__}", f"a {type(other).__name__}")
    elif one is not other and one != other and not (one != one and other != other):
        yield _difference(at, one, other)


def _difference(at: str, one: Any, other: Any) -> str:
    return f"{at or 'what is published'} is {one} in one world, and {other} in the neighbouring one"


# ---- the noise itself -----------------------------------------------------------------------

# Rates that noise may have in place of its own, in parts of it; draws from one beginning to the
# next; and probability, at most, that noise as it should be is called too small.
FASTER, EVERY, FLAKINESS = (1.25, 2.0, 8.0), 64, 1e-6


def noise_too_small(tape: Tape) -> str | None:
    """Say where noise is smaller than its rate asks for, or repeats itself; None if nowhere.

    How much likelier draws are at a higher rate, or if one draw in two is an earlier one again, is,
    multiplied from any draw on, a martingale with mean 1 where the noise is as it should be. So it
    is ever above x with probability 1 / x at most (Ville's inequality), and where noise is wrong it
    grows without bounds. It is begun anew all the time, so that it does not matter when noise
    became wrong.
    """
    groups: dict[str, list[tuple[int, Integers, float]]] = {}
    for event in tape.events:
        if event.kind == LAPLACE and np.asarray(event.value).dtype.kind == "i":
            noise = np.ravel(np.asarray(event.result) - event.value)
            rate = event.rate / float(1 << UNIT_BITS)
            groups.setdefault(event.purpose.split(" ")[0], []).append((event.slot, noise, rate))
    sizes = {kind: sum(noise.size for _, noise, _ in some) for kind, some in groups.items()}
    tests = (len(FASTER) + 2) * sum(1 + size // EVERY for size in sizes.values())
    for kind, some in groups.items():
        slots = np.concatenate([np.full(noise.size, slot) for slot, noise, _ in some])
        for wrong, likelier in _wrong_noise(some):
            sums = np.append(0.0, np.cumsum(likelier))
            best = np.maximum.accumulate(sums[::-1])[::-1] - sums
            at = int(best[::EVERY].argmax()) * EVERY
            if best[at] > math.log(tests / FLAKINESS):
                return (
                    f"the noise {kind!r} {wrong} from slot {slots[at]} on: that is "
                    f"e**{best[at]:.0f} times likelier than what its rate says"
                )
    return None


def _wrong_noise(
    some: Sequence[tuple[int, Integers, float]],
) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """What may be wrong with noise, and how much likelier each draw is then: logarithms."""
    drawn = [noise for _, noise, _ in some]
    draws = np.concatenate(drawn)
    rates = np.concatenate([np.full(noise.size, rate) for _, noise, rate in some])
    sizes = np.abs(draws) * rates
    for times in FASTER:
        scale = np.log(np.tanh(times * rates / 2) / np.tanh(rates / 2))
        yield f"is that of {times:g} times its rate", scale - (times - 1) * sizes
    # One draw in two is the one before it, or that of its place in the last draws of as many.
    before = np.roll(draws, 1)
    places = np.concatenate(
        [
            there if there.shape == here.shape else np.full(here.size, 1 << 62)
            for there, here in zip([drawn[0][:0], *drawn[:-1]], drawn, strict=True)
        ]
    )
    before[:1] = 1 << 62
    for earlier in (before, places):
        repeated = np.where(draws == earlier, sizes - np.log(np.tanh(rates / 2)), -np.inf)
        yield "repeats itself", np.logaddexp(0.0, repeated) - math.log(2)


# ---- what an audit replays ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Neighbour:
    """Another world, and what its noisy results may lose."""

    whose: str
    """Whose events are there besides, for people."""
    play: Play
    claims: Callable[[list[Any]], Mapping[str, int]] = lambda _: {}
    """From all that the first world published, units by what was claimed; nothing where the worlds
    are no neighbours."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A world, and others that it is held against."""

    play: Play
    neighbours: tuple[Neighbour, ...]
    charged: Callable[[list[Any]], float] = lambda _: 0.0
    """From all that the world published, the largest charge of a window, or of a lifetime, as a
    fraction of its budget."""
    what: str = "streams"
    """Of what."""
    slots: int = 0
    """Of each world, where what it publishes is not given slot by slot."""


LEAST = 2
"""Worlds that every audit holds against another one, of each of its first stages."""


@dataclass
class Replayed:
    """What replays found."""

    violation: str = ""
    """In one line; empty for none."""
    worst: float = 0.0
    """The largest loss in parts of what was claimed: exact."""
    worlds: int = 0
    slots: int = 0
    complete: bool = True
    """Whether all worlds that there are were held against each other, from beginning to end."""
    left_out: str = ""
    """What could not be run, and why: one line."""

    @property
    def sentence(self) -> str:
        """In one line."""
        if self.violation:
            return f"replay: {self.violation}"
        if not self.slots:
            why = self.left_out or "time was over before"
            return f"replay: no world was held against another one ({why})"
        extent = "all there are" if self.complete else "as many as there was time for"
        return (
            f"replay: in {self.worlds:,} worlds of {self.slots:,} slots ({extent}) all that is "
            "published follows from noisy results alone, which lose "
            f"{self.worst:.3f} times what is claimed at most"
            f"{self.left_out and f'; left out: {self.left_out}'}"
        )

    def hold(self, stage: Stage, until: float, least: int) -> None:
        """Hold the worlds of a stage against each other: so many in any case.

        Raises Violation, or TimeOver.
        """
        try:
            base = Replay(stage.play, part_of_time(1 / (1 + LEAST)))
        except ConfigurationError as error:
            self.left_out = f"{stage.what}: {error}"
            return
        self.complete &= base.whole
        small = noise_too_small(base.tape)
        if small:
            raise Violation(small)
        charges = stage.charged(base.published)
        if charges > 1:
            raise Violation(f"charges of a window are {charges:.4g} times its budget")
        for number, each in enumerate(stage.neighbours):
            if number >= least and time.monotonic() > until:
                self.complete = False
                return
            try:
                loss = base.against(each.play)
            finally:
                self.worlds += 1
                self.slots += stage.slots * base.compared or base.compared
            if base.whole:  # claims are of whole runs
                self._claimed(each, loss, each.claims(base.published))

    def _claimed(self, each: Neighbour, loss: int, claims: Mapping[str, int]) -> None:
        for claim, units in claims.items():
            if loss > units:
                raise Violation(
                    f"the noisy results tell {loss / max(units, 1):.4g} times {claim} of "
                    f"{each.whose}: {loss} units of 2**-{UNIT_BITS}, where {units} are claimed"
                )
            self.worst = max(self.worst, loss / max(units, 1))


def replayed(stages: Iterable[Stage], until: float = math.inf) -> Replayed:
    """Hold the worlds of all stages against each other.

    Args:
        stages: `LEAST` neighbours of each of the first `LEAST` are run if there is any time.
        until: when to run no more than these, by `time.monotonic`.
    """
    found = Replayed()
    try:
        for number, stage in enumerate(stages):
            if number >= LEAST and time.monotonic() > until:
                found.complete = False
                break
            first = number < LEAST
            try:  # of the first ones none takes the time of the next
                with stopping_at(part_of_time(1 / (LEAST - number) if first else 1.0)):
                    found.hold(stage, until, LEAST if first else 0)
            except TimeOver:
                found.complete = False
    except Violation as violation:
        found.violation = str(violation)
    return found

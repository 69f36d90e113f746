"""What noisy results lose, counted without the help of the mechanism that books it.

All noise comes from one sampler, at the very end: `integers + discrete_laplace(unit, ...)`. A tape
takes its place. In one world it notes every query, the integers and the unit, and answers what
it likes; in a neighbouring world, where one user has some more events, it plays the same answers.
So all that follows from answers is the same, and how far a query's integers have moved, times
the unit, is the loss of that user in that query: a whole number of units of 2**-40 epsilon.
Whoever asks other queries in a neighbouring world, or tells something else, has looked at the
events.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from streamveil.mechanisms import DynamicStream, ReleaseStream, adaptive
from streamveil.mechanisms.adaptive import factor
from streamveil.mechanisms.adaptive.budget_plan import Plan, Planned
from streamveil.mechanisms.adaptive.factor import Factor
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.jumps import ALERTS, WATCHES
from streamveil.mechanisms.adaptive.migration import migrated
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise

ANSWERS = ("quiet", "wild", "true", "noisy")
GAPS = ("own", "short", "long", "any")
KINDS = ("own", "points", "sums", "any")


class LookedError(AssertionError):
    """A query or a release depends on events."""


@dataclass(frozen=True, eq=False)
class Query:
    """One noisy result: its purpose, its integers, and the answer of the tape."""

    purpose: str
    unit: int
    integers: np.ndarray
    answer: np.ndarray


@dataclass
class Tape:
    """Answers in the place of noise: made up in one world, played in its neighbours."""

    seed: int
    says: str
    """One of `ANSWERS`, or any of them."""
    gaps: str
    """What is planned, one of `GAPS`."""
    kinds: str
    """What gaps end with, one of `KINDS`."""
    last: int
    """From this slot on gaps end at once, so that no sum is left over."""
    slots: list[list[Query]] = field(default_factory=list)
    losses: list[tuple[str, int]] = field(default_factory=list)
    """Purpose and loss of every query in a neighbouring world."""
    slot: int = 0
    asked: int = 0
    purpose: str = ""
    playing: bool = False

    def begin(self, slot: int, playing: bool) -> None:
        """Go to the queries of a slot."""
        self.slot, self.asked, self.playing = slot, 0, playing
        if not playing:
            self.slots[slot:] = [[]]

    def end(self) -> None:
        """Check that every query of this slot was asked again."""
        if self.asked != len(self.slots[self.slot]):
            raise LookedError(
                f"slot {self.slot}: {self.asked} of {len(self.slots[self.slot])} asked"
            )

    def answer(self, unit: int, integers: np.ndarray) -> np.ndarray:
        """Note a query, or find it."""
        here, number = self.slots[self.slot], self.asked
        self.asked += 1
        if not self.playing:
            assert self.purpose not in [query.purpose for query in here]
            said = self._made_up(unit, integers, number)
            here.append(Query(self.purpose, unit, integers.copy(), said))
            return said
        if number >= len(here):
            raise LookedError(f"slot {self.slot}: {self.purpose} is asked in one world only")
        known = here[number]
        same = known.purpose, known.unit, known.integers.shape
        if same != (self.purpose, unit, integers.shape):
            raise LookedError(
                f"slot {self.slot}: {same} became {self.purpose, unit, integers.shape}"
            )
        pairs = zip(integers.tolist(), known.integers.tolist(), strict=True)
        moved = sum(distance(one, other) for one, other in pairs)
        self.losses.append((self.purpose.split()[0], moved * unit))
        return known.answer.copy()

    def random(self, *numbers: int) -> np.random.Generator:
        """Draws that are the same in all worlds."""
        return np.random.default_rng([self.seed, self.slot, *numbers])

    def _made_up(self, unit: int, integers: np.ndarray, number: int) -> np.ndarray:
        random = self.random(number)
        kind = self.says if self.says in ANSWERS else random.choice(ANSWERS)
        if kind == "quiet":
            return np.zeros_like(integers)
        if kind == "true":
            return integers.copy()
        size = 1 / to_epsilon(unit) if kind == "noisy" else 10.0 ** random.integers(0, 13)
        noise = random.laplace(0, min(size, 1e15), integers.shape).astype(np.int64)
        return noise if kind == "wild" else integers + noise


def distance(one: int, other: int) -> int:
    """Of two integers that wrap round at 64 bits, as their answers do."""
    return min((one - other) % 2**64, (other - one) % 2**64)


class _Noise:
    """Noise that does not exist before it is added."""

    __array_ufunc__ = None

    def __init__(self, tape: Tape, unit: int, size: int) -> None:
        self._tape, self._unit, self._size = tape, unit, size

    def __radd__(self, integers: np.ndarray) -> np.ndarray:
        assert integers.dtype == np.int64
        assert integers.size == self._size
        return self._tape.answer(self._unit, integers)


@contextmanager
def on(tape: Tape):
    """Let a tape answer for the noise, and plan for the plans."""
    words, best, plan_factor = SlotNoise.words, Plan.best_gap, Factor.plan

    def named(noise, purpose):
        tape.purpose = purpose
        return words(noise, purpose)

    def best_gap(plan, *beliefs):
        if tape.slot >= tape.last:
            return Planned(1, POINT, 0.0)
        if (found := best(plan, *beliefs)) is None:
            return None
        random = tape.random(99)
        gaps = {
            "own": found.gap,
            "short": int(random.integers(0, 4)),
            "long": int(random.integers(3, 30)),
            "any": int(10 ** (6 * random.random())),
        }
        kinds = {"own": found.kind, "points": POINT, "sums": SUM}
        return found._replace(
            gap=gaps[tape.gaps],
            kind=kinds.get(tape.kinds, int(random.choice([POINT, SUM]))),
            patience=float(random.choice([found.patience, 0.0, 1e-12, 1e12])),
            alert=float(random.choice([found.alert, *ALERTS])),
            watch=int(random.choice([found.watch, *WATCHES])),
        )

    def factor_used(follower, state, *known):
        every = plan_factor(follower, state, *known)
        random = tape.random(98)
        if random.random() < 0.7:
            state.share = float(random.choice(factor.SHARES))
            state.used = bool(state.usual and random.random() < 0.8)
        return every

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotNoise, "words", named)
        patch.setattr(Factor, "plan", factor_used)
        patch.setattr(factor, "FIRST", 2)
        for module in drawing_noise():
            patch.setattr(
                module, "discrete_laplace", lambda unit, size, words: _Noise(tape, unit, size)
            )
        patch.setattr(Plan, "best_gap", best_gap)
        yield


def drawing_noise() -> list[ModuleType]:
    """Modules of the mechanism that draw noise by themselves."""
    modules = [
        import_module(f"{adaptive.__name__}.{module.name}")
        for module in iter_modules(adaptive.__path__)
    ]
    return [module for module in modules if hasattr(module, "discrete_laplace")]


# ---- worlds ---------------------------------------------------------------------------------


@dataclass
class Slot:
    """What is public or private in a slot: moves, and counts by cohort and bin."""

    counts: dict[int, np.ndarray]
    moves: Moves = field(default_factory=Moves.none)

    def with_events(self, cohort: int, events: np.ndarray) -> Slot:
        """The same, where a user of a cohort has more events, or others: shape (d,)."""
        return replace(self, counts={**self.counts, cohort: self.counts[cohort] + events})


class World:
    """A stream, slot by slot; what was booked for each cohort in every slot.

    Of fixed requirements, of such that change, or of first the former and then the latter.
    """

    def __init__(self, streams: list[ReleaseStream | DynamicStream], slots: list[Slot], tape: Tape):
        self.streams, self.slots, self.tape = streams, slots, tape
        """The stream of each slot."""
        self.booked: list[dict[int, int]] = []
        self.releases: list[bytes] = []
        """All that is public of each slot's release."""
        self.saved: list[bytes] = []
        """State before each slot."""

    def run(self, restarts: np.random.Generator) -> World:
        """Release all slots; now and then from a saved state, as after a kill."""
        state = self.streams[0].start()
        with on(self.tape):
            for number, slot in enumerate(self.slots):
                state = self._migrated(state, number)
                self.saved.append(self.streams[number].encode(state))
                if restarts.random() < 0.15:
                    state = self.streams[number].decode(self.saved[-1])
                self.tape.begin(number, False)
                state, booked, release = self._release(state, number, slot)
                self.booked.append(booked)
                self.releases.append(release)
        return self

    def _migrated(self, state: Any, number: int) -> Any:
        before, after = self.streams[max(number - 1, 0)], self.streams[number]
        return state if before is after else migrated(before, state, after)

    def losses(self, events: dict[int, tuple[int, np.ndarray]]) -> list[tuple[str, int]]:
        """What a neighbour loses who has some events: (cohort, events (d,)) by slot.

        In every query, its purpose and the loss. Charges and releases must not depend
        on the events, but for the answers.
        """
        self.tape.losses.clear()
        first, last = min(events), max(events)
        state = self.streams[first].decode(self.saved[first])
        with on(self.tape):
            for number in range(first, len(self.slots)):
                slot = self.slots[number]
                if number > first:
                    state = self._migrated(state, number)
                if number in events:
                    slot = slot.with_events(*events[number])
                self.tape.begin(number, True)
                state, booked, release = self._release(state, number, slot)
                self.tape.end()
                if release != self.releases[number]:
                    raise LookedError(f"slot {number} tells something else")
                if booked != self.booked[number]:
                    raise LookedError(f"slot {number}: {self.booked[number]} became {booked}")
                if number >= last and self._forgotten(state, number):
                    break
        return self.tape.losses

    def _forgotten(self, state: Any, number: int) -> bool:
        """Whether nothing is left of the events in the state after a slot."""
        stream = self.streams[number]
        if number + 1 == len(self.slots) or self.streams[number + 1] is not stream:
            return False
        encode = stream.mechanism.encode
        saved = stream.decode(self.saved[number + 1]).mechanism
        return encode(saved) == encode(state.mechanism)

    def _release(self, state: Any, number: int, slot: Slot) -> tuple[Any, dict[int, int], bytes]:
        stream = self.streams[number]
        if isinstance(stream, ReleaseStream):
            table = np.stack([slot.counts[k] for k in range(len(slot.counts))])
            price = stream.price(state)
            state, release = stream.release(state, number, table)
            assert (release.spent <= price).all()
            return state, dict(enumerate(release.spent.tolist())), public_bytes(release)
        cohorts = np.array(list(slot.counts), np.int64)
        cells = np.array(list(slot.counts.values()), np.int64).reshape(-1, stream.setting.bins)
        where, bins = np.nonzero(cells)
        counts = CohortCounts(cohorts[where], bins, cells[where, bins])
        price = stream.price(state, number, slot.moves)
        state, release = stream.release(state, number, counts, slot.moves)
        assert (release.spent <= price).all()
        spent = release.spent[state.interned.ledgers_of(cohorts)]
        booked = dict(zip(cohorts.tolist(), spent.tolist(), strict=True))
        return state, booked, public_bytes(release)


def public_bytes(release: SlotRelease) -> bytes:
    """All that is public of a release, with the revisions that come with it."""
    assert all((one.counts >= 0).all() for one in release.revisions)
    figures = [(one.slot, one.counts.tobytes(), one.stderr.tobytes()) for one in release.revisions]
    plain = (release.status, release.published_slot, release.epsilon, dict(release.diagnostics))
    return pickle.dumps((release.counts.tobytes(), release.stderr.tobytes(), plain, figures))

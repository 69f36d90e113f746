"""SPAS: adaptive sampling by the sparse vector technique. For comparison only.

Source: Li et al., "SPAS: continuous release of data streams under w-event differential privacy"
(2025), as the papers that compare with it tell it: a first window is published evenly; from what
was released, the number of publications that a window needs is predicted; from then on the sparse
vector technique (SVT) samples the slots that are worth one, and publications share the budget
evenly. SVT: Lyu, Su, Li, "Understanding the sparse vector technique for differential privacy"
(2017), Algorithm 1.

Guarantee: (w, E)-EPDP, pure, for the smallest E and the longest window W of all users, which
implies everybody's own. Time is cut into blocks of W slots, counted from the first slot released.

- One half of E is for publications: those of any W slots cost at most E / 2.
- The other half is for SVT. One run of it lasts a block and answers "publish" at most c times. It
  costs a user its budget e, once, however many slots of the block the user is in: a threshold whose
  noise is drawn once takes e1, the c positive answers take e2, e = e1 + e2. A window of w_k <= W
  slots touches at most two blocks.
- The ledger has a price for every slot, so the run's e is booked in as many slots of the block as
  it takes for every window of w_k slots to hold e for each block that it touches: in the first
  slot, in every w_k-th after it and in the last. No window holds more than m <= 3 bookings (2 if
  all have the same window), and e = E / (2 m).

Adjacency: streams that differ in one user's events, all added or removed; replaced with twice the
sensitivity.
Sensitivity: 1 per contribution, of the histogram and of the deviation alike; above 1, budgets are
divided by it.
Changed: in print the first window spends all of E on even publications and the run that starts
before it has left the window comes on top, about E (1 - 1 / W) + E_S / 2 in a window, which exceeds
E. Here the first window is published from the publications' half, a publication waits (nullified)
until its share is back, and each run is booked as above. The split in halves and the rule that
predicts c are this module's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.core.records import NULLIFIED, PUBLISHED, SKIPPED
from streamveil.mechanisms.protocol import Population, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import SlotNoise, armed, discrete_laplace, passed
from streamveil.mechanisms.wevent.last_publication import FIELDS, Publication
from streamveil.mechanisms.wevent.sampling import Sampling

# Weight of what was seen of the drift before the last publication.
MEMORY = 0.8


@dataclass
class SpasState:
    """Everything but `threshold_noise` is public."""

    last: Publication
    halves: npt.NDArray[np.int64]
    """Sums of the first and of the second half of the first block's publications, shape (2, d)."""
    slots: int = 0
    """Slots released so far."""
    recent: list[tuple[int, int]] = field(default_factory=list)
    """Publications of the last W - 1 slots but those of the first block: slot, counted from the
    first, and units."""
    drift: float = 0.0
    """Squared movement of a count, less what noise explains, over the slots of `elapsed`."""
    elapsed: float = 0.0
    planned: int = 1
    """Positive answers c that this block's run may give."""
    left: int = 0
    """Positive answers that it may still give."""
    threshold_noise: int = 0
    """Noise of this block's threshold: private, it is never released."""


class SPAS:
    """Sparse vector sampling under the strictest requirement. See the module for the guarantee.

    Its `stderr` is that of the publication; a repeated count also misses what changed since.
    `diagnostics` has `planned_publications`, the c of the block.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "Spas",
            slots="long",
            planned="long",
            left="long",
            threshold_noise="long",
            drift="double",
            elapsed="double",
            halves=state_codec.LONGS,
            recent=state_codec.LONGS,
            **FIELDS,
        )
    }

    def __init__(self, name: str, population: Population) -> None:
        self.name = name
        self.population = population
        requirement = population.requirements.strictest[0]
        self.block = requirement.window
        self.windows = population.requirements.windows
        half = to_units(requirement.epsilon) // 2
        self.publication_cap = half
        self.even = half // self.block
        """Price of a publication in the first block."""
        self.run = half // int(most_bookings(self.block, self.windows).max())
        """Price e of a run."""

    def start(self) -> SpasState:
        """Nothing published yet."""
        bins = self.population.bins
        return SpasState(Publication.nothing(bins), np.zeros((2, bins), np.int64))

    def price(self, state: SpasState) -> Units:
        """What the slot books of a run, and a publication where there may be one."""
        state = self._begun(state)
        cost = self._cost(state)
        return self._booked(state) + cost * self._has_room(state, cost)

    def step(
        self, state: SpasState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[SpasState, SlotRelease]:
        """Release one slot."""
        block, position = divmod(state.slots, self.block)
        state = self._begun(state)
        if block and position == 0:
            state = replace(state, threshold_noise=self._threshold(state, noise))
        cost = self._cost(state)
        publishing = Sampling.choose(np.full(len(self.windows), cost), self.population)
        if publishing.epsilon == 0:
            status = SKIPPED
        elif block == 0:
            status = PUBLISHED
        elif not self._has_room(state, cost):
            status = NULLIFIED
        else:
            status = self._asked(state, slot_input.counts, publishing, noise)
        run = self._booked(state)
        if status == PUBLISHED:
            if block:
                state.recent.append((state.slots, cost))
            last = Publication.by(publishing, slot_input.slot, slot_input.counts, noise)
            state = self._seen(state, last)
        diagnostics = {"planned_publications": float(state.planned)} if block else None
        release = state.last.release(status, run + cost * (status == PUBLISHED), diagnostics)
        return replace(state, slots=state.slots + 1), release

    def _begun(self, state: SpasState) -> SpasState:
        """The state as a slot begins, which plans a block if it is its first."""
        recent = [(slot, units) for slot, units in state.recent if slot > state.slots - self.block]
        state = replace(state, recent=recent)
        if state.slots == 0 or state.slots % self.block:
            return state
        if state.slots == self.block:
            state = self._first_drift(state)
        planned = self._planned(state)
        return replace(state, planned=planned, left=planned)

    def _cost(self, state: SpasState) -> int:
        """Units of a publication."""
        return self.publication_cap // state.planned if state.slots >= self.block else self.even

    def _booked(self, state: SpasState) -> Units:
        """Units that the slot books of the block's run, shape (K,)."""
        block, position = divmod(state.slots, self.block)
        return self.run * booked(position, self.block, self.windows) * (block > 0)

    def _has_room(self, state: SpasState, cost: int) -> bool:
        """Whether there may be a publication at this cost."""
        if state.slots < self.block:
            return True
        early = max(2 * self.block - 1 - state.slots, 0)  # of the first block
        spent = early * self.even + sum(units for _, units in state.recent)
        return state.left > 0 and spent + cost <= self.publication_cap

    def _threshold(self, state: SpasState, noise: SlotNoise) -> int:
        """Draw a block's threshold."""
        threshold, _ = self._shares(state.planned)
        if not threshold:
            return 0
        words = noise.words("threshold")
        drawn = int(discrete_laplace(threshold, 1, words)[0])
        armed(threshold, words)
        return drawn

    def _shares(self, planned: int) -> tuple[int, int]:
        """Units of noise on the threshold and on each answer, per unit of sensitivity.

        An answer that turns positive may cost 2 * sensitivity units of change: once for the
        deviation, once for the threshold. The ratio e1 : e2 is the one that errs least.
        """
        sensitivity = self.population.sensitivity
        first = int(self.run / (1 + (2 * planned) ** (2 / 3)))
        return first // sensitivity, (self.run - first) // (2 * planned * sensitivity)

    def _asked(
        self,
        state: SpasState,
        counts: npt.NDArray[np.int64],
        publishing: Sampling,
        noise: SlotNoise,
    ) -> str:
        """One question to SVT: is the deviation more than a publication's error?"""
        threshold, answer = self._shares(state.planned)
        if not (threshold and answer):
            return SKIPPED
        moved = int(np.abs(counts.sum(axis=0) - state.last.counts).sum())
        words = noise.words("answer")
        noisy = moved + int(discrete_laplace(answer, 1, words)[0])
        limit = int(np.ceil(self.population.bins * np.sqrt(publishing.error)))
        above = passed(moved, answer, noisy >= limit + state.threshold_noise, words)
        return PUBLISHED if above else SKIPPED

    def _seen(self, state: SpasState, last: Publication) -> SpasState:
        """Learn from a publication how fast counts drift."""
        block, position = divmod(state.slots, self.block)
        if block == 0:
            state.halves[2 * position // self.block] += last.counts
            return replace(state, last=last)
        state = replace(state, left=state.left - 1)
        if state.last.slot is None or last.slot is None:
            return replace(state, last=last)
        moved = last.counts.astype(np.float64) - state.last.counts
        drift = float((moved**2 - last.stderr**2 - state.last.stderr**2).mean())
        elapsed = MEMORY * state.elapsed + last.slot - state.last.slot
        return replace(state, last=last, drift=MEMORY * state.drift + drift, elapsed=elapsed)

    def _first_drift(self, state: SpasState) -> SpasState:
        """Learn from the first block, which published every slot: how its halves differ."""
        late = self.block // 2
        if state.last.slot is None or late == 0:
            return state
        early = self.block - late
        moved = state.halves[1] / late - state.halves[0] / early
        drift = float((moved**2 - state.last.stderr**2 * (1 / late + 1 / early)).mean())
        # Means of both halves of a random walk of W steps are W / 3 steps apart.
        return replace(state, drift=drift, elapsed=self.block / 3)

    def _planned(self, state: SpasState) -> int:
        """Predict c: it balances noise, 2 (c / cap)**2, and drift in between, rate * W / (2 c)."""
        rate = max(state.drift, 0.0) / state.elapsed if state.elapsed else 0.0
        cap = float(to_epsilon(self.publication_cap)) / self.population.sensitivity
        return int(np.clip(np.rint(np.cbrt(rate * self.block * cap**2 / 8)), 1, self.block))

    def encode(self, state: SpasState) -> bytes:
        """Bytes of the state."""
        record = {
            **{n: getattr(state, n) for n in ("slots", "planned", "left", "threshold_noise")},
            **{"drift": state.drift, "elapsed": state.elapsed},
            "halves": state.halves.ravel().tolist(),
            "recent": [number for pair in state.recent for number in pair],
            **state.last.record(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> SpasState:
        """State of bytes."""
        record: Mapping[str, Any] = state_codec.unpack(self.SCHEMAS, data)[1]
        names = ("slots", "drift", "elapsed", "planned", "left", "threshold_noise")
        return SpasState(
            last=Publication.of_record(record, self.population.bins),
            halves=np.array(record["halves"], dtype=np.int64).reshape(2, -1),
            recent=list(zip(record["recent"][::2], record["recent"][1::2], strict=True)),
            **{name: record[name] for name in names},
        )


def booked(position: int, block: int, windows: Units) -> npt.NDArray[np.bool_]:
    """Classes whose ledger books a block's run in this slot of the block, shape (K,)."""
    ends = position in (0, block - 1)
    books: npt.NDArray[np.bool_] = ends | (position % windows == 0)
    return books


def most_bookings(block: int, windows: Units) -> npt.NDArray[np.int64]:
    """Most bookings that any window of each class holds, shape (K,)."""
    fits = (block % windows == 0) | ((block - 1) % windows == 0)
    return np.where(windows == 1, 1, np.where(fits, 2, 3))

"""A stream where users count in a few slots only: its counts are scaled to all there was.

Beside counts, every slot tells the events that do not count. Of each class that is limited they are
added up, and asked for with noise once in the length of a block. What is known of the share that is
kept scales the releases from then on, and makes their errors larger. The answers cost what was set
aside of the budget, whatever slots cost: see `presence/kept_share.py`; what is made of them is in
`presence/left_out.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.driver.exact import Exact
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
from streamveil.mechanisms.presence.kept_share import (
    FADING,
    MANY_USERS,
    MOST_BINS,
    Beyond,
    KeptShare,
    Rates,
    ShareQuery,
)
from streamveil.mechanisms.presence.left_out import LeftOut
from streamveil.mechanisms.presence.limits import Limit, aside, effective_window, terms
from streamveil.mechanisms.protocol import Mechanism, Population, SlotRelease, SlotRevision
from streamveil.mechanisms.randomness.noise import NoiseSource, RandomWords, digest

E = TypeVar("E", SlotRelease, SlotRevision)
N = TypeVar("N", Integers, Floats)
_DOUBLES = {"type": "array", "items": "double"}


@dataclass(frozen=True)
class Presence:
    """What users ask for who count in a few slots only."""

    limits: tuple[Limit, ...]
    """In how many, of each class."""
    requirements: Requirements
    """Of each class, as asked for."""
    adjacency: str
    """What neighbouring inputs differ in."""
    moving: bool = False
    """Whether users may move from class to class: see `presence/changing.py`."""
    by_bin: bool = True
    """Whether what is left out is asked for by bin as well, where classes are large."""


@dataclass
class PresentState:
    """All that such a stream remembers between slots."""

    stream: StreamState
    sums: dict[int, Integers]
    """Of each class that is limited, what it is asked for next, as in an answer. They are raw and
    never released."""
    shares: dict[int, Any]
    """What is known of each of these: a `KeptShare`, or of lives a `LifeShare`."""
    kept: Floats
    """What was released of each bin before it was scaled, older slots with less weight: (d,)."""


class PresentStream:
    """Releases slots in order, each once, scaled by the private share that is kept.

    The noise of an answer is derived from the digest of all counts up to its slot and of what is
    asked for, as that of releases is.

    Args:
        mechanism: what releases a slot, over requirements that say what one slot may cost.
        noise: where randomness comes from.
        context: as in :class:`ReleaseStream`.
        presence: what users ask for, and in how many slots they count.
    """

    UNKNOWN: Any = KeptShare.unknown
    """What is known of the share that is kept before anything is."""
    SCHEMAS = {
        1: state_codec.record_schema(
            "PresentStream",
            stream="bytes",
            sums=state_codec.LONGS,
            known=_DOUBLES,
            kept=_DOUBLES,
        )
    }

    def __init__(
        self, mechanism: Mechanism[Any], noise: NoiseSource, context: Parts, presence: Presence
    ) -> None:
        self.mechanism = mechanism
        self.asked = presence.requirements
        """Of each class, whatever slots may cost."""
        limits, asked, adjacency = presence.limits, presence.requirements, presence.adjacency
        self._door = terms(limits, asked, adjacency, moving=presence.moving)
        self.stream = ReleaseStream(mechanism, noise, context=context, presence=self._door)
        self.keeper = self.stream.keeper
        """Seals states."""
        self._noise = noise
        queries = self._queries_of(presence, [aside(one.epsilon) for one in asked])
        self.queries = {} if isinstance(mechanism, Exact) else queries
        self._fading = FADING ** (1 / max((q.every for q, _ in self.queries.values()), default=1))

    def migrated(self, state: PresentState) -> PresentState:
        """The state of this stream, in which users may move, from one in which nobody could.

        All else is alike: `presence/changing.py` says whether it may go on so.
        """
        before = state.stream
        history = digest(before.history, b"requirements may change")
        booked = self._door.decode(before.filter.encode())
        return replace(state, stream=replace(before, filter=booked, history=history))

    def _queries_of(self, presence: Presence, aside: Sequence[int]) -> dict[int, tuple[Any, Rates]]:
        """What is asked of each class that is limited, at that cost; and the rates of noise."""
        limits, asked, adjacency = presence.limits, presence.requirements, presence.adjacency
        return {
            k: _share_query(presence, k, self.mechanism.population, aside[k])
            for k, (limit, one) in enumerate(zip(limits, asked, strict=True))
            if limit.applies(one, adjacency)
        }

    def start(self) -> PresentState:
        """State before the first slot."""
        queries = {k: query for k, (query, _) in self.queries.items()}
        return PresentState(
            self.stream.start(),
            {k: np.zeros(query.width, np.int64) for k, query in queries.items()},
            {k: self.UNKNOWN(query) for k, query in queries.items()},
            np.zeros(self.mechanism.population.bins),
        )

    def release(
        self, state: PresentState, slot: int, counts: Integers, beyond: Beyond
    ) -> tuple[PresentState, SlotRelease]:
        """Release the next slot.

        Args:
            state: after the slots before.
            slot: the first slot, or the one after the last.
            counts: events that count, by class and bin, int64, shape (K, d).
            beyond: those that do not.

        Raises as :meth:`ReleaseStream.release`.
        """
        stream, release = self.stream.release(state.stream, slot, counts)
        counting, left = self._measured(counts, beyond)
        sums = {
            k: state.sums[k] + query.sums(counting[k], left, left.classes == k)
            for k, (query, _) in self.queries.items()
        }
        kept = self._fading * state.kept + release.values
        after = PresentState(stream, sums, dict(state.shares), kept)
        self._learn(after, slot, release)
        return after, self._scaled(after, release)

    def _measured(self, counts: Integers, beyond: Beyond) -> tuple[Integers, Beyond]:
        """Of what counts and what does not, that of which the share that is kept is asked for."""
        return counts, beyond

    def _learn(self, state: PresentState, slot: int, release: SlotRelease) -> None:
        """Ask what is due at the end of a slot."""
        for k, (query, rates) in self.queries.items():
            if (slot + 1) % query.every == 0:
                words = self._words(state, slot, k, state.sums[k])
                answer = query.answer(state.sums[k], rates, words)
                state.shares[k] = state.shares[k].updated(answer, rates)
                state.sums[k] = np.zeros_like(answer)

    def _words(self, state: PresentState, slot: int, k: int, asked: Integers) -> RandomWords:
        """Randomness for the answer about a class: of all counts so far and of what is asked."""
        purpose = digest(state.stream.history, b"kept share", b"%d" % k, asked.tobytes())
        return self._noise.slot(slot, purpose).words("kept share")

    def _scaled(self, state: PresentState, release: SlotRelease) -> SlotRelease:
        if not self.queries:
            return release
        left_out = self.left_out(state)
        return replace(
            self._made_up(release, left_out),
            diagnostics={**release.diagnostics, **self._known(state, left_out)},
            revisions=tuple(self._made_up(one, left_out) for one in release.revisions),
        )

    def _known(self, state: PresentState, left_out: Any) -> dict[str, float]:
        """Diagnostics."""
        share = 1 / (1 + left_out.all)
        stderr = float(np.sqrt(left_out.variance)) * share**2
        return {"kept_share": share, "kept_share_stderr": stderr}

    def left_out(self, state: PresentState) -> Any:
        """By how much counts are scaled: a function of answers and releases, so public."""
        return LeftOut.of(state.shares, self.mechanism.population.sizes, state.kept)

    def _made_up(self, estimate: E, left_out: Any) -> E:
        """An estimate of what counts as one of all there was."""
        counts, variances = left_out.made_up(estimate.values, np.square(estimate.stderr))
        whole = np.rint(counts).astype(np.int64)
        return replace(estimate, counts=whole, stderr=np.sqrt(variances), estimates=counts)

    def rest(self, state: PresentState) -> tuple[SlotRevision, ...]:
        """Revise the slots that are still to be revised: see :meth:`ReleaseStream.rest`."""
        revisions = self.stream.rest(state.stream)
        if not self.queries:
            return revisions
        left_out = self.left_out(state)
        return tuple(self._made_up(one, left_out) for one in revisions)

    def pack(self, state: PresentState) -> bytes:
        """Bytes of the state, for :attr:`keeper` to seal."""
        record = {
            "stream": self.stream.encode(state.stream),
            "sums": [one for sums in state.sums.values() for one in sums.tolist()],
            "known": [float(one) for share in state.shares.values() for one in share.numbers],
            "kept": state.kept.tolist(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def unpack(self, data: bytes) -> PresentState:
        """State of what :meth:`pack` gave. Raises as :meth:`ReleaseStream.decode`."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        fresh = self.start()
        sums = _parted(np.array(record["sums"], np.int64), fresh.sums.values())
        known = _parted(np.array(record["known"]), [one.numbers for one in fresh.shares.values()])
        both = zip(fresh.shares.items(), known, strict=True)
        return PresentState(
            self.stream.decode(record["stream"]),
            dict(zip(fresh.sums, sums, strict=True)),
            {k: one.of_numbers(row) for (k, one), row in both},
            np.array(record["kept"]),
        )


def _share_query(
    presence: Presence, k: int, population: Population, budget: int
) -> tuple[ShareQuery, Rates]:
    """What is asked for of a class, at that cost over any window."""
    limit, adjacency, one = presence.limits[k], presence.adjacency, presence.requirements[k]
    assert limit.max_slots is not None
    # What counts also changes where lives have a limit; the layers above do not.
    slots = max(
        limit.slots(one, adjacency),
        effective_window(one.window, limit.max_slots, limit.blocks, adjacency),
    )
    large = population.bins <= MOST_BINS and population.sizes[k] >= MANY_USERS
    by_bin = presence.by_bin and large
    bins = population.bins if by_bin else 1
    query = ShareQuery(
        one.window, limit.max_slots, slots, limit.blocks, bins, population.sensitivity
    )
    rates = query.rates(budget)
    needed = (rates.kept, rates.rest or not query.sensitivities[1], rates.bins or bins == 1)
    if not all(needed):
        raise ConfigurationError(
            f"a budget of {budget} units of 2**-{UNIT_BITS} is too small to estimate how much a "
            f"limit over {one.window} slots drops: ask for more epsilon or a shorter window"
        )
    return query, rates


def _parted(numbers: N, like: Iterable[Sized]) -> list[N]:
    """Numbers of several classes, as many of each as there are in these."""
    ends = np.cumsum([len(one) for one in like])
    return np.split(numbers, ends)[: len(ends)]

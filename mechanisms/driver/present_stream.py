"""A stream where users count in a few slots only: its counts are scaled to all there was.

Beside counts, every slot tells the layers of users' blocks that ended with it. Of each class that
is limited they are added up, and asked for with noise once in the length of a block. What is known
of the share that is kept scales the releases from then on, and makes their errors larger; of
several classes it is the mean over all users. The answers cost what was set aside of the budget,
whatever slots cost: see `presence/kept_share.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements
from streamveil.mechanisms.core.records import ConfigurationError, Revised
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
from streamveil.mechanisms.presence.kept_share import (
    LAYERS,
    KeptShare,
    Rates,
    ShareQuery,
    scaled,
)
from streamveil.mechanisms.presence.limits import Limit, aside, terms
from streamveil.mechanisms.protocol import Mechanism, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Presence:
    """What users ask for who count in a few slots only."""

    limits: tuple[Limit, ...]
    """In how many, of each class."""
    requirements: Requirements
    """Of each class, as asked for."""
    adjacency: str
    """What neighbouring inputs differ in."""


@dataclass
class PresentState:
    """All that such a stream remembers between slots."""

    stream: StreamState
    sums: Integers
    """Of the layers of blocks that ended since the class was asked for last, shape (K, 4). They are
    raw and never released."""
    shares: tuple[KeptShare, ...]
    """What is known of each class."""


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

    SCHEMAS = {
        1: state_codec.record_schema(
            "PresentStream",
            stream="bytes",
            sums=state_codec.LONGS,
            known={"type": "array", "items": "double"},
        )
    }

    def __init__(
        self, mechanism: Mechanism[Any], noise: NoiseSource, context: Parts, presence: Presence
    ) -> None:
        self.mechanism = mechanism
        self.asked = presence.requirements
        """Of each class, whatever slots may cost."""
        limits, asked, adjacency = presence.limits, presence.requirements, presence.adjacency
        door = terms(limits, asked, adjacency)
        self.stream = ReleaseStream(mechanism, noise, context=context, presence=door)
        self.keeper = self.stream.keeper
        """Seals states."""
        self._noise = noise
        self._queries: Mapping[int, tuple[ShareQuery, Rates]] = {
            k: _asked(limit, one.window, aside(one.epsilon))
            for k, (limit, one) in enumerate(zip(limits, asked, strict=True))
            if limit.limits(one, adjacency)
        }
        sizes = mechanism.population.sizes
        self._weights = sizes / max(int(sizes.sum()), 1)

    def start(self) -> PresentState:
        """State before the first slot."""
        classes = len(self._weights)
        sums = np.zeros((classes, LAYERS + 1), np.int64)
        return PresentState(self.stream.start(), sums, (KeptShare.unknown(),) * classes)

    def release(
        self, state: PresentState, slot: int, counts: Integers, layers: Integers
    ) -> tuple[PresentState, SlotRelease]:
        """Release the next slot.

        Args:
            state: after the slots before.
            slot: the first slot, or the one after the last.
            counts: events that count, by class and bin, int64, shape (K, d).
            layers: of blocks that ended with the slot, int64, shape (K, 4).

        Raises as :meth:`ReleaseStream.release`.
        """
        stream, release = self.stream.release(state.stream, slot, counts)
        sums, shares = state.sums + layers, list(state.shares)
        for k, (query, rates) in self._queries.items():
            if (slot + 1) % query.every == 0:
                asked = digest(stream.history, b"kept share", b"%d" % k, sums[k].tobytes())
                words = self._noise.slot(slot, asked).words("kept share")
                shares[k] = shares[k].told(query.answer(sums[k], rates, words), rates)
                sums[k] = 0
        after = PresentState(stream, sums, tuple(shares))
        return after, self._scaled(after, release)

    def _scaled(self, state: PresentState, release: SlotRelease) -> SlotRelease:
        if not self._queries:
            return release
        share, variance = self._share(state)
        counts, stderr = _all_there(release.counts, release.stderr, share, variance)
        known = {"kept_share": share, "kept_share_stderr": float(np.sqrt(variance))}
        return replace(
            release,
            counts=counts,
            stderr=stderr,
            diagnostics={**release.diagnostics, **known},
            revisions=self._revised(release.revisions, share, variance),
        )

    def _share(self, state: PresentState) -> tuple[float, float]:
        """The share that is kept of all classes together, and its variance."""
        share, variance = 1.0, 0.0
        for k, (query, _) in self._queries.items():
            mine, doubt = state.shares[k].estimate(query)
            share += self._weights[k] * (mine - 1)
            variance += self._weights[k] ** 2 * doubt
        return share, variance

    def _revised(
        self, revisions: tuple[Revised, ...], share: float, variance: float
    ) -> tuple[Revised, ...]:
        revised = []
        for one in revisions:
            counts, stderr = _all_there(one.counts, one.stderr, share, variance)
            revised.append(replace(one, counts=counts, stderr=stderr))
        return tuple(revised)

    def rest(self, state: PresentState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: see :meth:`ReleaseStream.rest`."""
        revisions = self.stream.rest(state.stream)
        return self._revised(revisions, *self._share(state)) if self._queries else revisions

    def pack(self, state: PresentState) -> bytes:
        """Bytes of the state, for :attr:`keeper` to seal."""
        known = np.array([(one.sums, one.variances) for one in state.shares])
        record = {
            "stream": self.stream.encode(state.stream),
            "sums": state.sums.ravel().tolist(),
            "known": known.ravel().tolist(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def unpack(self, data: bytes) -> PresentState:
        """State of what :meth:`pack` gave. Raises as :meth:`ReleaseStream.decode`."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        classes = len(self._weights)
        known = np.array(record["known"]).reshape(classes, 2, LAYERS + 1)
        return PresentState(
            self.stream.decode(record["stream"]),
            np.array(record["sums"], np.int64).reshape(classes, LAYERS + 1),
            tuple(KeptShare(sums, variances) for sums, variances in known),
        )


def _asked(limit: Limit, window: int, budget: int) -> tuple[ShareQuery, Rates]:
    """What is asked for of a class, at that cost over any window."""
    assert limit.max_slots is not None
    query = ShareQuery(window, limit.max_slots, limit.blocks)
    rates = query.rates(budget)
    if not (rates.layers and (rates.rest or not query.sensitivities[1])):
        raise ConfigurationError(
            f"a budget of {budget} units of 2**-{UNIT_BITS} is too small to ask how much a limit "
            f"over {window} slots leaves out: ask for more epsilon or a shorter window"
        )
    return query, rates


def _all_there(
    counts: Integers, stderr: npt.NDArray[np.float64], share: float, variance: float
) -> tuple[Integers, npt.NDArray[np.float64]]:
    """Counts and standard errors of what counts as those of all there was."""
    values, variances = scaled(counts, np.square(stderr), share, variance)
    return np.rint(values).astype(np.int64), np.sqrt(variances)

"""A stream of releases: a mechanism, its noise and the filter, driven slot by slot.

This is the one way from counts to a release; the simulation and the Beam stage both take it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.presence_filter import PresenceFilter, PresenceTerms
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded, WindowFilter, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import TEST, ConfigurationError
from streamveil.mechanisms.driver.saved_state import (
    NOTHING_MORE,
    QUANTUM,
    SENSITIVITY,
    Keeper,
    Parts,
    of_parts,
    public_facts,
)
from streamveil.mechanisms.protocol import (
    Growing,
    Mechanism,
    Resizable,
    Revising,
    SlotInput,
    SlotRelease,
    SlotRevision,
)
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

_LOG = logging.getLogger(__name__)

Filter = WindowFilter | PresenceFilter


@dataclass
class StreamState:
    """The state of a stream between slots."""

    mechanism: Any
    """State of the mechanism."""
    filter: Any
    """A `WindowFilter`. If there is a participation limit, a `PresenceFilter`."""
    history: bytes
    """Digest of the configuration and of all inputs so far. It is secret and never released."""
    next_slot: int | None = None
    """The next slot to release, or None before the first slot."""


class ReleaseStream:
    """A mechanism, combined with a privacy filter and a source of noise.

    It releases each slot once, in order.

    The noise of a slot is derived from the noise key and from a digest of the configuration, the
    counts and all earlier slots. Therefore, equal inputs give equal releases, and different inputs
    get independent noise. A stream refuses to load a state that was saved with a different
    configuration.
    """

    SCHEMAS = {
        3: state_codec.record_schema(
            "Stream", next_slot=["null", "long"], history="bytes", filter="bytes", mechanism="bytes"
        )
    }

    def __init__(
        self,
        mechanism: Mechanism[Any],
        noise: NoiseSource,
        *,
        context: Parts = NOTHING_MORE,
        presence: PresenceTerms | None = None,
    ) -> None:
        """Drive a mechanism.

        Args:
            mechanism: what releases a slot.
            noise: where its randomness comes from.
            context: everything else that shapes what is released, such as what the bins mean, by
                name; what it says of a part takes the place of what is known without it.
            presence: what the filter checks where users count in a few slots only, and the
                mechanism's requirements say what one of these may cost.
        """
        self.mechanism = mechanism
        self._requirements = mechanism.population.requirements
        self._unspent: Callable[[], Filter] = partial(WindowFilter, self._requirements)
        self._filter_of: Callable[[bytes], Filter] = partial(
            WindowFilter.decode, requirements=self._requirements
        )
        if presence is not None:
            self._unspent, self._filter_of = presence.unspent, presence.decode
        self._unspent()  # refuses what cannot be accounted for
        self._noise = noise
        population = mechanism.population
        parts = {
            **public_facts(
                "fixed requirements",
                mechanism.name,
                population.requirements,
                encoded(population.sizes),
                population.bins,
            ),
            SENSITIVITY: encoded(population.sensitivity),
            **({QUANTUM: encoded(population.quantum)} if population.quantum > 1 else {}),
            **context,
        }
        self._configuration = of_parts(parts)
        self.keeper = Keeper(noise, parts)

    def start(self) -> StreamState:
        """Return the state before the first slot."""
        return StreamState(self.mechanism.start(), self._unspent(), self._configuration)

    def restart(self, state: StreamState) -> StreamState:
        """Grant the users' lifetime budget AGAIN for the rest of the stream.

        If a user has events before and after one restart, the user's privacy loss can be up to
        twice epsilon. After two restarts, the loss can be up to three times epsilon, and so on.
        Only the operator can decide to restart. Each restart is logged as a warning, and the
        diagnostics of every later release contain the number of `restarts`.

        Raises:
            ConfigurationError: if there is a participation limit, or if the requirements have
                windows. Budgets over windows renew without a restart.
        """
        booked = state.filter
        if isinstance(booked, PresenceFilter):
            raise ConfigurationError(
                "with a participation limit, budgets cannot be granted again: each user spends "
                "the budget by contributing"
            )
        booked.restart()
        _LOG.warning(
            "restart %d of %s before slot %s: users lose up to %d times the epsilon of %s",
            *(booked.restarts, self.mechanism.name, state.next_slot, booked.restarts + 1),
            self._requirements[0],
        )
        history = digest(state.history, b"restart")
        return StreamState(self.mechanism.start(), booked, history, state.next_slot)

    def resized(self, caps: Units, pace: Units) -> ReleaseStream:
        """Return a stream with the privacy budgets `caps`. For `pace`, see :class:`Resizable`.

        The new stream can also load states that were saved with the earlier budgets.

        If the mechanism is not `Resizable`, the stream keeps its current budgets.
        """
        if not isinstance(self.mechanism, Resizable):
            return self
        other = copy(self)
        other.mechanism = self.mechanism.resized(caps, pace)
        other._requirements = other.mechanism.population.requirements
        other._unspent = partial(WindowFilter, other._requirements)
        other._filter_of = partial(WindowFilter.decode, requirements=other._requirements)
        return other

    def taking_over(self, state: StreamState, caps: Units, pace: Units) -> StreamState:
        """Return a copy of the state, with which the stream continues under new budgets.

        The noise of all later slots also depends on the new budgets.
        """
        if not isinstance(self.mechanism, Resizable):
            return state
        booked = state.filter
        assert isinstance(booked, WindowFilter)
        history = digest(state.history, b"budgets", caps.tobytes(), pace.tobytes())
        booked = booked.under(self._requirements)
        return StreamState(state.mechanism, booked, history, state.next_slot)

    def grown(self, state: StreamState, origin: npt.NDArray[np.int64]) -> StreamState:
        """Return the state of a stream with other bins, with which this stream continues.

        The costs in the privacy filter stay as they are. The noise of all later slots also depends
        on the new bins.

        Args:
            state: of a stream with the same configuration except for the bins.
            origin: see :meth:`streamveil.mechanisms.protocol.Growing.grown`.
        """
        assert isinstance(self.mechanism, Growing)
        history = digest(state.history, b"bins", self._configuration)
        inner = self.mechanism.grown(state.mechanism, origin)
        return StreamState(inner, state.filter, history, state.next_slot)

    def price(self, state: StreamState) -> Units:
        """Return an upper bound on the budget that the next slot spends from each class.

        The returned bound holds for any counts. The bound is in units, and has the shape (K,). One
        unit is an epsilon of 2**-40. A release that would spend more is refused.
        """
        return self.mechanism.price(state.mechanism)

    def release(
        self, state: StreamState, slot: int, counts: npt.NDArray[np.int64]
    ) -> tuple[StreamState, SlotRelease]:
        """Release the next slot.

        Args:
            state: the state after all earlier slots.
            slot: number of the slot, which must be the first slot or the slot after the last
                released slot.
            counts: number of events that contribution bounding kept, by requirement class and bin,
                int64, shape (K, d).

        Raises:
            BudgetExceeded: if the privacy filter refuses the slot, or if the slot would spend more
                than the upper bound that :meth:`price` returned. Nothing is released.
            ValueError: if the slot is out of order, or if the shape of the counts does not match
                the number of classes and bins.
        """
        population = self.mechanism.population
        check_order(state.next_slot, slot)
        shape = (len(population.requirements), population.bins)
        if counts.shape != shape or counts.dtype != np.int64 or counts.min(initial=0) < 0:
            raise ValueError(
                f"counts of slot {slot} must be int64 of shape {shape}, none negative; "
                f"got {counts.dtype} of shape {counts.shape}"
            )
        price = self.mechanism.price(state.mechanism)
        history = digest(state.history, b"%d" % slot, np.ascontiguousarray(counts).tobytes())
        inner, release = self.mechanism.step(
            state.mechanism, SlotInput(slot, counts), self._noise.slot(slot, history)
        )
        if np.count_nonzero(release.spent > price):
            raise beyond_price(self.mechanism.name, price, release.spent)
        state.filter.charge(release.spent)
        tested = release.status == TEST
        if isinstance(state.filter, WindowFilter) and state.filter.forever and not tested:
            known = {**release.diagnostics, **state.filter.diagnostics()}
            release = replace(release, diagnostics=known)
        return StreamState(inner, state.filter, history, slot + 1), release

    def rest(self, state: StreamState) -> tuple[SlotRevision, ...]:
        """Return the last revisions (smoothed estimates of earlier slots) at the end of a stream.

        The revision of a slot uses a fixed number of later slots. For the last slots of the stream,
        revisions use only the later slots that exist. If the mechanism makes no revisions, the
        result is empty. The state records that this method was called.
        """
        return rest_of(self.mechanism, state.mechanism)

    def encode(self, state: StreamState) -> bytes:
        """Encode the state as bytes, which this and later versions of streamveil can decode."""
        return self.keeper.write(
            state_codec.pack(
                self.SCHEMAS,
                {
                    "next_slot": state.next_slot,
                    "history": state.history,
                    "filter": state.filter.encode(),
                    "mechanism": self.mechanism.encode(state.mechanism),
                },
            )
        )

    def decode(self, data: bytes) -> StreamState:
        """Decode a state.

        Raises:
            ConfigurationError: if the bytes of the state were modified, or if a stream with a
                different configuration saved them.
        """
        _, record = state_codec.unpack(self.SCHEMAS, self.keeper.read(data))
        return StreamState(
            self.mechanism.decode(record["mechanism"]),
            self._filter_of(record["filter"]),
            record["history"],
            record["next_slot"],
        )


class RunningStream:
    """A stream in memory, from its first slot on: counts in, releases out, through the filter.

    Args:
        mechanism: the mechanism.
        key: 32 bytes from which all noise follows.

    >>> from streamveil.mechanisms import Population, Requirement
    >>> from streamveil.mechanisms.registry import mechanism
    >>> population = Population((Requirement(2, 1.0),), np.array([5]), bins=3)
    >>> run = RunningStream(mechanism("pba", population), bytes(32))
    >>> run.release(0, np.array([[3, 0, 2]])).counts.shape
    (3,)
    """

    def __init__(self, mechanism: Mechanism[Any], key: bytes) -> None:
        self._stream = ReleaseStream(mechanism, NoiseSource(key))
        self._state = self._stream.start()

    def price(self) -> Units:
        """The most that the next slot can cost a user of each class, shape (K,): public."""
        return self._stream.price(self._state)

    def release(self, slot: int, counts: npt.NDArray[np.int64]) -> SlotRelease:
        """Release the next slot of counts, int64, shape (K, d).

        Raises BudgetExceeded when the filter refuses.
        """
        self._state, release = self._stream.release(self._state, slot, counts)
        return release

    def rest(self) -> tuple[SlotRevision, ...]:
        """Revise the slots that are still to be revised after the last one."""
        return self._stream.rest(self._state)


def rest_of(mechanism: Any, state: Any) -> tuple[SlotRevision, ...]:
    """What is still to be revised of a mechanism with this state."""
    return mechanism.rest(state) if isinstance(mechanism, Revising) else ()


def beyond_price(name: str, price: Units, spent: Units) -> BudgetExceeded:
    """The error for a mechanism that spends more than it said before it saw the counts.

    Args:
        name: of the mechanism.
        price: what it said, shape (K,).
        spent: what the slot costs, shape (K,).
    """
    k = int((spent > price).argmax())
    what = f"release refused for class or ledger {k} of mechanism {name!r}"
    return refusal(what, int(spent[k]), int(price[k]), "what it named as the price before")


def check_order(next_slot: int | None, slot: int) -> None:
    """Raise ValueError for a slot that is not the next one."""
    if next_slot not in (None, slot):
        raise ValueError(f"slot {slot} is out of order: {next_slot} comes next")

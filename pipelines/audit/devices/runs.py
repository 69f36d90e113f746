"""A run of devices and of the server that asks them, with all that an operator sees.

Devices and server are those of a pipeline. The operator is the adversary, and may feed the server
anything: in every other run it receives made-up reports, which leap now and then, so that it
publishes, skips and asks as worst cases would have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.oracles import Reports, supports
from streamveil.mechanisms.local.protocol import Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.stream import LocalStream
from streamveil.mechanisms.randomness.noise import NoiseSource, derived_key
from streamveil.mechanisms.registry import local_mechanism
from streamveil.pipelines.audit.worlds import LEAPING
from streamveil.pipelines.evaluation.window_use import DeviceCharges


@dataclass(frozen=True, eq=False)
class Answers:
    """Reports of devices of one class to one ask, seen by the operator."""

    ask: Ask
    class_index: int
    users: npt.NDArray[np.int32]
    """Ascending, shape (m,)."""
    reports: Reports

    @property
    def kind(self) -> str:
        """The oracle by which they report."""
        return self.ask.oracles[self.class_index]

    @property
    def price(self) -> float:
        """What a report was charged, epsilon."""
        return float(to_epsilon(self.ask.epsilons)[self.class_index])


class DeviceRun:
    """One run.

    Args:
        mechanism: of the server, with options.
        users: the population.
        key: 32 bytes, of this run alone.
        made_up: where reports are made up from for the server; None for the devices' own.
    """

    def __init__(
        self, mechanism: str, users: Users, key: bytes, made_up: np.random.Generator | None
    ) -> None:
        made = local_mechanism(mechanism, users)
        self.users = made.users
        """With what their reports may cost."""
        self._stream = LocalStream(made, NoiseSource(derived_key(key, "server")))
        self._state = self._stream.start()
        self._devices = Devices(self.users, derived_key(key, "devices"))
        self._charges = DeviceCharges(self.users)
        self._made_up, self._symbol = made_up, 0

    @property
    def fullest(self) -> float:
        """Largest charge of a window so far, in parts of its budget."""
        return self._charges.fullest

    def slot(self, slot: int, values: Integers) -> Iterator[Answers]:
        """Let the server ask about the next slot, of which each user has a value, shape (n,)."""
        if self._made_up is not None and self._made_up.random() < LEAPING:
            self._symbol = int(self._made_up.integers(self.users.symbols))
        self._charges.begin()
        answer: Ask | LocalRelease
        self._state, answer = self._stream.begin(self._state, slot)
        while not isinstance(answer, LocalRelease):
            self._charges.add(answer)
            shape = (len(self.users.classes), self.users.symbols)
            tally = Tally(np.zeros(shape, np.int64), np.zeros(shape[0], np.int64))
            for k, users, reports in self._devices.reports(answer, values):
                tally.supports[k] += supports(answer.oracles[k], shape[1], reports)
                tally.reports[k] += users.size
                yield Answers(answer, k, users, reports)
            self._state, answer = self._stream.take(self._state, self._received(tally))

    def _received(self, tally: Tally) -> Tally:
        """The tally that the server receives."""
        if self._made_up is None:
            return tally
        leaping = np.zeros_like(tally.supports)
        leaping[:, self._symbol] = tally.reports
        return Tally(leaping, tally.reports)

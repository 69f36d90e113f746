"""Private strategy determination: publish when the frequencies have moved, else repeat.

In the first round of a slot some users tell how far the frequencies have moved from those last
published; if that is more than the error of a fresh publication, a second round makes one.

Guarantee: what the schedule asks of a user is all that the user spends; see there. All else is
post-processing of reports.
Adjacency: any values of a user, in the slots of a window, for any others.
Sensitivity: a user has one symbol in a slot.

Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Section IV.B; Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
Changed: whom a publication would ask is always drawn before its error is compared, as in
Algorithms 3 and 4 of the former; a round that nobody answers publishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import NULLIFIED, PUBLISHED, SKIPPED
from streamveil.mechanisms.local.algorithms.schedule import AskSchedule, asked_by_class, oracles_of
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import Ask, LocalRelease, Tally
from streamveil.mechanisms.local.server.combination import combine
from streamveil.mechanisms.local.server.expected_error import (
    dissimilarity,
    report_variances,
    reporting_error,
)
from streamveil.mechanisms.local.server.last_publication import FIELDS, LocalPublication
from streamveil.mechanisms.local.server.open_ask import ASKED, asked_of, asked_record
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise

# Frequencies and variances, each of shape (d,), of a tally of at least one report.
Estimator = Callable[
    [Tally, Sequence[Oracle | None], RandomWords],
    tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
]


def personalised_frequency_oracle(
    tally: Tally, oracles: Sequence[Oracle | None], words: RandomWords
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The plain estimator, PFO: classes combined by inverse variance."""
    return combine(tally, oracles)


S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class StrategyState(Generic[S]):
    """Where a slot stands: all of it public but for whom the schedule remembers."""

    schedule: S
    last: LocalPublication
    asked: Ask | None = None
    """The ask whose reports are awaited; None between slots."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """`dissimilarity` and `error` of the slot, once they are known."""


class Strategy(Generic[S]):
    """A schedule and an estimator, joined by the comparison of dissimilarity and error."""

    SCHEMAS = {
        1: state_codec.record_schema(
            "Strategy",
            schedule="bytes",
            **FIELDS,
            asked=ASKED,
            diagnostics={"type": "map", "values": "double"},
        )
    }

    def __init__(
        self, name: str, schedule: AskSchedule[S], estimate: Estimator, project: bool
    ) -> None:
        """Join them; with `project`, publications are projected on the simplex."""
        self.name = name
        self._project = project
        self.users = schedule.users
        self.schedule = schedule
        self.estimate = estimate

    def start(self) -> StrategyState[S]:
        """Nothing published yet."""
        return StrategyState(self.schedule.start(), LocalPublication.nothing(self.users.symbols))

    def begin(
        self, state: StrategyState[S], slot: int, random: SlotNoise
    ) -> tuple[StrategyState[S], Ask]:
        """Ask for the reports that tell the dissimilarity."""
        schedule, ask = self.schedule.dissimilarity(
            state.schedule, slot, random.words("users for the dissimilarity")
        )
        return StrategyState(schedule, state.last, ask), ask

    def take(
        self, state: StrategyState[S], tally: Tally, random: SlotNoise
    ) -> tuple[StrategyState[S], Ask | LocalRelease]:
        """Decide after the first round, publish after the second.

        Raises ValueError when no ask is open.
        """
        if state.asked is None:
            raise ValueError("reports arrived before any user was asked: begin the slot first")
        if state.asked.round == 1:
            return self._decide(state, state.asked, tally, random)
        return self._publish(state, state.asked, tally, random)

    def _decide(
        self, state: StrategyState[S], asked: Ask, tally: Tally, random: SlotNoise
    ) -> tuple[StrategyState[S], Ask | LocalRelease]:
        candidate = self.schedule.publication(
            state.schedule, asked.slot, random.words("users for a publication")
        )
        if candidate is None:
            return self._close(state, NULLIFIED)
        if not candidate.users.size or not tally.reports.any():
            return self._close(state, SKIPPED)
        words = random.words("dissimilarity perturbed again")
        estimated = self.estimate(tally, oracles_of(asked, self.users.symbols), words)
        moved, error = dissimilarity(*estimated, state.last.frequencies), self._error(candidate)
        state = replace(state, diagnostics={"dissimilarity": moved, "error": error})
        if moved <= error:
            return self._close(state, SKIPPED)
        return replace(state, asked=candidate), candidate

    def _publish(
        self, state: StrategyState[S], asked: Ask, tally: Tally, random: SlotNoise
    ) -> tuple[StrategyState[S], LocalRelease]:
        if not tally.reports.any():
            return self._close(state, SKIPPED, asked)
        words = random.words("publication perturbed again")
        frequencies, variances = self.estimate(tally, oracles_of(asked, self.users.symbols), words)
        spent = asked.epsilons[asked_by_class(asked, self.users) > 0]
        epsilon = float(to_epsilon(spent.max()))
        last = LocalPublication.of(
            frequencies, variances, asked.slot, epsilon, project=self._project
        )
        return self._close(replace(state, last=last), PUBLISHED, asked)

    def _close(
        self, state: StrategyState[S], status: str, spent: Ask | None = None
    ) -> tuple[StrategyState[S], LocalRelease]:
        """Close the slot."""
        schedule = self.schedule.commit(state.schedule, spent)
        release = state.last.release(status, state.diagnostics)
        return StrategyState(schedule, state.last), release

    def _error(self, candidate: Ask) -> float:
        """Equation 7 of the users whom a publication would ask."""
        users = self.users
        counts = asked_by_class(candidate, users)
        variances = np.array(
            [
                report_variances(oracle.epsilon, users.symbols, oracle.kind) if oracle else np.inf
                for oracle in oracles_of(candidate, users.symbols)
            ]
        )
        return reporting_error(
            variances, counts, candidate.users.size, users.symbols, users.class_of.size
        )

    def encode(self, state: StrategyState[S]) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(
            self.SCHEMAS,
            {
                "schedule": self.schedule.encode(state.schedule),
                **state.last.record(),
                "asked": asked_record(state.asked),
                "diagnostics": state.diagnostics,
            },
        )

    def decode(self, data: bytes) -> StrategyState[S]:
        """State of bytes. Raises ConfigurationError for those of another population."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return StrategyState(
            self.schedule.decode(record["schedule"]),
            LocalPublication.of_record(record, self.users.symbols),
            asked_of(record["asked"]),
            record["diagnostics"],
        )

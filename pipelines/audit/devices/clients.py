"""Clients' devices one by one, with an operator who asks each of them again and again.

A device is asked what the server asks it, and then the same twice more, and once for another
report: an honest one gives the same answer, or none.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.local.client.device import AssignmentRefused, Device
from streamveil.mechanisms.local.messages import (
    Assignment,
    decode_report,
    encode_assignment,
    read_answer,
)
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.local.tokens import Tokens
from streamveil.mechanisms.randomness.noise import derived_key
from streamveil.pipelines.audit.devices.canaries import Spans
from streamveil.pipelines.audit.devices.odds import odds
from streamveil.pipelines.audit.devices.runs import Answers

# How often each is asked the same.
_TIMES = 3
# A round of which no server asks: its token is another one.
_OF_ANOTHER = 3


class Clients:
    """The devices of some users, asked beside them; the values are those of their own spans.

    Args:
        users: the population, with what reports may cost.
        requirement: what these users ask for.
        spans: their values and coins.
        key: 32 bytes, of this run alone.
        most: reports that are asked for, about.
    """

    def __init__(
        self, users: Users, requirement: Requirement, spans: Spans, key: bytes, most: int
    ) -> None:
        self.spans = spans
        self._symbols, self._left = users.symbols, most
        self._tokens = Tokens(derived_key(key, "tokens"), "")
        self._devices = [
            Device(
                derived_key(key, f"client {user}"),
                requirement,
                users.symbols,
                one_event=users.asked is not None,
            )
            for user in spans.users.tolist()
        ]

    def ask(self, answers: Answers) -> None:
        """Ask those of them who were asked."""
        _, here = self.spans.asked(answers.users)
        if self._left <= 0 or not here.size:
            return
        self._left -= here.size
        odds = [self._log_odds(answers, place) for place in here.tolist()]
        answered = [i for i, one in enumerate(odds) if one is not None]
        self.spans.note(here[answered], np.array([odds[i] for i in answered]), answers.price)

    def _log_odds(self, answers: Answers, place: int) -> float | None:
        """What all answers of a device tell; None of one that gives none."""
        ask, device = answers.ask, self._devices[place]
        value, user = int(self.spans.values[place]), int(self.spans.users[place])
        written = self._assignment(answers, self._tokens.token(ask.slot, ask.round, user))
        other = self._assignment(answers, self._tokens.token(ask.slot, _OF_ANOTHER, user))
        sent: list[bytes] = []
        for one in (*[written] * _TIMES, other):
            # Whatever the server asks, the device keeps its own filter.
            with suppress(AssignmentRefused, BudgetExceeded):
                sent.append(device.report(one, ask.slot, value))
        if not sent:
            return None
        pair = self.spans.pairs(np.array([place]))
        return sum(self._odds(answers, one, pair) for one in sent)

    def _assignment(self, answers: Answers, token: bytes) -> bytes:
        ask, k = answers.ask, answers.class_index
        price, oracle = int(ask.epsilons[k]), ask.oracles[k]
        return encode_assignment(
            Assignment("", ask.slot, ask.round, token, price, oracle, self._symbols)
        )

    def _odds(self, answers: Answers, sent: bytes, pair: npt.NDArray[np.int64]) -> float:
        report = read_answer(answers.kind, self._symbols, decode_report(sent).answer)
        return float(odds(answers.kind, answers.price, self._symbols, report, *pair)[0])

"""What a user's reports over a window tell of the user, for every mechanism.

Devices perturb independently, so each user of a stream is one more run of the same audit: all have
the same value in one world and another one in the other. The server's side is driven by given
reports, so that whom it asks, and for what, is the same in both worlds.
"""

import numpy as np
import pytest

from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.oracles import supports
from streamveil.mechanisms.local.protocol import LocalRelease, Users
from streamveil.mechanisms.registry import LOCAL_MECHANISMS, local_mechanism
from tests.mechanisms.local.populations import SERVER, tally_of
from tests.mechanisms.test_audit import audit

USERS = 20_000
WINDOW, EPSILON = 4, 3.0
ANSWERS = [0, 1, None, 0, 1, 1, 0]  # published, skipped and nullified slots


def world(name, value, symbols) -> np.ndarray:
    """What every user reports in each round of the window: 0 for not asked, shape (n, rounds)."""
    # Half of the users have a shorter window, so that budgets are divided for the others.
    requirements = (Requirement(2, 2 * EPSILON), Requirement(WINDOW, EPSILON))
    users = Users(requirements, np.arange(USERS, dtype=np.int32) % 2, symbols)
    mechanism = local_mechanism(name, users)
    users = mechanism.users
    devices = Devices(users, bytes([10 + value]) * 32)
    state, seen = mechanism.start(), []
    values = np.full(USERS, value)
    for slot, answer in enumerate(ANSWERS):
        random = SERVER.slot(slot, b"")
        state, reply = mechanism.begin(state, slot, random)
        while not isinstance(reply, LocalRelease):
            codes = np.zeros(USERS, np.int64)
            for k, asked, reports in devices.reports(reply, values):
                kinds, which = np.unique(reports, axis=0, return_inverse=True)
                one_by_one = [supports(reply.oracles[k], symbols, one) for one in kinds[:, None]]
                codes[asked] = (1 + np.array(one_by_one) @ (1 << np.arange(symbols)))[which.ravel()]
            if len(ANSWERS) - WINDOW <= slot:
                seen.append(codes)
            state, reply = mechanism.take(state, tally_of(reply, users, answer), random)
    return np.array(seen).T[1::2]


# Little less than the claim is proven of two symbols; more symbols and more rounds take more users
# to prove as much.
@pytest.mark.slow
@pytest.mark.parametrize("symbols", [2, 5])
@pytest.mark.parametrize("name", [*LOCAL_MECHANISMS, "rotation:turns=2"])
def test_a_window_keeps_its_claim(name, symbols):
    proven = audit(world(name, 0, symbols), world(name, 1, symbols))
    print(f"audit of devices under {name}, {symbols} symbols: at least {proven:.2f} of {EPSILON}")
    # With turns, the worst values differ outside the window as well, and in single slots.
    least = 0.05 if "turns" in name else 0.4 if symbols == 2 else 0.1
    assert EPSILON * least < proven <= EPSILON

"""Small populations, reports at will, and windows added up naively."""

import numpy as np
from hypothesis import strategies as st

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.local.protocol import Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.randomness.noise import NoiseSource

SERVER = NoiseSource(bytes(range(32)))


def population(requirements, symbols=2) -> Users:
    """Users of a (window, epsilon) pair each."""
    wanted = [Requirement(*pair) for pair in requirements]
    classes = tuple(sorted(set(wanted)))
    return Users(classes, np.array([classes.index(r) for r in wanted], np.int32), symbols)


@st.composite
def populations(draw) -> Users:
    """Up to four classes of 40 to 90 users, enough for a publication of PLPD."""
    requirements = st.tuples(st.integers(1, 7), st.sampled_from([0.1, 0.3, 1.0, 2.5, 1e-3]))
    classes = draw(st.lists(requirements, min_size=1, max_size=4, unique=True))
    sizes = [draw(st.integers(1, 30)) for _ in classes]
    sizes[0] += 40
    symbols = draw(st.integers(2, 12))
    return population([c for c, n in zip(classes, sizes, strict=True) for _ in range(n)], symbols)


def tally_of(ask: Ask, users: Users, answer) -> Tally:
    """Reports to an ask, perturbed or not: all for the symbol `answer`, any for None.

    -1 is not a report at all.
    """
    classes = len(users.classes)
    reports = np.bincount(users.class_of[ask.users], minlength=classes).astype(np.int64)
    supports = np.zeros((classes, users.symbols), np.int64)
    if answer == -1:
        reports[:] = 0
    elif answer is None:
        supports[:] = reports[:, None] // users.symbols
    else:
        supports[:, answer] = reports
    return Tally(supports, reports)


def run(mechanism, answers, *, first=0, encode=True):
    """Drive a mechanism by given reports: (spent in units (T, n), releases, asks)."""
    users = mechanism.users
    state, spent, releases, asks = mechanism.start(), [], [], []
    for slot, answer in enumerate(answers, start=first):
        random, row, asked = SERVER.slot(slot, b""), np.zeros(users.class_of.size, np.int64), []
        state, reply = mechanism.begin(state, slot, random)
        while not isinstance(reply, LocalRelease):
            assert (np.diff(reply.users) > 0).all()
            assert reply.slot == slot
            row[reply.users] += reply.epsilons[users.class_of[reply.users]]
            asked.append(reply)
            assert reply.round == len(asked)
            if encode:  # at every point in between
                state = mechanism.decode(mechanism.encode(state))
            state, reply = mechanism.take(state, tally_of(reply, users, answer), random)
        releases.append(reply)
        asks.append(asked)
        spent.append(row)
    return np.array(spent), releases, asks


def check_windows(spent, users: Users) -> None:
    """No window of any user costs more than the user's requirement, added up naively."""
    for user, k in enumerate(users.class_of.tolist()):
        requirement = users.classes[k]
        for slot in range(len(spent)):
            window = spent[max(0, slot - requirement.window + 1) : slot + 1, user]
            assert window.sum() <= to_units(requirement.epsilon), (user, slot, requirement)

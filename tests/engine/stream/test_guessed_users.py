"""Whether releases contradict a guess of how many users there are."""

import pickle

import numpy as np
import pytest

from streamveil.engine import metrics
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, Lifetime, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.protocol import Observed, SlotRelease
from streamveil.pipelines.reports.summary import Summary

ASKED = Requirement(2, 1.0)
TABLE = {"ann": (2, 1.0), "bob": (3, 1.0)}
GUESS = GuessedUsers(100, 0)


@pytest.fixture
def counted(monkeypatch):
    found = {}

    def count(name, amount):
        found[name] = found.get(name, 0) + amount

    monkeypatch.setattr(metrics, "count", count)
    return found


def release(counts, stderr=1.0, status=PUBLISHED, observed=None):
    counts = np.array(counts)
    return SlotRelease(
        counts, status, 0, 1.0, np.full(len(counts), stderr), spent=np.array([1]), observed=observed
    )


def test_of_whom_the_number_is_a_guess():
    assert GuessedUsers.of(Registry.of(TABLE)) is None
    assert GuessedUsers.of(Registry.of(TABLE, default=(ASKED, None))) is None
    assert GuessedUsers.of(Registry.of(default=(Lifetime(1.0), 0))) is None
    assert GuessedUsers.of(Registry.of(default=(ASKED, 100))) == GUESS
    both = GuessedUsers.of(Registry.of(TABLE, default=(ASKED, 100)))
    assert (both, both.text) == (GuessedUsers(100, 2), "100 beside 2 in the table")


# Three events of each user: 303 counts are of 101 users or more.
@pytest.mark.parametrize(
    ("counts", "stderr", "each", "users"),
    [
        ([60, 44], 0.4, 1, 104),
        ([60, 44], 1.0, 1, None),
        ([99, 0], 0.0, 1, None),
        ([200, 103], 0.1, 3, 101),
        ([200, 103], 0.1, 4, None),
        ([2000, -1000], 1.0, 1, 1000),
    ],
)
def test_what_contradicts_a_guess(counted, counts, stderr, each, users):
    GUESS.check(release(counts, stderr), each)
    expected = (
        {} if users is None else {"slots with more users than 100": 1, "users_suggested": users}
    )
    assert counted == expected


def test_what_was_observed_counts_rather_than_what_was_made_of_it(counted):
    seen = Observed(np.array([70.0, 20.0]), np.array([1.0, 1.0]))
    GUESS.check(release([200, 200], observed=(seen,)), 1)
    GUESS.check(release([200, 200], status=PREDICTED), 1)
    assert counted == {}


def test_the_summary_says_it_once():
    part = Summary({"slots with more users than 100": 2, "users_suggested": 2468})
    found = Summary.total([part, part]).text()
    assert found.count("about 1,200 users or more in a slot, but --default_requirement names 100:")
    assert found.count("--default_requirement=WINDOW,EPSILON") == 1
    assert Summary().users_text() is None


def test_a_number_that_is_left_out():
    alone = Registry.of(default=(ASKED, None))
    assert (alone.sizes.tolist(), alone.guessed, alone.default) == ([1000], 0, (ASKED, None))
    many = Registry.of({f"u{i}": (3, 1.0) for i in range(1500)}, default=(ASKED, None))
    assert many.sizes.tolist() == [1500, 1500]
    for one in (alone, many, many.up_to(5)):
        assert pickle.loads(pickle.dumps(one)).unsaid
    # Noise and states are bound to what is assumed, not to whether it was said.
    assert alone.fingerprint == Registry.of(default=(ASKED, 1000)).fingerprint
    assert Registry.of(default=(Lifetime(1.0), 0)).guessed is None
    assert Registry.of(TABLE).guessed is None

"""Streams whose requirements change: nobody overspends, and interning changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    DYNAMIC_MECHANISMS,
    DYNAMIC_SCHEDULES,
    ConfigurationError,
    DynamicStream,
    NoiseSource,
    dynamic_mechanism,
    simulate_dynamic,
)
from streamveil.mechanisms.accounting.shared_ledgers import Interned
from streamveil.mechanisms.adaptive.budget_plan import Plan, Planned
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import GONE, NEWCOMER, Moves
from streamveil.mechanisms.driver import dynamic_stream
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import Setting

KEY = bytes(range(32))
PROPERTY = settings(max_examples=25)
NAMES = pytest.mark.parametrize("name", list(DYNAMIC_MECHANISMS))
HORIZON = 8
BINS = 3

# What a user may ask for; nothing: to leave.
FIGURES = [
    (4, 1.0, 4, 1.0),
    (2, 0.5, 3, 2.0),
    (1, 9.0, 8, 0.3),
    (8, 0.2, 1, 5.0),
    (3, 1e-6, 3, 1e-6),
    (1, 1e-10, 2, 1e-10),
    (8, 30.0, 8, 30.0),
    (0, 0, 0, 0),
]
WISHES = asked_units(FIGURES)


class Users:
    """Users who each follow a history of wishes, and the cohorts that the counting side makes.

    Cohorts are made as a shard would: all who move from one cohort to one wish in a slot.
    """

    def __init__(self, first, together):
        self.wish = np.array(first)
        self.joined = np.ones(len(first), bool)
        classes, self.cohort = np.unique(self.wish, return_inverse=True)
        self.classes, self.sizes = WISHES[classes], np.bincount(self.cohort)
        self.made = 1000
        self.together = together

    def change(self, wishes):
        """Moves to the users' wishes; None for those who stay."""
        rows = {}
        for user, wish in enumerate(wishes):
            if wish is None or wish == self.wish[user]:
                continue
            key = (self.cohort[user], wish) if self.together else user
            rows.setdefault(key, []).append(user)
            self.wish[user] = wish
        moves = []
        for users in rows.values():
            parent, self.made = self.cohort[users[0]], self.made + 1
            moves.append((parent, self.made, len(users), self.wish[users[0]]))
            self.cohort[users] = self.made
        return moves_of(moves)


def moves_of(rows):
    parents, children, users, wishes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Moves(
        np.array(parents, np.int64),
        np.array(children, np.int64),
        np.array(users, np.int64),
        WISHES[np.array(wishes, np.int64)],
    )


def stream_of(name, users, noise=KEY):
    setting = Setting(BINS, HORIZON)
    mechanism = dynamic_mechanism(name, setting)
    return DynamicStream(mechanism, users.classes, users.sizes, NoiseSource(noise))


def drive(name, first, changes, seed, together=True, cut=None):
    """Releases, and what every user spent in every slot: units, shape (T, n)."""
    users, random = Users(first, together), np.random.default_rng(seed)
    stream = stream_of(name, users)
    state, releases, spent, ledgers = stream.start(), [], [], []
    for slot, wishes in enumerate(changes):
        moves = users.change(wishes)
        scale = int(random.choice([1, 1, 50, 5000]))
        here = np.flatnonzero((random.random(len(first)) < 0.8) & (users.wish != len(WISHES) - 1))
        counts = CohortCounts(
            users.cohort[here], random.integers(0, BINS, len(here)), np.full(len(here), scale)
        )
        state, release = stream.release(state, slot, counts, moves)
        spent.append(release.spent[state.interned.ledgers_of(users.cohort)])
        ledgers.append(len(state.interned.asked))
        releases.append((release.status, release.counts.tolist(), release.epsilon))
        if slot == cut:
            state = stream.decode(stream.encode(state))
    return releases, np.array(spent), ledgers


def assert_within(first, changes, spent):
    """Add up every window of every user in Python's integers."""
    wish = list(first)
    asked = []
    for wishes in changes:
        wish = [new if new is not None else old for old, new in zip(wish, wishes, strict=True)]
        asked.append([WISHES[w].tolist() for w in wish])
    for user in range(len(first)):
        column = spent[:, user].tolist()
        for t, row in enumerate(asked):
            back, back_cap, ahead, ahead_cap = row[user]
            if not ahead:
                assert column[t] == 0
                continue
            assert sum(column[t : t + ahead]) <= ahead_cap
            if column[t]:
                assert sum(column[max(0, t - back + 1) : t + 1]) <= back_cap


HISTORIES = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, len(WISHES) - 2), min_size=n, max_size=n),
        st.lists(
            st.lists(
                st.one_of(st.none(), st.none(), st.integers(0, len(WISHES) - 1)),
                min_size=n,
                max_size=n,
            ),
            min_size=5,
            max_size=40,
        ),
    )
)


# On any history of requirements no window of any user overspends but one that was broken before it
# could be known, and the filter never has to refuse.
@NAMES
@PROPERTY
@given(history=HISTORIES, seed=st.integers(0, 2**32))
def test_no_window_overspends(name, history, seed):
    first, changes = history
    _, spent, _ = drive(name, first, changes, seed)
    assert (spent >= 0).all()
    assert_within(first, changes, spent)


def only_sums(patch):
    """Every gap of the adaptive mechanism is summed up, whatever would be planned."""
    patch.setattr(Plan, "best_gap", lambda *_: Planned(5, SUM, 0.0))


# Nor where ledgers fork, merge, come and go while a sum is running; restarts change nothing.
@PROPERTY
@given(history=HISTORIES, seed=st.integers(0, 2**32), cut=st.integers(0, 39))
def test_no_window_overspends_while_sums_run(history, seed, cut):
    first, changes = history
    with pytest.MonkeyPatch.context() as patch:
        only_sums(patch)
        releases, spent, _ = drive("adaptive", first, changes, seed)
        assert drive("adaptive", first, changes, seed, cut=cut)[0] == releases
    assert_within(first, changes, spent)


# The paths above are what they are said to be: sums of several slots, in which ledgers change.
def test_sums_run_while_requirements_change():
    changes = [[None, 1 if slot % 3 else 0] for slot in range(30)]
    lengths, ledgers = [], set()
    release = RunningSum.release

    def noted(running, noise):
        lengths.append(len(running.totals))
        return release(running, noise)

    with pytest.MonkeyPatch.context() as patch:
        only_sums(patch)
        patch.setattr(RunningSum, "release", noted)
        for seed in range(4):
            _, spent, found = drive("adaptive:gate=0", [0, 1], changes, seed)
            assert_within([0, 1], changes, spent)
            ledgers.update(found)
    assert max(lengths) >= 3
    assert len(ledgers) > 1


# Users with the same history share a ledger. It makes no difference whether the counting side
# tells them apart, when ledgers are merged, or where the state was written and read again.
@pytest.mark.slow
@NAMES
@PROPERTY
@given(history=HISTORIES, seed=st.integers(0, 2**32), cut=st.integers(0, 39))
def test_interning_merging_and_writing_change_nothing(name, history, seed, cut):
    first, changes = history
    releases, spent, ledgers = drive(name, first, changes, seed)
    for slot, number in enumerate(ledgers):
        seen = zip(first, *changes[: slot + 1], strict=True)
        assert number <= len(set(seen))
    cut_releases, cut_spent, _ = drive(name, first, changes, seed, cut=cut)
    assert releases == cut_releases
    assert (spent == cut_spent).all()
    with pytest.MonkeyPatch.context() as patch:
        for every in (1, 10**9):
            patch.setattr(dynamic_stream, "MERGE_EVERY", every)
            other, other_spent, _ = drive(name, first, changes, seed)
            assert other == releases
            assert (other_spent == spent).all()


# A stream of ledgers spends, user by user, what schedules spend in which every user is a ledger.
@pytest.mark.parametrize("name", list(DYNAMIC_SCHEDULES))
@PROPERTY
@given(history=HISTORIES, seed=st.integers(0, 2**32))
def test_interned_ledgers_are_those_of_each_user(name, history, seed):
    first, changes = history
    releases, spent, _ = drive(name, first, changes, seed)
    own = DYNAMIC_SCHEDULES[name].budgets(HORIZON)
    state, wish = own.start(len(first)), np.array(first)
    for slot, wishes in enumerate(changes):
        wish = np.array([o if w is None else w for o, w in zip(wish, wishes, strict=True)])
        offer = own.offer(state, WISHES[wish]).within_limit()
        published = releases[slot][0] == "published"
        assert offer.nullified == (releases[slot][0] == "nullified")
        expected = offer.dissimilarity + published * offer.publication
        assert spent[slot].tolist() == expected.tolist()
        state = own.commit(state, offer, published)


# Those who asked for other things become one ledger again once all that is behind them.
@pytest.mark.slow
@NAMES
def test_ledgers_that_have_become_equal_merge(name):
    changes = [[None] * 3] * 3 + [[1, None, 2]] + [[None] * 3] * 3 + [[0, None, 0]]
    changes += [[None] * 3] * (60 * HORIZON)
    _, spent, ledgers = drive(name, [0, 0, 0], changes, 1)
    assert ledgers[0] == 1
    assert max(ledgers) == 3
    assert ledgers[-1] == 1
    assert (spent[-1] == spent[-1][0]).all()


# The order in which shards tell, and how they cut what they tell, is no matter; who moved is.
@NAMES
def test_order_and_parts_of_the_input_do_not_matter(name):
    def run(order, wish=2):
        users = Users([0] * 300 + [1] * 300, together=True)
        stream = stream_of(name, users)
        state, found = stream.start(), []
        for slot in range(12):
            rows = [(0, 50, 3, 1), (1, 51, 4, wish), (1, 52, 2, 0)] if slot == 5 else []
            cells = [(c, b, 40 + 7 * b) for c in (0, 1) for b in range(BINS)]
            cells += [(0, 0, 5), (0, 0, 6)] + [(51, 1, 4)] * (slot >= 5)
            cohorts, bins, counts = np.array(cells)[order[order < len(cells)]].T
            state, release = stream.release(
                state,
                slot,
                CohortCounts(cohorts, bins, counts),
                moves_of([rows[i] for i in order if i < len(rows)]),
            )
            found.append(release.counts.tolist())
        return found

    plain = run(np.arange(9))
    assert run(np.arange(9)[::-1]) == plain
    assert run(np.random.default_rng(0).permutation(9)) == plain
    other = run(np.arange(9), wish=0)
    assert other[:5] == plain[:5]
    if name != "dpba":  # which may repeat a publication from before
        assert other[5:] != plain[5:]


def test_state_of_another_configuration_is_refused():
    users = Users([0, 1], together=True)
    written = stream_of("dpbd", users).encode(stream_of("dpbd", users).start())
    with pytest.raises(ConfigurationError, match="another configuration"):
        stream_of("dpba", users).decode(written)
    with pytest.raises(ConfigurationError, match="another configuration"):
        stream_of("dpbd", Users([0, 2], together=True)).decode(written)


def test_what_the_horizon_does_not_reach_is_refused():
    users = Users([0, 1], together=True)
    stream = stream_of("dpbd", users)
    nobody = CohortCounts(*(np.zeros(0, np.int64) for _ in range(3)))
    longer = Moves(np.array([0]), np.array([9]), np.array([1]), asked_units([[9, 1.0, 2, 1.0]]))
    with pytest.raises(ConfigurationError, match=r"9 slots is longer .* 8: .*--longest_window"):
        stream.release(stream.start(), 0, nobody, longer)
    with pytest.raises(ConfigurationError, match=r"epsilon above .* is too much"):
        DynamicStream(
            dynamic_mechanism("dpbd", Setting(2, 2**12)),
            asked_units([[4, 4096.0, 4, 4096.0]]),
            np.array([1]),
            NoiseSource(KEY),
        )
    state, _ = stream.release(stream.start(), 0, nobody, Moves.none())
    with pytest.raises(ValueError, match="slot 5 is out of order: 1 comes next"):
        stream.release(state, 5, nobody, Moves.none())


# ---- who is in which ledger -----------------------------------------------------------------


def interned():
    return Interned.of_classes(WISHES[:2], np.array([5, 7]))


def test_users_move_join_and_leave():
    away = len(WISHES) - 1
    found, parents = interned().move(
        moves_of([(0, 10, 2, 2), (1, 11, 3, away), (NEWCOMER, 12, 4, 1), (NEWCOMER, 13, 1, 1)]),
        None,
    )
    assert found.cohorts.tolist() == [0, 1, 10, 11, 12, 13]
    assert found.users.tolist() == [3, 4, 2, 3, 4, 1]
    assert parents[found.ledgers].tolist() == [0, 1, 0, 1, -1, -1]
    assert found.ledgers[4] == found.ledgers[5]  # newcomers who ask for the same
    by_cohort = found.sizes[found.ledgers]
    assert by_cohort.tolist() == [3, 4, 2, 0, 5, 5]  # who left is not counted
    last, parents = found.move(moves_of([(0, 14, 3, 2), (11, GONE, 3, away)]), None)
    assert last.cohorts.tolist() == [1, 10, 12, 13, 14]
    assert last.users.tolist() == [4, 2, 4, 1, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(9, 10, 1, 2)], "cohort 9 does not exist"),
        ([(0, 10, 6, 2)], "more users leave cohort 0 than are in it"),
        ([(0, 10, 3, 2), (0, 11, 3, 1)], "more users leave cohort 0"),
        ([(0, 1, 2, 1)], "cohort 1 exists already: give the child a new number"),
        ([(0, 10, 1, 2), (1, 10, 1, 2)], "cohort 10 has more than one parent or requirement"),
        ([(0, 10, 1, 2), (0, 10, 1, 3)], "cohort 10 has more than one parent or requirement"),
        ([(0, 10, 0, 2)], "0 users cannot move: give 1 or more"),
    ],
)
def test_moves_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        interned().move(moves_of(rows), None)


def test_a_default_class_is_never_below_nobody_and_stays():
    found, _ = interned().move(moves_of([(0, 10, 9, 2), (1, 11, 7, 2)]), 0)
    assert found.cohorts.tolist() == [0, 10, 11]
    assert found.users.tolist() == [0, 9, 7]
    with pytest.raises(ValueError, match="cohort 1 does not exist"):
        found.ledgers_of(np.array([0, 1]))


# Who comes back finds the windows still open that were opened before, and spends within them.
@NAMES
def test_who_comes_back_is_still_bound(name):
    away = len(WISHES) - 1
    changes = [[None, None]] * 4 + [[away, None], [None, None], [0, None]] + [[None, None]] * 6
    _, spent, _ = drive(name, [2, 6], changes, 3)  # 0.3 over 8 slots ahead, then 1.0 over 4
    assert (spent[4:6, 0] == 0).all()
    assert_within([2, 6], changes, spent)
    assert spent[6:11, 0].sum() <= WISHES[2, 3] - spent[3, 0]


@NAMES
def test_a_stream_that_everybody_left_goes_on(name):
    stream = stream_of(name, Users([0, 0, 2], together=True))
    gone = Moves(np.array([0, 1]), np.full(2, GONE), np.array([2, 1]), np.zeros((2, 4), np.int64))
    state, nobody = stream.start(), CohortCounts(*np.zeros((3, 0), np.int64))
    for slot in range(3 * HORIZON):
        moves = gone if slot == 3 else moves_of([])
        state, release = stream.release(state, slot, nobody, moves)
        state = stream.decode(stream.encode(state))
    assert release.counts.shape == (BINS,)
    assert release.spent.size == 0


# ---- simulation -----------------------------------------------------------------------------


@NAMES
def test_simulated_constant_requirements(name):
    counts = np.random.default_rng(0).integers(0, 40, (20, 2, BINS))
    asked = [[4, 1.0, 4, 1.0], [2, 3.0, 2, 3.0]]
    found = simulate_dynamic(name, counts, asked, [50, 60], KEY)
    every = simulate_dynamic(name, counts, [asked] * 20, [50, 60], KEY)
    assert found.released.tolist() == every.released.tolist()
    assert found.spent.shape == (20, 2)
    assert "published" in found.status


def test_simulation_refuses_what_does_not_fit():
    counts = np.zeros((3, 2, 2), np.int64)
    with pytest.raises(ValueError, match="give every class 1 user or more"):
        simulate_dynamic("dpbd", counts, np.ones((2, 4)), [1, 0], KEY)
    with pytest.raises(ValueError, match=r"shape \(3, 2, 2\); give \(slots, 3 classes"):
        simulate_dynamic("dpbd", counts, np.ones((3, 4)), [1, 1, 1], KEY)
    with pytest.raises(ConfigurationError, match=r"'pba' is for .*: here choose one of adaptive"):
        simulate_dynamic("pba", counts, np.ones((2, 4)), [1, 1], KEY)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([[4, 1.0, 4, 1.0]], r"shape \(1, 4\); give \(2 classes, 4\)"),
        ([[4, 1.0, 4, 1.0], [2, 1e-12, 2, 3.0]], "1e-12"),
    ],
)
def test_a_simulation_refuses_requirements_that_do_not_fit(asked, message):
    with pytest.raises(ValueError, match=message):
        simulate_dynamic("dpbd", np.zeros((5, 2, BINS), np.int64), asked, [5, 6], KEY)

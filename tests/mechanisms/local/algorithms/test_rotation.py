"""Rotation's estimator and filter: no bias, honest errors, and what happens without reports."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, simulate_local
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, Requirement
from streamveil.mechanisms.local.algorithms.report_groups import AWAY
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import GRR, OUE, Tally, Users
from streamveil.mechanisms.local.server.last_publication import revised_counts
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.simulation import run_slot
from tests.mechanisms.local.populations import SERVER, population, tally_of

RAW = {"filtered": False, "project": False}
KEY = bytes(range(32))


def wave(slots, users, random):
    """Values of two bins, as in the papers, and their frequencies."""
    chances = 0.05 * np.sin(0.02 * np.arange(slots)) + 0.075
    values = (random.random((slots, users)) < chances[:, None]).astype(np.int8)
    ones = values.mean(axis=1)
    return values, np.stack([1 - ones, ones], axis=1)


# Classes with reporters in every slot, and seven users who are heard one at a time, now and then;
# class and value hang together as far as they can. z-tests at 1e-6 for each symbol.
@pytest.mark.slow
def test_robust_is_unbiased_however_class_and_value_hang_together():
    requirements = [(5, 2.0)] * 40 + [(4, 1.0)] * 30 + [(60, 3.0)] * 4 + [(37, 2.5)] * 3
    classes = sorted(set(requirements))
    values = np.array([classes.index(one) % 3 for one in requirements])
    truth = np.bincount(values, minlength=3) / values.size
    errors = []
    for number in range(250):
        key = np.random.default_rng(number).bytes(32)
        done = simulate_local(
            "rotation", np.tile(values, (8, 1)), 3, requirements, key, robust=True, **RAW
        )
        errors.append(done.released.mean(axis=0) - truth)
    mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1)
    assert (np.abs(mean) < 4.9 * spread / np.sqrt(len(errors))).all()


# The same values, plain: biased, which shows that the test above can fail.
def test_plain_takes_classes_for_alike():
    requirements = [(5, 3.0)] * 2000 + [(5, 0.5)] * 2000
    values = np.tile(np.repeat([0, 1], 2000), (5, 1))
    done = simulate_local("rotation", values, 2, requirements, KEY, **RAW)
    assert done.released[:, 0].mean() > 0.8


# Raw estimates scatter by the stated error, which knows the frequencies once there is a forecast:
# the mean of 2,400 squares, of kurtosis near 3, is within 4.9 of its standard errors.
@pytest.mark.slow
@pytest.mark.parametrize("robust", [False, True])
def test_stated_errors_are_those_found(robust):
    random = np.random.default_rng(5)
    values, truth = wave(2400, 900, random)
    requirements = [(40, 1.0)] * 300 + [(60, 2.5)] * 500 + [(70, 1.5)] * 60 + [(90, 2.0)] * 40
    done = simulate_local("rotation", values, 2, requirements, KEY, robust=robust, **RAW)
    squares = ((done.released - truth)[:, 1] / done.stderr[:, 1]) ** 2
    assert np.abs(squares.mean() - 1) < 4.9 * np.sqrt(2 / len(squares)) + 0.02


@pytest.mark.slow
def test_the_filter_and_the_projection_help():
    values, truth = wave(400, 3000, np.random.default_rng(1))
    requirements = [(40, 1.5)] * 1500 + [(80, 2.5)] * 1500

    def error(**options):
        done = simulate_local("rotation", values, 2, requirements, KEY, **options)
        return ((done.released - truth) ** 2).mean(), done

    raw, _ = error(**RAW)
    projected, _ = error(filtered=False)
    filtered, done = error()
    assert projected < raw
    assert filtered < raw / 5
    assert (done.status == PUBLISHED).all()
    np.testing.assert_allclose(done.released.sum(axis=1), 1)
    assert done.released.min() >= 0
    within = np.abs(done.released - truth) < 1.645 * done.stderr
    assert 0.75 < within.mean() < 0.99


def test_unfiltered_is_the_personalised_frequency_oracle():
    users = population([(2, 1.0)] * 40 + [(3, 2.0)] * 60, symbols=3)
    mechanism = Rotation("rotation", users, **RAW)
    state, ask = mechanism.begin(mechanism.start(), 5, SERVER.slot(5, b""))
    tally = tally_of(ask, users, 1)
    _, release = mechanism.take(state, tally, SERVER.slot(5, b""))
    assert tally.reports.tolist() == [20, 20]
    one = [o.frequencies(tally.supports[k], 20) for k, o in enumerate(mechanism._oracles)]
    precision = [1 / o.variance(1 / 3) for o in mechanism._oracles]
    expected = np.average(one, axis=0, weights=precision)
    np.testing.assert_allclose(release.frequencies, expected)
    assert release.epsilon == 2.0
    assert release.published_slot == 5


def test_slots_without_reports_are_predicted():
    users = population([(2, 1.0)] * 400)
    for options, status in (({}, PREDICTED), ({"filtered": False}, SKIPPED)):
        mechanism = Rotation("rotation", users, **options)
        state, releases = mechanism.start(), []
        for slot, answer in enumerate([-1, 0, 0, -1, 1]):
            random = SERVER.slot(slot, b"")
            state, ask = mechanism.begin(state, slot, random)
            state, release = mechanism.take(state, tally_of(ask, users, answer), random)
            releases.append(release)
        assert [r.status for r in releases] == [SKIPPED, PUBLISHED, PUBLISHED, status, PUBLISHED]
        assert np.isnan(releases[0].stderr).all()
        assert releases[3].published_slot == 2
        assert (releases[3].stderr >= releases[2].stderr).all()
        np.testing.assert_allclose(releases[3].frequencies, releases[2].frequencies, atol=0.02)


# Fewer users than slots: most slots ask nobody.
def test_a_single_user_may_have_a_long_window():
    done = simulate_local("rotation", np.zeros((25, 1), int), 2, [(10, 1.0)], KEY)
    asked = np.array([ask.users.size for (ask,) in done.asks])
    assert asked.sum() in (2, 3)
    assert ((done.status == PUBLISHED) == (asked == 1)).all()


def test_state_at_any_point_goes_on_as_if_it_had_stayed():
    users = population([(3, 1.0)] * 50 + [(5, 2.0)] * 30, symbols=4)
    values = np.arange(80) % 4

    def released(encode):
        mechanism, devices = Rotation("rotation", users), Devices(users, KEY, 5)
        state, found = mechanism.start(), []
        for slot in range(4, 20):
            random = SERVER.slot(slot, b"")
            if slot == 9:
                state = mechanism.change(state, slot, [70, 3], [0, AWAY], random)
                devices.change(slot, changed(users, {70: 0}))
            if encode:
                mechanism, state = through_bytes(mechanism, state)
            state, ask = mechanism.begin(state, slot, random)
            if encode:
                mechanism, state = through_bytes(mechanism, state)
            state, release = mechanism.take(state, devices.report(ask, values), random)
            found.append(np.concatenate([release.frequencies, release.stderr]))
        return np.array(found)

    def through_bytes(mechanism, state):
        fresh = Rotation("rotation", users)
        return fresh, fresh.decode(mechanism.encode(state))

    np.testing.assert_array_equal(released(True), released(False))


def changed(users, classes) -> Users:
    class_of = users.class_of.copy()
    for user, k in classes.items():
        class_of[user] = k
    return Users(users.classes, class_of, users.symbols)


def test_state_of_other_symbols_is_refused():
    two, three = (Rotation("rotation", population([(3, 1.0)], n)) for n in (2, 3))
    with pytest.raises(ConfigurationError, match="symbols"):
        three.decode(two.encode(two.start()))


@pytest.mark.parametrize(("symbols", "best"), [(2, GRR), (1000, OUE)])
def test_oracles(symbols, best):
    users = population([(3, 1.0)] * 9, symbols)
    random = SERVER.slot(0, b"")

    def kind(**options):
        mechanism = Rotation("rotation", users, **options)
        return mechanism.begin(mechanism.start(), 0, random)[1].oracles

    assert kind() == (best,)
    assert kind(oracle=GRR) == (GRR,)
    assert kind(oracle=OUE) == (OUE,)
    with pytest.raises(ConfigurationError, match="best, grr or oue"):
        kind(oracle="gr")


@pytest.mark.parametrize(
    ("slot", "users", "classes", "words"),
    [
        (3, [0], [0], "slot 3"),
        (4, [3], [0], "from 0 to 2"),
        (4, [1, 1], [0, 0], "differ"),
        (4, [1], [1], "from 0 to 0"),
        (4, [1], [-2], "-1 for who is away"),
    ],
)
def test_changes_that_make_no_sense(slot, users, classes, words):
    everybody = population([(2, 1.0)] * 3)
    mechanism, devices = Rotation("rotation", everybody), Devices(everybody, KEY)
    random = SERVER.slot(3, b"")
    state, *_ = run_slot(mechanism, mechanism.start(), 3, np.zeros(3, int), devices, random)
    with pytest.raises(ValueError, match=words):
        mechanism.change(state, slot, users, classes, random)
    state, _ = mechanism.begin(state, 4, random)
    with pytest.raises(ValueError, match="slot 5"):
        mechanism.change(state, 5, [0], [0], random)


def test_reports_before_anybody_was_asked():
    mechanism = Rotation("rotation", population([(2, 1.0)] * 3))
    nothing = Tally(np.zeros((1, 2), np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="begin the slot first"):
        mechanism.take(mechanism.start(), nothing, NoiseSource(KEY).slot(0, b""))


# ---- whole streams with changes -------------------------------------------------------------


# One comes, one leaves and returns, one asks for more and then for less; the filter watches.
def test_simulated_changes():
    requirements = [(2, 1.0), (2, 1.0), None, (5, 1.0)] * 40
    changes = {
        10: dict.fromkeys(range(2, 160, 4), (3, 2.0)),
        12: dict.fromkeys(range(1, 160, 4)),
        20: {u: Requirement(9, 0.5) for u in range(0, 160, 4)},
        30: dict.fromkeys(range(0, 160, 2), (2, 1.0)) | {1: (2, 1.0)},
    }
    values = np.zeros((60, 160), int)
    done = simulate_local("rotation", values, 2, requirements, KEY, changes=changes)
    spent = to_units(done.spent)
    one = to_units([1.0, 2.0, 0.5])
    assert (spent[:10, 2::4] == 0).all()
    assert (spent[10:13, 2::4].sum(axis=0) == one[1]).all()
    assert (spent[12:, 5::4] == 0).all()
    assert (spent[30:32, 1].sum(axis=0) == one[0]).all()
    assert (spent[20:38, 0::4] <= one[2]).sum() == 18 * 40
    assert (spent[38:40, 0::4].sum(axis=0) == one[0]).all()
    assert (spent[:, 3::4].sum(axis=0) == 12 * one[0]).all()


@pytest.mark.parametrize(
    ("name", "requirements", "changes", "words"),
    [
        ("plpa", [(2, 1.0)] * 9, {1: {0: (3, 1.0)}}, "rotation"),
        ("lbu", [(2, 1.0)] * 8 + [None], {1: {8: (3, 1.0)}}, "rotation"),
        ("rotation", [(2, 1.0), None], {}, "user 1 never comes"),
        ("rotation", [(2, 1.0)], {3: {1: (2, 1.0)}}, "slot 3"),
    ],
)
def test_changes_that_are_refused(name, requirements, changes, words):
    values = np.zeros((4, len(requirements)), int)
    with pytest.raises(ConfigurationError, match=words):
        simulate_local(name, values, 2, requirements, KEY, changes=changes)


# ---- cycles and revisions -------------------------------------------------------------------


def hours(slots, users, random):
    """Values of users of whom fewer come at night; the last one is that nobody came."""
    day = 1 + 0.6 * np.sin(2 * np.pi * np.arange(slots) / 24)
    shares = np.outer(day, [0.2, 0.12, 0.08])
    chances = np.cumsum(shares, axis=1)
    values = np.stack([np.searchsorted(row, random.random(users), "right") for row in chances])
    return values, np.stack([np.bincount(row, minlength=4) for row in values]) / users


ASKED = [(20, 2.0)] * 1000 + [(40, 2.5)] * 1000


def squared(released, truth) -> float:
    return float(((released - truth) ** 2).mean())


def covered(released, stderr, truth) -> float:
    """Share of values within 1.645 standard errors: 0.9 if these are honest."""
    return float((np.abs(released - truth) <= 1.645 * stderr)[20:].mean())


# A cycle is learnt from what was reported before: it is foreseen, and stderr knows that. One of
# another length is not found.
@pytest.mark.slow
def test_a_cycle_is_foreseen():
    values, truth = hours(320, 2000, np.random.default_rng(2))
    plain, cyclic, other = (
        simulate_local("rotation", values, 4, ASKED, KEY, cycle=cycle) for cycle in (0, 24, 7)
    )
    np.testing.assert_array_equal(other.released, plain.released)
    late = slice(150, None)
    error = squared(cyclic.released[late], truth[late])
    assert error < 0.5 * squared(plain.released[late], truth[late])
    assert covered(plain.released, plain.stderr, truth) < 0.8
    assert 0.86 < covered(cyclic.released[late], cyclic.stderr[late], truth[late]) < 0.98


# Nothing is foreseen where nothing repeats itself.
@pytest.mark.slow
def test_no_cycle_is_made_up():
    values, _ = wave(250, 2000, np.random.default_rng(3))
    plain = simulate_local("rotation", values, 2, ASKED, KEY)
    cyclic = simulate_local("rotation", values, 2, ASKED, KEY, cycle=24)
    np.testing.assert_array_equal(plain.released, cyclic.released)


# Revisions leave releases as they are, and err less; all slots have one, and errors are honest.
@pytest.mark.slow
@pytest.mark.parametrize("cycle", [0, 24])
def test_revisions_err_less(cycle):
    values, truth = (hours if cycle else wave)(300, 2000, np.random.default_rng(4))
    bins = truth.shape[1]
    plain = simulate_local("rotation", values, bins, ASKED, KEY, cycle=cycle)
    done = simulate_local("rotation", values, bins, ASKED, KEY, cycle=cycle, revise=7)
    np.testing.assert_array_equal(plain.released, done.released)
    assert plain.revised is None
    assert done.revised.shape == done.revised_stderr.shape == truth.shape
    assert squared(done.revised, truth) < 0.85 * squared(done.released, truth)
    assert 0.85 < covered(done.revised, done.revised_stderr, truth) <= 1


@pytest.mark.slow
def test_a_state_with_cycle_and_revisions_goes_on_as_if_it_had_stayed():
    values, _ = hours(120, 400, np.random.default_rng(5))
    users = Users((Requirement(6, 2.5),), np.zeros(400, np.int32), 4)

    def revised(saved):
        machine = Rotation("rotation", users, cycle=24)
        machine.revise = 3
        state, found, devices = machine.start(), [], Devices(users, KEY)
        source = SERVER
        for slot, row in enumerate(values):
            if saved and slot % 7 == 0:
                state = machine.decode(machine.encode(state))
            state, release, _ = run_slot(machine, state, slot, row, devices, source.slot(slot, b""))
            found += release.revisions
        return [*found, *machine.rest(state)], state

    (stayed, state), (went, _) = revised(False), revised(True)
    assert state.seasons.cycles == 5
    assert [one.slot for one in stayed] == [one.slot for one in went] == list(range(120))
    for one, other in zip(stayed, went, strict=True):
        np.testing.assert_array_equal(one.frequencies, other.frequencies)
        np.testing.assert_array_equal(one.stderr, other.stderr)
    with pytest.raises(ConfigurationError, match="cycle"):
        Rotation("rotation", users, cycle=12).decode(Rotation.encode(Rotation("", users), state))


def test_nothing_is_revised_of_slots_before_any_report():
    users = Users((Requirement(6, 2.5),), np.zeros(9, np.int32), 3)
    machine = Rotation("rotation", users)
    machine.revise = 2
    state, found = machine.start(), []
    silent = Tally(np.zeros((1, 3), np.int64), np.zeros(1, np.int64))
    for slot in range(4):
        state, _ = machine.begin(state, slot, SERVER.slot(slot, b""))
        state, release = machine.take(state, silent, SERVER.slot(slot, b""))
        found += release.revisions
    assert [one.slot for one in found] == [0, 1]
    assert all(np.isnan(one.stderr).all() and not one.frequencies.any() for one in found)


# Who came since was not there: an earlier slot is of the users that it had.
def test_a_revision_says_how_many_took_part_then():
    users = Users((Requirement(2, 2.5),), np.zeros(90, np.int32), 3, begun=60)
    machine = Rotation("rotation", users)
    machine.revise = 2
    state, found, devices = machine.start(), [], Devices(users, KEY, 2)
    values = np.zeros(90, np.int32)
    for slot in range(4):
        random = SERVER.slot(slot, b"")
        if slot == 2:
            come = np.arange(60, 90)
            state = machine.change(state, slot, come, np.zeros(30, np.int32), random)
            devices.change(slot, replace(users, begun=None))
            state = machine.decode(machine.encode(state))
        state, release, _ = run_slot(machine, state, slot, values, devices, random)
        found += release.revisions
    found += machine.rest(state)
    assert [one.users for one in found] == [60, 60, 90, 90]
    counts = [revised_counts(one).counts for one in found]
    np.testing.assert_allclose([sum(each) for each in counts], [60, 60, 90, 90], atol=3)
    state, release, _ = run_slot(machine, state, 4, values, devices, SERVER.slot(4, b""))
    assert machine.rest(state)[0].slot == 4  # what was revised at the end is so for good


@pytest.mark.parametrize("cycle", [1, -24, 673])
def test_cycles_out_of_range_are_refused(cycle):
    with pytest.raises(ConfigurationError, match=f"cycle is {cycle}, give a number of slots from"):
        simulate_local("rotation", np.zeros((1, 9), int), 2, ASKED[:9], KEY, cycle=cycle)


def test_what_cannot_revise_is_refused():
    with pytest.raises(ConfigurationError, match=r"cannot revise.*choose rotation, or"):
        simulate_local("plpa", np.zeros((1, 90), int), 2, [(2, 1.0)] * 90, KEY, revise=3)

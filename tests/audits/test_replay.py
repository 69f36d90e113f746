"""All that leaves is a function of noisy results, which lose what was charged: by replay."""

import re
from itertools import islice
from unittest.mock import patch

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Requirement
from streamveil.mechanisms.randomness.noise import discrete_laplace
from streamveil.mechanisms.registry import MECHANISMS
from streamveil.pipelines.audit import rounds
from streamveil.pipelines.audit.auditing import audited
from streamveil.pipelines.audit.replay import (
    Neighbour,
    Replay,
    Replayed,
    Stage,
    Violation,
    difference,
    noise_too_small,
    replayed,
    report_loss,
    sampled_loss,
)
from tests.audits.mutants import LEAVING, MUTANTS
from tests.audits.scenes import COMMANDS

KEY = bytes(range(32))


def replay_of(scene) -> Replayed:
    """The first replays of an audit, without its guesses: of one run of more than 480 slots.

    Whole runs have tests of their own, in `test_whole_runs.py`.
    """

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounds, "replayed", lambda some, _: replayed(islice(some, 1), until=0))
        patched.setattr(rounds, "_in_rounds", lambda *_: (rounds.LEAST_RUNS, ()))
        found = COMMANDS[scene].findings(0) if isinstance(scene, str) else scene()
        return found.replayed


@pytest.mark.parametrize("scene", ["uniform"])  # `doors.py` has those of mutants
def test_what_leaves_follows_from_noisy_results(scene):
    found = replay_of(scene)
    assert not found.violation
    assert found.slots > 2 * 480


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (one.scene not in ("uniform", "pba")))
        for name, one in MUTANTS.items()
        if one.breaks in LEAVING
    ],
)
def test_what_leaves_without_noise_is_convicted(name):
    mutant = MUTANTS[name]
    with mutant.patched():
        assert replay_of(mutant.scene).violation


# By guesses nobody would see so little.
@pytest.mark.slow
@pytest.mark.parametrize("tenths", [10, 11])
def test_a_tenth_less_noise_is_seen_in_one_run(tenths, monkeypatch):
    from streamveil.mechanisms.wevent import sampling

    exact = sampling.discrete_laplace
    monkeypatch.setattr(
        sampling, "discrete_laplace", lambda units, *given: exact(units * tenths // 10, *given)
    )
    found = replay_of("uniform")
    assert bool(found.violation) == (tenths > 10)
    if found.violation:
        assert "1.1 times what the slots were charged of a user with w = 3" in found.violation
    else:
        assert found.worst == 1.0  # to the unit


@pytest.mark.slow
@pytest.mark.parametrize("scene", [*COMMANDS])
def test_honest_scenes_are_acquitted(scene):
    if scene in ("devices", "symbols", "bits", "one event", "asked again"):
        pytest.skip("devices draw for themselves")
    if scene in ("counted", "domains", "running"):
        pytest.skip("statistics of records have no streams")
    found = replay_of(scene)
    assert not found.violation
    assert 0.4 < found.worst <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("classes", [1, 2])
def test_honest_mechanisms_are_acquitted(name, classes):
    asked = [Requirement(5, 2.0), Requirement(8, 0.7)][:classes]
    found = replay_of(lambda: audited(asked, mechanism=name, bins=8, sensitivity=classes))
    assert not found.violation


# ---- the parts ------------------------------------------------------------------------------


def play(values, make=lambda noise, value: value + noise, rates=(1 << 38,), purpose="it"):
    """A world of one noisy result in each slot, of whatever is made of the noise and a value."""

    def played():
        for slot, value in enumerate(values):
            words = NoiseSource(KEY).slot(slot, b"%d" % value).words(purpose)
            rate = rates[slot % len(rates)]
            yield slot, make(discrete_laplace(rate, 1, words), np.array([value]))

    return played


def test_a_sum_of_noise_and_value_is_forced_and_costs_the_change():
    base = Replay(play([3, 3, 3]))
    assert base.against(play([3, 3, 3])) == 0
    assert base.against(play([3, 5, 2])) == 3 << 38

    def in_place(noise, value):
        value += noise
        return value

    assert base.against(play([3, 5, 2], in_place)) == 3 << 38


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            play([3, 4], lambda noise, value: value + noise.view(np.ndarray)),
            "is 3 in one world, and 4|in one world, and",
        ),
        (play([3, 4], rates=(1 << 38, 1 << 37)), "is asked for noise 'it' of size 1 at"),
        (play([3, 4], purpose="another"), "'another'"),
        (play([3]), "is asked for in one world alone"),
        (
            play([3, 4], lambda noise, value: (noise + value, value)),
            "is a ndarray in one world, and a tuple",
        ),
        (play([3, 4], lambda noise, value: noise + value + (value > 3)), "in one world, and"),
    ],
)
def test_whatever_else_is_done_is_a_violation(other, message):
    base = Replay(play([3, 3]))
    with pytest.raises(Violation, match=message):
        base.against(other)


def test_words_that_are_drawn_twice_and_noise_that_is_the_same_on_other_data():
    def twice():
        for slot in range(2):
            yield slot, discrete_laplace(1 << 38, 1, NoiseSource(KEY).slot(0, b"").words("it"))

    with pytest.raises(Violation, match="the same random words are drawn twice, for 'it'"):
        Replay(twice)
    with patch.object(
        NoiseSource, "slot", lambda self, slot, _, s=NoiseSource.slot: s(self, slot, b"")
    ):
        base = Replay(play([3, 3]))
        with pytest.raises(Violation, match="slot 1: the noise 'it' is the same on other data"):
            base.against(play([3, 4]))


def test_a_claim_is_compared_with_whole_units():
    claims = {
        units: Neighbour("a user", play([3, 4]), lambda _, n=units: {"a budget": n})
        for units in ((1 << 38) - 1, 1 << 38)
    }
    found = [replayed([Stage(play([3, 3]), (one,))]) for one in claims.values()]
    assert "tell 1 times a budget of a user: 274877906944 units" in found[0].violation
    assert found[1].worst == 1
    assert not found[1].violation


@pytest.mark.parametrize("repeated", [None, "one draw", "one slot"])
def test_noise_that_repeats_itself_is_seen(repeated):
    """As where a source that ran dry gives the same words again and again."""

    def made():
        for slot in range(200):
            words = NoiseSource(KEY).slot(slot, b"").words("it")
            noise = discrete_laplace(1 << 36, 8, words)
            if slot >= 100 and repeated:
                noise[:] = 21 if repeated == "one draw" else np.arange(8) * 10 - 40
            yield slot, noise + np.zeros(8, np.int64)

    found = noise_too_small(Replay(made).tape)
    assert bool(found) == bool(repeated)
    assert not repeated or re.search(r"the noise 'it' repeats itself from slot (9\d|10\d)", found)


def test_losses_of_sampled_events_and_of_reports_are_those_of_their_likelihoods():
    assert sampled_loss(1 << 40, 1 << 64) == 1 << 40
    assert sampled_loss(1 << 40, 1 << 63) == pytest.approx(2**40 * np.log1p((np.e - 1) / 2))
    truth = (np.e - 1) / (np.e - 1 + 3)
    assert report_loss(int(truth * 2**64), 3) == pytest.approx(2**40)


def test_records_differ_where_anything_in_them_does():
    one = {"a": [np.array([1.0, np.nan]), "x"], "b": float("nan")}
    assert difference(one, {"a": [np.array([1.0, np.nan]), "x"], "b": float("nan")}) is None
    assert "a[0][0] is 1.0 in one world, and 2.0" in difference(
        one, {**one, "a": [np.array([2.0, np.nan]), "x"]}
    )
    assert "a[1] is x" in difference(one, {**one, "a": [one["a"][0], "y"]})
    assert "float64 of (2,)" in difference(one, {**one, "a": [np.array([1.0, np.nan, 0]), "x"]})

"""Every mutant of the mechanisms is convicted: by its door for sure, by audits as far as they see.

How often audits convict, over several seeds and for all mutants, is measured by
`benchmarks/mutants.py`; here are samples.
"""

import pytest

from tests.audits.doors import DOORS, convicts
from tests.audits.mutants import MUTANTS
from tests.audits.scenes import COMMANDS, SCENES
from tests.audits.verdicts import innocent, verdict

# Doors that take seconds: samples, neighbouring worlds, many examples.
SLOW = {
    *("noise_of_points_a_fifth_less", "noise_of_points_halved", "noise_of_sums_a_third_less"),
    *("looks_with_half_the_noise", "looks_without_noise", "nobody_is_thinned"),
    *("kept_in_proportion", "all_weigh_alike", "a_reserve_counted_twice", "events_unbounded"),
    *("slots_in_part_as_whole", "windows_of_queries_rounded_down", "no_filter"),
    *("looks_for_free", "a_gate_without_noise", "compared_with_the_counts"),
    *("two_audits_in_a_window", "budgets_undivided_in_a_tree", "one_slot_more_counts"),
    *("a_filter_that_forgets_early", "zero_of_both_signs", "events_bounded_by_bin"),
}


def test_each_says_what_it_gets_wrong_and_has_a_scene_and_a_door():
    assert len(MUTANTS) >= 40
    assert set(DOORS) == set(MUTANTS)
    assert all(one.wrong.endswith(".") for one in MUTANTS.values())
    assert {one.scene for one in MUTANTS.values()} == {*COMMANDS, *SCENES}


FIRST_OF_SCENE = {MUTANTS[one].scene: one for one in reversed(MUTANTS) if one not in SLOW}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one not in FIRST_OF_SCENE.values()))
        for one in MUTANTS
    ],
)
def test_its_door_is_shut_to_each(name):
    assert convicts(name)


# A door that is shut to everybody would prove nothing.
@pytest.mark.slow
@pytest.mark.parametrize("door", {str(one): one for one in DOORS.values()}.values(), ids=str)
def test_doors_are_open_where_nothing_is_wrong(door):
    door.open(examples=5)


# ---- audits: their doubt is small, and seeds are fixed --------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise_a_fifth_less", "nobody_is_thinned"])
def test_the_command_guesses_what_filters_pass(name):
    found = verdict(name, 1)
    assert not found.refused
    assert (found.charges, found.guesses) == (0, 1)


@pytest.mark.slow
def test_what_a_filter_refuses_the_command_convicts_without_one():
    found = verdict("absorbs_twice", 1)
    assert "release refused" in found.refused
    assert found.charges == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["blocks_from_the_first_visit", "every_epoch_as_the_first", "promises_forgotten"]
)
def test_the_command_recounts_what_windows_and_lives_cost(name):
    assert verdict(name, 1).charges == 1


@pytest.mark.slow
def test_the_command_grants_what_is_right():
    found = innocent("uniform", 1)
    assert (found.charges, found.guesses) == (0, 0)
    assert 0.8 < found.times <= 1


QUICK = ("events_unbounded",)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_two_worlds_convict(name):
    assert verdict(name, 1).guesses == 1
    assert innocent(MUTANTS[name].scene, 1).guesses == 0

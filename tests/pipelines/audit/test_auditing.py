"""The audit convicts what tells too much, and nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Requirement
from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.adaptive import running_sum, weighting
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.protocol import population_of
from streamveil.mechanisms.wevent import sampling
from streamveil.pipelines.audit import worlds
from streamveil.pipelines.audit.auditing import audited
from streamveil.pipelines.audit.audits import watched
from streamveil.pipelines.audit.findings import CHARGE, WINDOW
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.audit.runs import Exact
from tests.audits.scenes import BRIEF

QUICK = {"extent": BRIEF, "bins": 16}


@pytest.fixture
def less_noise(monkeypatch):
    """Break all noise: make it so many times too small for what is charged."""

    def less_noise(times):
        for module in (weighting, running_sum, sampling):
            exact = module.discrete_laplace

            def small(units, size, words, exact=exact):
                return exact(round(units * times), size, words)

            monkeypatch.setattr(module, "discrete_laplace", small)

    return less_noise


def test_an_honest_mechanism_is_not_convicted_and_nearly_all_of_its_charges_is_proven():
    found = audited([Requirement(5, 2.0)], mechanism="pba", **QUICK)
    assert not found.violated
    assert found.overspent <= 1.0
    bins = next(one for one in found.checks if one.part == "bins")
    assert 0.5 < bins.times < 1.0
    assert bins.guesses > 200
    assert bins.epsilon == pytest.approx(bins.times * bins.claimed)
    assert {(one.part, one.claim) for one in found.checks} == {
        *((part, CHARGE) for part in ("publications", "looks", "bins", "windows")),
        ("windows", WINDOW),
    }
    assert "no violation found in pba" in found.sentence
    assert f"{found.visible:.2f} times would have been seen" in found.sentence


@pytest.mark.slow
def test_half_the_noise_is_convicted(less_noise):
    less_noise(2.0)
    found = audited([Requirement(5, 2.0)], mechanism="pba", **QUICK)
    assert found.violated
    assert found.worst.times > 1.2
    assert found.sentence.startswith("VIOLATION: pba tells at least")


@pytest.mark.usefixtures("short")
def test_the_same_seed_gives_the_same_audit():
    once, again, other = (
        audited([Requirement(3, 3.0)], mechanism="pbd", bins=16, extent=Extent(runs=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


@pytest.mark.usefixtures("short")
def test_charges_beyond_a_budget_are_convicted_exactly(monkeypatch):
    """As if schedule and filter allowed what was never asked for."""
    monkeypatch.setattr(WindowFilter, "charge", lambda *_: None)

    class Twice(Exact):
        def release(self, slot, counts):
            found = super().release(slot, counts)
            return replace(found, spent=2 * found.spent)

    found = audited([Requirement(3, 3.0)], mechanism="pba", make_driver=Twice, **QUICK)
    assert found.overspent > 1.5
    assert found.violated
    assert "times the budget of a window" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
def test_users_of_several_events_are_audited(adjacency):
    sensitivity = 4 if adjacency == REPLACE else 2
    found = audited(
        [Requirement(4, 4.0)],
        mechanism="pba",
        sensitivity=sensitivity,
        adjacency=adjacency,
        **QUICK,
    )
    assert not found.violated
    assert found.worst.times > 0.25


@pytest.mark.usefixtures("short")
def test_canaries_stand_beside_counts_of_ones_own():
    counts = np.random.default_rng(3).poisson(20, (90, 2, 3)).astype(np.int64)
    asked = [Requirement(3, 2.0), Requirement(5, 4.0)]
    found = audited(asked, mechanism="pba", sizes=[100, 100], counts=counts, extent=BRIEF)
    assert found.own
    assert not found.violated
    assert {one.requirement for one in found.checks} == set(asked)


@pytest.mark.usefixtures("short")
def test_of_many_classes_those_that_differ_most_are_audited():
    asked = [Requirement(w, 1.0) for w in (2, 3, 4, 5, 6, 7)]
    assert watched(population_of(asked, [1, 9, 1, 1, 1, 1], 2)) == [0, 1, 5]
    found = audited(asked, mechanism="pba", sizes=[1, 9, 1, 1, 1, 1], **QUICK)
    assert len({one.requirement for one in found.checks}) == 3
    assert "canaries are of 3 of 6 classes" in found.notes[0]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["dpba", "dpbd"])
def test_mechanisms_whose_requirements_could_change_are_audited_while_they_do_not(name):
    asked = [Requirement(2, 4.0), Requirement(3, 4.0)]
    found = audited(asked, mechanism=name, **QUICK)
    assert not found.violated
    assert found.overspent <= 1.0
    assert found.worst.times > 0.1


@pytest.mark.parametrize("slots", [23, 24])
def test_windows_longer_than_a_stream_of_ones_own_are_named_with_a_remedy(slots):
    counts = np.zeros((slots, 2, 3), np.int64)
    asked = [Requirement(3, 2.0), Requirement(24, 4.0)]
    found = audited(asked, mechanism="pba", sizes=[100, 100], counts=counts, extent=BRIEF)
    blind = replace(found, checks=tuple(replace(one, visible=np.inf) for one in found.checks))
    if slots == 24:
        assert not found.notes
        assert blind.sentence.endswith("give it more time")
        return
    (note,) = found.notes
    assert "no guesses about windows of w = 24, epsilon = 4: these need 24 slots" in note
    assert "leave --input out" in note
    assert blind.sentence.endswith("give it more time, and an input of 24 slots or more")


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ConfigurationError, match="rotation"):
        audited([Requirement(3, 3.0)], mechanism="rotation", extent=BRIEF)


# A verdict convicts an honest mechanism with a probability of 1e-3 at most.
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_honest_mechanisms_are_acquitted_with_every_seed():
    convicted = [
        audited(
            [Requirement(2, 3.0)], mechanism="pba", bins=24, extent=Extent(runs=4, seed=seed)
        ).violated
        for seed in range(2)
    ]
    assert not any(convicted)


@pytest.mark.slow
def test_the_whole_adaptive_mechanism_with_a_sixth_less_noise_is_convicted(monkeypatch, less_noise):
    monkeypatch.setattr(worlds, "LENGTH", 120)
    asked = [Requirement(5, 3.0)]
    honest = audited(asked, extent=BRIEF)
    assert not honest.violated
    assert honest.worst.times > 0.7
    less_noise(1.2)
    broken = audited(asked, extent=BRIEF)
    assert broken.violated
    # What is published is drawn to forecasts, so that guesses see less than the noise itself shows.
    # Of a slot's total, an event that moves from bin to bin moves nothing.
    match = re.search(r"tell ([\d.]+) times what the slots were charged", broken.replayed.violation)
    assert 1.15 < float(match[1]) <= 1.2

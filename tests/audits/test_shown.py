"""Guesses score what is published: what leaves without noise is convicted by them alone."""

from dataclasses import replace

import pytest

from streamveil.mechanisms import Requirement
from streamveil.pipelines.audit import rounds, worlds
from streamveil.pipelines.audit.auditing import audited
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.audit.runs import Exact
from tests.audits.mutants import LEAVING, MUTANTS
from tests.audits.scenes import COMMANDS


@pytest.fixture(autouse=True)
def no_replay(monkeypatch):
    monkeypatch.setattr(rounds, "replayed", lambda *_: None)


class TrueCounts(Exact):
    """Publishes true counts; all that is internal is honest."""

    def release(self, slot, counts):
        true = counts.sum(axis=0)
        return replace(super().release(slot, counts), counts=true, estimates=true.astype(float))


class TrueErrors(Exact):
    """Has true counts in the last digits of its errors."""

    def release(self, slot, counts):
        made = super().release(slot, counts)
        return replace(made, stderr=made.stderr + 1e-9 * counts.sum(axis=0))


class TrueDiagnostic(Exact):
    """Says how many events there are."""

    def release(self, slot, counts):
        made = super().release(slot, counts)
        diagnostics = {**made.diagnostics, "events": float(counts.sum())}
        return replace(made, diagnostics=diagnostics)


@pytest.mark.parametrize(
    ("mechanism", "driver", "convicted"),
    [
        pytest.param("adaptive", Exact, False, marks=pytest.mark.slow),
        pytest.param("adaptive", TrueCounts, True, marks=pytest.mark.slow),
        ("pba", Exact, False),
        ("pba", TrueCounts, True),
        ("pba", TrueErrors, True),
        ("pba", TrueDiagnostic, True),
    ],
)
def test_what_leaves_beside_honest_observations_is_convicted(
    mechanism, driver, convicted, monkeypatch
):
    monkeypatch.setattr(worlds, "LENGTH", 120)
    found = audited(
        [Requirement(2, 3.0)],
        mechanism=mechanism,
        bins=8,
        make_driver=driver,
        extent=Extent(runs=4),
    )
    assert found.replayed is None
    assert found.overspent <= 1
    assert found.violated == convicted


# Those that show in many slots; a fault of few is left to replays.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "true_counts_published_of_weights",
        "true_counts_published_of_limited",
        "true_counts_published_of_lives",
        "true_counts_published_of_queries",
        "true_histograms_of_queries",
        "errors_tell_the_counts",
    ],
)
def test_mutants_that_leave_are_convicted_by_guesses_alone(name):
    mutant = MUTANTS[name]
    assert mutant.breaks in LEAVING
    with mutant.patched():
        assert COMMANDS[mutant.scene].findings(0).violated


def test_runs_are_long_enough_for_rare_paths():
    assert worlds.LENGTH >= 480

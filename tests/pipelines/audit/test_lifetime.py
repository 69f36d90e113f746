"""The audit of one budget forever convicts what tells too much, and nothing else."""

import json

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.records import REPLACE, Lifetime
from streamveil.pipelines.audit import lifetime
from streamveil.pipelines.audit.findings import CHARGE, LIFE
from streamveil.pipelines.audit.lifetime import audited_for_ever
from streamveil.pipelines.audit.rounds import Extent
from tests.audits.mutants import MUTANTS
from tests.audits.scenes import BRIEF, no_filters

# One measurement has most of the budget; it is of the mean of three slots.
SEVERAL = "gated:p=4:latest=3:shrink=none:worth=0:total=200"
NEARLY_ALL_GATE = "gated:p=4:f_s=0.9:worth=0:chance=0:total=1000"
# Lives of a run.
FEW = {lifetime.GATES: 150, lifetime.BINS: 64, lifetime.LIVES: 2}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Runs of few lives."""
    monkeypatch.setattr(lifetime, "OF_A_RUN", FEW)
    monkeypatch.setattr(lifetime, "_TRIED", 7)


def test_an_honest_mechanism_is_not_convicted_and_much_of_its_charges_is_proven():
    found = audited_for_ever(2.0, mechanism=SEVERAL, bins=16, extent=Extent(runs=8))
    assert not found.violated
    assert 0.9 < found.overspent <= 1.0
    assert {one.requirement for one in found.checks} == {Lifetime(2.0)}
    assert {(one.part, one.claim) for one in found.checks} == {
        *((part, CHARGE) for part in lifetime.KINDS),
        ("bins", LIFE),
        ("lives", LIFE),
    }
    bins = next(one for one in found.checks if one.part == "bins")
    assert 0.35 < bins.times < 1.0
    assert "no violation found in gated" in found.sentence
    assert found.span == "life"


def test_noise_of_one_slot_for_several_is_convicted():
    with MUTANTS["noise_of_one_slot_for_several"].patched():
        found = audited_for_ever(2.0, mechanism=SEVERAL, bins=16, extent=BRIEF)
    assert found.worst.part == "bins"
    assert found.worst.times > 1.1
    assert "times what its slots were charged of a user with epsilon = 2 forever" in found.sentence


@pytest.mark.parametrize("mutant", ["every_epoch_as_the_first", "a_series_without_an_end"])
def test_charges_beyond_the_budget_are_convicted_exactly(mutant):
    with MUTANTS[mutant].patched(), no_filters():
        found = audited_for_ever(2.0, mechanism=SEVERAL, bins=4, extent=BRIEF)
    assert found.overspent > 1.05
    assert "times the budget of a life" in found.sentence


@pytest.mark.slow
def test_a_gate_for_another_sensitivity_is_convicted(monkeypatch):
    monkeypatch.setattr(lifetime, "OF_A_RUN", {**FEW, lifetime.GATES: 250, lifetime.BINS: 2})
    monkeypatch.setattr(lifetime, "_TRIED", 25)
    assert not audited_for_ever(1.0, mechanism=NEARLY_ALL_GATE, bins=16, extent=BRIEF).violated
    with MUTANTS["a_gate_for_another_sensitivity"].patched():
        found = audited_for_ever(1.0, mechanism=NEARLY_ALL_GATE, bins=16, extent=BRIEF)
    assert found.worst.part == "looks"
    assert found.violated


@pytest.mark.parametrize("text", ["doubling", "horizon:slots=1", "constant"])
def test_what_the_calendar_says_is_audited(text):
    found = audited_for_ever(1.0, mechanism=text, bins=4, extent=BRIEF)
    assert not found.violated
    assert (found.worst.times > 0) == (text != "constant")


@pytest.mark.parametrize("bins", [1, 5])
def test_users_of_several_events_are_replaced(bins):
    found = audited_for_ever(
        2.0,
        mechanism="horizon:slots=5",
        bins=bins,
        sensitivity=4,
        adjacency=REPLACE,
        extent=BRIEF,
    )
    assert not found.violated
    assert bool(sum(one.guesses for one in found.checks)) == (bins > 1)


def test_canaries_stand_beside_counts_of_ones_own():
    counts = np.random.default_rng(3).poisson(200, (20, 3)).astype(np.int64)
    found = audited_for_ever(1.0, counts=counts, extent=BRIEF)
    assert found.own
    assert not found.violated
    assert found.overspent <= 1.0


def test_the_same_seed_gives_the_same_audit():
    once, again, other = (
        audited_for_ever(1.0, mechanism="horizon:slots=1", bins=4, extent=Extent(4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ConfigurationError, match="pba"):
        audited_for_ever(1.0, mechanism="pba", extent=BRIEF)


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.parametrize("text", [SEVERAL, "horizon:slots=8"])
def test_honest_mechanisms_are_acquitted_with_another_seed_too(text):
    found = audited_for_ever(2.0, mechanism=text, bins=8, extent=Extent(runs=4, seed=1))
    assert not found.violated


FOREVER = ("--guarantee=infinite", "--epsilon=2", "--bins=4", "--runs=4")


def test_a_page_and_json_are_written(toolbox, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    outcome = toolbox.run("audit", *FOREVER, f"--page={page}", f"--json={figures}")
    assert outcome.code == 0, outcome.err
    assert "| epsilon = 2 forever | lives | life |" in outcome.out
    assert "no violation found in gated" in outcome.out
    assert "charges of a life reached" in outcome.out
    found = json.loads(figures.read_text())
    assert {(one["window"], one["epsilon"]) for one in found["checks"]} == {(None, 2.0)}
    assert "Budget spent in a life" in page.read_text()


def test_a_conviction_is_reported_and_the_exit_code_is_4(toolbox):
    with MUTANTS["a_series_without_an_end"].patched(), no_filters():
        outcome = toolbox.run("audit", *FOREVER, f"--mechanism={SEVERAL}")
    assert outcome.code == 4
    assert "VIOLATION: gated:p=4" in outcome.out


def test_canaries_stand_beside_events_of_a_file(toolbox, tmp_path):
    events = tmp_path / "events.csv"
    rows = [f"u{i % 7},{'ab'[i % 2]},2024-05-{1 + i % 20:02}T08:00:00Z" for i in range(60)]
    events.write_text("\n".join(["user,place,time", *rows, ""]))
    outcome = toolbox.run(
        *("audit", *FOREVER[:2], "--runs=4", f"--input={events}", "--user_column=user"),
        *("--value_column=place", "--time_column=time", "--slot=1d", "--domain=a,b"),
    )
    assert outcome.code == 0, outcome.err
    assert "| epsilon = 2 forever | bins | charge |" in outcome.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--guarantee=infinite"], "--epsilon is missing"),
        (["--epsilon=1"], "--epsilon=1 alone is a budget without a period"),
        ([*FOREVER, "--mechanism=pba"], "'pba' is for requirements"),
        ([*FOREVER, "--default_requirement=3,1,9"], "applies to windows"),
        (["--guarantee=infinite", "--epsilon=1,2"], "names several budgets"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(toolbox, flags, message):
    outcome = toolbox.run("audit", *flags)
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.message.count("\n") == 0

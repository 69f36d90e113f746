"""The audit of requirements that change convicts what tells too much, and nothing else."""

import json

import numpy as np
import pytest

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.adaptive import running_sum, weighting
from streamveil.mechanisms.core.records import REPLACE, DynamicRequirement
from streamveil.mechanisms.wevent import sampling
from streamveil.pipelines.audit import changes
from streamveil.pipelines.audit.changes import audited_changes
from streamveil.pipelines.audit.findings import CHARGE, WINDOW
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.audit.runs import fullest_asked
from tests.audits.mutants import MUTANTS, scaled
from tests.audits.scenes import BRIEF, no_filters

ASKED = [Requirement(3, 3.0), Requirement(2, 4.0)]
STRICT = DynamicRequirement(2, 1.0, 2, 1.0)


@pytest.fixture
def few(monkeypatch):
    """Runs of few stories."""
    monkeypatch.setattr(changes, "STORIES", 4)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["adaptive", "dpba", "dpbd"])
def test_honest_mechanisms_are_not_convicted(name):
    found = audited_changes(ASKED, changes=[STRICT], mechanism=name, bins=8, extent=BRIEF)
    assert not found.violated
    assert 0.9 < found.overspent <= 1.0
    assert {(one.part, one.claim) for one in found.checks} == {
        ("bins", CHARGE),
        ("windows", CHARGE),
        ("windows", WINDOW),
    }
    assert {one.requirement for one in found.checks} == set(ASKED)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "mutant", ["promises_forgotten", "windows_ahead_end_early", "changes_in_force_late"]
)
def test_windows_that_are_not_kept_are_convicted_exactly(mutant):
    with MUTANTS[mutant].patched(), no_filters():
        found = audited_changes(ASKED, changes=[STRICT], mechanism="dpbd", bins=2, extent=BRIEF)
    assert found.overspent > 1.2
    assert "times the budget of a window" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs", "honest_times", "times"), [("adaptive", 12, 0.2, 0.45), ("dpba", 4, 0.35, 0.9)]
)
def test_too_little_noise_is_convicted(name, runs, honest_times, times, monkeypatch):
    extent = Extent(runs=runs)
    honest = audited_changes(ASKED, mechanism=name, bins=32, extent=extent)
    assert not honest.violated
    assert honest.worst.times > honest_times  # published estimates are drawn to forecasts
    for module in (sampling, weighting, running_sum):
        scaled(module, monkeypatch, 30)
    found = audited_changes(ASKED, mechanism=name, bins=32, extent=extent)
    assert found.violated
    assert "times what the slots were charged" in found.replayed.violation
    assert found.worst.times > times


@pytest.mark.usefixtures("few")
def test_users_of_several_events_are_replaced():
    found = audited_changes(
        ASKED, mechanism="adaptive", bins=9, sensitivity=4, adjacency=REPLACE, extent=BRIEF
    )
    assert not found.violated
    assert sum(one.guesses for one in found.checks)


@pytest.mark.usefixtures("few")
def test_in_one_bin_nothing_is_replaced():
    found = audited_changes(ASKED, bins=1, sensitivity=2, adjacency=REPLACE, extent=BRIEF)
    assert not found.violated
    assert {one.guesses for one in found.checks} == {0}


@pytest.mark.usefixtures("few")
def test_the_same_seed_gives_the_same_audit():
    once, again, other = (
        audited_changes(ASKED, mechanism="dpba", bins=4, extent=Extent(runs=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


def test_charges_are_added_up_over_every_window_that_was_asked_for():
    random = np.random.default_rng(2)
    windows = random.integers(1, 5, (12, 3, 2))
    caps = random.integers(1, 30, (12, 3, 2))
    asked = np.stack([windows[..., 0], caps[..., 0], windows[..., 1], caps[..., 1]], axis=2)
    spent = random.integers(0, 3, (12, 3))
    most = 0.0
    for slot in range(12):
        for who in range(3):
            back, back_most, ahead, ahead_most = asked[slot, who]
            most = max(most, spent[slot : slot + ahead, who].sum() / ahead_most)
            if spent[slot, who]:
                before = spent[max(slot - back + 1, 0) : slot + 1, who].sum()
                most = max(most, before / back_most)
    assert fullest_asked(asked, spent) == most


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_honest_mechanisms_are_acquitted_with_every_seed():
    convicted = [
        audited_changes(ASKED, mechanism="dpba", bins=24, extent=Extent(runs=4, seed=seed)).violated
        for seed in range(2)
    ]
    assert not any(convicted)


@pytest.fixture
def files(tmp_path):
    table, later = tmp_path / "requirements.csv", tmp_path / "changes.csv"
    table.write_text("user,window,epsilon\nann,3,3.0\nbob,2,4.0\n")
    later.write_text(
        "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward\n"
        "ann,3,2,1.0,2,1.0\nbob,4,,,,\n"
    )
    return f"--requirements={table}", f"--requirement_changes={later}"


@pytest.mark.usefixtures("few")
def test_users_change_to_what_a_file_asks_for(toolbox, files, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    outcome = toolbox.run(
        *("audit", *files, "--mechanism=dpba", "--bins=4", "--runs=4"),
        *(f"--page={page}", f"--json={figures}"),
    )
    assert outcome.code == 0, outcome.err
    assert "| w = 3, epsilon = 3 | windows | window |" in outcome.out
    assert json.loads(figures.read_text())["verdict"] == "no violation found"
    assert "has other requirements in the run" in page.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--default_requirement=3,1,9", "--requirement_changes=drawn"], "no user changes"),
        (["{0}", "--requirement_changes=drawn", "--mechanism=pba"], "here choose one of adaptive"),
        (["{0}", "--requirement_changes=drawn", "--max_slots=2"], "audit each alone"),
        (["{0}", "{1}", "--input=e.csv"], "which use worst-case users"),
        (["{0}", "--requirement_changes=none.csv"], "no file matches"),
        (["{0}", "--longest_window=3"], "--longest_window=3 applies to changing"),
        (["{0}", "{1}", "--longest_window=2"], "asks for a window of 3 slots: give 3 or more"),
        (["{0}", "{1}", "--longest_window=-1"], "longest_window is -1"),
        (
            ["--queries=q.yaml", "{0}", "{1}"],
            "is not for --queries: in an audit of queries, requirements never",
        ),
        (["--guarantee=infinite", "--epsilon=1", "{1}"], "applies to windows"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(toolbox, files, flags, message):
    outcome = toolbox.run("audit", *(flag.format(*files) for flag in flags), "--runs=4")
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.message.count("\n") == 0

"""The drill of benchmarks/kill_drill.py, made small, and that it would find what it looks for."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from streamveil.mechanisms.presence import Limit

pytestmark = pytest.mark.slow  # a stream, killed again and again

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kill_drill.py"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPT.parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("kill_drill", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_drill"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drilled(script, tmp_path_factory):
    return script.run_drill(tmp_path_factory.mktemp("drill") / "here", kills=2, seed=5)


@pytest.fixture
def drill(script, drilled, tmp_path):
    """A copy of what the drill left, to be spoilt."""
    shutil.copytree(drilled[0].folder, tmp_path / "copy")
    return script.Drill(tmp_path / "copy", None, drilled[0].slots, drilled[0].late)


def test_a_stream_that_is_killed_loses_and_doubles_and_overspends_nothing(drilled):
    drill, doing = drilled
    figures = drill.check()
    assert drill.faults == []
    assert sum(doing.values()) == 2
    assert figures["slots"] == drill.slots > 10
    assert figures["lost"] == figures["double"] == figures["overspent"] == 0


def test_so_does_one_in_which_users_count_in_a_few_slots_only(script, tmp_path):
    drill, doing = script.run_drill(tmp_path / "here", kills=1, seed=6, limit=Limit(1, 1))
    figures = drill.check()
    assert drill.faults == []
    assert sum(doing.values()) == 1
    assert figures["overspent"] == 0
    edit(drill, "ledger", lambda rows: [{**r, "spent": r["spent"] * 1.5} for r in rows])
    drill.check()
    assert any("overspent" in found for found in drill.faults)


def edit(drill, name, change):
    """Change the rows of the last file of a kind that has some."""
    paths = drill.path("results").glob(f"{name}-*.jsonl")
    path = max(path for path in paths if path.stat().st_size)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("releases", lambda rows: rows[1:], "lost slots"),
        ("releases", lambda rows: [*rows, rows[0]], "released twice"),
        ("releases", lambda rows: [*rows, {**rows[0], "slot": 1}], "from nowhere"),
        ("releases", lambda rows: [{**r, "counts": [0]} for r in rows], "undisturbed run"),
        ("ledger", lambda rows: [{**r, "spent": r["spent"] + 0.5} for r in rows], "overspent"),
        ("ledger", lambda rows: [{**r, "spent": 0.0} for r in rows], "ledgers differ"),
        ("ledger", lambda rows: rows[1:], "has gaps"),
        ("rejected", lambda rows: rows[1:], "dead letters differ"),
        ("rejected", lambda rows: rows * 2, "dead letters differ"),
    ],
)
def test_the_drill_would_find(drill, name, change, fault):
    edit(drill, name, change)
    drill.check()
    assert any(fault in found for found in drill.faults), drill.faults


def test_the_drill_would_find_what_is_left_over_or_changed_later(drill):
    drill.look()
    drill.path("state", "manifest.json.part").touch()
    drill.path("results", "releases-00000001.jsonl").write_text("")
    drill.look()
    drill.check()
    assert any("changed after readers" in found for found in drill.faults)
    assert any("the state holds" in found for found in drill.faults)

"""The drill of benchmarks/fault_drill.py, made small, and that it would find what it looks for."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fault_drill.py"


@pytest.fixture(scope="module")
def drill():
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("fault_drill", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_drill"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.slow
def test_faults_lose_double_and_overspend_nothing():
    command = [sys.executable, str(SCRIPT), "--faults=12", "--seed=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, total = done.stdout.splitlines()
    assert total.split()[:2] == ["all", "12"]
    assert total.split()[4:] == ["0"] * 5


def test_the_drill_finds_what_it_looks_for(drill, tmp_path):
    made = drill.Drill(tmp_path, None, slots=3, done=2)
    (tmp_path / "results").mkdir()
    made.once = [{"slot": slot, "counts": [slot]} for slot in range(3)]
    result = tmp_path / "results" / "releases-00000001.jsonl"
    result.write_text('{"slot": 0, "counts": [0]}\n{"slot": 1, "counts": [1]}\n')
    (tmp_path / "results" / "ledger-00000001.jsonl").write_text(
        '{"slot": 0, "window": 3, "epsilon": 1.0, "spent": 0.6}\n'
        '{"slot": 1, "window": 3, "epsilon": 1.0, "spent": 0.6}\n'
    )
    fault = drill.Fault("kind", ["word"])
    made.look(fault)
    assert made.table["kind"] == {"overspent": 1}
    (tmp_path / "results" / "ledger-00000001.jsonl").unlink()
    result.write_text('{"slot": 0, "counts": [0]}\n{"slot": 0, "counts": [7]}\n')
    made.look(fault)
    assert made.table["kind"] == {"overspent": 1, "lost": 1, "doubled": 1}
    said = iter(["", "streamveil release: word\n", "streamveil release: no\n", "Traceback"])
    codes = iter([0, 2, 2, 1])
    made.run = lambda *_, **__: drill.Outcome(next(codes), next(said))
    os.unlink(result)
    made.seen.clear()
    for _ in range(4):
        made.suffer(fault, lambda: None)
    row = made.table["kind"]
    assert (row["tried"], row["refused"], row["went on"]) == (4, 3, 1)
    assert (row["unclear"], row["tracebacks"]) == (3, 1)

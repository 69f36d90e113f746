"""The gate of the benchmarks lets through what is as fast as before, and stops what is slower."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.forked import finished

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COMMITTED = {"start-up": 1.25, "events": 1.8, "a slot": 20.0}
SMALL = ("--events=3000", "--many_users=2000", "--slots=20", "--repeats=1")


@pytest.fixture(scope="module")
def gate():
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("gate", BENCHMARKS / "gate.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", COMMITTED)
def test_a_path_that_takes_a_fifth_longer_is_reported_by_name(gate, name):
    assert gate.compared(COMMITTED, COMMITTED) == []
    slightly = COMMITTED | {name: 1.19 * COMMITTED[name]}
    assert gate.compared(slightly, COMMITTED) == []
    (fault,) = gate.compared(COMMITTED | {name: 1.25 * COMMITTED[name]}, COMMITTED)
    assert fault.startswith(f"{name} is {1.25 * COMMITTED[name]:.2f} times as much")
    assert "25% more, of 20% at most" in fault


def test_what_is_faster_passes(gate):
    assert gate.compared({name: ratio / 2 for name, ratio in COMMITTED.items()}, COMMITTED) == []


def test_what_is_not_measured_any_more_does_not_pass(gate):
    (fault,) = gate.compared({"start-up": 1.25, "events": 1.8}, COMMITTED)
    assert fault.startswith("a slot is not measured")
    (fault,) = gate.compared(COMMITTED | {"another": 1.0}, COMMITTED)
    assert fault.startswith("another is not committed")


def test_a_slower_path_is_in_its_ratio_alone(gate):
    seconds = {"imports": 0.8, "slot pba": 2e-4, "slot adaptive": 8e-4}
    seconds |= {f"bare {name}": 1e-5 for name in gate.MECHANISMS}
    for users in (gate.FEW, 50_000):
        seconds |= {f"command {users} few": 1.0, f"command {users} many": 2.8}
        seconds |= {f"loop {users} few": 0.3, f"loop {users} many": 1.3}
    usual = gate.ratios_of(seconds, 50_000)
    slower = gate.ratios_of(seconds | {f"command {gate.FEW} many": 3.3}, 50_000)
    (fault,) = gate.compared(slower, usual)
    assert fault.startswith("events of 10,000 users beside a bare loop is 2.30 times")
    slower = gate.ratios_of(seconds | {"slot pba": 3e-4}, 50_000)
    (fault,) = gate.compared(slower, usual)
    assert fault.startswith("a slot of pba beside a bare release is 30.00 times")


def test_what_is_committed_is_what_is_measured(gate):
    seconds = dict.fromkeys(("imports", *_names(gate)), 1.0)
    committed = json.loads((BENCHMARKS / "results" / "gate.json").read_text())
    assert committed["ratios"].keys() == gate.ratios_of(seconds, gate.MANY).keys()


def _names(gate):
    for which in ("command", "loop"):
        for users in (gate.FEW, gate.MANY):
            yield from (f"{which} {users} few", f"{which} {users} many")
    for name in gate.MECHANISMS:
        yield from (f"slot {name}", f"bare {name}")


def test_it_records_and_compares(gate, monkeypatch, tmp_path):
    names = "imports", *_names(gate)
    seconds = {name: 2.0 if name.endswith("many") else 1.0 for name in names}
    monkeypatch.setattr(gate, "medians", lambda *_, **__: dict(seconds))

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["gate.py", f"--results={tmp_path}", *flags])
        gate.main()

    run("--record")
    run()
    seconds["slot pba"] = 1.3
    with pytest.raises(SystemExit, match="a slot of pba beside a bare release is 1"):
        run()
    with pytest.raises(SystemExit, match="measure the same"):
        run("--slots=21")


@pytest.mark.slow
def test_it_measures_and_stops(gate, tmp_path):
    seconds = dict.fromkeys(("imports", *_names(gate)), 1.0)
    few = {name.replace(f"{gate.MANY}", "2000"): one for name, one in seconds.items()}
    far_too_small = dict.fromkeys(gate.ratios_of(few, 2000), 1e-9)
    options = {"events": 3000, "many_users": 2000, "slots": 20}
    committed = {"options": options, "ratios": far_too_small}
    (tmp_path / "gate.json").write_text(json.dumps(committed))
    code, _, errors = finished(BENCHMARKS / "gate.py", f"--results={tmp_path}", *SMALL)
    assert code == 1
    for name in gate.MECHANISMS:
        assert f"a slot of {name} beside a bare release is" in errors

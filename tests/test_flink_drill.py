"""The drill of benchmarks/flink_drill.py would find what it looks for; no cluster is needed."""

import json
import shutil

import pytest

LAST = 11


@pytest.fixture(scope="module")
def undisturbed(flink_drill, tmp_path_factory):
    """What a stream without a kill leaves."""
    folder = tmp_path_factory.mktemp("drill")
    for name in ("seen", "releases"):
        (folder / name).mkdir()
    flink_drill.reference(LAST, str(folder / "once.jsonl"), costs=str(folder / "seen"))
    for slot, line in enumerate((folder / "once.jsonl").read_bytes().splitlines()):
        (folder / "seen" / f"{slot:06}-a.json").write_bytes(line)
        (folder / "releases" / f"{slot:06}.json").write_bytes(line + b"\n")
    return folder


@pytest.fixture
def drill(flink_drill, undisturbed, tmp_path):
    """A copy of it, to be spoilt."""
    shutil.copytree(undisturbed, tmp_path / "copy")
    return flink_drill.Drill(tmp_path / "copy")


@pytest.mark.slow
def test_a_stream_without_a_fault(drill):
    again = drill.folder / "seen"
    shutil.copy(again / "000003-a.json", again / "000003-b.json")
    figures = drill.check()
    assert drill.faults == []
    assert figures["slots"] == LAST + 1
    assert figures["given again alike"] == 1
    assert figures["given again otherwise"] == figures["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("ahead", "behind"), [("seen", "releases"), ("releases", "seen")])
def test_a_job_that_was_cancelled_between_the_writes_to_both_sinks(drill, ahead, behind):
    """A part of a file that was being written may be left, too."""
    (last,) = (drill.folder / behind).glob(f"{LAST:06}*")
    last.rename(last.with_name(f".{last.name}.part"))
    drill.check()
    assert drill.faults == []
    assert list((drill.folder / ahead).glob(f"{LAST:06}*"))


def spoil(folder, name, **values):
    """Another release of a slot, beside the one that there is or in its place."""
    release = json.loads((folder / "000004-a.json").read_bytes())
    (folder / name).write_text(json.dumps({**release, **values}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda seen: (seen / "000004-a.json").unlink(), "lost slots: [4]"),
        (lambda seen: spoil(seen, "000004-b.json", counts=[1]), "with other content: [4]"),
        (lambda seen: spoil(seen, "000004-a.json", counts=[1]), "undisturbed run: [4]"),
        (
            lambda seen: (seen / "000004-b.cost").write_text("1.1"),
            "windows end at [4, 5, 6, 7, 8]",
        ),
        (
            lambda seen: [cost.unlink() for cost in seen.glob(f"{4:012}-*.cost")],
            "slots without an entry of the ledger: [4]",
        ),
        (
            lambda seen: (seen.parent / "releases" / "000004.json").write_text("x"),
            "folder of releases is not",
        ),
        (
            lambda seen: [
                (seen.parent / "releases" / f"0000{n}.json").unlink() for n in ("10", "11")
            ],
            "misses some",
        ),
    ],
)
def test_the_drill_would_find(drill, change, fault):
    change(drill.folder / "seen")
    drill.check()
    assert any(fault in found for found in drill.faults), drill.faults

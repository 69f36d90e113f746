"""The folder of a stream's state: a commit is whole or not at all, whenever the process dies."""

import itertools
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from streamveil.io import InputFile, Snapshot, StateFolder
from streamveil.mechanisms import ConfigurationError

# What a process does to files, as Python's audit hooks name it.
FILE_EVENTS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"),
    "shutil.rmtree",
}
SNAPSHOTS = [
    Snapshot(10, 10, "c0ffee"),
    Snapshot(10, 12, "c0ffee", 1),
    Snapshot(10, 15, "c0ffee", 2, inputs={"/events/ä.csv": InputFile(7, 15)}),
]


@pytest.fixture
def place(tmp_path):
    """Where the results go, beside the folder of the state."""
    (tmp_path / "results").mkdir()
    return tmp_path


def result_of(place, number):
    return place / "results" / f"releases-{number}.csv"


def commit(place, number):
    """What a run does to commit a pass."""
    with StateFolder.held(str(place / "state")) as folder:
        if number == 0:
            folder.commit(SNAPSHOTS[0])
            return
        pass_folder = folder.begin(number)
        (pass_folder / "releases.csv").write_text(f"releases of {number}")
        (pass_folder / "state.bin").write_text(f"state after {number}")
        folder.commit(snapshot_of(place, number))


def snapshot_of(place, number):
    made = SNAPSHOTS[number]
    results = {"releases.csv": str(result_of(place, number))} if number else {}
    return Snapshot(
        made.first_slot, made.next_slot, made.key_check, made.passes, results, made.inputs
    )


def recover(place):
    with StateFolder.held(str(place / "state")) as folder:
        return folder.read()


def dies(action, at):
    """Do it in a process of its own that is killed before its file operation number `at`.

    False if it came to its end first.
    """
    child = os.fork()
    if child == 0:
        try:
            numbers = itertools.count()

            def hook(event, _):
                if event in FILE_EVENTS and next(numbers) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def check_whole(place, number):
    """Exactly `number` passes are there, with all their files and no others."""
    state = place / "state"
    found = recover(place)
    assert found == snapshot_of(place, number)
    results = sorted((place / "results").iterdir())
    assert results == [result_of(place, n) for n in range(1, number + 1)]
    assert [path.read_text() for path in results] == [
        f"releases of {n}" for n in range(1, number + 1)
    ]
    names = {str(path.relative_to(state)) for path in state.rglob("*")}
    folder = f"pass-{number:08d}"
    assert names == {"manifest.json", *([folder, f"{folder}/state.bin"] if number else [])}
    if number:
        assert (state / folder / "state.bin").read_text() == f"state after {number}"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_kill_between_any_two_file_operations_leaves_all_or_nothing(tmp_path, number):
    committed = []
    for at in itertools.count():
        place = tmp_path / str(at)
        (place / "results").mkdir(parents=True)
        for n in range(number):
            commit(place, n)
        died = dies(lambda place=place: commit(place, number), at)
        found = recover(place)
        if found is not None:
            check_whole(place, found.passes)
        committed.append(found is not None and found.passes == number)
        if not died:
            break
    assert not committed[0]
    assert committed[-1]
    assert committed == sorted(committed)  # one moment commits
    assert committed.count(False) > 5
    assert committed.count(True) > 2


# The next process may be killed while it cleans up after the first.
def test_a_kill_during_the_cleaning_up_leaves_it_to_the_next(place):
    for n in (0, 1):
        commit(place, n)
    kills = 0
    for at in itertools.count(2, 5):
        if not dies(lambda: commit(place, 2), at):
            break
        for again in itertools.count():
            if not dies(lambda: recover(place), again):
                break
            kills += 1
        found = recover(place).passes
        check_whole(place, found)
        if found == 2:
            break
    assert kills > 10


# Loss of power keeps what was synced: all of a pass before the manifest that names it.
def test_everything_is_on_the_disk_before_the_manifest_names_it(place, monkeypatch):
    for n in (0, 1):
        commit(place, n)
    done = []
    sync, replace, rename = os.fsync, os.replace, os.rename

    def note_sync(handle):
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        sync(handle)

    def note_replace(source, target):
        done.append(("name", os.path.basename(target)))
        replace(source, target)

    def note_rename(source, target):
        done.append(("name", os.path.basename(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "rename", note_rename)
    commit(place, 2)
    # Opening it first syncs what the commit before may have left to do.
    last = done[done.index(("sync", "results")) + 1 :]
    files = ("pass-00000002", "releases.csv", "state", "state.bin")
    assert sorted(last[:4]) == [("sync", name) for name in files]
    assert last[4:] == [
        ("sync", "manifest.json.part"),
        ("name", "manifest.json"),
        ("sync", "state"),
        ("name", "releases-2.csv"),
        ("sync", "results"),
    ]


def test_a_folder_is_held_by_one_at_a_time(place):
    path = str(place / "state")
    with StateFolder.held(path), pytest.raises(ConfigurationError, match="in use by another"):  # noqa: SIM117
        with StateFolder.held(path):
            pass
    with StateFolder.held(path) as folder:
        assert folder.read() is None
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_a_folder_of_something_else_is_left_alone(place):
    (place / "state").mkdir()
    (place / "state" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match=r"thesis\.tex"):
        recover(place)
    assert (place / "state" / "thesis.tex").exists()
    with pytest.raises(ConfigurationError, match="Not a directory"):
        recover(place / "state" / "thesis.tex")
    with pytest.raises(ConfigurationError, match="not a local folder"), StateFolder.held("gs://b"):
        pass
    with (
        pytest.raises(ConfigurationError, match="No such file"),
        StateFolder.held(str(place / "none"), create=False),
    ):
        pass
    assert not (place / "none").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_a_manifest_that_is_not_whole_or_newer_is_refused(place, text):
    commit(place, 0)
    manifest = place / "state" / "manifest.json"
    assert json.loads(manifest.read_text())["version"] == 1
    manifest.write_text(text)
    with pytest.raises(ConfigurationError, match=r"manifest\.json cannot be read"):
        recover(place)


def test_the_key_is_made_once_and_for_its_owner(place):
    with StateFolder.held(str(place / "state")) as folder:
        with pytest.raises(ConfigurationError, match="give the noise key"):
            folder.key(create=False)
        key = folder.key(create=True)
        secret = Path(key).read_text()
        assert len(secret) == 64
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    for create in (False, True):
        with StateFolder.held(str(place / "state")) as folder:
            assert folder.key(create) == key
            assert Path(key).read_text() == secret

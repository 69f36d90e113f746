"""The folder of a stream's state: a commit is whole or not at all, whenever the process dies.

And whatever is damaged, swapped or put back in it, the users' ledgers stay.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamveil.io import InputFile, Snapshot, StateFolder, refuse_witness, snapshot, witness_of
from streamveil.io.witness import Mark, check_witness, write_witness
from streamveil.mechanisms import ConfigurationError

# What a process does to files, as Python's audit hooks name it.
FILE_EVENTS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"),
    *("os.chmod", "shutil.rmtree"),
}
SECRET = bytes(range(32))
SNAPSHOTS = [
    Snapshot(10, 10, "c0ffee"),
    Snapshot(10, 12, "c0ffee", 1),
    Snapshot(10, 15, "c0ffee", 2, inputs={"/events/ä.csv": InputFile(7, 15)}),
    Snapshot(10, 16, "c0ffee", 3, later_keys=((12, "7ea"),)),
    Snapshot(10, 17, "c0ffee", 4),
]


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Nobody cuts the power: there is no need to wait for the disk, thousands of times."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def place(tmp_path):
    """Where the results go, beside the folder of the state."""
    (tmp_path / "results").mkdir()
    return tmp_path


def result_of(place, number):
    return place / "results" / f"releases-{number:08d}.csv"


def witness(place):
    return witness_of(str(place / "results" / "releases.csv"))


def commit(place, number, word="state"):
    """What a run does to commit a pass."""
    with StateFolder.held(str(place / "state")) as folder:
        if number == 0:
            folder.commit(snapshot_of(place, 0, word), SECRET)
            return
        folder.recover(SECRET, witness(place))
        pass_folder = folder.begin(number)
        (pass_folder / "releases.csv").write_text(f"releases of {number}")
        (pass_folder / "state.bin").write_text(f"{word} after {number}")
        folder.commit(snapshot_of(place, number, word), SECRET)


def snapshot_of(place, number, word="state"):
    results = {"releases.csv": str(result_of(place, number))} if number else {}
    until = SNAPSHOTS[number].next_slot * 1_000_000
    return dataclasses.replace(
        SNAPSHOTS[number],
        results=results,
        stream=word,
        witness=witness(place),
        until=until,
        apart=until + 2_000_000,
    )


def recover(place):
    with StateFolder.held(str(place / "state")) as folder:
        return folder.read() and folder.recover(SECRET, witness(place))


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
    assert dataclasses.replace(found, files={}) == snapshot_of(place, number)
    results = sorted((place / "results").glob("[!.]*"))
    assert results == [result_of(place, n) for n in range(1, number + 1)]
    assert [path.read_text() for path in results] == [
        f"releases of {n}" for n in range(1, number + 1)
    ]
    assert os.path.exists(witness(place)) == (number > 0)
    names = {str(path.relative_to(state)) for path in state.rglob("*")}
    folder = f"pass-{number:08d}"
    kept = [folder, f"{folder}/state.bin", f"{folder}/manifest.json"] if number else []
    assert names == {"manifest.json", *kept}
    if number:
        assert (state / folder / "state.bin").read_text() == f"state after {number}"
        assert found.files.keys() == {"releases.csv", "state.bin"}


@pytest.mark.slow
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
@pytest.mark.slow
def test_a_kill_during_the_cleaning_up_leaves_it_to_the_next(place):
    for n in (0, 1):
        commit(place, n)
    kills = 0
    for at in itertools.count(2, 9):
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
    last = done[-15:]
    part, named = "pass-00000002.part", "pass-00000002"
    assert sorted(last[3:7]) == [("sync", n) for n in (part, "releases.csv", "state", "state.bin")]
    assert [*last[:3], *last[7:]] == [
        *(("sync", "manifest.json.part"), ("name", "manifest.json"), ("sync", part)),
        *(("sync", "manifest.json.part"), ("name", "manifest.json"), ("sync", "state")),
        # It counts from here on; the witness sees it before any reader does.
        *(("sync", ".releases.csv.witness"), ("name", named), ("sync", "state")),
        *(("name", "releases-00000002.csv"), ("sync", "results")),
    ]


def test_a_folder_is_held_by_one_at_a_time(place):
    path = str(place / "state")
    with StateFolder.held(path), pytest.raises(ConfigurationError, match=("in use by another")):  # noqa: SIM117
        with StateFolder.held(path):
            pass
    with StateFolder.held(path) as folder:
        assert folder.read() is None
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_a_stream_that_could_not_begin_is_not_to_be_resumed(place, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "key")

    with StateFolder.held(str(place / "state")) as folder:
        monkeypatch.setattr(snapshot, "write_private", refuse)
        with pytest.raises(ConfigurationError, match="fix that, and run again"):
            folder.key(create=True)


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


@pytest.mark.parametrize("status", [None, "", "{", '{"passes": 7}', "\0" * 9])
def test_what_is_said_of_a_run_is_no_part_of_the_state(place, status):
    for number in (0, 1):
        commit(place, number)
    before = recover(place)
    with StateFolder.held(str(place / "state")) as folder:
        size = folder.size
        folder.tell("all is well")
        said = place / "state" / "status.json"
        assert said.read_text() == "all is well"
        assert stat.S_IMODE(said.stat().st_mode) == 0o600
        assert (
            folder.size
            == size
            == sum(
                path.stat().st_size
                for path in (place / "state").rglob("*")
                if path.is_file() and path != said
            )
        )
    said.unlink()
    if status is not None:
        said.write_text(status)
        (place / "state" / "status.json.part").write_text(status)  # of one that was killed
    assert recover(place) == before
    commit(place, 2)
    with StateFolder.held(str(place / "state")) as folder:
        folder.tell("all is well again")
        assert said.read_text() == "all is well again"
    assert not (place / "state" / "status.json.part").exists()


def test_a_folder_that_cannot_be_locked_is_refused(place, monkeypatch):
    def flock(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(ConfigurationError, match="not on a network"):
        recover(place)


# ---- damage ------------------------------------------------------------------------------------


def tree_of(place):
    """Content of every file, and None for every folder, by path."""
    return {
        str(path.relative_to(place)): None if path.is_dir() else path.read_bytes()
        for path in sorted(place.rglob("*"))
    }


def grow(place, tree):
    """Make the files of a tree, and no others."""
    for path in place.iterdir():
        shutil.rmtree(path)
    for name, content in tree.items():
        path = place / name
        if content is None:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o600)


def without(tree, begin):
    return {name: content for name, content in tree.items() if not name.startswith(begin)}


def newest(tree):
    """The newest pass in the folder, with or without `.part`."""
    names = [name for name, content in tree.items() if content is None]
    return max((name for name in names if name.startswith("state/pass-")), default="state/none")


def damages(before):
    """All that the world does to a folder; `before` are its trees after each earlier pass."""

    def old_manifest(number):
        manifest = before[number]["state/manifest.json"]
        return lambda tree: {**tree, "state/manifest.json": manifest}

    def old_pass(number):
        begin = f"state/pass-{number:08d}"
        kept = {name: file for name, file in before[number].items() if name.startswith(begin)}
        return lambda tree: {**tree, **kept}

    def half_written(tree):
        name = f"{newest(tree)}/state.bin"
        return {**tree, name: tree[name][:-1]} if tree.get(name) else tree

    yield lambda tree: without(tree, "state/manifest.json")
    yield lambda tree: without(tree, newest(tree))
    yield lambda tree: without(tree, f"{newest(tree)}/state.bin")
    yield half_written
    yield lambda tree: {**tree, "state/pass-00000004.part": None}
    yield from (old_manifest(number) for number in before)
    yield old_pass(2)


# A tree for every moment in which the third pass may die, and every order of what happens to it
# then. Refused or not, another process beside it or not: no ledger is lost, no pass is made again.
@pytest.mark.slow
def test_every_order_of_damage_keeps_the_ledgers(place):
    before = {}
    for number in range(3):
        commit(place, number)
        before[number] = tree_of(place)
    moments = []
    for at in itertools.count():
        grow(place, before[2])
        died = dies(lambda: commit(place, 3), at)
        if (tree := tree_of(place)) not in moments:
            moments.append(tree)
        if not died:
            break
    assert len(moments) > 15
    seen, outcomes = set(), {"refused": 0, "whole": 0}
    for number, moment in enumerate(moments):
        for length in range(3 if number % 8 else 4):
            for order in itertools.permutations(damages(before), length):
                tree = moment
                for damage in order:
                    tree = damage(tree)
                name = hashlib.blake2b(repr(sorted(tree.items())).encode()).digest()
                if name not in seen:
                    seen.add(name)
                    outcomes[tried(place, tree, moment)] += 1
    assert outcomes["whole"] >= len(moments)
    assert outcomes["refused"] > 300


def tried(place, tree, moment):
    """Open a damaged tree, beside another process and alone; says what came of it."""
    grow(place, tree)
    with StateFolder.held(str(place / "state")), pytest.raises(ConfigurationError, match="in use"):
        recover(place)
    assert tree_of(place) == tree
    outcome = "whole"
    try:
        found = recover(place)
        if found is None:
            refuse_witness(witness(place), place / "state")
    except ConfigurationError:
        assert tree_of(place) == tree
        assert tree != moment  # a kill alone is no dead end
        outcome = "refused"
        grow(place, moment)
        found = recover(place)
    assert found.passes >= sum(name.startswith("results/releases-") for name in tree)
    check_whole(place, found.passes)
    if tree == moment:
        commit(place, found.passes + 1)
        check_whole(place, found.passes + 1)
    return outcome


def test_of_two_processes_one_wins(place):
    for number in range(3):
        commit(place, number)
    before = tree_of(place)
    child = os.fork()
    if child == 0:
        with StateFolder.held(str(place / "state")):
            (place / "held").touch()
            signal.pause()
    try:
        while not (place / "held").exists():
            time.sleep(0.001)
        with pytest.raises(ConfigurationError, match="in use by another run"):
            recover(place)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (place / "held").unlink()
    assert tree_of(place) == before
    check_whole(place, 2)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            "rm manifest.json",
            "holds pass-00000002, but no manifest.json.*cp .*manifest.json .*json",
        ),
        (
            "cp ../old/manifest.json .",
            "holds pass-00000002, but .* older: it is at pass 1.*cp",
        ),
        ("rm -r pass-00000002", "state.bin is missing.*bring pass-00000002.*back from a backup"),
        ("echo >> pass-00000002/state.bin", "state.bin is not as the pass left it, 13 bytes"),
        (
            "rm -r *; cp -r ../old/* .",
            "has seen pass 2, with the slots up to 1970-01-01T00:00:15Z, but .* knows of 1 only: "
            "an old copy.*--start=1970-01-01T00:00:17Z or later, another --state and another -",
        ),
        (
            "rm -r *",
            "recorded slots up to 1970-01-01T00:00:15Z released by a stream whose state is not in"
            ".*--start=1970-01-01T00:00:17Z or later, another --state and another --output",
        ),
        ("mkdir pass-00000009.part; rm manifest.json", "holds pass-00000002, but no manifest.json"),
        ("mkdir pass-00000009.part", "holds pass-00000009.part, but .* is at pass 2: .*bring"),
        ("touch pass-00000002/users.bin", "users.bin is not of the pass: move it away"),
        ("ln -s pass-00000002 pass-00000001", "pass-00000001, which is not of a state"),
        ("rm manifest.json; mkdir manifest.json", "manifest.json cannot be read .Is a directory"),
        (
            "rm pass-00000002/state.bin; mkdir pass-00000002/state.bin",
            "pass-00000002 cannot be checked: .*state.bin: Is a directory: fix that",
        ),
        (
            "cd ../results; rm .*.witness; mkdir .releases.csv.witness",
            "witness cannot be read .Is a directory",
        ),
        (
            "sed -i s/c0ffee/c0ffef/ manifest.json",
            "manifest.json cannot be read.*damaged or edited",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_words_that_help(place, damage, words):
    for number in range(3):
        if number == 2:
            shutil.copytree(place / "state", place / "old")
        commit(place, number)
    subprocess.run(["sh", "-ec", damage], cwd=place / "state", check=True)
    before = tree_of(place)
    with pytest.raises(ConfigurationError, match=words) as refused:
        _ = recover(place) or refuse_witness(witness(place), place / "state")
    assert "\n" not in str(refused.value)
    assert tree_of(place) == before


# What the words advise, when the manifest is lost or older than the pass.
@pytest.mark.parametrize("put_back", [True, False])
def test_a_lost_manifest_comes_back_from_its_pass(place, put_back):
    for number in range(3):
        commit(place, number)
    manifest = place / "state" / "manifest.json"
    manifest.unlink()
    if put_back:
        manifest.write_text("an older one")
    shutil.copy(place / "state" / "pass-00000002" / "manifest.json", manifest)
    check_whole(place, 2)


@pytest.mark.slow
def test_no_single_bit_flips(place):
    for number in range(3):
        commit(place, number)
    before, flips = tree_of(place), 0
    files = ["state/manifest.json", "state/pass-00000002/state.bin"]
    for path in [*(place / name for name in files), Path(witness(place))]:
        whole = path.read_bytes()
        with StateFolder.held(str(place / "state")) as folder:
            # Of a witness the last line counts.
            begin = whole.rindex(b"\n", 0, -1) if path.suffix == ".witness" else 0
            for bit in range(8 * begin, 8 * len(whole), 3):  # each bit of a byte, and each byte
                flipped = bytearray(whole)
                flipped[bit // 8] ^= 1 << bit % 8
                path.write_bytes(flipped)
                with pytest.raises(ConfigurationError):
                    folder.recover(SECRET, witness(place))
                flips += 1
        path.write_bytes(whole)
    assert flips > 2_500
    assert tree_of(place) == before
    check_whole(place, 2)


def edited(text, change):
    """A sealed file with other content, and a digest that fits, by who has no key."""
    record = json.loads(text)
    seal = record.pop("seal")
    del record["digest"]
    change(record)
    body = json.dumps(record, indent=1) + "\n"
    digest = hashlib.blake2b(body.encode(), digest_size=32).hexdigest()
    return json.dumps({**record, "digest": digest, "seal": seal}, indent=1) + "\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.update(next_slot=11), "was edited"),
        (lambda record: record.update(results={}), "was edited"),
        (lambda record: record["files"].pop("state.bin"), "was edited"),
        (lambda record: record.pop("files"), "was edited"),
        (lambda record: record.update(inputs=[]), "was edited"),
        (lambda record: record.update(version=3), "version 3, not 2.*that wrote it"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(place, change, words):
    commit(place, 0)
    commit(place, 1)
    manifest = place / "state" / "manifest.json"
    manifest.write_text(edited(manifest.read_text(), change))
    with pytest.raises(ConfigurationError, match=words):
        recover(place)


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"version": 2}', '{"version": 2, "digest"'])
def test_a_manifest_that_is_not_whole_is_refused(place, text):
    commit(place, 0)
    manifest = place / "state" / "manifest.json"
    assert json.loads(manifest.read_text())["version"] == 2
    manifest.write_text(text)
    with pytest.raises(ConfigurationError, match=r"manifest\.json cannot be read"):
        recover(place)


def test_a_state_of_the_first_version_is_refused_with_words(place):
    commit(place, 0)
    first = {"version": 1, "first_slot": 10, "next_slot": 10, "key_check": "c0ffee", "passes": 0}
    (place / "state" / "manifest.json").write_text(json.dumps(first, indent=1))
    with pytest.raises(ConfigurationError, match=r"of version 1, not 2.*start a new stream"):
        recover(place)


# Both streams have the same key: seals and digests bind files to their pass and their stream.
def test_files_of_another_stream_or_pass_are_refused(place):
    other = place / "other"
    (other / "results").mkdir(parents=True)
    for number in range(3):
        commit(place, number)
        commit(other, number, "other")
    before = tree_of(place)
    for name in ("state/manifest.json", "state/pass-00000002/state.bin", "state"):
        subprocess.run(["cp", "-rT", other / name, place / name], check=True)
        with pytest.raises(ConfigurationError):
            recover(place)
        grow(place, without(before, "other"))
        check_whole(place, 2)
        grow(place, before)
    (place / "state" / "manifest.json").write_bytes(Path(witness(place)).read_bytes())
    with pytest.raises(ConfigurationError):
        recover(place)


# ---- witnesses ---------------------------------------------------------------------------------


def test_two_copies_that_went_on_are_distinguished(place):
    for number in range(2):
        commit(place, number)
    shutil.copytree(place / "state", place / "copy")
    commit(place, 2)
    seen = Path(witness(place)).read_bytes()
    for name in ("state", "results/releases-00000002.csv", "results/.releases.csv.witness"):
        subprocess.run(["rm", "-r", place / name], check=True)
    (place / "copy").rename(place / "state")
    commit(place, 2, "other state")
    Path(witness(place)).write_bytes(seen)
    with pytest.raises(
        ConfigurationError, match=r"belongs to another stream|two copies of the folder"
    ):
        recover(place)


def test_without_a_witness_it_is_reported_and_goes_on(place, caplog):
    for number in range(3):
        commit(place, number)
        assert caplog.text == ""
    (place / "results").rename(place / "archive")
    (place / "results").mkdir()
    recover(place)
    assert "no high-water mark" in caplog.text
    assert "pass 2 is the last" in caplog.text
    caplog.clear()
    for path in (place / "archive").glob("[!.]*"):
        path.rename(place / "results" / path.name)
    check_whole(place, 2)
    assert caplog.text == ""


def test_results_whose_folder_is_gone_are_no_matter_once_they_were_moved(place, caplog):
    for number in range(3):
        commit(place, number)
    shutil.rmtree(place / "results")
    assert recover(place).passes == 2
    assert "no high-water mark" in caplog.text
    assert not (place / "results").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_a_line_of_the_witness_that_was_cut_off_is_finished(place, number):
    """A kill, or a full disk, in the middle of writing it."""
    for n in range(number):
        commit(place, n)
    seen = Path(witness(place))
    before = seen.read_bytes() if number > 1 else b""
    commit(place, number)
    whole = seen.read_bytes()
    assert whole.startswith(before)
    assert whole.count(b"\n") == number
    for length in range(len(before), len(whole)):
        seen.write_bytes(whole[:length])
        check_whole(place, number)
        assert seen.read_bytes() == whole
    for cut in (b"{", whole.splitlines()[-1], b"\0" * 7):
        seen.write_bytes(whole + cut)
        with pytest.raises(ConfigurationError, match="from a backup"):
            recover(place)


def test_without_the_state_nothing_is_advised_that_releases_a_slot_again(place):
    commit(place, 0)
    commit(place, 1)
    for apart, words in ((None, "cannot have a second stream"), (7_000_000, "--start=1970-")):
        mark = dataclasses.replace(Mark("s", 1, "m", 5_000_000, 0), apart=apart)
        write_witness(witness(place), SECRET, mark)
        with pytest.raises(ConfigurationError) as refused:
            refuse_witness(witness(place), place / "none")
        assert words in str(refused.value)
        assert "delete" not in str(refused.value)
    Path(witness(place)).write_text("")
    with pytest.raises(ConfigurationError, match="bring its folder back"):
        refuse_witness(witness(place), place / "none")


# ---- the folder is that which is held ----------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "mv state old; mkdir state",
        "mv state old; cp -r old state",
        "rm -r state",
        "cp copy/manifest.json state/",
        "rm state/manifest.json",
    ],
)
def test_a_folder_that_was_replaced_is_noticed_before_a_commit(place, damage):
    for n in range(2):
        commit(place, n)
        shutil.copytree(place / "state", place / "copy", dirs_exist_ok=n == 1)
        if n == 0:
            (place / "copy").rename(place / "first")
    shutil.rmtree(place / "copy")
    (place / "first").rename(place / "copy")
    with StateFolder.held(str(place / "state")) as folder:
        before = folder.recover(SECRET, witness(place))
        (folder.begin(2) / "releases.csv").write_text("releases of 2")
        subprocess.run(["sh", "-ec", damage], cwd=place, check=True)
        seen = tree_of(place)
        with pytest.raises(ConfigurationError, match="was moved, removed or replaced"):
            folder.commit(snapshot_of(place, 2), SECRET, before)
        with pytest.raises(ConfigurationError, match="was moved, removed or replaced"):
            folder.begin(3)
    assert tree_of(place) == seen
    assert not result_of(place, 2).exists()


def test_a_folder_that_was_replaced_as_the_manifest_was_written_is_noticed(place, monkeypatch):
    for n in range(2):
        commit(place, n)
    shutil.copytree(place / "state", place / "copy")
    seen = Path(witness(place)).read_bytes()
    real = snapshot.write_private

    def replaced(path, text):
        if path == place / "state" / "manifest.json":
            (place / "state").rename(place / "away")
            (place / "copy").rename(place / "state")
        real(path, text)

    with StateFolder.held(str(place / "state")) as folder:
        before = folder.recover(SECRET, witness(place))
        (folder.begin(2) / "releases.csv").write_text("releases of 2")
        monkeypatch.setattr(snapshot, "write_private", replaced)
        with pytest.raises(ConfigurationError, match="was moved, removed or replaced"):
            folder.commit(snapshot_of(place, 2), SECRET, before)
    monkeypatch.undo()
    assert Path(witness(place)).read_bytes() == seen
    shutil.rmtree(place / "state")
    (place / "away").rename(place / "state")
    check_whole(place, 1)


def test_another_copy_that_went_on_meanwhile_is_noticed_before_a_commit(place):
    for n in range(2):
        commit(place, n)
    with StateFolder.held(str(place / "state")) as folder:
        before = folder.recover(SECRET, witness(place))
        folder.begin(2)
        shutil.copytree(place / "state", place / "copy")
        with StateFolder.held(str(place / "copy")) as copy:
            copy.recover(SECRET, witness(place))
            copy.begin(2)
            copy.commit(snapshot_of(place, 2), SECRET, before)
        with pytest.raises(ConfigurationError, match="has seen pass 2"):
            folder.commit(snapshot_of(place, 2, "state"), SECRET, before)
        assert folder.read().passes == 1


def test_of_two_copies_that_commit_at_one_moment_one_is_refused(place, monkeypatch):
    for n in range(2):
        commit(place, n)
    shutil.copytree(place / "state", place / "copy")
    begun, checked = threading.Barrier(2), threading.Barrier(2)

    def check(*given):
        seen = check_witness(*given)
        with contextlib.suppress(threading.BrokenBarrierError):
            checked.wait(0.2)
        return seen

    def go_on(name):
        with StateFolder.held(str(place / name)) as folder:
            before = folder.recover(SECRET, witness(place))
            folder.begin(2)
            begun.wait(600)
            monkeypatch.setattr(snapshot, "check_witness", check)
            after = dataclasses.replace(snapshot_of(place, 2), key_check=name)
            try:
                folder.commit(after, SECRET, before)
            except ConfigurationError as error:
                return str(error)
            return None

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(go_on, ["state", "copy"]))
    assert outcomes.count(None) == 1
    assert "has seen pass 2" in "".join(filter(None, outcomes))


def test_a_pass_that_was_given_up_begins_anew(place):
    commit(place, 0)
    with StateFolder.held(str(place / "state")) as folder:
        (folder.begin(1) / "half").touch()
        assert not list(folder.begin(1).iterdir())


@pytest.mark.parametrize("name", ["state/releases.csv", "link/a/releases.csv", "state"])
def test_nothing_else_is_written_to_the_folder(place, name):
    (place / "link").symlink_to("state")
    with StateFolder.held(str(place / "state")) as folder:
        folder.refuse_inside(str(place / "state.csv"))
        with pytest.raises(ConfigurationError, match="for the state alone"):
            folder.refuse_inside(str(place / name))


# ---- results -----------------------------------------------------------------------------------


def test_results_never_replace_what_has_their_name(place):
    commit(place, 0)
    target = result_of(place, 1)
    target.write_text("something else")
    for again in (lambda: commit(place, 1), lambda: recover(place)):
        with pytest.raises(ConfigurationError, match=r"00000001.csv: something else has that name"):
            again()
        assert target.read_text() == "something else"
    target.write_text("releases of 1")
    check_whole(place, 1)


def test_results_wait_for_their_folder(place):
    commit(place, 0)
    (place / "results").rename(place / "away")
    for again in (lambda: commit(place, 1), lambda: recover(place)):
        with pytest.raises(ConfigurationError, match=r"of pass 1 are committed, but .*No such"):
            again()
    (place / "away").rename(place / "results")
    check_whole(place, 1)


# ---- for its owner alone -----------------------------------------------------------------------


def modes(place):
    return {
        str(path.relative_to(place)): stat.S_IMODE(path.stat().st_mode)
        for path in [place / "state", *(place / "state").rglob("*"), Path(witness(place))]
    }


PRIVATE = {
    "state": 0o700,
    "state/manifest.json": 0o600,
    "state/noise.key": 0o600,
    "state/pass-00000001": 0o700,
    "state/pass-00000001/manifest.json": 0o600,
    "state/pass-00000001/state.bin": 0o600,
    "results/.releases.csv.witness": 0o600,
}


@pytest.mark.parametrize("umask", [0o000, 0o022])
@pytest.mark.parametrize("there", [True, False])
def test_all_of_it_is_for_its_owner_alone(place, caplog, umask, there):
    before = os.umask(umask)
    try:
        if there:
            (place / "state").mkdir()
        commit(place, 0)
        with StateFolder.held(str(place / "state")) as folder:
            folder.key(create=True)
        with StateFolder.held(str(place / "state")) as folder:
            pass_folder = folder.begin(1)
            assert stat.S_IMODE(pass_folder.stat().st_mode) == 0o700
        commit(place, 1)
    finally:
        os.umask(before)
    assert modes(place) == PRIVATE
    messages = [record.getMessage() for record in caplog.records]
    assert [("/state was open to other" in text) for text in messages] == [True] * there
    assert stat.S_IMODE(result_of(place, 1).stat().st_mode) == 0o666 & ~umask  # published


def test_a_folder_that_was_opened_is_closed_and_reported(place, caplog):
    commit(place, 0)
    commit(place, 1)
    with StateFolder.held(str(place / "state")) as folder:
        folder.key(create=True)
    subprocess.run(["chmod", "-R", "a+rX", place / "state"], check=True)
    recover(place)
    assert modes(place) == PRIVATE
    assert "/state was open to other users of the machine (mode 755)" in caplog.text
    assert "state.bin was open to other users of the machine (mode 644)" in caplog.text


def test_a_folder_that_cannot_be_closed_is_refused(place, monkeypatch):
    commit(place, 0)
    (place / "state").chmod(0o770)

    def chmod(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises(
        ConfigurationError, match=r"mode 770.*cannot be made private.*not permitted"
    ):
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
    Path(key).write_text(secret[:20])
    with (
        StateFolder.held(str(place / "state")) as folder,
        pytest.raises(ConfigurationError, match="was damaged, it holds 20 bytes"),
    ):
        folder.key(create=False)

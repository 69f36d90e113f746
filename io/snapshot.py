"""The committed state of a stream that is released pass by pass, in one folder.

    manifest.json        what is committed: a Snapshot, sealed
    pass-00000012/       what the last committed pass left for the next, such as the users' ledgers
    pass-00000013.part/  what a pass writes that is not committed yet
    noise.key            the noise key, unless it is kept elsewhere
    inbox/, outbox/      messages to and from Pub/Sub, where that is read or written
    status.json          how the run goes, for whoever watches it; no part of the state

A pass writes all its files into a folder of its own. Renaming a new manifest over the old one
commits it. Only then does its folder lose the `.part`, do its results move to where readers look
for them, each by one rename, and is the folder of the pass before removed. Whoever opens the
folder next finishes what a killed process had committed, and removes what it had not.

So a folder with `.part` was never read by anybody, and its pass can be made again; one without is
committed, and nothing removes it but a later pass that is proven whole. Where manifest and passes
do not fit each other, nothing is touched, and an error says so. Nothing in here is for
publication.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamveil.io.faults import blaming
from streamveil.io.sealed import PART, SealedRecord, sync, write_private
from streamveil.io.witness import Mark, check_witness, held_alone, write_witness
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

VERSION = 2
MANIFEST = "manifest.json"
KEY = "noise.key"
STATUS = "status.json"
INBOX, OUTBOX = "inbox", "outbox"
_PURPOSE = b"streamveil manifest"
_PASS = re.compile(r"pass-(\d{8,})")
_KEY_BYTES = 32
_ONE_READ = 1 << 20  # bytes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputFile:
    """An input file that a committed pass has read. A pass is one commit of closed slots."""

    size: int
    """Size of the file in bytes when it was read."""
    waiting: int | None = None
    """The first unreleased slot that has events in the file, or None if there is no such slot."""
    modified: float | None = None
    """Time of the last change, in seconds since 1970, or None if it is unknown."""
    ends: str | None = None
    """Digest of the first and the last bytes of the file. See :func:`ends_of`."""
    broken: bool = False
    """Whether the file could not be read to its end. A dead letter reports this."""


@dataclass(frozen=True)
class PassFile:
    """A file that a committed pass has written."""

    size: int
    """In bytes."""
    digest: str
    """BLAKE2b of its content, in hexadecimal."""

    @classmethod
    def of(cls, path: Path) -> PassFile:
        """What a file is now."""
        state, size = hashlib.blake2b(digest_size=32), 0
        with path.open("rb") as file:
            while block := file.read(_ONE_READ):
                state.update(block)
                size += len(block)
        return cls(size, state.hexdigest())


@dataclass(frozen=True)
class Snapshot:
    """The committed state of a stream."""

    first_slot: int
    """First slot of the stream."""
    next_slot: int
    """First slot that is not released yet."""
    key_check: str
    """Digest that detects another noise key, and reveals nothing else about the key."""
    passes: int = 0
    """Number of committed passes."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Path of each result file of the last pass, by its name in the folder of the pass."""
    inputs: Mapping[str, InputFile] = field(default_factory=dict)
    """Files seen at the last pass, by path."""
    later_keys: tuple[tuple[int, str], ...] = ()
    """First slot and `key_check` of each later noise key."""
    stream: str = ""
    """Identifier of the stream."""
    witness: str = ""
    """Path of the high-water mark of the results."""
    slots: Mapping[str, int | str] = field(default_factory=dict)
    """Description of the slots for display. To compare slots, use :meth:`Slots.identity`."""
    until: int = 0
    """End of the last released slot, in microseconds since 1970."""
    apart: int | None = None
    """Time from which no user's window contains a released slot, in microseconds, or None if there
    is no such time."""
    looked: bool = False
    """Whether a private estimate spent budget without giving a result. If so, the pass was not
    made."""
    mounts: tuple[str, ...] = ()
    """Mount points of filesystems with input files at the last pass."""
    files: Mapping[str, PassFile] = field(default_factory=dict)
    """All files of the last pass, by name. :meth:`StateFolder.commit` sets it."""

    @property
    def used_keys(self) -> list[tuple[int, str]]:
        """The noise keys in `later_keys` that have already been used to release slots."""
        return [(slot, check) for slot, check in self.later_keys if slot < self.next_slot]


class StateFolder:
    """A state folder. Only one process at a time may use the folder. Open it with :meth:`held`."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._handle: int | None = None
        self._committed: SealedRecord | None = None
        """The manifest as this process last proved or wrote it."""

    @classmethod
    @contextlib.contextmanager
    def held(cls, path: str, create: bool = True) -> Iterator[StateFolder]:
        """Open and lock the state folder. Do this before you read or change anything in the folder.

        The folder is unlocked at the end of the `with` block, or when the process ends.

        Args:
            path: the folder.
            create: whether to create the folder if it does not exist.

        Raises:
            ConfigurationError: if another process has locked the folder, if the folder is not on a
                local disk, if the folder cannot be locked or its permissions cannot be restricted,
                or if the folder contains files that do not belong to a state.
        """
        if "://" in path:
            raise ConfigurationError(f"{opt.state}={path} is not a local folder: choose one")
        folder = cls(os.path.abspath(path))
        try:
            if create:
                folder.path.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigurationError(
                f"{opt.state}={path} cannot be used: {error.strerror}: "
                + (
                    "give a folder, or the name of one to create"
                    if create
                    else "name the folder of the earlier run, mount its disk, or bring back its "
                    "newest backup"
                )
            ) from None
        try:
            _lock(handle, path)
            folder._handle = handle
            folder.refuse_replaced()
            folder._refuse_foreign()
            folder._make_private(folder.path)
            yield folder
        finally:
            folder._handle = None
            os.close(handle)

    def read(self) -> Snapshot | None:
        """Return the last committed state, or None before the first commit. No file is changed.

        The folder need not be locked, nor exist. The state is in a file called the manifest, which
        has a checksum that can be verified only with the noise key. This method has no key, so it
        may return a state that was edited. To refuse an edited state, use :meth:`recover`.

        Raises:
            ConfigurationError: if the manifest is missing or damaged, has an unknown version, or is
                older than the newest pass in the folder.
        """
        found = self._manifest()
        return None if found is None else found[1]

    def recover(self, key: bytes, witness: str) -> Snapshot:
        """Return the last committed state.

        If a process was killed during a commit, this method first completes the commit.

        Args:
            key: the noise key with which the stream began.
            witness: path of the high-water mark, a file next to the results that records up to
                which slot the stream is released.

        Raises:
            ConfigurationError: if :meth:`read` refuses the state, or if the state was edited, is
                incomplete, or is older than the newest state that a high-water mark records. In
                these cases, no file is changed.
        """
        found = self._manifest()
        if found is None:
            raise ConfigurationError(
                f"{self.path} has no {MANIFEST}, so it is not the folder of a stream, or it was "
                "emptied or replaced while this run used it: put the folder of the stream back"
            )
        sealed, snapshot = found
        if not sealed.is_sealed_by(key, _PURPOSE):
            raise ConfigurationError(
                f"{self.path / MANIFEST} was edited, or put here without the noise key"
                ": restore it from a backup"
            )
        with _telling(f"{self.of_pass(snapshot.passes)} cannot be checked:"):
            self._check_whole(snapshot)
        known = _mark_of(snapshot, sealed)
        places = {place: None for place in (witness, snapshot.witness) if place}
        with held_alone(places):
            seen = [check_witness(place, key, self.path, known) for place in places]
            if self.of_pass(snapshot.passes).exists() and not any(seen):
                _LOG.warning(
                    "there is no high-water mark %s next to the results, so an old copy of %s "
                    "cannot be detected; check that pass %d is the last one that was published",
                    *(snapshot.witness, self.path, snapshot.passes),
                )
            self._settle(snapshot, sealed, key)
        self._committed = sealed
        return snapshot

    def refuse_replaced(self) -> None:
        """Check that the folder and its manifest were not replaced since the folder was locked.

        Raises:
            ConfigurationError: if the state folder or its manifest was replaced.
            MachineFault: if the state folder or its manifest cannot be read.
        """
        assert self._handle is not None
        held = os.fstat(self._handle)
        same = False
        with contextlib.suppress(OSError), blaming(f"{self.path} could not be looked at"):
            now = os.stat(self.path)
            same = (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)
        if same and self._committed is not None:
            manifest = self.path / MANIFEST
            same = manifest.is_file() and manifest.read_bytes() == self._committed.text.encode()
        if not same:
            raise ConfigurationError(
                f"{self.path} was moved, removed or replaced while this run used it, and nothing "
                f"more was written to it: bring back the newest state, and resume with {opt.resume}"
            )

    def begin(self, number: int) -> Path:
        """Create an empty folder for the files of a pass.

        Files of an earlier, failed attempt at this pass are removed.

        Raises:
            ConfigurationError: if the state folder was replaced, or if its disk is full.
        """
        self.refuse_replaced()
        folder = self._part_of_pass(number)
        with _telling(f"pass {number} cannot begin:"):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
        return folder

    def beside(self, place: str) -> bool:
        """Whether `place` and this folder are on one filesystem, so that files can be renamed."""
        return os.stat(place).st_dev == os.stat(self.path).st_dev

    def refuse_inside(self, output: str) -> None:
        """Raise ConfigurationError if an output file is in this folder."""
        if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(self.path)):
            raise ConfigurationError(
                f"{output} is in {self.path}, which is for the state alone: name a file elsewhere"
            )

    def of_pass(self, number: int) -> Path:
        """Return the folder of a committed pass."""
        return self.path / f"pass-{number:08d}"

    def commit(self, snapshot: Snapshot, key: bytes, before: Snapshot | None = None) -> Snapshot:
        """Commit a new state atomically, and move the results of the pass to their destination.

        A copy of the manifest, which describes the state, is kept in the folder of the pass.

        Args:
            snapshot: the new state.
            key: the noise key with which the stream began.
            before: the last committed state. If the results of that state went to a different
                destination than the results of this pass, the high-water mark at the earlier
                destination is updated too.

        Returns:
            The new state, with the list of the files of this pass.

        Raises:
            ConfigurationError: if the state folder, its manifest or the high-water mark was
                replaced, or if the disk is full or read-only. If the commit succeeds and only
                moving the results fails, this error is raised too. The next run then moves the
                results.
        """
        self.refuse_replaced()
        witness_before = "" if before is None else before.witness
        with held_alone({snapshot.witness, witness_before}):
            if before is not None and self._committed is not None:
                for place in {snapshot.witness, witness_before}:
                    check_witness(place, key, self.path, _mark_of(before, self._committed))
            snapshot, sealed = self._write(snapshot, key)
            self._settle(snapshot, sealed, key)
            if witness_before != snapshot.witness and os.path.isfile(witness_before):
                with _telling(f"pass {snapshot.passes} is committed, but"):
                    write_witness(witness_before, key, _mark_of(snapshot, sealed))
        return snapshot

    def key(self, create: bool) -> str:
        """Return the path of the noise key.

        Args:
            create: whether to create a fresh noise key if the folder has none.

        Raises:
            ConfigurationError: if the folder has no noise key and `create` is false, or if the file
                of the key is incomplete.
        """
        key = self.path / KEY
        if not key.exists():
            if not create:
                raise ConfigurationError(
                    f"{key} is missing: give the noise key that the stream started with "
                    f"({opt.noise_key})"
                )
            with _telling("the noise key cannot be written:", begun=False):
                write_private(key, secrets.token_hex(_KEY_BYTES))
        elif not create and key.stat().st_size < _KEY_BYTES:
            raise ConfigurationError(
                f"{key} was damaged, it holds {key.stat().st_size} bytes: bring it back from a "
                f"backup, or give the noise key that the stream started with ({opt.noise_key})"
            )
        return str(key)

    @property
    def has_key(self) -> bool:
        """Whether the folder contains its own noise key, which was created for this folder."""
        return (self.path / KEY).exists()

    def tell(self, status: str) -> None:
        """Replace the status file of the run. Operators read this file to follow the run.

        Raises OSError if this fails.
        """
        write_private(self.path / STATUS, status, lasting=False)

    @property
    def size(self) -> int:
        """Total size of all files in the state folder, in bytes."""
        files = (path for path in self.path.rglob("*") if path.name not in (STATUS, STATUS + PART))
        return sum(path.stat().st_size for path in files if path.is_file())

    # ---- what is there -------------------------------------------------------------------------

    def _part_of_pass(self, number: int) -> Path:
        return self.path / (self.of_pass(number).name + PART)

    def _passes(self) -> dict[Path, int]:
        """Folders of passes without `.part`, and their numbers."""
        found = ((path, _PASS.fullmatch(path.name)) for path in self.path.iterdir())
        return {path: int(match[1]) for path, match in found if match}

    def _parts(self) -> dict[Path, int]:
        """Folders of passes with `.part`, and their numbers."""
        found = (
            (path, _PASS.fullmatch(path.name.removesuffix(PART)))
            for path in self.path.iterdir()
            if path.name.endswith(PART)
        )
        return {path: int(match[1]) for path, match in found if match}

    def _refuse_foreign(self) -> None:
        files = {name + part for name in (MANIFEST, KEY, STATUS) for part in ("", PART)}
        folders = {*self._passes(), *self._parts(), self.path / INBOX, self.path / OUTBOX}
        for path in sorted(self.path.iterdir()):
            is_folder = path.is_dir() and not path.is_symlink()
            ours = is_folder if path in folders else path.name in files
            if not ours:
                raise ConfigurationError(
                    f"{self.path} holds {path.name}, which is not of a state: give a folder for "
                    "the state alone"
                )

    def _manifest(self) -> tuple[SealedRecord, Snapshot] | None:
        path = self.path / MANIFEST
        if not self.path.exists():
            return None
        if not path.exists():
            self._refuse_newer(None)
            return None
        sealed = SealedRecord.read(path, VERSION)
        try:
            snapshot = _snapshot_of(sealed.record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} was edited and is not a valid manifest any more ({error!r}): restore it "
                "from a backup"
            ) from error
        self._refuse_newer(snapshot)
        return sealed, snapshot

    def _refuse_newer(self, snapshot: Snapshot | None) -> None:
        """Refuse passes that the manifest does not know, whose ledgers must not get lost."""
        last = -1 if snapshot is None else snapshot.passes
        newer = {path: number for path, number in self._passes().items() if number > last}
        # The next pass may have been killed; one after it only began because that was committed.
        begun = {path: number for path, number in self._parts().items() if number > last + 1}
        if not newer and not begun:
            return
        unknown = newer or begun
        newest = max(unknown, key=unknown.__getitem__)
        says = (
            "but no manifest.json, which says what is committed"
            if snapshot is None
            else f"but the manifest.json there is older: it is at pass {last}"
        )
        copy, manifest = newest / MANIFEST, self.path / MANIFEST
        remedy = (
            f"put back the copy that the pass keeps (cp {copy} {manifest})"
            if newer and copy.exists()
            else "bring back the manifest.json that was there with it"
        )
        raise ConfigurationError(
            f"{self.path} holds {newest.name}, {says}: nothing was changed, because it holds the "
            f"users' ledgers; {remedy} and resume with {opt.resume}"
        )

    def _check_whole(self, snapshot: Snapshot) -> None:
        """Refuse a committed pass that has lost a file, or whose files are not as it left them."""
        folder, part = self.of_pass(snapshot.passes), self._part_of_pass(snapshot.passes)
        moving = not part.exists() or folder.exists()  # results may have reached their readers
        if not moving:
            folder = part
        for name, file in snapshot.files.items():
            path = folder / name
            if not path.exists():
                if moving and name in snapshot.results:
                    continue
                what = "is missing"
            elif PassFile.of(path) != file:
                what = f"is not as the pass left it, {file.size} bytes with another digest"
            else:
                continue
            raise ConfigurationError(
                f"{path} {what}, and without it the stream cannot resume: nothing was changed; "
                f"bring {folder.name} back from a backup, the newest one, together with "
                f"{MANIFEST}"
            )
        for path in folder.iterdir() if folder.exists() else ():
            if path.name not in {*snapshot.files, MANIFEST}:
                raise ConfigurationError(f"{path} is not of the pass: move it away")

    # ---- what is done --------------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, key: bytes) -> tuple[Snapshot, SealedRecord]:
        """Replace the manifest, when all that the pass has written is on the disk."""
        part = self._part_of_pass(snapshot.passes)
        what = f"pass {snapshot.passes} cannot be committed:"
        with _telling(what, begun=snapshot.passes > 0):
            snapshot = dataclasses.replace(snapshot, files=_files_of(part, snapshot.results))
            sealed = SealedRecord.of(
                key, _PURPOSE, {"version": VERSION, **dataclasses.asdict(snapshot)}
            )
            if part.exists():
                write_private(part / MANIFEST, sealed.text)
                for path in [*(part / name for name in snapshot.files), part, self.path]:
                    sync(path)
            self.refuse_replaced()
            write_private(self.path / MANIFEST, sealed.text)
        self._committed = sealed
        self.refuse_replaced()  # or the witness would see a pass that the folder held has not got
        return snapshot, sealed

    def _settle(self, snapshot: Snapshot, sealed: SealedRecord, key: bytes) -> None:
        """Move committed results to their readers, and remove all that is not committed."""
        committed, part = self.of_pass(snapshot.passes), self._part_of_pass(snapshot.passes)
        if snapshot.passes:
            with _telling(f"the results of pass {snapshot.passes} are committed, but"):
                self._tell_witness(snapshot, sealed, key)
                if not committed.exists():
                    os.rename(part, committed)
                    sync(self.path)
                self._publish(snapshot, committed)
        with _telling(f"{self.path} cannot be made private or cleaned up:"):
            inside = committed.iterdir() if snapshot.passes else ()
            for path in (self.path / MANIFEST, self.path / KEY, committed, *inside):
                if path.exists():
                    self._make_private(path)
            for path in (self.path / (MANIFEST + PART), self.path / (KEY + PART)):
                path.unlink(missing_ok=True)
            older = [path for path, number in self._passes().items() if number < snapshot.passes]
            for path in [*older, *self._parts()]:
                shutil.rmtree(path)

    def _tell_witness(self, snapshot: Snapshot, sealed: SealedRecord, key: bytes) -> None:
        """Let the witness see the pass before any reader does."""
        waiting = [
            name
            for folder in (self.of_pass(snapshot.passes), self._part_of_pass(snapshot.passes))
            for name in snapshot.results
            if (folder / name).exists()
        ]
        if snapshot.witness and (waiting or os.path.isdir(os.path.dirname(snapshot.witness))):
            write_witness(snapshot.witness, key, _mark_of(snapshot, sealed))

    def _publish(self, snapshot: Snapshot, committed: Path) -> None:
        moved = set()
        for name, target in snapshot.results.items():
            if not (committed / name).exists():
                continue
            if not os.path.lexists(target):
                os.rename(committed / name, target)
            elif PassFile.of(Path(target)) == snapshot.files[name]:
                (committed / name).unlink()
            else:
                raise FileExistsError(errno.EEXIST, "something else has that name", target)
            moved.add(os.path.dirname(target))
        for place in moved:
            sync(Path(place))

    def _make_private(self, path: Path) -> None:
        """Leave a file or folder to its owner alone, and tell if others had it."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & 0o077:
            return
        try:
            path.chmod(mode & 0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{path} is open to other users of the machine (mode {mode:o}) and cannot be made "
                f"private: {error.strerror}: chmod it as its owner, or give a folder of your own"
            ) from None
        _LOG.warning(
            "%s was open to other users of the machine (mode %o): it is its owner's alone now",
            *(path, mode),
        )


def _lock(handle: int, path: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"{opt.state}={path} is in use by another run: wait for it, or stop it"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{opt.state}={path} cannot be locked against a second run: {error.strerror}: choose a "
            "folder on a disk of this machine, not on a network"
        ) from None


def _files_of(part: Path, results: Mapping[str, str]) -> dict[str, PassFile]:
    """What a pass has written; all but its results is made private."""
    if not part.exists():
        return {}
    files = {path.name: PassFile.of(path) for path in sorted(part.iterdir())}
    for name in files.keys() - results.keys():
        (part / name).chmod(0o600)
    return files


def _mark_of(snapshot: Snapshot, sealed: SealedRecord) -> Mark:
    return Mark(snapshot.stream, snapshot.passes, sealed.seal, snapshot.until, snapshot.apart)


def _snapshot_of(record: Mapping[str, Any]) -> Snapshot:
    known = {name: value for name, value in record.items() if name != "version"}
    known["inputs"] = {path: InputFile(**entry) for path, entry in record["inputs"].items()}
    known["files"] = {name: PassFile(**entry) for name, entry in record["files"].items()}
    known["later_keys"] = tuple((slot, check) for slot, check in record["later_keys"])
    known["mounts"] = tuple(record.get("mounts", ()))
    return Snapshot(**known)


@contextlib.contextmanager
def _telling(what: str, begun: bool = True) -> Iterator[None]:
    """Raise ConfigurationError, which says what was tried, for what a filesystem refuses.

    `begun` is whether there is a state, so that the next run must say that it resumes.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{what} {error.filename2 or error.filename}: {error.strerror}: fix that, and "
            + (f"resume with {opt.resume}" if begun else "run again")
        ) from error

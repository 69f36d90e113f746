"""The committed state of a stream that is released pass by pass, in one folder.

    manifest.json        what is committed: a Snapshot
    pass-00000012/       what the last committed pass left for the next, such as the users' ledgers
    noise.key            the noise key, unless it is kept elsewhere

A pass writes all its files into a folder of its own. Renaming a new manifest over the old one
commits it. Only then do its results move to where readers look for them, each by one rename, and
the folder of the pass before is removed. Whoever opens the folder next finishes what a killed
process had committed, and removes what it had not. Nothing in here is for publication.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamveil.mechanisms.records import ConfigurationError

VERSION = 1
MANIFEST = "manifest.json"
KEY = "noise.key"
_PART = ".part"
_PASS = re.compile(r"pass-\d{8,}")


@dataclass(frozen=True)
class InputFile:
    """An input file that a committed pass has read."""

    size: int
    """In bytes, when it was read."""
    waiting: int | None = None
    """First slot not released yet with events in the file; None when it is finished."""


@dataclass(frozen=True)
class Snapshot:
    """What is committed."""

    first_slot: int
    """First slot of the stream."""
    next_slot: int
    """First slot that is not released yet."""
    key_check: str
    """Tells whether the noise key is the same, and nothing else about it."""
    passes: int = 0
    """Committed so far; the number of the last one."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Name in the folder of the last pass to where readers look for the file."""
    inputs: Mapping[str, InputFile] = field(default_factory=dict)
    """Files seen at the last pass, by path."""
    later_keys: tuple[tuple[int, str], ...] = ()
    """Each key that takes its place: the first slot, and what `key_check` is for it."""

    @property
    def used_keys(self) -> list[tuple[int, str]]:
        """Those of `later_keys` that slots were released with."""
        return [(slot, check) for slot, check in self.later_keys if slot < self.next_slot]


class StateFolder:
    """The folder of the state, held by one process at a time. Use :meth:`held`."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    @classmethod
    @contextlib.contextmanager
    def held(cls, path: str, create: bool = True) -> Iterator[StateFolder]:
        """Lock the folder, made here if so wanted, and end what a killed process began.

        The lock goes with the process, however it ends. Raises ConfigurationError for a folder
        that another process holds, that is not local, or with files that are not of a state.
        """
        if "://" in path:
            raise ConfigurationError(f"--state={path} is not a local folder: choose one")
        folder = cls(os.path.abspath(path))
        try:
            if create:
                folder.path.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigurationError(
                f"--state={path} cannot be used: {error.strerror}: give a folder, or the name of "
                "one to create"
            ) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"--state={path} is in use by another run: wait for it, or stop it"
                ) from None
            folder._recover()
            yield folder
        finally:
            os.close(handle)

    def read(self) -> Snapshot | None:
        """What is committed; None before the first commit.

        Raises ConfigurationError for a manifest of a newer version or a damaged one.
        """
        manifest = self.path / MANIFEST
        if not manifest.exists():
            return None
        try:
            record = json.loads(manifest.read_text(encoding="utf-8"))
            version = record.pop("version")
            if version != VERSION:
                raise ValueError(f"version {version} is not {VERSION}")
            record["inputs"] = {
                path: InputFile(**entry) for path, entry in record["inputs"].items()
            }
            record["later_keys"] = tuple((slot, check) for slot, check in record["later_keys"])
            return Snapshot(**record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{manifest} cannot be read ({error}): it was damaged or written by a newer "
                "streamveil; bring it back from a backup, or run the version that wrote it"
            ) from error

    def begin(self, number: int) -> Path:
        """An empty folder for a pass to write to."""
        folder = self.of_pass(number)
        folder.mkdir()
        return folder

    def beside(self, place: str) -> bool:
        """Whether files can be renamed from here to that folder."""
        return os.stat(place).st_dev == os.stat(self.path).st_dev

    def of_pass(self, number: int) -> Path:
        """Where a pass keeps its files."""
        return self.path / f"pass-{number:08d}"

    def commit(self, snapshot: Snapshot) -> None:
        """Make it the state, whole or not at all, and move its results to their readers."""
        folder = self.of_pass(snapshot.passes)
        if folder.exists():
            for file in [*folder.iterdir(), folder, self.path]:
                _sync(file)
        record = {"version": VERSION, **dataclasses.asdict(snapshot)}
        self._replace(MANIFEST, json.dumps(record, indent=1), mode=0o600)
        self._settle(snapshot)

    def key(self, create: bool) -> str:
        """Path of the noise key, made of fresh randomness if there is none and it is wanted.

        Raises ConfigurationError when there is none.
        """
        key = self.path / KEY
        if not key.exists():
            if not create:
                raise ConfigurationError(
                    f"{key} is missing: give the noise key that the stream began with (--noise_key)"
                )
            self._replace(KEY, secrets.token_hex(32), mode=0o600)
        return str(key)

    def _recover(self) -> None:
        ours = {MANIFEST, MANIFEST + _PART, KEY, KEY + _PART}
        snapshot = self.read()
        foreign = [
            entry.name
            for entry in self.path.iterdir()
            if entry.name not in ours and not _PASS.fullmatch(entry.name)
        ]
        if foreign:
            raise ConfigurationError(
                f"{self.path} holds {foreign[0]}, which is not of a state: give a folder for the "
                "state alone"
            )
        self._settle(snapshot)

    def _settle(self, snapshot: Snapshot | None) -> None:
        """Move committed results to their readers, and remove all that is not committed."""
        if snapshot is not None:
            committed = self.of_pass(snapshot.passes)
            for name, target in snapshot.results.items():
                if (committed / name).exists():
                    os.rename(committed / name, target)
            for place in {os.path.dirname(target) for target in snapshot.results.values()}:
                _sync(Path(place))
        for entry in sorted(self.path.iterdir()):
            if entry.name.endswith(_PART):
                entry.unlink()
            elif _PASS.fullmatch(entry.name) and (snapshot is None or entry != committed):
                shutil.rmtree(entry)

    def _replace(self, name: str, text: str, mode: int) -> None:
        part = self.path / (name + _PART)
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path / name)
        _sync(self.path)


def _sync(path: Path) -> None:
    """Let a file, or the names in a folder, outlive the loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

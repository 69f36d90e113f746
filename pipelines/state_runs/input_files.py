"""The input files of a stream with a kept state: what is there, and what should be and is not.

A slot without events is released as any other. So input that is missing must not pass for a quiet
time: an unmounted disk, a mistyped pattern, a file that was deleted too early.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamveil.io import InputFile, Snapshot, Stamp, ends_of, list_files
from streamveil.io.faults import blaming
from streamveil.io.found_file import FoundFile
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, Slots, format_time
from streamveil.mechanisms.core.wording import opt

STOP = "stop"
WAIT = "wait"
IGNORE = "ignore"

_WILDCARD = re.compile(r"[*?\[]")

_LOGGER = logging.getLogger("streamveil")


class InputMissing(ConfigurationError):  # noqa: N818
    """Input is not there without which a slot might be released as a quiet one."""


@dataclass(frozen=True)
class Found:
    """The files that are there."""

    events: Mapping[str, FoundFile]
    """By path."""
    changes: Mapping[str, FoundFile]
    """The same with changes of requirements."""
    known: Mapping[str, InputFile]
    """Those of both that an earlier pass has read, unchanged."""
    mounts: tuple[str, ...]
    """Where their filesystems are mounted."""

    def fresh(self, files: Mapping[str, FoundFile]) -> list[str]:
        """Paths of those that no pass has read."""
        return [path for path in files if path not in self.known]

    def read(self, path: str, waiting: int | None, broken: bool) -> InputFile:
        """What is remembered of a file that this pass reads; see :class:`InputFile`."""
        if path in self.known:
            return dataclasses.replace(self.known[path], waiting=waiting)
        file = self.events.get(path) or self.changes[path]
        return InputFile(
            file.size_in_bytes, waiting, file.last_updated_in_seconds or None, _ends(file), broken
        )


@dataclass(frozen=True)
class Incoming:
    """Where the input files of a stream come."""

    events: str
    """A path or glob."""
    changes: str | None = None
    """The same for changes of requirements, whose files may be deleted when they are read."""
    missing: str = STOP
    """What happens when input is missing: `stop`, `wait` until it is there, `ignore`."""
    may_be_empty: bool = False
    """Whether no file is nothing strange, as in an inbox."""

    def look(self, snapshot: Snapshot, slots: Slots) -> Found:
        """All files that are there.

        Raises ConfigurationError for one that changed since it was read, and unless that is
        ignored InputMissing for input that is not there.
        """
        events, changes = self._there()
        for problem in self._problems(events, snapshot, slots):
            if self.missing != IGNORE:
                raise InputMissing(problem)
            _LOGGER.warning(f"%s: released without it, as {opt.missing_input}=ignore says", problem)
        both = {**events, **changes}
        known = {
            path: _same(path, snapshot.inputs[path], file)
            for path, file in both.items()
            if path in snapshot.inputs
        }
        folders = {os.path.dirname(path) for path in both if _local(path)}
        return Found(events, changes, known, _mounts(folders | set(self._folders)))

    def refuse_moved(self, found: Found, read: Iterable[str]) -> None:
        """Refuse files that a pass has read if they are not there any more, as they were found.

        Raises ConfigurationError, which is InputMissing if one is gone.
        """
        events, changes = self._there()
        before, now = {**found.events, **found.changes}, {**events, **changes}
        for path in sorted(read):
            if path not in now:
                raise InputMissing(
                    f"the input is missing: {path} disappeared while it was read: restore it"
                )
            Stamp.of(before[path]).refuse_other(
                path, Stamp.of(now[path]), f"resume with {opt.resume}"
            )

    def _there(self) -> tuple[dict[str, FoundFile], dict[str, FoundFile]]:
        """Files of events and of changes, by path."""
        return _listed(self.events), _listed(self.changes) if self.changes else {}

    @property
    def _folders(self) -> list[str]:
        """What stands before the first wildcard of each local pattern."""
        return [_folder_of(each) for each in (self.events, self.changes) if each and _local(each)]

    def _problems(
        self, events: Mapping[str, FoundFile], snapshot: Snapshot, slots: Slots
    ) -> Iterable[str]:
        """What is missing, the likeliest cause first."""
        for mount in snapshot.mounts:
            if not os.path.ismount(mount):
                yield (
                    f"the input is missing: nothing is mounted at {mount}, as there was at the "
                    "last pass: mount it again, or if the files moved for good, say so once by "
                    f"{opt.missing_input}=ignore"
                )
        for folder in self._folders:
            if not os.path.isdir(folder):
                yield (
                    f"the input is missing: there is no folder {folder}: bring it back, or check "
                    "the path"
                )
        if not events and not self.may_be_empty:
            yield (
                f"the input is missing: no file matches {opt.input}={self.events}, so nobody can "
                f"tell a quiet time from a mistake: check the path, or leave a file there, of a "
                f"header alone if need be; a stream may also wait for files, by "
                f"{opt.missing_input}=wait"
            )
        gone = {
            path: known.waiting
            for path, known in snapshot.inputs.items()
            if known.waiting is not None and path not in events
        }
        if gone and (events or self.may_be_empty):
            path = min(gone)
            slot = gone[path]
            assert slot is not None
            yield (
                f"the input is missing: {number_of(len(gone), 'file')} with events that wait for "
                f"their slots, such as {path} with events from {format_time(slots.start(slot))} "
                "on: bring them back, or if they are lost for good, say so once by "
                f"{opt.missing_input}=ignore"
            )


def _local(path: str) -> bool:
    return "://" not in path


def _folder_of(pattern: str) -> str:
    wildcard = _WILDCARD.search(pattern)
    return os.path.abspath(os.path.dirname(pattern[: wildcard.start()] if wildcard else pattern))


def _listed(pattern: str) -> dict[str, FoundFile]:
    return {
        os.path.abspath(file.path) if _local(file.path) else file.path: file
        for file in list_files(pattern)
    }


def _same(path: str, known: InputFile, file: FoundFile) -> InputFile:
    """The file as it was read, unless it is another one now. Raises ConfigurationError."""
    remedy = (
        "bring it back as it was, and put new events into files of their own, renamed into place "
        "when they are whole"
    )
    if known.size != file.size_in_bytes:
        raise ConfigurationError(
            f"{path} had {known.size} bytes when it was read and has {file.size_in_bytes} now: "
            f"{remedy}"
        )
    modified = file.last_updated_in_seconds or None
    if known.modified in (None, modified):
        return known
    if known.ends not in (None, _ends(file)):
        raise ConfigurationError(
            f"{path} has changed since it was read, with the same size: {remedy}"
        )
    _LOGGER.warning(
        "%s was written again since it was read; its size, beginning and end are as they were, "
        "so it counts as unchanged: write new events to new files",
        path,
    )
    return dataclasses.replace(known, modified=modified)


def _ends(file: FoundFile) -> str | None:
    # A fault must not let it be taken for another file; all else is reported by what reads it.
    with contextlib.suppress(OSError), blaming(f"{file.path} could not be read"):
        return ends_of(file.path, file.size_in_bytes)
    return None


def _mounts(folders: Iterable[str]) -> tuple[str, ...]:
    """Where filesystems are mounted that hold the folders, but for the root."""
    above: set[str] = set()
    for folder in folders:
        while folder not in above and folder != os.path.dirname(folder):
            above.add(folder)
            folder = os.path.dirname(folder)
    return tuple(sorted(folder for folder in above if os.path.ismount(folder)))

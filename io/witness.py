"""A witness, beside the results of a stream, of what was released: a log that only grows.

    {"stream": "...", "passes": 11, "manifest": "...", "until": ..., "apart": ..., "seal": "..."}
    {"stream": "...", "passes": 12, ...

An old copy of a state folder is whole and sealed: nothing in it tells that it is old. But going on
from it would release slots again that are released, and spend their budgets again. So before the
results of a pass reach their readers, a line for it is added to a small hidden file beside them. It
is never part of the folder, and a copy of the folder that is put back has to agree with its last
line. Nothing that streamveil does takes a line away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hmac
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamveil.io.sealed import naming, sync
from streamveil.mechanisms.core.records import ConfigurationError, format_time
from streamveil.mechanisms.core.state_codec import checksum
from streamveil.mechanisms.core.wording import opt

_PURPOSE = b"streamveil witness"
_LONGEST = 4096  # bytes; a line is a tenth of that


@dataclass(frozen=True)
class Mark:
    """How far a stream had come with a pass: a line of the witness."""

    stream: str
    """Which stream: `Snapshot.stream`."""
    passes: int
    """Committed so far."""
    manifest: str
    """Seal of the manifest."""
    until: int
    """End of the last slot that is released, in microseconds since the epoch."""
    apart: int | None
    """From then on no user's window holds a released slot, in microseconds; None for never."""

    def line(self, key: bytes) -> bytes:
        """What is written, sealed by the noise key, without a line end."""
        text = self._text()
        seal = checksum(key, _PURPOSE, text.encode()).hex()
        return f'{text[:-1]}, "seal": "{seal}"}}'.encode()

    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, line: bytes, where: str) -> Mark:
        """Read a line, whose seal is not looked at. Raises ConfigurationError."""
        try:
            record = json.loads(line)
            del record["seal"]
            return cls(**record)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"{where} cannot be read ({type(error).__name__}): it was damaged or edited; "
                "restore it from a backup"
            ) from error


def witness_of(output: str) -> str:
    """Return the path of the high-water mark, a file that records how far `output` was released."""
    place, name = os.path.split(os.path.abspath(output))
    return os.path.join(place, f".{name}.witness")


@contextlib.contextmanager
def held_alone(witnesses: Iterable[str]) -> Iterator[None]:
    """While the block runs, let nobody else who asks for it check or write these witnesses.

    Two copies of a folder have a lock each, and may come to a commit at one moment. So the folders
    of the witnesses are locked, all in one order. One that cannot be opened has no witness.
    """
    with contextlib.ExitStack() as stack:
        handles: dict[tuple[int, int], int] = {}
        for folder in {os.path.dirname(witness) for witness in witnesses if witness}:
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, handle)
                found = os.fstat(handle)
                handles[found.st_dev, found.st_ino] = handle
        for which in sorted(handles):
            fcntl.flock(handles[which], fcntl.LOCK_EX)
        yield


def write_witness(path: str, key: bytes, mark: Mark) -> None:
    """Add a line, or what is left of it after a kill, unless it is the last one already."""
    there = os.path.exists(path)
    last, cut = _tail(path) if there else (b"", b"")
    line = mark.line(key)
    if last == line and not cut:
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with naming(path), open(handle, "wb") as file:
        file.write((line + b"\n")[len(cut) :])
        file.flush()
        os.fsync(handle)
    if not there:
        sync(Path(path).parent)


def check_witness(path: str, key: bytes, folder: Path, known: Mark) -> bool:
    """Whether there is a witness, which must not contradict what the folder says.

    Raises ConfigurationError for one that is damaged, of another stream, or that has seen more.
    """
    if not os.path.exists(path):
        return False
    where = f"the witness {path}"
    last, cut = _tail(path)
    seen = Mark.of(last, where) if last else None
    due = seen is None or seen.passes < known.passes  # the line of this pass, cut by a kill or not
    if cut and not (due and (known.line(key) + b"\n").startswith(cut)):
        Mark.of(cut, where)  # as a rule it says what is wrong
        raise ConfigurationError(
            f"{where} has lost the end of its last line: restore it from a backup"
        )
    if seen is None:
        return bool(cut)
    if not hmac.compare_digest(seen.line(key), last) or seen.stream != known.stream:
        raise ConfigurationError(
            f"{where} belongs to another stream than {folder}, or was edited: name outputs of "
            f"their own ({opt.output}), or bring back the folder that belongs to these"
        )
    if seen.passes > known.passes:
        raise ConfigurationError(
            f"{where} has seen pass {seen.passes}, with the slots up to "
            f"{format_time(seen.until)}, but {folder} knows of {known.passes} only: an old copy "
            "of the folder was put back, and resuming from it would release slots again and "
            f"spend the users' budgets again; bring back the newest copy{_if_lost(seen)}"
        )
    if seen.passes == known.passes and seen != known:
        raise ConfigurationError(
            f"{where} has seen another pass {known.passes} than that of {folder}: two copies of "
            "the folder were used by different runs; bring back the one that made these results"
        )
    return True


def refuse_witness(path: str, folder: Path) -> None:
    """Raise ConfigurationError if a high-water mark shows that an earlier run began this stream."""
    if not os.path.exists(path):
        return
    last, _ = _tail(path)
    where = f"the witness {path}"
    seen = Mark.of(last, where) if last else None
    until = f" up to {format_time(seen.until)}" if seen else ""
    raise ConfigurationError(
        f"{where} recorded slots{until} released by a stream whose state is not in {folder}: bring "
        f"its folder back, or name it, and resume with {opt.resume}{_if_lost(seen)}"
    )


def _if_lost(seen: Mark | None) -> str:
    """What can be done without the state: never what releases a slot again."""
    if seen is None:
        return ""
    if seen.apart is None:
        return (
            ". If it is lost for good, these users cannot have a second stream: their budget for "
            "ever is spent"
        )
    return (
        ". If it is lost for good, start a stream that shares no window with this one: "
        f"{opt.start}={format_time(seen.apart)} or later, another {opt.state} and another "
        f"{opt.output}; if its users may ask for a longer window than those of this one, later by "
        f"as many slots as it is longer"
    )


def _tail(path: str) -> tuple[bytes, bytes]:
    """The last whole line, and what a kill left of one after it."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _LONGEST))
            whole, _, cut = file.read().rpartition(b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}): let this user read it, or bring the file "
            "back as it was, from a backup"
        ) from error
    return whole.rpartition(b"\n")[2], cut

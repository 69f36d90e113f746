"""One run at a time writes an output: a second one would replace it, and publish what it drew too.

That an output is not there yet is checked before a run, and it appears at the end. So each local
one is claimed meanwhile, by a lock on a hidden file beside it, which goes with the process. What a
killed run has left in the folder, its claims and what it had begun to write, the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from streamveil.io import check_outputs
from streamveil.io.tables import begun_name
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.cards.files import SUFFIX

_CLAIM = ".claim"
# A file that nobody claims, such as a summary, is written in much less.
_SECONDS_TO_WRITE = 3600.0
# One that looks for dead claims holds each for a moment.
_TRIES, _SECONDS_BETWEEN_TRIES = 5, 0.02


@contextmanager
def claimed(paths: Sequence[str]) -> Iterator[None]:
    """Let no other run that asks for it write these while the block runs.

    Raises ConfigurationError where another one does, or has done so since they were checked.
    """
    for folder in {os.path.dirname(claim) for claim, _ in _claims(paths)}:
        _clean(folder)
    with ExitStack() as stack:
        for claim, path in _claims(paths):
            stack.enter_context(_locked(claim, path))
        check_outputs(paths)
        yield


def drop_claims(paths: Sequence[str]) -> None:
    """Take away what claims leave where the process ends at once."""
    for claim, _ in _claims(paths):
        with suppress(OSError):
            os.unlink(claim)


def _claims(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The hidden file of each local path, and the path."""
    for path in paths:
        if "://" not in path:
            folder, name = os.path.split(os.path.realpath(path))
            yield os.path.join(folder, f".{name}{_CLAIM}"), path


@contextmanager
def _locked(claim: str, path: str) -> Iterator[None]:
    handle = _lock(claim)
    if handle is None:
        raise ConfigurationError(
            f"{path}: another run is writing this output now: wait for its end, or choose "
            "another name"
        )
    try:
        yield
    finally:
        os.unlink(claim)
        os.close(handle)


def _lock(claim: str) -> int | None:
    """A handle of the file that holds its lock; None where another process does."""
    for left in reversed(range(_TRIES)):
        handle = os.open(claim, os.O_RDWR | os.O_CREAT, 0o600)
        if _is_alone(handle, claim):
            return handle
        os.close(handle)
        if left:
            time.sleep(_SECONDS_BETWEEN_TRIES)
    return None


def _is_alone(handle: int, claim: str) -> bool:
    """Whether the file is locked now, and still the one at its place."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), os.stat(claim))
    except (BlockingIOError, FileNotFoundError):  # held, or just let go
        return False


def _clean(folder: str) -> None:
    """Remove claims of processes that are gone, and files that they had begun to write.

    Nothing else is touched: neither what another process claims, nor what is not ours.
    """
    with suppress(OSError), ExitStack() as stack:
        names = os.listdir(folder)
        claims = [name for name in names if name.startswith(".") and name.endswith(_CLAIM)]
        dead: dict[str, str] = {}
        held: set[str] = set()
        for name in claims:
            output = name[1 : -len(_CLAIM)]
            handle = _dead(os.path.join(folder, name))
            if handle is None:
                held.add(output)
            else:
                stack.callback(os.close, handle)
                dead[output] = os.path.join(folder, name)
        for name in names:
            begun = begun_name(name)
            if begun is None:
                continue
            owners = {begun, begun.removesuffix(SUFFIX)}
            path = os.path.join(folder, name)
            if not owners & held and (owners & dead.keys() or _is_old(path)):
                os.unlink(path)
        for claim in dead.values():
            os.unlink(claim)


def _dead(claim: str) -> int | None:
    """A handle of a claim of ours that no process holds, locked; else None."""
    try:
        handle = os.open(claim, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    found = os.fstat(handle)
    ours = stat.S_ISREG(found.st_mode) and found.st_size == 0 and found.st_uid == os.geteuid()
    if ours and _is_alone(handle, claim):
        return handle
    os.close(handle)
    return None


def _is_old(path: str) -> bool:
    """Whether an unfinished file was left so long ago that nobody writes it."""
    found = os.lstat(path)
    old = time.time() - found.st_mtime > _SECONDS_TO_WRITE
    return old and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()

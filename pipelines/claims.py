"""One run at a time writes an output: a second one would replace it, and publish what it drew too.

That an output is not there yet is checked before a run, and it appears at the end. So each local
one is claimed meanwhile, by a lock on a hidden file beside it, which goes with the process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from streamveil.io import check_outputs
from streamveil.mechanisms.core.records import ConfigurationError


@contextmanager
def claimed(paths: Sequence[str]) -> Iterator[None]:
    """Let no other run that asks for it write these while the block runs.

    Raises ConfigurationError where another one does, or has done so since they were checked.
    """
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
            yield os.path.join(folder, f".{name}.claim"), path


@contextmanager
def _locked(claim: str, path: str) -> Iterator[None]:
    handle = os.open(claim, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _is_alone(handle, claim):
            raise ConfigurationError(
                f"{path}: another run is writing this output now: wait for its end, or choose "
                "another name"
            )
        try:
            yield
        finally:
            os.unlink(claim)
    finally:
        os.close(handle)


def _is_alone(handle: int, claim: str) -> bool:
    """Whether the file is locked now, and still the one at its place."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), os.stat(claim))
    except (BlockingIOError, FileNotFoundError):  # held, or just let go
        return False

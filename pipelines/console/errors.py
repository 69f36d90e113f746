"""Errors in one line, for people and logs."""

from __future__ import annotations

import errno
import os
import re

from streamveil.io.faults import OUT_OF_MEMORY, PASSING, fault_of_service, is_memory_short
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault

_ANY_ERROR = re.compile(r"\[Errno (\d+)\] ")
_DISK_ERROR = re.compile(r"\[Errno (\d+)\] [^:'\n\\]+(?:: '([^'\n]+?)')?")
_DISK_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, and run again"),
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), and run again",
    errno.ESTALE: "mount its disk again, and run again",
    errno.EROFS: "mount its disk for writing, or choose another place",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user write there"),
    errno.EIO: "look after its disk before anything is written there",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
}
_WHILE = re.compile(r" \[while running [^\]]*\]")


class PartlyWritten(RuntimeError):  # noqa: N818
    """A run failed of which some outputs are there: it says why, and which."""


class JobFailed(RuntimeError):  # noqa: N818
    """A job on a service failed, or is lost and may go on there: it says where, and what to do."""


def without_step(text: str) -> str:
    """What a runner tells of an error, without the step of the pipeline that it says to it."""
    return _WHILE.sub("", text)


def in_one_line(text: str) -> str:
    """A message as one line, whatever the names and values in it hold."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def reason_of(error: BaseException) -> str:
    """The message for an error that is none of ours: its last line, or of Java all its causes.

    Of what a disk or a service refused it is the place, as far as it is known, and the remedy.
    """
    if isinstance(error, PartlyWritten | JobFailed | MachineFault):
        return in_one_line(str(error))
    if _is_memory_short(error):
        return f"{OUT_OF_MEMORY}: give the run more memory, or less to do, and run it again"
    refused = refused_by_disk(error) or fault_of_service(error)
    if refused is not None:
        return in_one_line(refused)
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+[.])*(.+)$", text, re.MULTILINE)
    if causes:
        return in_one_line("; ".join(dict.fromkeys(causes)))
    return in_one_line([type(error).__name__, *text.splitlines()][-1])


def is_explained(error: BaseException) -> bool:
    """Whether what :func:`reason_of` tells has the remedy, so that nobody needs a traceback."""
    if isinstance(error, PartlyWritten):
        return error.__cause__ is not None and is_explained(error.__cause__)
    known = isinstance(error, JobFailed | MachineFault) or _is_memory_short(error)
    return known or refused_by_disk(error) is not None or fault_of_service(error) is not None


def may_pass(error: BaseException) -> bool:
    """Whether a machine is to blame, so that the same run may end well later.

    That is also looked for in what caused the error, and in the text that a runner reports of a
    worker.
    """
    if isinstance(error, MachineFault) or _is_memory_short(error):
        return True
    number = error.errno if isinstance(error, OSError) else None
    if number is None and not isinstance(error, ConfigurationError):  # which may quote a record
        match = _ANY_ERROR.search(str(error))
        number = int(match[1]) if match else None
    cause = error.__cause__ or error.__context__
    return number in PASSING or (cause is not None and may_pass(cause))


def _is_memory_short(error: BaseException) -> bool:
    return not isinstance(error, ConfigurationError) and is_memory_short(error)


def refused_by_disk(error: BaseException) -> str | None:
    """What a disk refused, here or in the text that a runner reports of a worker; else None."""
    match = _DISK_ERROR.search(str(error))
    if isinstance(error, OSError):
        number, name = error.errno, error.filename
    else:
        number, name = (int(match[1]), match[2]) if match else (None, None)
    if number not in _DISK_REMEDIES:
        cause = error.__cause__ or error.__context__
        return None if cause is None else refused_by_disk(cause)
    return f"{name or 'a disk'}: {os.strerror(number)}: {_DISK_REMEDIES[number]}"

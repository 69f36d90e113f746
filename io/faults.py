"""Faults of the machine, such as a full disk or short memory: they pass; no file is to blame."""

from __future__ import annotations

import errno
import os
import re
import sys

PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EBUSY),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK, errno.EINTR),
        *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
        *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
        *(
            errno.EREMOTEIO,
            errno.ECOMM,
            errno.ENOLINK,
            errno.EPROTO,
            errno.ESHUTDOWN,
            errno.EUCLEAN,
        ),
    }
)
"""Numbers of errors that say nothing about a file or an option."""
REFUSED = frozenset({errno.EACCES, errno.EPERM})
"""The same of a file to read, whose owner may let it be read later."""

_MEMORY = re.compile(
    r"\b(Arrow)?MemoryError\b|bad_alloc|malloc of size (?P<size>\d+) failed|[Oo]ut of memory|"
    r"[Nn]ot enough memory|Cannot allocate memory|can't start new thread|\bError -4 while\b"
)
# What a damaged file says of itself may be of any size.
_MOST_BYTES = 1 << 40

OUT_OF_MEMORY = "out of memory"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "mount its disk for writing, or choose another place",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.ESTALE, errno.ENOTCONN), "mount its disk again"),
    errno.EIO: "look after its disk",
    **dict.fromkeys(REFUSED, "let this user read it"),
}


def is_memory_short(error: BaseException) -> bool:
    """Whether it was raised for want of memory, or of threads."""
    match = _MEMORY.search(str(error))
    if match and match["size"] is not None:
        return int(match["size"]) < _MOST_BYTES
    if isinstance(error, MemoryError):
        return True
    named = isinstance(error, OSError) and error.errno not in (None, errno.ENOMEM)
    return match is not None and not named


def fault_in_reading(error: BaseException) -> str | None:
    """What the machine lacked while a file was read, and the remedy; None for a fault of the file.

    What a filesystem of the network raises has no number, and is its own.
    """
    if is_memory_short(error):
        return f"{OUT_OF_MEMORY}: give the run more memory, or smaller files, and run it again"
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if number in PASSING or number in REFUSED:
        remedy = _REMEDIES.get(number, "mend that")
        return f"{os.strerror(number)}: {remedy}, and run it again"
    if isinstance(error, ConnectionError | TimeoutError) or _is_of_beam(error):
        return f"{' '.join(str(error).split())}: mend that, and run it again"
    return None


def _is_of_beam(error: OSError) -> bool:
    """Whether a filesystem of Beam raised it, which is not imported for that."""
    module = sys.modules.get("apache_beam.io.filesystem")
    return module is not None and isinstance(error, module.BeamIOError)

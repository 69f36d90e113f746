"""Standard input, output and error of a command: a fault of theirs is no fault of the run.

A run that has released and spent must not end as a failure because its words could not be printed:
a scheduler would start it again, and spend the budget twice.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class _Lasting:
    """A text stream that can be written to whatever becomes of the file behind it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.error: OSError | None = None
        """Why what was written is lost, if it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write text; characters that the stream cannot hold are spelled out."""
        try:
            self._file.write(text)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            return self.write(plain)
        except OSError as error:
            self._lose(error)
        except ValueError:  # it was closed in this process
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what was written."""
        try:
            self._file.flush()
        except OSError as error:
            self._lose(error)
        except ValueError:
            self.error = OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _lose(self, error: OSError) -> None:
        """Let what is written go nowhere from now on, also when the interpreter ends."""
        self.error = self.error or error
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._file.flush()


@contextmanager
def lasting_streams() -> Iterator[_Lasting]:
    """Let a block print whatever becomes of standard output and error; gives the former.

    Those that the process was started without lead nowhere. Their numbers are taken, so that no
    file of a run gets one, into which a library would write its messages.
    """
    _open_closed()
    before = sys.stdout, sys.stderr
    out, err = map(_Lasting, before)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))

"""Text files as blocks of whole lines, with the number of every line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.files import open_file, reading
from streamveil.io.formats import row_word
from streamveil.mechanisms.core.records import ConfigurationError

BLOCK_BYTES = 1 << 24  # large enough that a block's fixed costs vanish, small in memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Called with the number of a line or row, what is wrong with it and its bytes.
Reject = Callable[[int, str, bytes], None]


def refusing(path: str) -> Reject:
    """Refuses a row of a table that must be read whole, with a ConfigurationError."""

    def refuse(row: int, detail: str, record: bytes) -> NoReturn:
        text = record[:200].decode(errors="replace").rstrip("\r\n")
        raise ConfigurationError(
            f"{path}: {row_word(path)} {row} cannot be parsed: {detail}: {text!r}: correct the "
            f"{row_word(path)} or take it out"
        )

    return refuse


class Spans(NamedTuple):
    """Lines that are not blank: arrays of shape (n,), and the breaks of all."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    breaks: int


@dataclass(frozen=True)
class Lines:
    """A block of whole lines, blank ones left out of the count."""

    first: int
    """Number of the block's first line."""
    block: bytes

    @cached_property
    def spans(self) -> Spans:
        """Where the lines are, and how many."""
        ends = np.flatnonzero(np.frombuffer(self.block, np.uint8) == 10) + 1
        breaks = len(ends)
        if self.block and not self.block.endswith(b"\n"):
            ends = np.append(ends, len(self.block))
        starts = np.concatenate(([0], ends))[:-1]
        numbers = np.arange(self.first, self.first + len(ends))
        short = np.flatnonzero(ends - starts <= 2)
        if len(short):
            data = np.frombuffer(self.block, np.uint8)
            first, last = data[starts[short]], data[ends[short] - 1]
            blank = short[(first == 10) | ((first == 13) & (last == 10))]
            starts, ends, numbers = (np.delete(each, blank) for each in (starts, ends, numbers))
        return Spans(starts, ends, numbers, breaks)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each line that is not blank begins in the block."""
        return self.spans.starts

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each of them ends, after its line break."""
        return self.spans.ends

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Number of each line that is not blank, counted from 1 in the file."""
        return self.spans.numbers

    @property
    def array(self) -> pa.Array:
        """The lines as large_binary, without a copy; blank ones stand at the end of others."""
        starts, ends, *_ = self.spans
        offsets = np.append(starts, ends[-1:]) if len(ends) else np.zeros(1, np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.block)]
        return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> bytes:
        starts, ends, *_ = self.spans
        return self.block[starts[index] : ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))


def read_lines(path: str) -> Iterator[Lines]:
    """Read a text file in blocks of about BLOCK_BYTES that end at the end of a line.

    A UTF-8 byte order mark is dropped. Raises ConfigurationError when the file cannot be read.
    """
    first, rest = 1, b""
    with reading(path, row=first) as place, open_file(path) as handle:
        data = handle.read(BLOCK_BYTES)
        while data:
            following = handle.read(BLOCK_BYTES)
            # The last line may lack its end.
            cut = data.rfind(b"\n") + 1 if following else len(data)
            block = b"".join((rest, memoryview(data)[: cut or None]))
            if first == 1:
                block = block.removeprefix(BYTE_ORDER_MARK)
            rest, data = data[cut:] if cut else block, following
            if cut and block:
                lines = Lines(first, block)
                yield lines
                place.row = first = first + lines.spans.breaks


def is_utf8(data: bytes) -> bool:
    """Whether all of the bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

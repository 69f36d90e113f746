"""Text files as blocks of whole lines, with the number of every line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamveil.io.files import Reading, open_file

BLOCK_BYTES = 1 << 24  # large enough that a block's fixed costs vanish, small in memory
# A quote that never closes must not draw the whole file into one block.
MAX_QUOTED_BLOCKS = 4
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Called with the number of a line, what is wrong with it and its bytes.
Reject = Callable[[int, str, bytes], None]


@dataclass(frozen=True)
class Lines:
    """A block of whole lines, blank ones left out of the count."""

    first: int
    """Number of the block's first line."""
    block: bytes

    @cached_property
    def _spans(self) -> tuple[npt.NDArray[np.int64], ...]:
        data = np.frombuffer(self.block, np.uint8)
        ends = np.flatnonzero(data == 10) + 1
        if self.block and not self.block.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate(([0], ends))[:-1]
        length = ends - starts
        last = np.where(length > 1, data[ends - 2], 0)
        blank = (data[starts] == 10) | ((data[starts] == 13) & (length == 2) & (last == 13))
        kept = np.flatnonzero(~blank)
        return starts[kept], ends[kept], kept + self.first

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Number of each line that is not blank, counted from 1 in the file."""
        return self._spans[2]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> bytes:
        starts, ends, _ = self._spans
        return self.block[starts[index] : ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))


def read_lines(path: str, *, quoted: bool = False) -> Iterator[Lines]:
    """Read a text file in blocks of about BLOCK_BYTES that end at the end of a line.

    With `quoted` no block ends inside a quoted field, as far as counting the quotes tells. A
    UTF-8 byte order mark is dropped. Raises ConfigurationError when the file cannot be read.
    """
    first, rest = 1, b""
    with Reading(path, row=first) as place, open_file(path) as handle:
        data = handle.read(BLOCK_BYTES)
        while data:
            following = handle.read(BLOCK_BYTES)
            block = rest + data
            if first == 1:
                block = block.removeprefix(BYTE_ORDER_MARK)
            # The last line may lack its end.
            cut = _cut(block, quoted) if following else len(block)
            rest, data = block[cut:], following
            if cut:
                yield Lines(first, block[:cut])
                first += block.count(b"\n", 0, cut)
                place.row = first


def _cut(block: bytes, quoted: bool) -> int:
    end = block.rfind(b"\n") + 1
    if not quoted or block.count(b'"', 0, end) % 2 == 0:
        return end
    data = np.frombuffer(block, np.uint8)
    newlines = np.flatnonzero(data == 10)
    even = np.searchsorted(np.flatnonzero(data == 34), newlines) % 2 == 0
    if even.any():
        return int(newlines[even][-1]) + 1
    return end if len(block) > MAX_QUOTED_BLOCKS * BLOCK_BYTES else 0


def is_utf8(data: bytes) -> bool:
    """Whether all of the bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

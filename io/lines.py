"""Text files as blocks of whole lines, with the number of every line."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.files import open_file, reading
from streamveil.io.formats import row_word
from streamveil.mechanisms.core.records import ConfigurationError

BLOCK_BYTES = 1 << 24  # large enough that a block's fixed costs vanish, small in memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# By how a file begins: no text of CSV or JSON in UTF-8 has a zero byte there. The longer first.
_WIDE = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_SHORTEST_RECORD = 8  # bytes; what is shorter may be a part of a line of UTF-16

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

    A UTF-8 byte order mark is dropped; UTF-16 and UTF-32 become UTF-8. Raises ConfigurationError
    when the file cannot be read.
    """
    first, rest = 1, b""
    with reading(path, row=first) as place, open_file(path) as handle:
        blocks = _utf8_blocks(handle)
        data = next(blocks, b"")
        while data:
            following = next(blocks, b"")
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


def _utf8_blocks(handle: BinaryIO) -> Iterator[bytes]:
    """What is read of a file, none of it empty, in UTF-8. Raises UnicodeDecodeError."""
    data = handle.read(BLOCK_BYTES)
    encoding = _encoding(data)
    if encoding is None:
        while data:
            yield data
            data = handle.read(BLOCK_BYTES)
        return
    decoder = codecs.getincrementaldecoder(encoding)(_UNDECODED)
    while data:
        if text := decoder.decode(data):
            yield text.encode(errors="surrogatepass")
        data = handle.read(BLOCK_BYTES)
    decoder.decode(b"", final=True)


def _encoding(data: bytes) -> str | None:
    """The encoding of a text that begins so; None for UTF-8.

    The first record may be a file's first bytes, and must not change how others are read: so most
    lines must be of that encoding, in which each has a zero byte.
    """
    begin = data[:4]
    found = next((_WIDE[mark] for mark in _WIDE if begin.startswith(mark)), None)
    if found is None and len(begin) > 1 and 0 in begin[:2] and begin[:2] != b"\0\0":
        found = "utf-16-be" if begin[0] == 0 else "utf-16-le"
    if found is not None:
        lines = [line for line in data.split(b"\n") if len(line) >= _SHORTEST_RECORD]
        wide = sum(b"\0" in line for line in lines)
        if lines and 2 * wide <= len(lines):
            return None
    return found


def _undecoded(error: UnicodeError) -> tuple[str, int]:
    """What is no text becomes what UTF-8 cannot hold, so that its line is rejected, no other."""
    if not isinstance(error, UnicodeDecodeError) or error.reason in _CUT_OFF:
        raise error
    return "\udcff", error.end


_UNDECODED = "streamveil.undecoded"
_CUT_OFF = ("truncated data", "unexpected end of data")
codecs.register_error(_UNDECODED, _undecoded)


def is_utf8(data: bytes) -> bool:
    """Whether all of the bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

"""Text lines of separated fields without a header or quotes, as data sets are published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.files import Columns, event_batch, require_columns
from streamveil.io.lines import Lines, Reject, is_utf8, read_lines

_REPLACED = "\N{REPLACEMENT CHARACTER}"


def read_fields(
    path: str,
    names: Sequence[str],
    columns: Columns,
    reject: Reject,
    *,
    separator: str,
    latin1: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read the named columns as strings, a batch for every block of lines.

    Args:
        path: a text file, also `.gz`.
        names: name of every field of a line, in order.
        columns: the fields wanted.
        reject: called for a line with another number of fields, or that is not UTF-8.
        separator: what stands between two fields.
        latin1: whether what is not UTF-8 is Latin-1, where every byte is a character.

    Raises:
        ConfigurationError: for a column that is not one of `names`, or an unreadable file.
    """
    require_columns(path, columns, names)
    for lines in read_lines(path):
        texts, numbers = _texts(lines, latin1)
        fields = pc.split_pattern(texts, separator)
        good = pc.equal(pc.list_value_length(fields), len(names))
        if not latin1:
            good = pc.and_(good, pc.invert(pc.match_substring(texts, _REPLACED)))
        for row in np.flatnonzero(~good.to_numpy(zero_copy_only=False)).tolist():
            text = texts[row].as_py()
            found = len(fields[row])
            counted = f"{found} fields where a line has {len(names)}"
            fault = "not UTF-8" if found == len(names) else counted
            reject(int(numbers[row]), fault, text.encode())
        kept = fields.filter(good)
        arrays = [pc.list_element(kept, names.index(name)).cast(pa.string()) for name in columns]
        yield event_batch(path, columns, arrays, numbers[good.to_numpy(zero_copy_only=False)])


def _texts(lines: Lines, latin1: bool) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Text of each line that is not blank, without its end, and its number."""
    block = lines.block
    if is_utf8(block):
        text = block.decode()
    else:
        text = block.decode("latin-1") if latin1 else block.decode(errors="replace")
    whole = pa.array([text], pa.large_string())
    every = pc.utf8_rtrim(pc.split_pattern(whole, "\n").flatten(), "\r")
    kept = pc.not_equal(every, "")
    numbers = np.flatnonzero(kept.to_numpy(zero_copy_only=False)) + lines.first
    return every.filter(kept), numbers

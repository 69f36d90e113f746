"""Spans of one long run of bytes as an Arrow array, without a Python object for each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_BYTES = (1 << 31) - 1


def spans(
    data: bytes | pa.Buffer,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Array of binary, the bytes from each start to its end; null where not `valid`.

    Args:
        data: the bytes, at most MAX_BYTES.
        starts: shape (n,), each no earlier than the end before it.
        ends: shape (n,).
        valid: shape (n,); None where all are.
    """
    # Every other segment of the bytes is a span; what stands between two is left out.
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[:-1:2], offsets[1::2], offsets[-1] = starts, ends, len(data)
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    segments = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer]
    )
    mask = None if valid is None else ~valid
    return segments.take(pa.array(np.arange(0, len(offsets) - 1, 2), mask=mask))

"""Parts of panes as bytes, on the way to where panes are released in order."""

from __future__ import annotations

import struct

from streamveil.mechanisms.per_record.protocol import Part
from streamveil.transforms.wire import array_from_bytes

_PANE = struct.Struct("<q?")


def pane_to_bytes(pane: int, part: bytes = b"") -> bytes:
    """Pane, whether there is a part, and the part as `array_to_bytes` has it."""
    return _PANE.pack(pane, bool(part)) + part


def part_of(data: bytes) -> Part | None:
    """The part of a pane; None where there is none."""
    _, some = _PANE.unpack_from(data)
    return array_from_bytes(data[_PANE.size :]) if some else None

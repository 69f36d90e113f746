"""Parts of panes as bytes, on the way to where panes are released in order."""

from __future__ import annotations

from streamveil.mechanisms.per_record.protocol import Part
from streamveil.transforms import messages


def pane_to_bytes(pane: int, part: bytes = b"") -> bytes:
    """Pane, which comes in one, and the part as `array_to_bytes` has it, or nothing."""
    return messages.part_to_bytes(messages.Part(pane, 0, 1), part)


def part_of(content: bytes) -> Part | None:
    """The part of a pane; None where there is none."""
    return messages.array_from_bytes(content) if content else None

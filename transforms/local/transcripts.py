"""What the edge stage says to the server stage: tallies of perturbed reports, and nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.local.protocol import Tally
from streamveil.transforms.messages import arrays_from_bytes, arrays_to_bytes

_SLOT = struct.Struct("<q")


@dataclass(frozen=True, eq=False)
class Transcript:
    """The tallies of a slot's rounds, in order. Whoever sees them learns what reports tell."""

    slot: int
    tallies: tuple[Tally, ...]


def transcript_to_bytes(transcript: Transcript) -> bytes:
    """Slot, then supports and reports of each round: the size is that of classes and symbols."""
    arrays = [
        array.astype(np.int64)
        for tally in transcript.tallies
        for array in (tally.supports, tally.reports)
    ]
    return _SLOT.pack(transcript.slot) + arrays_to_bytes(*arrays)


def transcript_from_bytes(data: bytes) -> Transcript:
    """The transcript."""
    (slot,) = _SLOT.unpack_from(data)
    arrays = [array.astype(np.int64) for array in arrays_from_bytes(data[_SLOT.size :])]
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    return Transcript(slot, tuple(Tally(supports, reports) for supports, reports in pairs))

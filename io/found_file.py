"""What a filesystem says of a file, whichever filesystem it is."""

from __future__ import annotations

from typing import NamedTuple


class FoundFile(NamedTuple):
    """A file that is there.

    >>> FoundFile("events.csv", 120, 0.0).size_in_bytes
    120
    """

    path: str
    size_in_bytes: int
    last_updated_in_seconds: float
    """Since the epoch; 0 where its filesystem does not say."""

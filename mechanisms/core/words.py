"""Numbers in messages for people."""

from __future__ import annotations


def number_of(number: int, noun: str) -> str:
    """`1 slot`, `2 slots`, `1,000 slots`: the noun is one that only takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

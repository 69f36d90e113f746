"""Booleans as text: `true` and `false`, which events may write with letters of any case."""

from __future__ import annotations

import itertools

TRUE, FALSE = "true", "false"


def boolean_text(value: bool) -> str:
    """The text of a boolean, as JSON has it."""
    return TRUE if value else FALSE


def one_spelling(value: str) -> str:
    """The standard spelling if a text is a boolean, otherwise the same text."""
    return lower if (lower := value.lower()) in (TRUE, FALSE) else value


def spellings(value: str) -> tuple[str, ...]:
    """All texts that mean the same public value: one, except for a boolean.

    Every writer has its own: JSON has `true`, pandas and Python `True`, spreadsheets `TRUE`.
    """
    if value.lower() not in (TRUE, FALSE):
        return (value,)
    letters = ((letter.lower(), letter.upper()) for letter in value)
    return tuple(map("".join, itertools.product(*letters)))

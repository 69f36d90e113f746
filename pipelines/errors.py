"""Errors in one line, for people and logs."""

from __future__ import annotations

import re


def in_one_line(text: str) -> str:
    """A message as one line, whatever the names and values in it hold."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def reason_of(error: BaseException) -> str:
    """What is told of an error that is none of ours: its last line, or of Java all its causes."""
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+[.])*(.+)$", text, re.MULTILINE)
    if causes:
        return in_one_line("; ".join(dict.fromkeys(causes)))
    return in_one_line([type(error).__name__, *text.splitlines()][-1])

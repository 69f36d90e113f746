"""Numbers as text: in messages for people, and as the values that a list is searched for."""

from __future__ import annotations

import re

MAX_EXPONENT = 400
"""Doubles need 324; a number with a larger exponent stays as it is written."""

_LITERAL = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?)0*(\d+))?")


def number_of(number: int, noun: str) -> str:
    """`1 slot`, `2 slots`, `1,000 queries`: the noun is one that takes an s, or ies for a y.

    A y after a vowel stays, as in `days`.
    """
    if number == 1:
        return f"{number:,} {noun}"
    changes = noun.endswith("y") and noun[-2] not in "aeou"
    return f"{number:,} {noun[:-1]}ies" if changes else f"{number:,} {noun}s"


def number_text(literal: str) -> str:
    """Text of the value of a JSON number: decimal digits without an exponent or needless zeros.

    So 7, 7.0 and 70e-1 are one user, and nothing is rounded. With an exponent beyond
    `MAX_EXPONENT` the literal stays as it is written, unless it is 0.
    """
    match = _LITERAL.fullmatch(literal)
    assert match is not None
    sign, whole, part, below, exponent = match.groups(default="")
    digits = whole + part
    if not digits.strip("0"):
        return "0"
    if exponent:
        if len(exponent) > 3 or int(exponent) > MAX_EXPONENT:
            return literal
        point = len(whole) + int(below + exponent)
        digits = "0" * (1 - point) + digits
        point = max(point, 1)
        whole, part = digits[:point].ljust(point, "0"), digits[point:]
    part = part.rstrip("0")
    return f"{sign}{whole.lstrip('0') or '0'}{part and '.'}{part}"

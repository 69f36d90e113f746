"""How findings are told that are not of one stream of counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """The words of a kind of audit."""

    attack: str
    """Who guessed what from what: the page goes on with the number of runs."""
    whose: str
    """What the first column of the table names."""
    meanings: tuple[tuple[str, str], ...]
    """Of parts and claims."""


DEVICES = About(
    "An operator who sees all reports of all devices, and asks some of them again and again, "
    "guessed which of two sequences of values each of them had",
    "User asks for",
    (
        (
            "reports",
            "A device has one value or another one in a slot, by a fair coin of its own, and is "
            "asked in it. Devices that tell one event of a window have them in as many slots as "
            "hold one report.",
        ),
        (
            "asked again",
            "The same of clients' devices, asked one by one: each is asked the same three times, "
            "and then for another report.",
        ),
        (
            "windows",
            "A device has one sequence of values in a window or another one, which differs from it "
            "in every slot, and all reports of the window are looked at together.",
        ),
        (
            "report, window",
            "Beside what the reports were charged; beside all that a window may cost. Epsilons are "
            "in the middle of all guesses.",
        ),
    ),
)

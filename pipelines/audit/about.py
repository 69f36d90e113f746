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
    unit: str
    """What runs are made of."""
    charged: str
    """What charges are added up of."""
    meanings: tuple[tuple[str, str], ...]
    """Of parts and claims."""


DEVICES = About(
    "An operator who sees all reports of all devices, and asks some of them again and again, "
    "guessed which of two sequences of values each of them had",
    "User asks for",
    "slot",
    "window",
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
RECORDS = About(
    "Whoever knows all other records guessed whether one more was there, by a fair coin in every "
    "release",
    "Record",
    "release",
    "record",
    (
        (
            "noise",
            "All that is drawn for a release, from which what it tells follows: totals or counts "
            "with their noise, what is chosen by them, and what is drawn of the records kept; or "
            "the report of a device. Many are drawn at once.",
        ),
        ("releases", "What is published, a release at a time."),
        (
            "budget",
            "Beside the budget of the record, by the budget function. It stands alone, beside many "
            "others of about its value, or beside as many as leave it in doubt what is chosen; or "
            "beside the records of the input.",
        ),
    ),
)

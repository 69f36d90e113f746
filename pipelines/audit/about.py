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
    "Requirement",
    "slot",
    "window",
    (
        (
            "reports",
            "A device has one of two values in a slot, by its own fair coin, and reports it. "
            "Devices that report one event of a window have it in all slots of a report.",
        ),
        (
            "asked again",
            "The same for devices of clients, one by one. Each gets the same request three times, "
            "and then a request for another report.",
        ),
        (
            "windows",
            "A device has one of two sequences of values in a window, which differ in every slot. "
            "The attacker uses all reports of the window together.",
        ),
        (
            "report, window",
            "The claim is the cost of the reports, or the budget of a window. Each ε is the median "
            "over all guesses.",
        ),
    ),
)
RECORDS = About(
    "An attacker who knows all other records guessed whether one more was there, by a fair coin in "
    "every release",
    "Record",
    "release",
    "record",
    (
        (
            "noise",
            "Everything random of a release, from which its results follow: totals or counts with "
            "their noise, the choices made by them, and the sample of kept records; or the report "
            "of a device. Many are drawn at once.",
        ),
        ("releases", "The published results, one release at a time."),
        (
            "budget",
            "The claim is the budget of the record, by the budget function. The record is alone, "
            "among many others of about its value, or among as many as make a choice of the "
            "mechanism uncertain; or among the records of the input.",
        ),
    ),
)

"""The kinds of promises that streams make, by the names that options, cards and ledgers have."""

from __future__ import annotations

from dataclasses import dataclass

WINDOWS, INFINITE, USER = "w-event", "infinite", "user"
LOCAL_EVENTS, PER_RECORD = "local w-event", "per-record"

ANY = "any"
"""Adjacency of the local model: a user's events are any others, or none."""


@dataclass(frozen=True)
class Guarantee:
    """A kind of promise, of pure differential privacy unless keys are discovered with a delta.

    They differ in the unit, which events neighbouring inputs differ in, and in who sees the events.
    """

    name: str
    unit: str
    setting: str = "central"


_IN_WINDOWS = "all events of one user in any `window` consecutive slots"

GUARANTEES = {
    one.name: one
    for one in (
        Guarantee(WINDOWS, _IN_WINDOWS),
        Guarantee(INFINITE, "all events of one user, in any or all slots of the stream"),
        Guarantee(USER, "all events of one user, their whole life in the stream"),
        Guarantee(LOCAL_EVENTS, _IN_WINDOWS, "local"),
        Guarantee(PER_RECORD, "one record"),
    )
}


def guarantee_to_users(*, forever: bool, limited: bool = False) -> str:
    """The guarantee of budgets for windows, or forever, where participation may be limited."""
    if not forever:
        return WINDOWS
    return USER if limited else INFINITE

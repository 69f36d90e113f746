"""The figures of a stream that goes on, by name, in two groups: public and raw.

A public one is a function of :class:`Released`: of releases, their ledger and options. It may be
shown to whoever may see the releases. So it never says when something happened, nor how long it
took, which depends on how many events there were: a dashboard subtracts from its own clock. A raw
one is for those who may see the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from streamveil.mechanisms.core.records import MICROSECONDS
from streamveil.pipelines.monitoring.status import FAILED, Released, Status
from streamveil.pipelines.options.declarations import METRICS

PREFIX = "streamveil"
PUBLIC, RAW = METRICS

T = TypeVar("T", Released, Status)

_SECOND = MICROSECONDS["s"]


@dataclass(frozen=True)
class Figure(Generic[T]):
    """A number, or one for each value of a label."""

    name: str
    """Without prefix and unit."""
    about: str
    read: Callable[[T], float | Mapping[str, float]]
    unit: str = ""
    """`seconds`, `bytes`, `ratio`, or none: then it is a number of what the name says."""
    is_total: bool = False
    """Whether it only grows while the run lasts."""
    label: str | None = None

    @property
    def full_name(self) -> str:
        """As Prometheus has it."""
        parts = (PREFIX, self.name, self.unit, "total" if self.is_total else "")
        return "_".join(part for part in parts if part)


class Sample(NamedTuple):
    """A figure at one moment."""

    figure: Figure[Any]
    values: Mapping[str, float]
    """By the value of the label; the one of a figure without a label is at an empty text."""


PUBLIC_FIGURES: tuple[Figure[Released], ...] = (
    Figure(
        "slots_released",
        "Slots that this run released, by the status of the release",
        lambda done: done.statuses,
        is_total=True,
        label="status",
    ),
    Figure(
        "oldest_open_slot",
        "Number of the first slot that is not released",
        lambda done: done.next_slot,
    ),
    Figure(
        "released_until_timestamp",
        "Up to when all slots are released",
        lambda done: done.until / _SECOND,
        unit="seconds",
    ),
    Figure(
        "oldest_open_slot_closes_timestamp",
        "When the time of the first open slot is over, lateness included",
        lambda done: done.closes / _SECOND,
        unit="seconds",
    ),
    Figure(
        "slot_length",
        "Length of a slot",
        lambda done: done.slots.length / _SECOND,
        unit="seconds",
    ),
    Figure(
        "window_use",
        "Largest share of any class's budget that a window with a slot of this run had spent",
        lambda done: done.window_use,
        unit="ratio",
    ),
)

RAW_FIGURES: tuple[Figure[Status], ...] = (
    Figure("events_read", "Events read", lambda now: now.totals.read, is_total=True),
    Figure("events_counted", "Events counted", lambda now: now.totals.counted, is_total=True),
    Figure(
        "events_late",
        "Events whose slot was released before they came",
        lambda now: now.totals.late,
        is_total=True,
    ),
    Figure(
        "events_rejected",
        "Events rejected, by reason",
        lambda now: now.totals.rejected,
        is_total=True,
        label="reason",
    ),
    Figure(
        "events_beyond_bound",
        "Events beyond their user's contribution bound",
        lambda now: now.totals.beyond_bound,
        is_total=True,
    ),
    Figure(
        "events_beyond_limit",
        "Events in slots in which their user did not count any more",
        lambda now: now.totals.beyond_limit,
        is_total=True,
    ),
    Figure("passes", "Passes committed by this run", lambda now: now.passes, is_total=True),
    Figure("backlog_slots", "Closed slots that are not released", lambda now: now.backlog),
    Figure(
        "lag",
        "Time since the oldest slot that is not released closed",
        lambda now: now.lag / _SECOND,
        unit="seconds",
    ),
    Figure(
        "release_delay",
        "From the closing of the last released slot to its release",
        lambda now: now.delay / _SECOND,
        unit="seconds",
    ),
    Figure(
        "last_look_timestamp",
        "When the run last looked for slots to release",
        lambda now: (now.looked or now.since) / _SECOND,
        unit="seconds",
    ),
    Figure("state", "Size of the folder of the state", lambda now: now.state_bytes, unit="bytes"),
    Figure(
        "last_error_timestamp",
        "When the last error of this run was, 0 without one",
        lambda now: now.failed / _SECOND,
        unit="seconds",
    ),
    Figure("failed", "Whether the run has failed", lambda now: now.condition == FAILED),
)


def figures_of(group: str) -> tuple[Figure[Any], ...]:
    """All that the group has: the raw one has the public ones too."""
    return PUBLIC_FIGURES if group == PUBLIC else (*PUBLIC_FIGURES, *RAW_FIGURES)


def samples(group: str, status: Status) -> Iterator[Sample]:
    """The figures of a group at this moment; without the public ones before the state is read."""
    done = status.released
    if done is not None:
        yield from (_sample(figure, done) for figure in PUBLIC_FIGURES)
    if group == RAW:
        yield from (_sample(figure, status) for figure in RAW_FIGURES)


def _sample(figure: Figure[T], source: T) -> Sample:
    found = figure.read(source)
    return Sample(figure, found if isinstance(found, Mapping) else {"": float(found)})

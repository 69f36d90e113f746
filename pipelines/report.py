"""What was released beside what was true, and the figures computed from the two.

A report holds the TRUE counts, so it is for a demonstration on public data. Never make one of
data that must stay private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    ConfigurationError,
    LedgerEntry,
    Release,
    Requirement,
    Revision,
    Slots,
)


@dataclass(frozen=True, eq=False)
class Report:
    """Everything the page shows, and the figures computed from it.

    Raises ConfigurationError when there is no release or the shapes disagree.
    """

    title: str
    """Headline of the page."""
    subject: str
    """What was counted, such as `flights from New York, 2013`."""
    labels: Sequence[str]
    """Name of each bin, length bins."""
    label_names: Mapping[str, str]
    """A longer name for some of the labels."""
    slots: Slots
    """How time was cut."""
    slot_name: str
    """What one slot is called: `day` or `hour`."""
    user_name: str
    """What one protected user is called, in the singular: `aircraft`."""
    releases: Sequence[Release]
    """The releases in slot order, length T, one or more."""
    ledger: Sequence[LedgerEntry]
    """What every slot cost every class, in slot order."""
    true_counts: npt.NDArray[np.int64]
    """Every event in a bin, before any protection and whoever it is of, shape (T, bins), aligned
    with `releases`."""
    counted: npt.NDArray[np.int64]
    """Of these the events that count: of users with a requirement, and within their bound. The
    mechanism saw nothing else. Shape (T, bins)."""
    facts: Mapping[str, str]
    """Lines of the footer, such as events read and rejected."""
    bin_name: str = "bin"
    """What one bin is called, in the singular: `airport`."""
    event_name: str = "event"
    """What one event is called, in the singular: `flight`."""
    repeat: str = ""
    """A shell command that makes the page again, or nothing."""
    revisions: Sequence[Revision] = ()
    """One for each release, in slot order; none if slots were not revised."""

    def __post_init__(self) -> None:
        """Check the shapes."""
        if not self.releases:
            raise ConfigurationError("a report needs at least one release")
        expected = (len(self.releases), len(self.labels))
        for name, counts in (("true counts", self.true_counts), ("counted", self.counted)):
            if np.shape(counts) != expected:
                raise ConfigurationError(
                    f"{name} have shape {np.shape(counts)}, but there are {expected[0]} releases "
                    f"of {expected[1]} labels"
                )
        for release in self.releases:
            if release.counts.shape != expected[1:]:
                raise ConfigurationError(
                    f"the release of slot {release.slot} has {release.counts.shape} counts, but "
                    f"there are {expected[1]} labels"
                )
        if self.revisions and [r.slot for r in self.revisions] != [r.slot for r in self.releases]:
            raise ConfigurationError(
                f"{len(self.revisions)} revisions are not of the slots of {expected[0]} releases"
            )

    @cached_property
    def released(self) -> npt.NDArray[np.int64]:
        """Released counts, shape (T, bins)."""
        return np.stack([release.counts for release in self.releases]).astype(np.int64)

    @cached_property
    def revised(self) -> npt.NDArray[np.int64]:
        """Counts as they were revised, shape (T, bins); (0, bins) if they were not."""
        rows = [revision.counts for revision in self.revisions]
        return np.array(rows, np.int64).reshape(-1, len(self.labels))

    @property
    def lag(self) -> int:
        """How many slots later a slot was revised; 0 for never."""
        return max((one.revised_slot - one.slot for one in self.revisions), default=0)

    @cached_property
    def true_totals(self) -> npt.NDArray[np.int64]:
        """True count of every bin over all slots, shape (bins,)."""
        totals: npt.NDArray[np.int64] = self.true_counts.sum(axis=0)
        return totals

    @cached_property
    def released_totals(self) -> npt.NDArray[np.int64]:
        """Released count of every bin over all slots, shape (bins,)."""
        totals: npt.NDArray[np.int64] = self.released.sum(axis=0)
        return totals

    @cached_property
    def stderr(self) -> npt.NDArray[np.float64]:
        """Standard error of each released count, shape (T, bins); NaN before a publication."""
        rows = [
            np.broadcast_to(np.nan if r.published_slot is None else r.stderr, r.counts.shape)
            for r in self.releases
        ]
        stderr = np.stack(rows).astype(np.float64)
        return np.where(np.isfinite(stderr), stderr, np.nan)

    @cached_property
    def edges(self) -> npt.NDArray[np.datetime64]:
        """Start of every slot and the end of the last one, shape (T + 1,).

        Slots of whole days start at the nearest midnight in UTC: the dates on the page are then
        those of the time zone that the origin of the slots was chosen for.
        """
        times = [release.start for release in self.releases] + [self.releases[-1].end]
        return day_edges(np.array(times, dtype="datetime64[us]"), self.slots)

    @property
    def absolute_error(self) -> npt.NDArray[np.int64]:
        """Distance of every released count from the true one, shape (T, bins)."""
        error: npt.NDArray[np.int64] = np.abs(self.released - self.true_counts)
        return error

    @property
    def relative_error(self) -> float:
        """Sum of absolute errors over the sum of true counts; NaN when nothing was counted."""
        return self._relative(self.released)

    @property
    def revised_relative_error(self) -> float:
        """The same of the counts as they were revised."""
        return self._relative(self.revised)

    def _relative(self, counts: npt.NDArray[np.int64]) -> float:
        total = int(self.true_counts.sum())
        return float(np.abs(counts - self.true_counts).sum()) / total if total else math.nan

    @property
    def mean_error(self) -> float:
        """Mean absolute error per bin and slot."""
        return float(self.absolute_error.mean())

    @property
    def uncounted_share(self) -> float:
        """Share of all events that do not count; NaN when there are none."""
        total = int(self.true_counts.sum())
        return 1 - int(self.counted.sum()) / total if total else math.nan

    @property
    def uncounted_error(self) -> float:
        """Mean absolute error per bin and slot that events which do not count make alone."""
        return float(np.abs(self.counted - self.true_counts).mean())

    @property
    def noise_error(self) -> float:
        """Mean absolute error per bin and slot of the release, against what counts."""
        return float(np.abs(self.released - self.counted).mean())

    def slots_with(self, status: str) -> int:
        """Count the slots with this status."""
        return sum(release.status == status for release in self.releases)

    @cached_property
    def busiest(self) -> list[int]:
        """All bins by falling true total; equal ones in their own order."""
        return [int(j) for j in np.argsort(-self.true_totals, kind="stable")]

    def full_name(self, j: int) -> str:
        """Label of a bin, with its longer name where it has one."""
        label = self.labels[j]
        return f"{label}, {self.label_names[label]}" if label in self.label_names else label

    @property
    def users(self) -> int:
        """Public number of users, over all classes."""
        return int(self.ledger[-1].users.sum()) if self.ledger else 0

    @cached_property
    def budget_use(self) -> dict[Requirement, tuple[int, npt.NDArray[np.float64]]]:
        """Users of each requirement and the share of its budget used in the window of every slot.

        Of classes that differ in a limit on presence alone, the largest share.
        """
        users: dict[Requirement, int] = {}
        shares: dict[Requirement, npt.NDArray[np.float64]] = {}
        for i, entry in enumerate(self.ledger):
            users = dict.fromkeys(entry.classes, 0)
            for k, requirement in enumerate(entry.classes):
                users[requirement] += int(entry.users[k])
                series = shares.setdefault(requirement, np.zeros(len(self.ledger)))
                series[i] = max(series[i], entry.spent_in_window[k] / requirement.epsilon)
        return {requirement: (users[requirement], shares[requirement]) for requirement in users}

    @property
    def largest_use(self) -> float:
        """Largest share of its budget that any class used in any window; 0 without a ledger."""
        return max((float(use.max()) for _, use in self.budget_use.values()), default=0.0)


def day_edges(edges: npt.NDArray[np.datetime64], slots: Slots) -> npt.NDArray[np.datetime64]:
    """Edges of slots; of slots of whole days the nearest midnights in UTC."""
    if slots.length % MICROSECONDS["d"]:
        return edges
    return (edges + np.timedelta64(12, "h")).astype("datetime64[D]").astype(edges.dtype)

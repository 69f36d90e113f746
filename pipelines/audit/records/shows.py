"""What releases of records show, many of them drawn at once, by the samplers that make them.

Totals with noise, from which all that is released follows, and which nodes or domains are chosen;
what a base mechanism draws of the domains that are kept; nodes of a running total; reports of a
device. And, a release at a time, what is published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.framework import Framework
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Noisy, Part, PerRecordRelease
from streamveil.mechanisms.per_record.randomizer import Randomizer
from streamveil.mechanisms.per_record.running import RunningTotal
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise
from streamveil.pipelines.audit.records.canaries import Canary
from streamveil.pipelines.audit.records.record_odds import Shown

TICKS, ITS_TICK = 5, 2
"""Of a running total, and the one that the canary belongs to."""


class Releases:
    """A statistic of some records, released once.

    Args:
        made: the statistic.
        canary: the record.
        values: of the others, shape (n,).
        budgets: of the others, shape (n,).
    """

    def __init__(self, made: Any, canary: Canary, values: Floats, budgets: Floats) -> None:
        self._made = made
        self._rest, one = (
            made.tally(some, asked, np.zeros(len(some), np.int64), 1)[0]
            for some, asked in (
                (values, budgets),
                (np.array([canary.value]), np.array([canary.budget])),
            )
        )
        self._all = made.add([self._rest, one])

    def _part(self, there: bool) -> Part:
        return self._all if there else self._rest

    def drawn(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """Draw a number of releases at once, with or without the canary.

        They contain noisy totals, or counts and the sample from the kept domains.
        """
        part, noise = self._part(there), source.slot(0, b"%d" % there)
        if isinstance(self._made, Framework):
            return _of_framework(self._made, part, number, noise)
        return _of_totals(self._made, part, number, noise)

    def released(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """Draw a number of releases one at a time, as they are published."""
        part, name = self._part(there), b"released %d" % there
        return _published(
            [self._made.release(part, source.slot(one, name)) for one in range(number)]
        )


class RunningReleases(Releases):
    """The running total of the same, the others' records being in every tick."""

    def drawn(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """All nodes that are drawn: see `Releases`."""
        many = _Many(self._made, number)
        self._ticks(many, there, source)
        figures = np.concatenate([one.totals for one in many.seen], axis=1)
        return Shown(figures, np.zeros(number, np.int64), np.zeros((number, 0)))

    def released(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """All ticks: see `Releases`."""
        runs = [
            self._ticks(self._made, there, NoiseSource(source.sealing_key, f"{one}"))
            for one in range(number)
        ]
        last = _published([run[-1] for run in runs])
        figures = np.array([[one.estimate for one in run] for run in runs])
        return Shown(np.concatenate([figures, last.figures], axis=1), last.choice, last.chosen)

    def _ticks(self, made: Any, there: bool, source: NoiseSource) -> list[PerRecordRelease]:
        total = RunningTotal(made, context=b"audit %d" % there)
        state, releases = total.start(), []
        for tick in range(1, TICKS + 1):
            part = self._part(there and tick == ITS_TICK)
            state, release = total.tick(state, part, source)
            releases.append(release)
        return releases


class Reports:
    """A device that reports of one record, or of none: the dummy.

    Args:
        made: the statistic.
        canary: the record.
    """

    def __init__(self, made: NodeTotals, canary: Canary) -> None:
        self._randomizer, self._canary = Randomizer(made), canary

    def drawn(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """Reports: see `Releases`."""
        values = np.full(number, self._canary.value if there else np.nan)
        budgets = np.full(number, self._canary.budget)
        words = source.slot(0, b"%d" % there).words("reports")
        reports = np.concatenate(list(self._randomizer.reports(values, budgets, words)))
        return Shown(reports.astype(np.float64), np.zeros(number, np.int64), np.zeros((number, 0)))

    def released(self, there: bool, number: int, source: NoiseSource) -> Shown:
        """A report is all there is."""
        return self.drawn(there, number, source)


Showing: TypeAlias = Releases | Reports
"""A canary in one of the two neighbouring inputs."""


class _Many:
    """A statistic whose totals are drawn many times at once, which remembers them."""

    def __init__(self, made: Any, number: int) -> None:
        self._made, self._number = made, number
        self.name, self.bounds, self.add, self.identity = (
            *(made.name, made.bounds),
            *(made.add, made.identity),
        )
        self.tally: Callable[..., Any] = made.tally
        self.release: Callable[..., Any] = made.release
        self.seen: list[Noisy] = []

    def noisy(self, part: Part, noise: SlotNoise, shares: int = 1) -> Noisy:
        """As `Additive.noisy`, shape (runs, nodes)."""
        found: Noisy = self._made.nodes.noisy(part, noise.words("audit"), shares, self._number)
        self.seen.append(found)
        return found

    def estimate(self, noisy: Noisy) -> PerRecordRelease:
        """What is published is not looked at here."""
        return PerRecordRelease(0.0, 0.0, 0.0, 0.0)


def _of_totals(made: NodeTotals, part: Part, number: int, noise: SlotNoise) -> Shown:
    noisy = made.nodes.noisy(part, noise.words("totals by node"), runs=number)
    return Shown(noisy.totals, np.asarray(made.select(noisy)), np.zeros((number, 0)))


def _of_framework(made: Framework, part: Part, number: int, noise: SlotNoise) -> Shown:
    counts = made.noisy_counts(part, noise.words("domains"), number)
    first = made.first(counts)
    drawn, words = np.zeros((number, 2)), noise.words("base")
    for domain in np.unique(first).tolist():
        here = first == domain
        found = made.base.draw(part, made.kept(domain), words, int(here.sum()))  # type: ignore[attr-defined]
        drawn[here] = np.broadcast_to(np.atleast_2d(found), (2, int(here.sum()))).T
    return Shown(counts, first, drawn)


def _published(releases: list[PerRecordRelease]) -> Shown:
    rows = np.array([(one.estimate, one.dropped_bound, one.stderr) for one in releases])
    choices = np.array([one.epsilon_tau for one in releases])
    known = np.nan_to_num(rows, nan=0.0)
    # Choices by name, which stays: their budgets' own bits.
    return Shown(np.zeros((len(releases), 0)), choices.view(np.int64), known)

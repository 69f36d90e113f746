"""The audit of single records: what releases tell of one, beside the budget that it has.

In memory::

    budget = Inverse(10.0, 100.0, 5.0)
    records, canaries = Records("sum", budget.bounds, budget), of_values(budget, budget.bounds)
    findings = audited_records(records, canaries, extent=Extent(runs=8))

A record is there or not, by a fair coin in every release, and whoever knows all other records
guesses which. It stands alone, or beside others of about its budget, so many that a mechanism keeps
them, or as many as leave it in doubt (`statistics.py`); or beside records of the user's own. How
guesses are made is learnt from some releases (`record_odds.py`), which of them count is chosen by
others, and neither is counted. Charges are added up exactly, of records over the whole range of
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Bounds
from streamveil.mechanisms.randomness.noise import NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULTS, statistic
from streamveil.pipelines.audit.audits import Audit, Part, World
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.findings import BUDGET, About, Findings
from streamveil.pipelines.audit.guesses import ANY_LOSS, OF, Guesses, joined
from streamveil.pipelines.audit.records.canaries import Canary
from streamveil.pipelines.audit.records.record_odds import RecordOdds, Shown
from streamveil.pipelines.audit.records.shows import Releases, Reports, RunningReleases, Showing
from streamveil.pipelines.audit.records.statistics import dearest, in_doubt
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by

# Releases of a canary in a run and a world: drawn at once, and made one at a time; and the same
# where each takes long. So many times as many are learnt from.
DRAWN, RELEASED = 6000, 250
DRAWN_OF_MAX, DRAWN_OF_RUNNING, RELEASED_SLOWLY = 300, 2000, 80
_LEARNT = 4
# Others about a canary that surely show: so many noise scales of its domain, at most so many.
_HEAVY, _MOST_OTHERS = 80.0, 20_000
# The values of others are below that of the canary by this part of it, at most.
_NEAR = 1 / 64

# Records whose charges are added up: so many values down to so small a part of the largest one.
_PRICED, _LEAST = 1000, 2.0**-50

NOISE, RELEASE = "noise", "releases"
"""What canaries meet: all that is drawn, many releases at once; or what is published."""
ALONE, AMONG, DOUBT, OWN = "alone", "among others", "in doubt", "beside own records"
"""Worlds: who else is there."""
_BOTH = (True, False)

ABOUT = About(
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


@dataclass(frozen=True)
class Records:
    """What is released: a statistic of records."""

    kind: str
    """A key of `PER_RECORD_MECHANISMS`."""
    bounds: Bounds
    function: Callable[[Floats], Floats] | None = None
    """Budgets of values, where they are a function of these: shared already."""
    mechanism: str | None = None
    running: bool = False
    """Whether the running total is released, tick by tick."""
    devices: bool = False
    """Whether every record is a device's own, which reports of it."""

    @property
    def name(self) -> str:
        """Of mechanism and statistic."""
        kind = f"running {self.kind}" if self.running else self.kind
        what = f"{self.mechanism or DEFAULTS[self.kind]}, a {kind} of records"
        return f"{what} on devices" if self.devices else what


def audited_records(
    records: Records,
    canaries: Sequence[Canary],
    *,
    own: tuple[Floats, Floats] | None = None,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a statistic under per-record privacy.

    Args:
        records: what is released.
        canaries: records to add.
        own: values and budgets of the user's own records, beside which canaries are put, shape (n,)
            each; worst cases without.
        extent: how long the audit goes on, in rounds of one run, of many releases.

    Raises ConfigurationError for a statistic that cannot be, or no canary.
    """
    if not canaries:
        raise ConfigurationError(
            "there is no record to audit: none has a value and a budget within the bounds"
        )
    return found_by(RecordsAudit(records, canaries, own, extent.seed), extent)


class RecordsAudit(Audit):
    """Of releases with each record and without: see :class:`Audit`; classes are records."""

    about = ABOUT
    limits = ANY_LOSS

    def __init__(
        self,
        records: Records,
        canaries: Sequence[Canary],
        own: tuple[Floats, Floats] | None,
        seed: int,
    ) -> None:
        self._records, self._canaries, self._own = records, canaries, own
        parts = (NOISE,) if records.devices else (NOISE, RELEASE)
        numbers = range(len(canaries))
        worlds = {(i, part): (Part(part, BUDGET),) for i in numbers for part in parts}
        super().__init__(records.name, seed, worlds)
        self.own = own is not None
        self._made: Any = statistic(
            records.kind, records.mechanism, records.bounds, budget=records.function
        )
        if records.devices and not isinstance(self._made, NodeTotals):
            raise ConfigurationError(
                f"devices report a count or a sum of records, with hat or prdp, and not "
                f"{records.name}"
            )
        self.overspent = dearest(self._made, *self._priced())
        self._showing = {
            (i, world): made
            for i, canary in enumerate(canaries)
            for world, made in self._worlds(canary)
        }
        self._odds: dict[tuple[int, str, str], RecordOdds] = {}

    def requirement(self, k: int) -> Requirement:
        """See :class:`Audit`."""
        return Requirement(1, self._canaries[k].budget)

    def subject(self, k: int) -> str:
        """See :class:`Audit`."""
        return self._canaries[k].name

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """See :class:`Audit`: all of it is one run."""
        super().round(number, done)
        self.runs += 1

    def guessed(self, world: World, number: int) -> tuple[Guesses, ...]:
        """See :class:`Audit`: the first run of every `OF` is learnt from."""
        i, part = world
        beside = [other for one, other in self._showing if one == i]
        return (joined([self._guessed(i, part, other, number) for other in beside]),)

    def _guessed(self, i: int, part: str, world: str, number: int) -> Guesses:
        """Guesses about a canary in a world; none in a run that is learnt from."""
        random = np.random.default_rng([self.seed, number, i])
        name = f"{self.seed} {number} {i} {part} {world}".encode()
        source = NoiseSource(digest(b"audit of records", name))
        most = self._number(part)
        odds = self._odds.setdefault((i, part, world), RecordOdds())
        if number % OF == 0:
            most *= _LEARNT
            odds.learn(*(self._shown(i, part, world, there, most, source) for there in _BOTH))
            return _of(np.zeros(0), np.zeros(0, np.bool_), 0.0)
        # As many with it as fair coins would have: in which order they are made tells nothing.
        heads = int(random.binomial(most, 0.5))
        scores = [
            odds.scores(self._shown(i, part, world, there, size, source)) if size else np.zeros(0)
            for there, size in zip(_BOTH, (heads, most - heads), strict=True)
        ]
        coins = np.repeat(_BOTH, [one.size for one in scores])
        return _of(np.concatenate(scores), coins, self._canaries[i].budget)

    def _number(self, part: str) -> int:
        slow = self._records.kind == "max" or self._records.running
        if part == RELEASE:
            return RELEASED_SLOWLY if slow else RELEASED
        if self._records.running:
            return DRAWN_OF_RUNNING
        return DRAWN_OF_MAX if slow else DRAWN

    def _shown(
        self, i: int, part: str, world: str, there: bool, number: int, source: NoiseSource
    ) -> Shown:
        check_clock()
        made = self._showing[i, world]
        self.slots += number
        return (made.drawn if part == NOISE else made.released)(there, number, source)

    def _worlds(self, canary: Canary) -> Iterator[tuple[str, Showing]]:
        """Who else is there, and what is shown then."""
        if self._records.devices:
            yield ALONE, Reports(self._made, canary)
            return
        kind = RunningReleases if self._records.running else Releases
        if self._own is not None:
            yield OWN, kind(self._made, canary, *self._own)
            return
        yield ALONE, kind(self._made, canary, *self._others(canary, 0))
        enough = min(math.ceil(_HEAVY + _HEAVY / canary.budget), _MOST_OTHERS)
        yield AMONG, kind(self._made, canary, *self._others(canary, enough))
        if not self._records.running:
            doubtful = in_doubt(self._made, canary, lambda number: self._others(canary, number))
            if doubtful is not None:
                yield DOUBT, kind(self._made, canary, *doubtful)

    def _others(self, canary: Canary, number: int) -> tuple[Floats, Floats]:
        """So many of about the same value."""
        values = canary.value * (1 - _NEAR * np.arange(1, number + 1) / max(number, 1))
        if self._records.function is not None:
            return values, self._records.function(values)
        return values, np.full(number, canary.budget)

    def _priced(self) -> tuple[Floats, Floats]:
        """Records whose charges are added up: over all values, and next to those of canaries."""
        top = self._records.bounds.value_max
        near = np.array([one.value for one in self._canaries])
        values = np.concatenate(
            [
                *([0.0, top], np.geomspace(top * _LEAST, top, _PRICED)),
                *(near, np.nextafter(near, 0), np.minimum(np.nextafter(near, np.inf), top)),
            ]
        )
        if self._records.function is not None:
            return values, self._records.function(values)
        budgets = np.array([one.budget for one in self._canaries])
        return np.tile(values, budgets.size), np.repeat(budgets, values.size)


def _of(scores: Floats, there: npt.NDArray[np.bool_], budget: float) -> Guesses:
    return Guesses.of(scores, there, np.full(scores.size, budget))

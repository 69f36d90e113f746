"""Mechanisms with a budget for any window side by side: those that see counts, and local ones.

Cases are a stream, the strictest budget E and the longest window w.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import (
    PUBLISHED,
    ConfigurationError,
    Requirement,
    Revised,
    check_shares,
)
from streamveil.mechanisms.core.tidy import interval
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.registry import (
    LOCAL_MECHANISMS,
    MECHANISMS,
    can_revise,
    is_comparator,
    local_mechanism,
    mechanism,
    parse,
)
from streamveil.pipelines.evaluation import choose
from streamveil.pipelines.evaluation.comparison_table import (
    Case,
    Column,
    ComparisonTable,
    Family,
    Measure,
    Run,
    Task,
    noise_key,
)
from streamveil.pipelines.evaluation.drivers import (
    Lane,
    Local,
    drive,
    is_local,
    local_users,
)
from streamveil.pipelines.evaluation.sources import Source
from streamveil.pipelines.evaluation.window_use import fullest

BEST, TIED, BETTER_COMPARATOR = "choose", "tie", "less error, comparator"
REFUSED, LOW = "not advised: low coverage", ", low coverage"


class WEvent(Family):
    """A case is a stream with E and w; of mechanisms that may be advised, the least AMRE is."""

    revise = 0
    """How many slots later a slot is revised; 0 for never."""
    columns = (
        Column("stream", str, "stream"),
        Column(
            "epsilon", float, "epsilon", "epsilon {:g}", axis="smallest budget of a user, epsilon"
        ),
        Column("window", int, "w", "w {:,}", axis="longest window of a user w, slots"),
        Column("mechanism", str, "mechanism"),
        *(Column("users", int), Column("slots", int), Column("bins", int), Column("seeds", int)),
        Column("advice", str, "advice"),
    )
    measures: tuple[Measure, ...] = (
        Measure("amre", "AMRE", "mean squared error of a count, per bin and slot", "events²"),
        Measure(
            "bounding", "of bounding", "the part of AMRE from contribution bounding", "events²"
        ),
        Measure("noise", "of noise", "the part of AMRE from the mechanism", "events²"),
        Measure("amse", "AMSE", "AMRE of shares of all users: AMRE / users squared", "share²"),
        Measure("relative_error", "relative error", "sum of absolute errors / sum of true counts"),
        Measure(
            "ajsd",
            "AJSD",
            "mean Jensen-Shannon divergence of the shares of the bins, 0 to ln 2",
            "nats",
        ),
        Measure("published", "published", "share of the slots with a fresh publication"),
        Measure(
            "window_use", "window use", "largest share of a budget spent in a window: at most 1"
        ),
        Measure("coverage", "coverage", "share of true counts within released ± 1.645 stderr"),
        Measure("coverage_above_0", "coverage above 0", "the same for true counts above 0"),
        Measure("seconds", "seconds", "CPU seconds that the mechanism took", "CPU"),
    )
    log: tuple[str, ...] = ("amre", "amse", "relative_error", "ajsd", "seconds")
    wide = ("amre",)
    coverages: tuple[str, ...] = ("coverage",)
    coverages_of_parts = ("coverage_above_0",)
    limits = {
        "window_use": 1.0,
        **dict.fromkeys((*coverages, *coverages_of_parts), choose.NOMINAL_COVERAGE),
    }
    title = "Mechanisms compared"
    template = "w_event.html.jinja"

    def check(self, source: Source, setting: tuple[Any, ...], mechanisms: Sequence[str]) -> None:
        """Raise ConfigurationError for an unknown mechanism or option, or E or w out of range."""
        epsilon, window = setting
        try:
            public = source.population(epsilon, window)
            WindowFilter(public.requirements)
            check_shares(public.requirements, public.sensitivity)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"stream {source.name} with epsilon {epsilon:g} and w={window}: {error}"
            ) from None
        for name in mechanisms:
            parse(name, {**LOCAL_MECHANISMS, **MECHANISMS})  # a wrong name lists all of them
            if is_local(name):
                local_mechanism(name, local_users(public))
            else:
                mechanism(name, public)

    def run(self, task: Task) -> list[Run]:
        """Do a task: a run of each mechanism. Raises BudgetExceeded when a filter refuses."""
        source, key = task.source, noise_key(task.seed)
        public = source.population(*task.setting)
        users = int(public.sizes.sum())
        drivers = [
            Local(name, public, key, self._lag(name))
            if is_local(name)
            else RunningStream(mechanism(name, public, revise=self._lag(name)), key)
            for name in task.mechanisms
        ]
        meters = [WindowMeter(public.requirements, users) for _ in drivers]
        lanes = [Lane(*one) for one in zip(drivers, meters, strict=True)]
        slots = drive(source.slots_of(*task.setting, task.seed), lanes)
        case = dict(zip(("stream", "epsilon", "window"), (source.name, *task.setting), strict=True))
        sizes = {"users": users, "slots": slots, "bins": public.bins}
        runs = []
        for name, driver, meter, lane in zip(task.mechanisms, drivers, meters, lanes, strict=True):
            figures = {**meter.figures(), "seconds": lane.seconds}
            if self.revise:
                meter.revise(driver.rest())
                figures |= meter.revised_figures()
            if isinstance(driver, Local):  # users of a class spend at different times
                figures["window_use"] = driver.window_use
            runs.append(Run({**case, "mechanism": name, **sizes}, task.seed, figures))
        return runs

    def _lag(self, name: str) -> int:
        return self.revise if can_revise(name) else 0

    def remarks(self, runs: Sequence[Run]) -> Mapping[tuple[Case, str], str]:
        """Which mechanism to choose in a case, which is tied with it, which only errs less."""
        found = {}
        for case, choice in choose.choices(self, runs).items():
            for name in choice.better_comparators:
                found[case, name] = BETTER_COMPARATOR
            for name in choice.refused:
                found[case, name] = REFUSED
            for name in choice.advised:
                found[case, name] = TIED if choice.tied else BEST
                if name in choice.low and not choice.low[name].of_part:
                    found[case, name] += LOW
        return found

    def advice(self, comparison: ComparisonTable) -> list[str]:
        """Which mechanism to choose in each case and overall."""
        return choose.advice(self, comparison.runs)

    def findings(self, comparison: ComparisonTable) -> Mapping[str, Any]:
        """What to choose, and whether every budget was kept."""
        runs, labels = comparison.runs, comparison.labels
        cases = choose.choices(self, runs)
        overall = choose.overall_choice(self, runs)
        return {
            "choices": [(labels[case], one, choose.next_best(one)) for case, one in cases.items()],
            "overall": overall,
            "overall_next": choose.next_best(overall),
            "nominal": choose.NOMINAL_COVERAGE,
            "coverage_text": choose.coverage_text,
            "requirements": {case[1:] for case in cases},
            "comparators": list(
                dict.fromkeys(r.mechanism for r in runs if is_comparator(r.mechanism))
            ),
            "caveats": choose.caveats(runs),
            "largest_use": max(run.figures["window_use"] for run in runs),
        }


class RevisedWEvent(WEvent):
    """The same with the figures of revisions, of mechanisms that can revise."""

    measures = (
        *WEvent.measures,
        Measure(
            "revised", "revised AMRE", "AMRE of the counts as they were revised later", "events²"
        ),
        Measure("revised_coverage", "revised coverage", "coverage of revised counts"),
    )
    log = (*WEvent.log, "revised")
    coverages = (*WEvent.coverages, "revised_coverage")
    limits = {**WEvent.limits, "revised_coverage": choose.NOMINAL_COVERAGE}

    def __init__(self, revise: int) -> None:
        self.revise = revise


class WindowMeter:
    """Adds up the figures of one run slot by slot: memory for what was spent, not for counts."""

    def __init__(self, requirements: Sequence[Requirement], users: int) -> None:
        """Of a population of so many users, classes with these requirements."""
        self._requirements = Requirements.of(requirements)
        self._users = users
        self._spent: list[Integers] = []
        self._squares = self._bounding = self._noise = 0.0
        self._distance = self._divergence = 0.0
        self._true = self._published = self._cells = 0
        self._released, self._present, self._revised = Coverage(), Coverage(), Coverage()
        self._again = 0.0
        self._awaited: deque[Integers] = deque()

    def add(self, true: Integers, counted: Integers, release: SlotRelease) -> None:
        """Add the next slot: see :class:`drivers.Meter`."""
        error = (release.counts - true).astype(np.float64)
        self._squares += _square(release.counts - true)
        self._bounding += _square(counted - true)
        self._noise += _square(release.counts - counted)
        self._distance += float(np.abs(error).sum())
        self._true += int(true.sum())
        self._divergence += divergence(true, release.counts)
        self._published += release.status == PUBLISHED
        self._cells += true.size
        self._released.add(true, release.counts, release.stderr)
        some = true > 0
        self._present.add(true[some], release.counts[some], release.stderr[some])
        self._spent.append(release.spent)
        self._awaited.append(true)
        self.revise(release.revisions)

    def revise(self, revised: Sequence[Revised]) -> None:
        """Add revisions, of the slots in their order."""
        for one in revised:
            true = self._awaited.popleft()
            self._again += _square(one.counts - true)
            self._revised.add(true, one.counts, one.stderr)

    def figures(self) -> dict[str, float]:
        """All measures but the seconds, of all slots so far, one or more.

        `bounding` is between every event and those that count, `noise` between those and the
        release, all others against every event. NaN are a relative error when nothing was counted,
        and a coverage when no release (of a count above 0) had a finite standard error.
        """
        slots = len(self._spent)
        return {
            "amre": self._squares / self._cells,
            "bounding": self._bounding / self._cells,
            "noise": self._noise / self._cells,
            "amse": self._squares / self._cells / self._users**2,
            "relative_error": self._distance / self._true if self._true else math.nan,
            "ajsd": self._divergence / slots,
            "published": self._published / slots,
            "window_use": fullest(self._requirements, [(1, np.stack(self._spent))]),
            "coverage": self._released.share,
            "coverage_above_0": self._present.share,
        }

    def revised_figures(self) -> dict[str, float]:
        """Those of revisions, NaN if there were none."""
        cells = self._revised.cells
        return {
            "revised": self._again / cells if cells else math.nan,
            "revised_coverage": self._revised.share,
        }


class Coverage:
    """Adds up how many true counts lie in their intervals."""

    def __init__(self) -> None:
        self.cells = self._known = self._covered = 0

    def add(self, true: Integers, counts: Integers, stderr: npt.NDArray[np.float64]) -> None:
        """Add the reported counts of a slot, each of shape (d,)."""
        low, high = interval(counts, stderr)
        known = np.isfinite(low)
        within = (low <= true) & (true <= high)  # false for NaN
        self.cells += true.size
        self._known += int(known.sum())
        self._covered += int((within & known).sum())

    @property
    def share(self) -> float:
        """Of those with a finite standard error; NaN if there are none."""
        return self._covered / self._known if self._known else math.nan


def _square(difference: Integers) -> float:
    wide = difference.astype(np.float64)
    return float(wide @ wide)


def divergence(true: Integers, released: Integers) -> float:
    """Jensen-Shannon divergence between two histograms as distributions, in nats: 0 to ln 2.

    Released counts below 0 are taken as 0. A histogram without any count is no distribution: two
    such agree (0), one of them and any other differ as much as can be (ln 2).
    """
    positive = np.maximum(released, 0)
    totals = int(true.sum()), int(positive.sum())
    if not all(totals):
        return 0.0 if not any(totals) else math.log(2)
    p, q = true / totals[0], positive / totals[1]
    middle = (p + q) / 2
    # A share of 0 adds nothing; its middle is above 0 wherever the other's share is.
    each = [float((a[a > 0] * np.log(a[a > 0] / middle[a > 0])).sum()) for a in (p, q)]
    return max(sum(each) / 2, 0.0)

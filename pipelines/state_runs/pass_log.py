"""What became of the events in the passes of a run, for people and tools."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamveil.engine import metrics
from streamveil.engine.encode.passes import Pass
from streamveil.io import UNREADABLE
from streamveil.mechanisms.core.local_days import time_text
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import format_time
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.outputs.outputs import Outputs
from streamveil.pipelines.reports.summary import Summary

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan

# A run that never ends must not grow.
_PASSES_LISTED = 1_000
# A warning is repeated once its fraction of events has changed by more percentage points than this.
_MUCH = 10
_PER_CENT = re.compile(r"(\d+)%")


@dataclass
class PassLog:
    """What became of the events in the passes of a run."""

    total: Summary = dataclasses.field(default_factory=Summary)
    last: deque[tuple[Pass, Summary]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_PASSES_LISTED)
    )
    users_reported: bool = False
    """Whether it was said that releases contradict the guess of how many users there are."""

    _percentages: dict[str, int] = dataclasses.field(default_factory=dict)
    """The percentage in the last warning of each kind."""

    def add(self, due: Pass, summary: Summary) -> None:
        """Take one more pass."""
        self.total = Summary.total([self.total, summary])
        self.last.append((due, summary))

    def tell(
        self,
        due: Pass,
        summary: Summary,
        plan: UserPlan,
        outputs: Outputs,
        written: Sequence[str],
        dead_letters: str | None = None,
    ) -> None:
        """Say what became of the events of a pass, and to which places its results are written."""
        slots = plan.slots
        waiting = summary.counters.get(metrics.EVENTS_WAITING, 0)
        tell(
            f"{time_text(slots.start(due.first_slot), slots)} to "
            f"{time_text(slots.end(due.last_slot), slots)}: "
            f"{outputs.released(due.last_slot - due.first_slot + 1, summary)}"
            f"{f'; {waiting:,} wait for a later slot' if waiting else ''}; wrote "
            f"{', '.join(written)}"
        )
        rejected = summary.rejected_text(dead_letters)
        if rejected:
            tell(f"rejected: {rejected}")
        counted = summary.counters
        if counted.get(metrics.CHANGES_READ):
            refused = sum(
                number
                for name, number in counted.items()
                if name.startswith(metrics.CHANGES_REJECTED_PREFIX)
            )
            tell(
                f"changes of requirements: {counted.get(metrics.CHANGES_ACCEPTED, 0):,} accepted, "
                f"{refused:,} rejected, {counted.get(metrics.CHANGES_LATE, 0):,} late, which hold "
                f"from {time_text(slots.start(due.first_slot), slots)} on"
            )
        limits = summary.limits_text()
        if limits:
            tell(limits)
        unreadable = summary.rejected.get(UNREADABLE, 0)
        if unreadable:
            tell(
                f"warning: {number_of(unreadable, 'file')} could not be read, or not completely: "
                f"the dead letters ({opt.rejected}) say which and why; once corrected, give each "
                "a new name",
                logging.WARNING,
            )
        users = None if self.users_reported else summary.users_text()
        self.users_reported |= users is not None
        lost, of_plan = summary.loss(plan.max_rejected), summary.for_plan(plan)
        rejected = None if lost else of_plan.rejected_warning(dead_letters)
        found = [rejected, *of_plan.warnings()] if summary.read else []
        fresh = [warning for warning in found if warning and self._is_new(warning)]
        for warning in (lost, *fresh, users):
            if warning:
                tell(f"warning: {warning}", logging.WARNING)

    def _is_new(self, warning: str) -> bool:
        """Whether this warning is new, or its percentage has changed much since it was printed."""
        match = _PER_CENT.search(warning)
        if match is None:
            return True
        wording, percentage = _PER_CENT.sub("%", warning), int(match[1])
        before = self._percentages.get(wording)
        if before is not None and abs(percentage - before) <= _MUCH:
            return False
        self._percentages[wording] = percentage
        return True

    def figures(self, plan: UserPlan) -> dict[str, Any]:
        """What `--summary` tells: of all passes, and of each of the last ones."""
        slots = plan.slots
        each = [
            {
                "start": format_time(slots.start(due.first_slot)),
                "end": format_time(slots.end(due.last_slot)),
                **summary.for_plan(plan).figures(),
            }
            for due, summary in self.last
        ]
        scope = f"the passes of this run, without those of earlier runs with the same {opt.state}"
        return {"scope": scope, **self.total.for_plan(plan).figures(), "passes": each}

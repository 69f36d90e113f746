"""When the slots of a stream with a kept state are released, from the options of a command."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from streamveil.pipelines.monitoring.metrics_export import Exports
from streamveil.pipelines.options.declarations import SLOTS_PER_PASS
from streamveil.pipelines.options.parsers import CLOCK, duration_of, page_address_of
from streamveil.pipelines.state_runs.clocks import Clock
from streamveil.pipelines.state_runs.close_by import CloseBy
from streamveil.pipelines.state_runs.input_files import STOP


@dataclass(frozen=True)
class Following:
    """When slots are released, and where the state is."""

    state: str
    resume: bool
    restart: int | None
    """Which grant of a budget forever, beyond the first, comes before the next pass."""
    interval: int | None
    """Microseconds from one look to the next, at most; None for one pass."""
    lateness: int
    """Microseconds from the end of a slot until it closes."""
    clock: Clock
    close_by: CloseBy
    """What closes a slot whose time is over."""
    exports: Exports
    """Where figures of the stream go."""
    missing: str = STOP
    """What happens when input is missing: see :class:`Incoming`."""
    most_slots: int = SLOTS_PER_PASS
    """That one pass releases."""
    serve: tuple[str, int] | None = None
    """Address and port of the page for operators; None for no page."""

    @classmethod
    def of(cls, given: Any) -> Following:
        """Read the options of the job and of those with --state; raises ConfigurationError."""
        return cls(
            given.state,
            given.resume,
            given.restart_budget,
            None if given.follow is None else duration_of("follow", given.follow, least=1),
            duration_of("allowed_lateness", given.allowed_lateness),
            Clock(given.clock_file),
            CloseBy.of(given.close_by or CLOCK),
            Exports.of(given),
            given.missing_input or STOP,
            SLOTS_PER_PASS if given.slots_per_pass is None else given.slots_per_pass,
            page_address_of(given),
        )

    @property
    def unrestarted(self) -> Following:
        """The same after the budget was granted once more."""
        return dataclasses.replace(self, restart=None)

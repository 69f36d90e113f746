"""What all steps of a per-record release agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from streamveil.mechanisms.noise import NoiseSource, digest
from streamveil.mechanisms.per_record.protocol import Additive, Bounds, PerRecordRelease, Statistic
from streamveil.mechanisms.per_record.registry import statistic
from streamveil.mechanisms.per_record.running import RunningTotal
from streamveil.mechanisms.records import PerRecordRow
from streamveil.transforms.per_record.drivers import (
    KeyDriver,
    Panes,
    Running,
    TotalsOfPanes,
    Windows,
)
from streamveil.transforms.per_record.mapper import Source

COUNT, SUM, MAX, DISTINCT = "count", "sum", "max", "distinct"


@dataclass(frozen=True)
class Plan:
    """What is released of which records, and how: public, but for the key."""

    kind: str
    """Of statistic, as the registry has it."""
    mechanism: str
    bounds: Bounds
    """Of what the statistic is told: budgets are shared already."""
    source: Source
    noise_key: Callable[[], bytes] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More for the statistic."""
    sliding: int = 1
    """Panes of a window."""
    running: bool = False
    """Whether a window is all panes so far."""

    def statistic(self) -> Statistic:
        """Make the statistic. Raises ConfigurationError."""
        return statistic(self.kind, self.mechanism, self.bounds, **self.facts)

    @cached_property
    def context(self) -> bytes:
        """Digest of all that shapes what is released: what is released otherwise has other noise.

        A plan's text is the same in every process.
        """
        return digest(repr(self).encode())

    def make(self) -> Drivers:
        """What drives the release of each key, on a worker. Raises ConfigurationError."""
        return Drivers(self, self.statistic(), self.noise_key())

    def row(self, key: str | None, pane: int, found: PerRecordRelease) -> PerRecordRow:
        """What is published of the window that ends with a pane."""
        slots, start, end = self.source.slots, None, None
        if slots is not None:
            first = self.source.first_slot if self.running else pane - self.sliding + 1
            assert first is not None
            start, end = slots.start(first), slots.end(pane)
        name = f"running_{self.kind}" if self.running else self.kind
        return PerRecordRow(key, start, end, name, self.mechanism, **vars(found))


@dataclass(frozen=True)
class Drivers:
    """What drives the release of each key."""

    plan: Plan
    statistic: Statistic
    noise_key: bytes = field(repr=False)

    def of(self, position: int) -> KeyDriver[Any]:
        """That of the key at a position."""
        plan = self.plan
        key = plan.source.names[position]
        noise = NoiseSource(self.noise_key, f"per record {plan.context.hex()} {key!r}")
        return KeyDriver(key, self._windows(noise))

    def _windows(self, noise: NoiseSource) -> Windows[Any]:
        plan, statistic = self.plan, self.statistic
        if plan.running:
            additive = cast(Additive, statistic)
            return Running(RunningTotal(additive, context=plan.context), noise)
        if plan.sliding > 1 and plan.kind != MAX:
            return TotalsOfPanes(cast(Additive, statistic), noise, plan.sliding)
        return Panes(statistic, noise, plan.sliding)

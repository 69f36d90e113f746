"""What all steps of a per-record release agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamveil.mechanisms.noise import NoiseSource
from streamveil.mechanisms.per_record.protocol import Bounds, PerRecordRelease, Statistic
from streamveil.mechanisms.per_record.registry import statistic
from streamveil.mechanisms.records import PerRecordRow
from streamveil.transforms.per_record.drivers import Fixed, KeyDriver, SlidingMax, SlidingTotal
from streamveil.transforms.per_record.mapper import Source

MAX = "max"


@dataclass(frozen=True)
class Plan:
    """What is released of which records, and how: public, but for the key."""

    name: str
    """Of what is released, for rows."""
    kind: str
    """Of statistic, for the registry."""
    mechanism: str | None
    bounds: Bounds
    """Of what the statistic is told: budgets are shared already."""
    source: Source
    noise_key: Callable[[], bytes] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """More for the statistic."""
    sliding: int = 1
    """Panes of a window."""

    def statistic(self) -> Statistic:
        """Make the statistic. Raises ConfigurationError."""
        return statistic(self.kind, self.mechanism, self.bounds, **self.facts)

    def driver(self, position: int, made: Statistic) -> KeyDriver[Any]:
        """What releases the panes of the key at a position."""
        windows: Any = Fixed(made)
        if self.sliding > 1:
            windows = (SlidingMax if self.kind == MAX else SlidingTotal)(made, self.sliding)
        # A plan's text is the same in every process: what is released of other records, or
        # otherwise, has independent noise, even where the totals are the same.
        noise = NoiseSource(self.noise_key(), f"per record {self!r}")
        return KeyDriver(self.source.names[position], windows, noise)

    def row(self, key: str | None, pane: int, mechanism: str, found: PerRecordRelease) -> PerRecordRow:
        """What is published of the window that ends with a pane."""
        slots = self.source.slots
        start = end = None
        if slots is not None:
            start, end = slots.start(pane - self.sliding + 1), slots.end(pane)
        return PerRecordRow(key, start, end, self.name, mechanism, **vars(found))

"""Batches of records to parts: what the records of each pane and key of a batch come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamveil.engine.encode.dead_letters import naming_source
from streamveil.engine.per_record.budgets import Budget
from streamveil.engine.per_record.record_columns import (
    NO_TIME,
    NOWHERE,
    micros_of,
    numbers_of,
    positions_of,
)
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.per_record.budget_functions import divided
from streamveil.mechanisms.per_record.protocol import Part, Statistic

# Up to here a table of all codes is faster than sorting those that there are.
_TABLE = 1 << 20

PaneKey = tuple[int, int]
"""(position of the key, pane)"""


@dataclass(frozen=True)
class Source(Identified):
    """Which records go where: public.

    A pane is a slot of the record's own time; there is one, 0, where there are no slots. Budgets
    and slots are parts of a plan by themselves.
    """

    IDENTITY = Form(
        "records",
        (
            "value",
            "share",
            "key",
            "keys",
            "time",
            "time_zone",
            "time_unit",
            "first_slot",
            "last_slot",
        ),
        later={"time_format": None},
        apart=("budget", "slots"),
    )

    budget: Budget
    value: str | None
    """Column of values; None where presence alone counts."""
    share: int = 1
    """Records of one user at most, which share the budget of each."""
    key: str | None = None
    keys: tuple[str, ...] = ()
    """The public keys; records of others count nowhere."""
    time: str = ""
    """Column of times, where there are slots."""
    time_zone: str = "UTC"
    time_unit: str | None = None
    slots: Slots | None = None
    first_slot: int | None = None
    last_slot: int | None = None
    time_format: str | None = None

    @property
    def number(self) -> int:
        """How many keys there are; without a column of them, there is one without a name."""
        return 1 if self.key is None else len(self.keys)

    def name(self, position: int) -> str | None:
        """The key at a position, None for the one without a name."""
        return None if self.key is None else self.keys[position]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        some = (*self.budget.columns, self.value, self.key, self.time)
        return tuple(dict.fromkeys(name for name in some if name))

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column or one of a type that cannot be read."""
        with naming_source(batch):
            self._read(batch)

    def _read(self, batch: pa.RecordBatch) -> tuple[Floats, Floats, Integers, Integers]:
        """Budgets, values, positions of keys and microseconds; 0 where none are asked for."""
        budgets = divided(self.budget.budgets(batch), self.share)
        values = np.zeros(len(budgets))
        if self.value is not None:
            values = numbers_of(batch, self.value)
        keys = micros = np.zeros(len(budgets), np.int64)
        if self.key is not None:
            keys = positions_of(batch, self.key, self.keys)
        if self.slots is not None:
            micros = micros_of(batch, self.time, self.time_zone, self.time_unit, self.time_format)
        return budgets, values, keys, micros

    def parts(
        self, batch: pa.RecordBatch, statistic: Statistic, latest: int | None = None
    ) -> Iterator[tuple[PaneKey, Part]]:
        """The part of every pane and key of which the batch has a record that counts.

        Records that are bad, of no key, or of panes outside the range or after `latest` leave no
        trace. Raises ConfigurationError for a missing column or one of a type that cannot be read.
        """
        with naming_source(batch):
            budgets, values, keys, micros = self._read(batch)
        good = statistic.bounds.usable(values, budgets) & (keys != NOWHERE) & (micros != NO_TIME)
        panes = np.zeros(len(budgets), np.int64)
        if self.slots is not None:
            panes = self.slots.indices(micros)
            for bound, inside in (
                (self.first_slot, np.greater_equal),
                (self.last_slot, np.less_equal),
                (latest, np.less_equal),
            ):
                if bound is not None:
                    good &= inside(panes, bound)
        if not good.all():
            values, budgets = values[good], budgets[good]
            keys, panes = keys[good], panes[good]
        if not len(values):
            return
        some_panes, at = _codes(panes)
        cells, places = _codes(keys * len(some_panes) + at)
        key_of, pane_of = np.divmod(cells, len(some_panes))
        parts = statistic.tally(values, budgets, places, len(cells))
        yield from zip(
            zip(key_of.tolist(), some_panes[pane_of].tolist(), strict=True), parts, strict=True
        )


def _codes(values: Integers) -> tuple[Integers, Integers]:
    """Distinct values, ascending, and the place of each value among them; values are not none."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.array([low]), np.zeros(len(values), np.int64)
    if high - low >= _TABLE:
        return np.unique(values, return_inverse=True)
    there = np.zeros(high - low + 1, np.int64)
    there[values - low] = 1
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]

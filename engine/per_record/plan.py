"""What all steps of a per-record release agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, cast

from streamveil.engine.per_record.budgets import Budget, ValueBudget, budget_of
from streamveil.engine.per_record.drivers import (
    KeyDriver,
    Panes,
    Running,
    TotalsOfPanes,
    Windows,
)
from streamveil.engine.per_record.mapper import Source
from streamveil.engine.stream.drivers import DriverOf
from streamveil.mechanisms.core.arguments import column_name, refuse, text_of
from streamveil.mechanisms.core.identity import encoded, of_mechanism
from streamveil.mechanisms.core.records import ConfigurationError, PerRecordRow
from streamveil.mechanisms.driver.saved_state import MECHANISM, Keeper, Parts, of_parts
from streamveil.mechanisms.per_record.budget_functions import BudgetFunction
from streamveil.mechanisms.per_record.protocol import Additive, Bounds, PerRecordRelease, Statistic
from streamveil.mechanisms.per_record.running import RunningTotal
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULTS, statistic

COUNT, SUM, MAX, DISTINCT = "count", "sum", "max", "distinct"


def take_records(transform: Any) -> None:
    """Refuse what a transform of records cannot take. Raises ConfigurationError."""
    budget_of(transform.budget)
    if hasattr(transform, "device"):
        column_name(transform.device, "device")
    for name in ("value", "key", "time"):
        if getattr(transform, name, None) is not None:
            column_name(getattr(transform, name), name)
    for name in ("value_max", "beta"):
        value = getattr(transform, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            refuse(name, value, "give a number")
    if transform.mechanism is not None:
        text_of(transform.mechanism, "mechanism", "give the name of a mechanism")


def function_of(budget: Budget, value: str | None) -> BudgetFunction | None:
    """The budget as a function of the column of values, if it is one."""
    if not isinstance(budget, ValueBudget) or budget.column != value:
        return None
    return budget.function


def bounds_of(budget: Budget, value: str | None, value_max: float | None) -> Bounds:
    """Bounds of budgets, and of the column of values, if there is one.

    Raises ConfigurationError where the largest value is not known.
    """
    function = function_of(budget, value)
    if value is None:
        value_max = 1.0  # there are none
    elif value_max is None and function is not None:
        value_max = function.bounds.value_max
    if value_max is None:
        raise ConfigurationError(
            f"the largest value of {value!r} is not known: give it (--value_max)"
        )
    return Bounds(budget.bounds.epsilon_min, budget.bounds.epsilon_max, value_max)


def mechanism_of(kind: str, mechanism: str | None, beta: float | None) -> str:
    """A mechanism for a statistic, with `beta` among its options; raises ConfigurationError."""
    name = mechanism or DEFAULTS[kind]
    if beta is None:
        return name
    if "beta=" in name:
        raise ConfigurationError(
            f"beta is given twice (--beta, and in --mechanism={name}): leave one out"
        )
    return f"{name}:beta={beta!r}"


@dataclass(frozen=True)
class Plan:
    """What is released of which records, and how: public, but for the key."""

    kind: str
    """Of statistic, as the registry has it."""
    mechanism: str
    bounds: Bounds
    """Of what the statistic is told: budgets are shared already."""
    source: Source
    noise_key: Callable[[], NoiseKeys] = field(repr=False)
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
        """Digest of all that shapes what is released: whatever else is released has other noise."""
        return of_parts(self.parts)

    @cached_property
    def parts(self) -> Parts:
        """All of that by name, each part digested: there may be many keys, and a state of each."""
        parts = {
            "statistic": encoded((self.kind, self.running)),
            MECHANISM: of_mechanism(self.mechanism),
            "bounds of budgets and values": self.bounds.identity(),
            "budget of a record": encoded(self.source.budget),
            "columns, keys or range": self.source.identity(),
            "slots": encoded(self.source.slots),
            "window": encoded(self.sliding),
        }
        return {name: digest(part) for name, part in parts.items()}

    def make(self) -> Drivers:
        """What drives the release of each key, on a worker. Raises ConfigurationError."""
        return Drivers(self, self.statistic(), self.noise_key())

    def by_key(self) -> DriverOf:
        """What gives the driver of the key at a position."""
        return self.make().of

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
    noise_keys: NoiseKeys

    def of(self, position: int) -> KeyDriver[Any]:
        """That of the key at a position."""
        plan = self.plan
        key = plan.source.name(position)
        keys, first = self.noise_keys, plan.source.first_slot
        if plan.running and first is not None:
            keys = keys.counted_from(first - 1)  # its ticks count from 1
        name = digest(encoded(key)).hex()
        noise = NoiseSource(keys, f"per record {plan.context.hex()} {name}")
        keeper = Keeper(NoiseSource(self.noise_keys, f"per record state {name}"), plan.parts)
        return KeyDriver(key, self._windows(noise), keeper)

    def _windows(self, noise: NoiseSource) -> Windows[Any]:
        plan, statistic = self.plan, self.statistic
        if plan.running:
            additive = cast(Additive, statistic)
            return Running(RunningTotal(additive, context=plan.context), noise)
        if plan.sliding > 1 and plan.kind != MAX:
            return TotalsOfPanes(cast(Additive, statistic), noise, plan.sliding)
        return Panes(statistic, noise, plan.sliding)

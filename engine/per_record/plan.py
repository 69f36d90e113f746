"""What all steps of a per-record release agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, cast

from streamveil.engine.messages import Output, array_from_bytes, array_to_bytes
from streamveil.engine.per_record.budgets import Budget, ValueBudget, budget_of
from streamveil.engine.per_record.drivers import KeyDriver, Panes, Running, TotalsOfPanes, Windows
from streamveil.engine.per_record.mapper import Source
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import DriverOf
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.mechanisms.core.arguments import column_name, refuse, text_of
from streamveil.mechanisms.core.identity import encoded, of_mechanism
from streamveil.mechanisms.core.records import ConfigurationError, PerRecordRow, Slots
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.driver.saved_state import MECHANISM, Keeper, Parts, of_parts
from streamveil.mechanisms.per_record.budget_functions import BudgetFunction
from streamveil.mechanisms.per_record.protocol import Additive, Bounds, PerRecordRelease, Statistic
from streamveil.mechanisms.per_record.running import RunningTotal
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULTS, statistic

_ALL_TIMES = SlotClock(Slots(1000))  # there is only pane 0, which no timer closes

COUNT, SUM, MAX, DISTINCT = "count", "sum", "max", "distinct"


def take_records(plan: Any) -> None:
    """Refuse what a plan of records cannot take. Raises ConfigurationError."""
    budget_of(plan.budget)
    if hasattr(plan, "device"):
        column_name(plan.device, "device")
    for name in ("value", "key", "time"):
        if getattr(plan, name, None) is not None:
            column_name(getattr(plan, name), name)
    for name in ("value_max", "beta"):
        value = getattr(plan, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            refuse(name, value, "give a number")
    if plan.mechanism is not None:
        text_of(plan.mechanism, "mechanism", "give the name of a mechanism")


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
            f"the largest value of {value!r} is not known: give it ({opt.value_max})"
        )
    return Bounds(budget.bounds.epsilon_min, budget.bounds.epsilon_max, value_max)


def mechanism_of(kind: str, mechanism: str | None, beta: float | None) -> str:
    """A mechanism for a statistic, with `beta` among its options; raises ConfigurationError."""
    name = mechanism or DEFAULTS[kind]
    if beta is None:
        return name
    if "beta=" in name:
        raise ConfigurationError(
            f"beta is given twice ({opt.beta}, and in {opt.mechanism}={name}): leave one out"
        )
    return f"{name}:beta={beta!r}"


@dataclass(frozen=True)
class Plan:
    """What is released of which records, and how: public, but for the key."""

    kind: str
    """Of statistic, as the registry has it."""
    mechanism: str
    bounds: Bounds
    """Of the statistic's inputs: budgets are shared already."""
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

    @property
    def first_pane(self) -> int:
        """The first to release of a bounded input: of a window of all times the only one."""
        first = 0 if self.source.slots is None else self.source.first_slot
        assert first is not None
        return first

    def release_config(self, clock: SlotClock | None = None) -> ReleaseConfig:
        """What the release stage is made of, of a bounded input; of a stream with its clock."""
        source = self.source
        if clock is not None:
            first, last = source.first_slot, source.last_slot
            return ReleaseConfig(self.by_key, clock, _Rows(self), first, last, secret_parts=True)
        clock = _ALL_TIMES if source.slots is None else SlotClock(source.slots)
        last = 0 if source.slots is None else source.last_slot
        assert last is not None
        return ReleaseConfig(self.by_key, clock, _Rows(self), self.first_pane, last)

    def row(self, key: str | None, pane: int, found: PerRecordRelease) -> PerRecordRow:
        """What is published of the window that ends with a pane."""
        slots, start, end = self.source.slots, None, None
        if slots is not None:
            first = self.source.first_slot if self.running else pane - self.sliding + 1
            assert first is not None
            start, end = slots.start(first), slots.end(pane)
        name = f"running_{self.kind}" if self.running else self.kind
        return PerRecordRow(key, start, end, name, self.mechanism, **vars(found))


def added(statistic: Statistic, parts: Iterable[bytes]) -> bytes:
    """The part of all; empty ones are of no record."""
    some = [part for part in parts if part]
    if len(some) < 2:
        return some[0] if some else b""
    return array_to_bytes(statistic.add(map(array_from_bytes, some)))


@dataclass(frozen=True)
class _Rows:
    """A row of each window, where one ends."""

    plan: Plan

    def __call__(
        self,
        driver: KeyDriver[Any],
        state: Any,
        pane: int,
        released: PerRecordRelease | None,
        at: int,
    ) -> Iterator[Output]:
        """A `PerRecordRow`, or nothing where no window ends."""
        if released is not None:
            when = None if self.plan.source.slots is None else at
            yield Output(self.plan.row(driver.key, pane, released), at=when)


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

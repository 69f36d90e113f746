"""What is released of records that each have a budget of their own, checked; Beam is not needed."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

from streamveil.engine.description import Description, facts_of_slots, promised
from streamveil.engine.encode.time_formats import form_text
from streamveil.engine.encode.times import check_reading
from streamveil.engine.guarantees import PER_RECORD
from streamveil.engine.per_record.budgets import Budget
from streamveil.engine.per_record.mapper import Source
from streamveil.engine.per_record.plan import (
    COUNT,
    DISTINCT,
    MAX,
    SUM,
    Plan,
    bounds_of,
    function_of,
    mechanism_of,
    take_records,
)
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import take_options
from streamveil.mechanisms.core.arguments import slots_of, texts_of
from streamveil.mechanisms.core.parameter_checks import check_range, whole
from streamveil.mechanisms.core.records import ADD_REMOVE, ConfigurationError, Slots
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.per_record.budget_functions import Divided, divided_bounds


@dataclass(eq=False)
class RecordsPlan:
    """A statistic of each window and public key: see :class:`streamveil.transforms.PerRecordCount`.

    Raises ConfigurationError at construction for arguments that do not fit.
    """

    plan_kind: ClassVar[Literal[PlanKind.RECORDS]] = PlanKind.RECORDS
    test_mode: ClassVar[bool] = False

    budget: Budget
    """How much each record may lose, as a function of its columns."""
    value: str | None = None
    """Column of numbers that the statistic is of; none for counts."""
    _: KW_ONLY
    value_max: float | None = None
    """Largest value: a record with a larger or a negative one counts nowhere. That of `budget` when
    None, if that is a function of the same column."""
    key: str | None = None
    """Column of keys, text or whole numbers."""
    keys: tuple[str, ...] = ()
    """All keys that there are, public: each has its rows; a record of another counts nowhere."""
    time: str | None = None
    """Column of times."""
    time_zone: str = "UTC"
    """IANA zone of times without an offset."""
    time_unit: str | None = None
    """Unit of times given as numbers: `s`, `ms`, `us` or `ns`, or `excel` for serial dates."""
    time_format: str | None = None
    """How times are written as text, if not as ISO 8601: strptime codes, as `%d.%m.%Y %H:%M`, or a
    list of them."""
    slots: Slots | None = None
    """How time is cut into panes; one window of all times when None."""
    first_slot: int | None = None
    """First pane; a bounded input needs it. The first of the heartbeat when None."""
    last_slot: int | None = None
    """Last pane; a bounded input needs it."""
    sliding: int = 1
    """Panes of a window, one of which ends with each pane; those that would begin before the first
    pane are left out. A record pays for its own pane alone, once."""
    mechanism: str | None = None
    """One of `PER_RECORD_MECHANISMS`, as NAME:OPTION=VALUE; the default one when None."""
    beta: float | None = None
    """How probably a `dropped_bound` may fail; the mechanism's own default when None."""
    max_records_per_user: int = 1
    """How many records of one user there are at most: stated by the caller, who must see to it.
    Each has that share of its budget, so that the user loses at most the largest."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """32 secret bytes, or a picklable way to get them, which is asked here and by every worker;
    fresh ones when None."""
    kind: ClassVar[str] = ""
    """Of statistic, as in `PER_RECORD_MECHANISMS`."""
    running: ClassVar[bool] = False
    """Whether windows are all panes so far."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        take_records(self)
        take_options(self)
        if self.slots is not None:
            self.slots = slots_of(self.slots)
        self._check_value()
        self.max_records_per_user = whole("max_records_per_user", self.max_records_per_user)
        self.time_format = form_text(self.time_format)
        check_reading(self.time_zone, self.time_unit, self.time_format)
        self._check_keys()
        self._check_panes()
        self._key = SameKey.of(self.noise_key)
        if self.slots is None:
            self._key.refuse_later(f"there are no slots: give their length ({opt.slot})")
        self.plan().statistic()

    def _check_value(self) -> None:
        kind = self._statistic
        if kind == COUNT and self.value is not None:
            raise ConfigurationError(
                f"records are counted whatever their {self.value!r} is ({opt.value_column}): leave "
                f"it out, or sum it"
            )
        if kind != COUNT and self.value is None:
            raise ConfigurationError(
                f"a {kind} needs the column that it is of: give it ({opt.value_column})"
            )

    def _check_keys(self) -> None:
        self.keys = texts_of(self.keys, "keys")
        if (self.key is None) != (not self.keys):
            raise ConfigurationError(
                f"a column of keys ({opt.key_column}) and the list of all keys there are "
                f"({opt.keys}) go together: give both, or none"
            )
        if len(set(self.keys)) < len(self.keys):
            twice = next(key for key in self.keys if self.keys.count(key) > 1)
            raise ConfigurationError(f"key {twice!r} is listed twice ({opt.keys})")

    def _check_panes(self) -> None:
        slots, first, last = self.slots, self.first_slot, self.last_slot
        if (self.time is None) != (slots is None):
            raise ConfigurationError(
                f"a column of times ({opt.time_column}) and the length of panes ({opt.slot}) go "
                f"together: give both, or none"
            )
        self.sliding = whole("sliding", self.sliding)
        if slots is None:
            if (first, last, self.sliding, self.running) != (None, None, 1, False):
                raise ConfigurationError(
                    "panes of a sliding window or a running total, and a first or last one, need "
                    f"a length: give it ({opt.slot}), or leave out {opt.start}, {opt.end} and "
                    f"{opt.window}"
                )
            return
        check_range(slots, first, last)
        if self.sliding > 1 and (self.running or self.kind == DISTINCT):
            why = (
                "a running total is of all panes" if self.running else "panes share distinct values"
            )
            raise ConfigurationError(
                f"windows of {self.sliding} panes ({opt.window}) do not add up here, for {why}: "
                f"use windows of one pane"
            )
        if first is not None and last is not None and last - first + 1 < self.sliding:
            raise ConfigurationError(
                f"there are {last - first + 1} panes from {opt.start} to {opt.end}, fewer than the "
                f"{self.sliding} of a window ({opt.window}): give a longer range"
            )
        if self.running and first is None:
            raise ConfigurationError(
                f"a running total has a beginning, which is public: give it ({opt.start})"
            )

    @property
    def number_of_rows(self) -> int | None:
        """How many there are, public: of all windows and keys; None where the range is not given.

        Writers of tables take it, to write all rows or none.
        """
        keys, windows = len(self.keys) or 1, 1
        if self.slots is not None:
            if self.first_slot is None or self.last_slot is None:
                return None
            windows = self.last_slot - self.first_slot + 2 - self.sliding
        return keys * windows

    @property
    def _statistic(self) -> str:
        """Of each pane, as the registry has it."""
        return self.kind

    def describe(self) -> Description:
        """What each record may lose, as far as the budget can be written down."""
        plan, budget = self.plan(), self.budget
        columns = {"value": self.value, "key": self.key, "time": self.time}
        data = {
            "columns": {name: column for name, column in columns.items() if column is not None},
            **({} if self.slots is None else facts_of_slots(self.slots)),
            "keys": list(self.keys),
            "statistic": f"running_{plan.kind}" if self.running else plan.kind,
            "value_max": plan.bounds.value_max,
            "window": self.sliding,
            "running": self.running,
        }
        promise = promised(
            PER_RECORD,
            ADD_REMOVE,
            epsilon_max=budget.bounds.epsilon_max,
            epsilon_min=budget.bounds.epsilon_min,
            budget={
                "columns": list(budget.columns),
                **getattr(budget, "stated", {"function": "custom"}),
            },
            max_records_per_user=self.max_records_per_user,
        )
        return Description(promise, data, plan.mechanism)

    def plan(self) -> Plan:
        """What all steps agree on."""
        shared = self.max_records_per_user
        bounds = bounds_of(self.budget, self.value, self.value_max)
        function = function_of(self.budget, self.value)
        return Plan(
            self._statistic,
            mechanism_of(self._statistic, self.mechanism, self.beta),
            divided_bounds(bounds, shared),
            Source(
                self.budget,
                self.value,
                shared,
                self.key,
                self.keys,
                self.time or "",
                self.time_zone,
                self.time_unit,
                self.slots,
                self.first_slot,
                self.last_slot,
                self.time_format,
            ),
            self._key,
            {} if function is None else {"budget": Divided(function, shared)},
            self.sliding,
            self.running,
        )


class CountPlan(RecordsPlan):
    """How many records there are."""

    kind = COUNT


class SumPlan(RecordsPlan):
    """The sum of a column of numbers."""

    kind = SUM


class MaxPlan(RecordsPlan):
    """The largest number of a column."""

    kind = MAX


class DistinctPlan(RecordsPlan):
    """How many distinct numbers a column has."""

    kind = DISTINCT


class RunningTotalPlan(RecordsPlan):
    """All records so far, counted, or a column of them summed up, at the end of every pane."""

    running = True

    @property
    def _statistic(self) -> str:
        return COUNT if self.value is None else SUM

"""What `streamveil per-record` is asked for, as a plan: read, checked, not yet run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from streamveil.engine.per_record.budgets import Budget, CategoryBudget, ValueBudget
from streamveil.engine.per_record.records_plan import (
    CountPlan,
    DistinctPlan,
    MaxPlan,
    RecordsPlan,
    RunningTotalPlan,
    SumPlan,
)
from streamveil.io import read_domain
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.options.budget_functions import budget_of, lookup_of
from streamveil.pipelines.options.declarations import COUNT, RUNNING_COUNT, TABLE
from streamveil.pipelines.options.noise_keys import noise_key
from streamveil.pipelines.options.parsers import range_of
from streamveil.pipelines.options.record_statistics import (
    WITHOUT_VALUE,
    WITHOUT_WINDOW,
    check_statistic,
)
from streamveil.pipelines.plans.inputs import reading_of_times

R = TypeVar("R", bound=RecordsPlan)

RECORD_PLANS: Mapping[str, type[RecordsPlan]] = {
    COUNT: CountPlan,
    "sum": SumPlan,
    "max": MaxPlan,
    "distinct": DistinctPlan,
    RUNNING_COUNT: RunningTotalPlan,
    "running-sum": RunningTotalPlan,
}


def records_plan_of(given: Any, kinds: Mapping[str, Callable[..., R]], **more: Any) -> R:
    """The same of `streamveil per-record`: one of these kinds, by the name of the statistic."""
    check_statistic(given)
    kind = given.statistic
    times = _times(given)
    arguments: dict[str, Any] = {
        "mechanism": given.mechanism,
        "beta": given.beta,
        "max_records_per_user": given.max_records_per_user,
        "noise_key": noise_key(given.noise_key, times.get("slots")),
        **times,
        **_keys(given),
        **more,
    }
    if kind not in WITHOUT_VALUE:
        arguments |= {"value": given.value_column, "value_max": given.value_max}
    if kind not in WITHOUT_WINDOW:
        arguments["sliding"] = given.window
    return kinds[kind](_budget_of(given), **arguments)


def columns_of(given: Any) -> tuple[str, ...]:
    """The columns that are read, each once."""
    columns = (given.value_column, given.budget_column, given.key_column, given.time_column)
    return tuple(dict.fromkeys(column for column in columns if column))


def _budget_of(given: Any) -> Budget:
    if given.budget.startswith(TABLE):
        path = given.budget.removeprefix(TABLE)
        lookup = lookup_of(path, given.epsilon_min, given.epsilon_max)
        return CategoryBudget(given.budget_column, lookup)
    column = given.budget_column or given.value_column
    return ValueBudget(column, budget_of(given.budget, given.value_max, given.epsilon_max))


def _times(given: Any) -> dict[str, Any]:
    """Arguments that say how time is cut."""
    if not given.slot:
        return {}
    slots, first, last = range_of(given)
    return {
        "time": given.time_column,
        **reading_of_times(given),
        "slots": slots,
        "first_slot": first,
        "last_slot": last,
    }


def _keys(given: Any) -> dict[str, Any]:
    """Arguments that say which keys there are. Raises ConfigurationError."""
    if not given.keys:
        return {}
    try:
        found = read_domain(given.keys, given.key_column)
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.keys}={given.keys}: {error}") from None
    if not isinstance(found, Categories):
        raise ConfigurationError(f"{opt.keys}={given.keys}: give a list A,B,C or a file of keys")
    return {"key": given.key_column, "keys": found.values}

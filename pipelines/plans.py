"""What the options of a command ask for, as a plan of the engine: read, checked, not yet run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.engine.stream.local_plan import LocalPlan
from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.io import questions_of, read_domain, read_questions
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT, LOCAL_DEFAULT
from streamveil.pipelines.budgets import budget_of, lookup_of
from streamveil.pipelines.guarantees import INFINITE, USER, WINDOWS, promise_of
from streamveil.pipelines.inputs import Inputs, P, required_registry
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.options import COUNT, REQUIRED, RUNNING_COUNT, TABLE
from streamveil.pipelines.statistics import WITHOUT_VALUE, WITHOUT_WINDOW, check_statistic
from streamveil.pipelines.values import (
    base_range_of,
    budget_for_ever,
    check_required,
    computed_of,
    life_limit_of,
    limit_of,
    range_of,
)

H = TypeVar("H", bound=HistogramPlan)
L = TypeVar("L", bound=LocalPlan)
Q = TypeVar("Q", bound=QueryPlan)
R = TypeVar("R", bound=RecordsPlan)

RECORD_PLANS: Mapping[str, type[RecordsPlan]] = {
    COUNT: CountPlan,
    "sum": SumPlan,
    "max": MaxPlan,
    "distinct": DistinctPlan,
    RUNNING_COUNT: RunningTotalPlan,
    "running-sum": RunningTotalPlan,
}


def histogram_plan_of(given: Any, kind: Callable[..., H], **more: Any) -> H:
    """The plan that the options of `streamveil release` ask for, whatever is read and written.

    Args:
        given: the options of the command, as parsed.
        kind: of the plan: the plan itself, or the transform that is one.
        **more: arguments that only this kind has.

    Raises:
        ConfigurationError: for options that are missing or do not fit.
    """
    promise = promise_of(given)
    if promise == WINDOWS:
        registry, default = required_registry("release", given), DEFAULT
    else:
        registry = _one_class(given)
        default = DEFAULT if promise == USER else INFINITE_DEFAULT
    if given.longest_window is not None and given.requirement_changes is None and not given.state:
        raise ConfigurationError(
            f"--longest_window={given.longest_window} is about changes: give "
            "--requirement_changes or --state as well, or leave it out"
        )
    inputs = Inputs.of(given)
    limit: Limit | Auto | None = None
    if promise == USER:
        limit = life_limit_of(given.max_slots)
    elif given.max_slots is not None:
        limit = limit_of(given.max_slots)
        if promise == INFINITE:
            raise ConfigurationError(
                f"--max_slots={given.max_slots} is about windows: leave it out with "
                f"--guarantee={INFINITE}, or choose --guarantee={USER}"
            )
    return _plan_of(
        *(inputs, given, registry, default, kind),
        max_contributions=inputs.max_contributions,
        adjacency=inputs.adjacency,
        longest_window=given.longest_window,
        limit=limit,
        changing=limit is not None and given.requirement_changes is not None,
        keeps=bool(given.state),
        **more,
    )


def _plan_of(
    inputs: Inputs,
    given: Any,
    registry: Registry,
    default: str,
    kind: Callable[..., P],
    **more: Any,
) -> P:
    """A plan of what was read, of the `default` mechanism unless another one is given."""
    return inputs.plan(
        registry,
        default if given.mechanism is None else given.mechanism,
        noise_key(given.noise_key, inputs.slots),
        kind=kind,
        shards=given.shards,
        max_rejected=given.max_rejected,
        revise=given.revise or 0,
        **more,
    )


def _one_class(given: Any) -> Registry:
    """Everybody, with one budget forever."""
    check_required("release", given, REQUIRED)
    return Registry.of(default=(budget_for_ever(given), 0))


def local_plan_of(given: Any, kind: Callable[..., L], **more: Any) -> L:
    """The same of `streamveil collect`."""
    registry, inputs = required_registry("collect", given), Inputs.of(given)
    return _plan_of(inputs, given, registry, LOCAL_DEFAULT, kind, **more)


def query_plan_of(given: Any, kind: Callable[..., Q], **more: Any) -> Q:
    """The same of `streamveil release --questions`."""
    portfolio = portfolio_of(given.questions)
    registry = required_registry("release", given, ("user_column", "time_column"))
    base, first_slot, last_slot = base_range_of(given, portfolio.base)
    portfolio = replace(portfolio, base=base)
    columns = columns_for(
        portfolio,
        given.user_column,
        given.time_column,
        time_zone="UTC" if given.time_zone is None else given.time_zone,
        time_unit=given.time_unit,
        time_format=given.time_format,
        computed=computed_of(given),
    )
    return kind(
        portfolio,
        registry,
        columns,
        adjacency=given.adjacency,
        noise_key=noise_key(given.noise_key, base),
        first_slot=first_slot,
        last_slot=last_slot,
        shards=given.shards,
        max_rejected=given.max_rejected,
        **more,
    )


def portfolio_of(questions: Any) -> Portfolio:
    """The portfolio of a file, or of Python or a pipeline in YAML, a mapping.

    Raises ConfigurationError.
    """
    if isinstance(questions, Portfolio):
        return questions
    if not isinstance(questions, str):
        return questions_of(questions)
    try:
        return read_questions(questions)
    except ConfigurationError as error:
        raise ConfigurationError(f"--questions: {error}") from None


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
        "time_zone": "UTC" if given.time_zone is None else given.time_zone,
        "time_unit": given.time_unit,
        "time_format": given.time_format,
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
        raise ConfigurationError(f"--keys={given.keys}: {error}") from None
    if not isinstance(found, Categories):
        raise ConfigurationError(f"--keys={given.keys}: give a list A,B,C or a file of keys")
    return {"key": given.key_column, "keys": found.values}

"""What the options of a command ask for, as a plan of the engine: read, checked, not yet run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.discovery.discovered_keys import DISCOVER
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT, LOCAL_DEFAULT
from streamveil.pipelines.options.declarations import REQUIRED, SLOTS_PER_PASS
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.guarantees import (
    INFINITE,
    USER,
    WINDOWS,
    check_promise_to_queries,
    promise_of,
)
from streamveil.pipelines.options.noise_keys import noise_key
from streamveil.pipelines.options.parsers import (
    base_range_of,
    budget_for_ever,
    check_required,
    computed_of,
    life_limit_of,
    limit_of,
    range_of,
)
from streamveil.pipelines.plans.inputs import Inputs, P, reading_of_times, required_registry

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.core.records import Slots
    from streamveil.mechanisms.queries.queries import QuerySet

C = TypeVar("C", bound="HistogramPlan | QueryPlan")
H = TypeVar("H", bound="HistogramPlan")
K = TypeVar("K")
L = TypeVar("L", bound="LocalPlan")
Q = TypeVar("Q", bound="QueryPlan")


def plan_of(command: str, given: Any, execution: Execution) -> UserPlan:
    """The plan of a command that protects users, `release` or `collect`, from its options.

    On a runner it is the transform that is one. Raises ConfigurationError for options that are
    missing or do not fit.
    """
    of_stream = {"allowed_lateness": given.allowed_lateness}
    # Each kind imports what only that kind needs.
    if command == "collect":
        from streamveil.engine.stream.local_plan import LocalPlan

        return local_plan_of(given, kind_of(LocalPlan, execution, **of_stream))
    if given.queries:
        from streamveil.engine.stream.query_plan import QueryPlan

        return _looking(query_plan_of(given, kind_of(QueryPlan, execution, **of_stream)), given)
    from streamveil.engine.stream.histogram_plan import HistogramPlan

    return _looking(histogram_plan_of(given, kind_of(HistogramPlan, execution, **of_stream)), given)


def _looking(plan: C, given: Any) -> C:
    """The plan, whose range is long enough to choose participation limits. Raises otherwise."""
    if not given.resume:  # a resumed run keeps what was chosen
        plan.check_look((given.slots_per_pass or SLOTS_PER_PASS) if given.state else None)
    return plan


def kind_of(plan: type[K], execution: Execution, **of_stream: Any) -> Callable[..., K]:
    """What a command makes of its options: a plan, or on a runner the transform that is one.

    `of_stream` are arguments of the transform alone.
    """
    if execution.here:
        return plan
    from streamveil.pipelines.plans.beam_transforms import TRANSFORMS

    return partial(TRANSFORMS[plan], **of_stream)


def histogram_plan_of(given: Any, kind: Callable[..., H], **more: Any) -> H:
    """The plan that the options of `streamveil release` ask for, whatever is read and written.

    Args:
        given: the options of the command, as parsed.
        kind: of the plan: the plan itself, or the transform that is one.
        **more: arguments that only this kind has.

    Raises:
        ConfigurationError: for options that are missing or do not fit.
    """
    _check_listed(given)
    registry, limit = _promised(given, lambda: range_of(given)[0], REQUIRED)
    default = INFINITE_DEFAULT if given.guarantee == INFINITE else DEFAULT
    _check_longest_window(given)
    inputs = Inputs.of(given)
    return _plan_of(
        *(inputs, given, registry, default, kind),
        max_contributions=inputs.max_contributions,
        adjacency=inputs.adjacency,
        longest_window=given.longest_window,
        limit=limit,
        changing=limit is not None and given.requirement_changes is not None,
        keeps=bool(given.state),
        test_mode=given.test_mode,
        **more,
    )


def _check_listed(given: Any) -> None:
    """Refuse keys that are discovered, and their delta, of what is no query set.

    Raises ConfigurationError.
    """
    if given.domain == DISCOVER:
        raise ConfigurationError(
            f"{opt.domain}={DISCOVER}: only a query set discovers keys, and it may have one query: "
            f"write keys: {DISCOVER} in a file of queries ({opt.queries})"
        )
    if given.delta is not None:
        raise ConfigurationError(
            f"{opt.delta}={given.delta:g} is for keys that are discovered: leave it out, or write "
            f"keys: {DISCOVER} in a file of queries ({opt.queries})"
        )


def _check_longest_window(given: Any) -> None:
    """Refuse the longest window of changes where none can come. Raises ConfigurationError."""
    if given.longest_window is not None and given.requirement_changes is None and not given.state:
        raise ConfigurationError(
            f"{opt.longest_window}={given.longest_window} applies to changing requirements only: "
            f"give {opt.requirement_changes} or {opt.state} as well, or leave it out"
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


def _promised(
    given: Any, slots: Callable[[], Slots], required: Sequence[str]
) -> tuple[Registry, Limit | Auto | None]:
    """What is promised to whom, and in how many slots users count.

    Raises ConfigurationError for options that are missing or do not fit.
    """
    promise = promise_of(given)
    if promise == WINDOWS:
        limit = None if given.max_slots is None else limit_of(given.max_slots)
        return required_registry("release", given, slots, required), limit
    check_required("release", given, required)
    everyone = Registry.of(default=(budget_for_ever(given), 0))
    if promise == USER:
        return everyone, life_limit_of(given.max_slots)
    if given.max_slots is not None:
        raise ConfigurationError(
            f"{opt.max_slots}={given.max_slots} applies to windows: leave it out with "
            f"{opt.guarantee}={INFINITE}, or choose {opt.guarantee}={USER}"
        )
    return everyone, None


def local_plan_of(given: Any, kind: Callable[..., L], **more: Any) -> L:
    """The same of `streamveil collect`."""
    if given.longest_window is not None and not given.state:
        raise ConfigurationError(
            f"{opt.longest_window}={given.longest_window} applies to changing requirements only: "
            f"give {opt.state} as well, or leave it out"
        )
    registry = required_registry("collect", given, lambda: range_of(given)[0])
    longest = given.longest_window
    inputs = Inputs.of(given)
    return _plan_of(inputs, given, registry, LOCAL_DEFAULT, kind, longest_window=longest, **more)


def query_plan_of(given: Any, kind: Callable[..., Q], **more: Any) -> Q:
    """The same of `streamveil release --queries`."""
    from streamveil.engine.stream.query_plan import columns_for

    query_set = query_set_of(given.queries)
    check_promise_to_queries(given)
    _check_longest_window(given)
    required = "user_column", "time_column"
    registry, limit = _promised(given, lambda: query_set.base, required)
    base, first_slot, last_slot = base_range_of(given, query_set.base)
    query_set = replace(query_set, base=base)
    columns = columns_for(
        query_set,
        given.user_column,
        given.time_column,
        computed=computed_of(given),
        **reading_of_times(given),
    )
    return kind(
        query_set,
        registry,
        columns,
        adjacency=given.adjacency,
        noise_key=noise_key(given.noise_key, base),
        first_slot=first_slot,
        last_slot=last_slot,
        shards=given.shards,
        max_rejected=given.max_rejected,
        limit=limit,
        changing=given.requirement_changes is not None or given.longest_window is not None,
        longest_window=given.longest_window,
        revise=given.revise or 0,
        ends=not given.state,
        growing=bool(given.state),
        test_mode=given.test_mode,
        delta=given.delta,
        **more,
    )


def query_set_of(queries: Any) -> QuerySet:
    """The query set of a file, or of Python or a pipeline in YAML, a mapping.

    Raises ConfigurationError.
    """
    from streamveil.io import queries_of, read_queries
    from streamveil.mechanisms.queries.queries import QuerySet

    if isinstance(queries, QuerySet):
        return queries
    if not isinstance(queries, str):
        return queries_of(queries)
    try:
        return read_queries(queries)
    except ConfigurationError as error:
        raise ConfigurationError(f"{opt.queries}: {error}") from None

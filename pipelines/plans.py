"""What the options of a command ask for, as a plan of the engine: read, checked, not yet run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT, LOCAL_DEFAULT
from streamveil.pipelines.guarantees import INFINITE, USER, WINDOWS, promise_of
from streamveil.pipelines.inputs import Inputs, P, required_registry
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.options import REQUIRED
from streamveil.pipelines.values import (
    budget_for_ever,
    check_required,
    life_limit_of,
    limit_of,
)

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan

H = TypeVar("H", bound="HistogramPlan")
L = TypeVar("L", bound="LocalPlan")


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

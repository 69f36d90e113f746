"""What `streamveil release --questions` is asked for, as a plan: read, checked, not yet run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.io import questions_of, read_questions
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.pipelines.inputs import required_registry
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.values import (
    base_range_of,
    computed_of,
)

Q = TypeVar("Q", bound=QueryPlan)


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

"""What is counted, read and checked: which events, users, times, bins and requirements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.stream.noise_keys import NoiseKey
from streamveil.io import read_domain, read_requirements, requirements_of
from streamveil.mechanisms.core.arguments import registry_of as as_registry
from streamveil.mechanisms.core.domains import Categories, Domain, Edges, Grid, with_bins
from streamveil.mechanisms.core.records import ConfigurationError, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.options.declarations import REQUIRED
from streamveil.pipelines.options.parsers import (
    budget_of,
    check_budget,
    check_required,
    computed_of,
    default_requirement_of,
    needs_table,
    range_of,
    requirement_columns_of,
)

P = TypeVar("P")


@dataclass(frozen=True)
class Inputs:
    """What to count, read and checked."""

    columns: Columns
    slots: Slots
    domain: Domain
    max_contributions: int
    keep: str
    adjacency: str
    first_slot: int | None
    last_slot: int | None

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """Read the options of events and histograms as parsed; `REQUIRED` must be there.

        Raises ConfigurationError.
        """
        slots, first_slot, last_slot = range_of(given)
        value = tuple(given.value_column.split(","))
        return cls(
            Columns(
                given.user_column,
                value,
                given.time_column,
                computed=computed_of(given),
                **reading_of_times(given),
            ),
            slots,
            _bins_of(given, value[0]),
            given.max_contributions,
            given.keep,
            given.adjacency,
            first_slot,
            last_slot,
        )

    def plan(
        self,
        registry: Registry,
        mechanism: str,
        noise_key: NoiseKey | None = None,
        *,
        kind: Callable[..., P],
        **more: Any,
    ) -> P:
        """What counts and releases these events, a `kind` of plan, given `more` of its arguments.

        Raises ConfigurationError.
        """
        return kind(
            registry=registry,
            domain=self.domain,
            slots=self.slots,
            columns=self.columns,
            mechanism=mechanism,
            noise_key=noise_key,
            first_slot=self.first_slot,
            last_slot=self.last_slot,
            keep=self.keep,
            **more,
        )


def reading_of_times(given: Any) -> dict[str, Any]:
    """How times are read, by the arguments of a plan."""
    return {
        "time_zone": "UTC" if given.time_zone is None else given.time_zone,
        "time_unit": given.time_unit,
        "time_format": given.time_format,
    }


def _bins_of(given: Any, column: str) -> Domain:
    """The domain that is written on a command line or in a file; or of Python, one in memory."""
    if isinstance(given.domain, str):
        return with_bins(read_domain(given.domain, column), given.other, given.null)
    bins: Domain = given.domain
    if isinstance(bins, Categories | Edges | Grid):
        return with_bins(bins, given.other, given.null)
    for option, name in (("other", given.other), ("null", given.null)):
        if name is not None:
            raise ConfigurationError(
                f"{opt[option]}={name}: the domain, a {type(bins).__name__}, has such bins "
                "itself: name them there"
            )
    return bins


def registry_of(given: Any) -> Registry | None:
    """The table of requirements and the default one; None when neither is given.

    The table is a path; or of Python one in memory, a mapping or a registry. Raises
    ConfigurationError.
    """
    default = default_requirement_of(given.default_requirement)
    table = given.requirements
    if table is None or (isinstance(table, str) and not table):
        return Registry.of(default=default) if default else None
    columns = requirement_columns_of(given.requirement_columns)
    if isinstance(table, str):
        return read_requirements(table, default=default, columns=columns)
    if isinstance(table, pa.Table):
        return requirements_of(table, default=default, columns=columns)
    if default is not None:
        raise ConfigurationError(
            f"{opt.default_requirement}={given.default_requirement} is for a table: give "
            f"{opt.requirements} as one, or Registry.of(..., default=...)"
        )
    return as_registry(table, "requirements")


def required_registry(
    command: str, given: Any, slots: Callable[[], Slots], required: Sequence[str] = REQUIRED
) -> Registry:
    """The table of requirements, or the budget of everyone.

    Args:
        command: its name.
        given: its options.
        slots: how time is cut, once all that is required is there.
        required: the options that must be there.

    Raises:
        ConfigurationError: for options that are missing or wrong.
    """
    check_required(command, given, (*required, *needs_table(given)))
    if given.budget is not None:
        check_budget(given)
        return Registry.of(default=(budget_of(given.budget, slots()), None))
    registry = registry_of(given)
    assert registry is not None
    return registry

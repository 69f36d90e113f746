"""What is counted, read and checked: which events, users, times, bins and requirements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamveil.engine.stream.noise_keys import NoiseKey
from streamveil.io import read_domain, read_requirements, requirements_of
from streamveil.mechanisms.core.arguments import registry_of as as_registry
from streamveil.mechanisms.core.domains import Categories, Domain, Edges, Grid, with_bins
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import ConfigurationError, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.pipelines.values import (
    computed_of,
    default_requirement_of,
    range_of,
    requirement_columns_of,
)
from streamveil.transforms import Columns, PrivateHistograms

if TYPE_CHECKING:
    from streamveil.transforms import CollectHistograms


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
                "UTC" if given.time_zone is None else given.time_zone,
                given.time_unit,
                given.time_format,
                computed_of(given),
            ),
            slots,
            _bins_of(given, value[0]),
            given.max_contributions,
            given.keep,
            given.adjacency,
            first_slot,
            last_slot,
        )

    def local_transform(
        self,
        registry: Registry,
        mechanism: str,
        noise_key: NoiseKey | None = None,
        shards: int = 1,
        allowed_lateness: int | str = 0,
        max_rejected: float = MAX_REJECTED,
        revise: int = 0,
    ) -> CollectHistograms:
        """The transform that plays the local setting. Raises ConfigurationError."""
        from streamveil.transforms import CollectHistograms

        return CollectHistograms(
            registry=registry,
            domain=self.domain,
            slots=self.slots,
            columns=self.columns,
            mechanism=mechanism,
            noise_key=noise_key,
            first_slot=self.first_slot,
            last_slot=self.last_slot,
            shards=shards,
            allowed_lateness=allowed_lateness,
            keep=self.keep,
            max_rejected=max_rejected,
            revise=revise,
        )

    def transform(
        self,
        registry: Registry,
        mechanism: str,
        noise_key: NoiseKey | None = None,
        shards: int = 1,
        longest_window: int | None = None,
        allowed_lateness: int | str = 0,
        max_rejected: float = MAX_REJECTED,
        revise: int = 0,
        limit: Limit | Auto | None = None,
        *,
        changing: bool = False,
        keeps: bool = True,
    ) -> PrivateHistograms:
        """The transform that counts and releases these events. Raises ConfigurationError."""
        return PrivateHistograms(
            registry=registry,
            domain=self.domain,
            slots=self.slots,
            columns=self.columns,
            mechanism=mechanism,
            max_contributions=self.max_contributions,
            adjacency=self.adjacency,
            noise_key=noise_key,
            first_slot=self.first_slot,
            last_slot=self.last_slot,
            shards=shards,
            longest_window=longest_window,
            allowed_lateness=allowed_lateness,
            keep=self.keep,
            max_rejected=max_rejected,
            revise=revise,
            limit=limit,
            changing=changing,
            keeps=keeps,
        )


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
                f"--{option}={name}: the domain is with its own such bins, {type(bins).__name__}: "
                "name them there"
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
            f"--default_requirement={given.default_requirement} is for a table: give "
            "--requirements as one, or Registry.of(..., default=...)"
        )
    return as_registry(table, "requirements")

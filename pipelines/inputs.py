"""What is counted, read and checked: which events, users, times, bins and requirements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamveil.io import read_domain, read_requirements
from streamveil.mechanisms.core.domains import Domain, with_other
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.pipelines.values import default_requirement_of, range_of, requirement_columns_of
from streamveil.transforms import CollectHistograms, Columns, PrivateHistograms
from streamveil.transforms.release.noise_keys import NoiseKey


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
            ),
            slots,
            with_other(read_domain(given.domain, value[0]), given.other),
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
    ) -> CollectHistograms:
        """The transform that plays the local setting. Raises ConfigurationError."""
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
        )


def registry_of(given: Any) -> Registry | None:
    """The table of requirements and the default one; None when neither is given.

    Raises ConfigurationError.
    """
    default = default_requirement_of(given.default_requirement)
    if given.requirements:
        columns = requirement_columns_of(given.requirement_columns)
        return read_requirements(given.requirements, default=default, columns=columns)
    return Registry.of(default=default) if default else None

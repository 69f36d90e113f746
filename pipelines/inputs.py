"""The options that say what is counted: which events, users, times, bins and requirements.

Every command that reads events has those of :func:`add_event_options`, every one that makes
histograms those of :func:`add_histogram_options` as well, each with one meaning.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from streamveil.io import SOURCE_FORMS, read_domain, read_requirements
from streamveil.mechanisms.domains import Domain
from streamveil.mechanisms.records import (
    ConfigurationError,
    Requirement,
    Slots,
    check_shares,
    parse_time,
)
from streamveil.mechanisms.users import Registry
from streamveil.transforms import (
    ADD_REMOVE,
    REPLACE,
    CollectHistograms,
    Columns,
    PrivateHistograms,
)
from streamveil.transforms.keys import NoiseKey
from streamveil.transforms.times import UNITS

REQUIRED = ("user_column", "value_column", "time_column", "slot", "domain")


def add_event_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where events come from and when they happened."""
    add = parser.add_argument
    add(
        "--input",
        metavar="FILES",
        help="events: a file or glob of .parquet, .avro, .csv or "
        ".jsonl (text also .gz), on any filesystem of Beam. All commands but `evaluate` also "
        f"stream from {SOURCE_FORMS}",
    )
    add(
        "--value_column",
        metavar="NAME",
        help="column of the value, or LONGITUDE,LATITUDE columns for a grid",
    )
    add("--time_column", metavar="NAME", help="column of the event time")
    add(
        "--time_zone",
        metavar="ZONE",
        help="zone of times without an offset (default UTC)",
    )
    add("--time_unit", choices=UNITS, help="unit of times given as numbers")
    add("--slot", metavar="LENGTH", help="length of a slot: 1d, 1h, 5m, 60s")
    add(
        "--origin",
        metavar="TIME",
        default="1970-01-01T00:00:00Z",
        help="start of slot 0 (default 1970-01-01T00:00:00Z)",
    )
    add(
        "--start",
        metavar="TIME",
        help="release from the slot that holds this time; events "
        "before it are rejected (default: from the first slot with an event)",
    )
    add(
        "--end",
        metavar="TIME",
        help="release up to the slot before this time; events after "
        "it are rejected (default: to the last slot with an event)",
    )


def add_histogram_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whose events are counted, and in what bins.

    Of these and those of :func:`add_event_options`, what `REQUIRED` names has no default.
    """
    add = parser.add_argument
    add("--user_column", metavar="NAME", help="column of the user id")
    add(
        "--domain",
        metavar="BINS",
        help="a file with one value a line, a list A,B,C, "
        "edges:0,10,20 for numbers, or grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS",
    )
    add("--requirements", metavar="FILE", help="table with the columns user, window, epsilon")
    add(
        "--rejected",
        metavar="FILE",
        help="dead letters: the raw record, why, and where it "
        "stood; raw data, never to be published",
    )
    add(
        "--default_requirement",
        metavar="WINDOW,EPSILON,USERS",
        help="requirement of users outside the table, and the public number of them",
    )
    add(
        "--max_contributions",
        type=int,
        default=1,
        metavar="N",
        help="events of a user that count in a slot (default 1)",
    )
    add(
        "--adjacency",
        choices=(ADD_REMOVE, REPLACE),
        default=ADD_REMOVE,
        help="what one user may change in a window: all of that user's events added or "
        "removed (add_remove, the default), or any of them replaced (replace, twice the noise)",
    )


@dataclass(frozen=True)
class Inputs:
    """What to count, read and checked."""

    columns: Columns
    slots: Slots
    domain: Domain
    max_contributions: int
    adjacency: str
    first_slot: int | None
    last_slot: int | None

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """Read both groups of options as parsed; `REQUIRED` must be there.

        Raises ConfigurationError.
        """
        slots, first_slot, last_slot = range_of(given)
        return cls(
            Columns(
                given.user_column,
                tuple(given.value_column.split(",")),
                given.time_column,
                "UTC" if given.time_zone is None else given.time_zone,
                given.time_unit,
            ),
            slots,
            read_domain(given.domain),
            given.max_contributions,
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
        )

    def transform(
        self,
        registry: Registry,
        mechanism: str,
        noise_key: NoiseKey | None = None,
        shards: int = 1,
        longest_window: int | None = None,
        allowed_lateness: int | str = 0,
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
        )


def range_of(given: Any) -> tuple[Slots, int | None, int | None]:
    """How time is cut, and the first and the last slot, None where not given.

    Raises ConfigurationError.
    """
    slots = Slots(Slots.of(given.slot).length, _time("origin", given.origin))
    return (
        slots,
        None if given.start is None else slots.index(_time("start", given.start)),
        None if given.end is None else slots.index(_time("end", given.end) - 1),
    )


def registry_of(given: Any) -> Registry | None:
    """The table of requirements and the default one; None when neither is given.

    Raises ConfigurationError.
    """
    default = _default_requirement(given.default_requirement)
    if given.requirements:
        return read_requirements(given.requirements, default=default)
    return Registry.of(default=default) if default else None


def _default_requirement(text: str | None) -> tuple[Requirement, int] | None:
    if text is None:
        return None
    try:
        window, epsilon, users = (float(part) for part in text.split(","))
        if not users.is_integer():
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f"--default_requirement={text} is not WINDOW,EPSILON,USERS: write for example "
            "7,1.0,5000 for 5000 users with epsilon 1 over 7 slots"
        ) from None
    try:
        requirement = Requirement(window, epsilon)  # type: ignore[arg-type]
        check_shares([requirement])
        return requirement, int(users)
    except ConfigurationError as error:
        raise ConfigurationError(f"--default_requirement={text}: {error}") from None


def _time(option: str, text: str) -> int:
    try:
        return parse_time(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--{option}: {error}") from None

"""The mechanisms by name. Adding one is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamveil.mechanisms.ba import BA
from streamveil.mechanisms.bd import BD
from streamveil.mechanisms.mechanism import Mechanism, Population
from streamveil.mechanisms.pba import PBA
from streamveil.mechanisms.pbd import PBD
from streamveil.mechanisms.pwsm import PWSM
from streamveil.mechanisms.records import ConfigurationError, Requirement, as_requirement
from streamveil.mechanisms.schedule import Schedule, ScheduleRun

SCHEDULES: Mapping[str, Callable[[Sequence[Requirement]], Schedule[Any]]] = {
    "bd": BD,
    "ba": BA,
    "pbd": PBD,
    "pba": PBA,
}


def mechanism(name: str, population: Population) -> Mechanism[Any]:
    """Make the mechanism of this name. Raises ConfigurationError for an unknown name."""
    return PWSM(name, _named(name)(population.requirements), population)


def schedule(
    name: str, requirements: Sequence[Requirement | tuple[int, float]]
) -> ScheduleRun[Any]:
    """Drive the budget schedule of a mechanism by given decisions.

    Args:
        name: a key of `SCHEDULES`.
        requirements: one Requirement or (window, epsilon) pair for each class or user.

    Raises:
        ConfigurationError: for an unknown name or a requirement out of range.
    """
    if not requirements:
        raise ConfigurationError("a schedule needs at least one requirement")
    return ScheduleRun(_named(name)([as_requirement(r) for r in requirements]))


def _named(name: str) -> Callable[[Sequence[Requirement]], Schedule[Any]]:
    if name not in SCHEDULES:
        raise ConfigurationError(
            f"mechanism {name!r} is unknown: choose one of {', '.join(SCHEDULES)}"
        )
    return SCHEDULES[name]

"""The mechanisms by name. Adding one is one entry here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from streamveil.mechanisms.accounting.schedule import (
    DynamicSchedule,
    DynamicScheduleRun,
    Schedule,
    ScheduleRun,
)
from streamveil.mechanisms.adaptive.changing import DynamicAdaptive
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.comparators.ablation import Ablation
from streamveil.mechanisms.comparators.lbu import LBU
from streamveil.mechanisms.comparators.plbu import PLBU
from streamveil.mechanisms.comparators.sample import Sample
from streamveil.mechanisms.comparators.spas import SPAS
from streamveil.mechanisms.comparators.uniform import Uniform
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    DynamicRequirement,
    Requirement,
    as_dynamic_requirement,
    as_requirement,
)
from streamveil.mechanisms.protocol import DynamicMechanism, Mechanism, Population, Setting
from streamveil.mechanisms.wevent.ba import BA
from streamveil.mechanisms.wevent.bd import BD
from streamveil.mechanisms.wevent.dpba import DPBA
from streamveil.mechanisms.wevent.dpbd import DPBD
from streamveil.mechanisms.wevent.dpwsm import DPWSM
from streamveil.mechanisms.wevent.pba import PBA
from streamveil.mechanisms.wevent.pbd import PBD
from streamveil.mechanisms.wevent.pwsm import PWSM

Schedules = Mapping[str, Callable[[Sequence[Requirement]], Schedule[Any]]]
# A factory takes (name, population) and its options as keywords with defaults of type bool,
# float, int or str.
Factories = Mapping[str, Callable[..., Mechanism[Any]]]
DynamicSchedules = Mapping[str, Callable[[int], DynamicSchedule[Any]]]
DynamicFactories = Mapping[str, Callable[..., DynamicMechanism[Any]]]

# There to compare with, never advised: schedules and others.
_COMPARED_SCHEDULES: Schedules = {"bd": BD, "ba": BA}
_COMPARED: Factories = {
    "uniform": Uniform,
    "sample": Sample,
    "spas": SPAS,
    "lbu": LBU,
    "plbu": PLBU,
    "ablation": Ablation,
}
COMPARATORS = frozenset([*_COMPARED_SCHEDULES, *_COMPARED])

SCHEDULES: Schedules = {
    **_COMPARED_SCHEDULES,
    "pbd": PBD,
    "pba": PBA,
}

# Over requirements that change. A factory takes the horizon.
DYNAMIC_SCHEDULES: DynamicSchedules = {"dpbd": DPBD, "dpba": DPBA}

MECHANISMS: Factories = {
    "adaptive": Adaptive,
    **{name: partial(PWSM.over, schedule) for name, schedule in SCHEDULES.items()},
    **_COMPARED,
}

DYNAMIC_MECHANISMS: DynamicFactories = {
    "adaptive": DynamicAdaptive,
    **{name: partial(DPWSM, schedule) for name, schedule in DYNAMIC_SCHEDULES.items()},
}

DEFAULT = "adaptive"


def mechanism(text: str, population: Population) -> Mechanism[Any]:
    """Make a mechanism.

    Args:
        text: a key of `MECHANISMS`, with options as NAME:OPTION=VALUE:OPTION=VALUE.
        population: the public facts it may steer by.

    Raises:
        ConfigurationError: for an unknown name or option, or a value that does not fit.
    """
    name, options = parse(text)
    return MECHANISMS[name](text, population, **options)


def dynamic_mechanism(text: str, setting: Setting) -> DynamicMechanism[Any]:
    """Make a mechanism over requirements that change: a key of `DYNAMIC_MECHANISMS`.

    Raises as :func:`mechanism` does.
    """
    name, options = parse(text, DYNAMIC_MECHANISMS)
    return DYNAMIC_MECHANISMS[name](text, setting, **options)


def only_dynamic(text: str) -> bool:
    """Whether a mechanism is for requirements that change only: it runs constant ones as such."""
    name = text.partition(":")[0]
    return name in DYNAMIC_MECHANISMS and name not in MECHANISMS


def parse(
    text: str, known: Mapping[str, Callable[..., Any]] = MECHANISMS
) -> tuple[str, dict[str, Any]]:
    """Read the name of a mechanism and its options; raises as :func:`mechanism` does."""
    name, *given = text.split(":")
    allowed = {
        parameter.name: parameter.default
        for parameter in inspect.signature(_named(known, name)).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options: dict[str, Any] = {}
    for one in given:
        option, _, value = one.partition("=")
        if option not in allowed:
            listed = ", ".join(allowed) if allowed else "none"
            raise ConfigurationError(
                f"mechanism {text!r}: {name} has no option {option!r}; its options: {listed}"
            )
        options[option] = _read(text, option, value, type(allowed[option]))
    return name, options


def with_options(name: str, options: Mapping[str, bool | float | int | str]) -> str:
    """The text of a mechanism with options, which :func:`parse` reads."""
    return ":".join([name, *(f"{option}={value}" for option, value in options.items())])


def schedule(
    name: str,
    requirements: int | Sequence[Requirement | DynamicRequirement | Sequence[float]] = (),
) -> ScheduleRun[Any] | DynamicScheduleRun:
    """Drive the budget schedule of a mechanism by given decisions.

    Args:
        name: a key of `SCHEDULES` or `DYNAMIC_SCHEDULES`.
        requirements: one Requirement or (window, epsilon) pair for each class or user. Under a
            dynamic schedule also DynamicRequirement or its four figures: what slots ask for whose
            offer names nothing; none, or just the number of users, where all of them do.

    Raises:
        ConfigurationError: for an unknown name or a requirement out of range.
    """
    listed = () if isinstance(requirements, int) else requirements
    if name in DYNAMIC_SCHEDULES:
        usual = [astuple(as_dynamic_requirement(r)) for r in listed]
        return DynamicScheduleRun(DYNAMIC_SCHEDULES[name], usual or None)
    factory = _named({**SCHEDULES, **DYNAMIC_SCHEDULES}, name)
    if not listed:
        raise ConfigurationError("a schedule needs at least one requirement")
    return ScheduleRun(factory([as_requirement(r) for r in listed]))  # type: ignore[arg-type]


def _named(known: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    if name not in known:
        raise ConfigurationError(f"mechanism {name!r} is unknown: choose one of {', '.join(known)}")
    return known[name]


def _read(text: str, option: str, value: str, kind: type) -> Any:
    """Read an option's value as the type of its default."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        expected = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise ConfigurationError(
            f"mechanism {text!r}: option {option} is {value!r}, give {expected}"
        ) from None

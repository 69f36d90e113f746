"""One option: its name, what it holds, which commands take it, and which refuse it and why.

All fronts are made from these: the command line, the checks of Python's arguments, Beam YAML, the
parameters of the Flex templates, the help and the reference page.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.mechanisms.core.records import ConfigurationError, format_duration
from streamveil.mechanisms.core.wording import opt

# Sections of the help, in order.
COMPARED = "comparison"
EVENTS = "input"
ASSUMED = "assumptions"
TIME = "time slots"
BINS = "bins"
STATISTIC = "statistic"
PRIVACY = "privacy"
RESULTS = "output"
GOING_ON = "runs that resume"
WORK = "execution"
OPERATOR = "monitoring"
SECTIONS = (
    *(COMPARED, EVENTS, ASSUMED, TIME, BINS, STATISTIC, PRIVACY, RESULTS, GOING_ON, WORK, OPERATOR),
)

# Commands that share options, and a form of release that refuses some of them.
RELEASE, COLLECT, PER_RECORD = "release", "collect", "per-record"
EVALUATE, AUDIT, PLAN, CARD, DEMO = "evaluate", "audit", "plan", "card", "demo"
QUERIES = "release --queries"

# Fronts beside the command line.
YAML, FLEX = "yaml", "flex"

_NUMBERS = {int: ("whole number", "2"), float: ("number", "0.5")}
UNSET = argparse.SUPPRESS
ON_OR_OFF = ("true", "false")


@dataclass(frozen=True)
class Option:
    """What an option is, and who takes it."""

    name: str
    metavar: str
    """What stands for its value in the help; empty where the value is one of `choices`."""
    help: str
    section: str
    commands: Sequence[str]
    """Those that take it."""
    kind: type = str
    """Of what it holds: text, a number, or (`bool`) whether it is on; alone it is then on."""
    default: Any = None
    choices: Sequence[str] = ()
    alone: str | None = None
    """What the name without a value says; None where it needs one."""
    bare: bool = False
    """Whether no value may follow the name."""
    several: bool = False
    """Whether it may be given several times; its values are then the lines of one text."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By command or form of one that knows the option and refuses it: why."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """By command, what it means there, where that is narrower."""
    brief: str = ""
    """Its meaning in a few words, for the short help."""
    aliases: Sequence[str] = ()
    fronts: Sequence[str] = (YAML, FLEX)
    """Where it is a parameter too."""
    pattern: str = ""
    """What its value matches in Dataflow, where that is not said by kind and choices."""

    def __post_init__(self) -> None:
        """Fill in what all options have that are on or off."""
        if self.kind is bool:
            for name, value in {"default": False, "alone": "true", "choices": ON_OR_OFF}.items():
                object.__setattr__(self, name, value)

    def meaning(self, command: str) -> str:
        """What it means to a command."""
        return self.meanings.get(command, self.help)

    def read(self, value: Any) -> Any:
        """What it holds of a value that is text, or is as Python or YAML have it.

        Raises ConfigurationError for a wrong one, TypeError for one that cannot be written as text.
        """
        text = _text_of(self.name, value, "\n" if self.several else ",")
        if self.kind is bool:
            if text.lower() not in ON_OR_OFF:
                raise ConfigurationError(f"{opt[self.name]}={text} is neither true nor false")
            return text.lower() == "true"
        if self.choices and text not in self.choices:
            choice = ", ".join(map(repr, self.choices))
            raise ConfigurationError(
                f"{opt[self.name]}: invalid choice: {text!r} (choose from {choice})"
            )
        try:
            return self.kind(text)
        except ValueError:
            what, example = _NUMBERS[self.kind]
            raise ConfigurationError(
                f"{opt[self.name]}={text} is not a {what}: write one, such as {example}"
            ) from None

    def add_to(self, parser: argparse.ArgumentParser, *, read: bool = False) -> None:
        """Have a parser take it: as text, and nothing where it is not given; or as it is `read`."""
        more: dict[str, Any] = {"action": "append"} if self.several else {}
        if self.bare:
            more = {"action": "store_const", "const": self.alone}
        elif self.alone is not None:
            more = {"nargs": "?", "const": self.alone}
        more |= {"default": self.default, "type": self.read} if read else {"default": UNSET}
        names = [f"--{name}" for name in (self.name, *self.aliases)]
        parser.add_argument(*names, dest=self.name, **more)


def defaults_of(options: Iterable[Option]) -> dict[str, Any]:
    """What options hold that are not given."""
    return {option.name: option.default for option in options}


def refuse(given: Any, defaults: Mapping[str, Any], reasons: Mapping[str, str], why: str) -> None:
    """Raise ConfigurationError where an option is given that has no meaning here.

    Args:
        given: the options as they were given.
        defaults: what they hold when they are not.
        reasons: why each is refused.
        why: what stands between such an option and the reason.
    """
    for name, reason in reasons.items():
        value = getattr(given, name)
        plain = isinstance(value, str | int | float)
        if value is None or (plain and value == defaults.get(name)):
            continue
        shown = f"={_text_of(name, value, ',')}" if plain else ""
        raise ConfigurationError(f"{opt[name]}{shown} {why} {reason}")


def _text_of(name: str, value: Any, between: str) -> str:
    """A value as it is written on a command line, with `between` between several."""
    if isinstance(value, list | tuple):
        return between.join(_text_of(name, each, between) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.date | dt.datetime):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        micros = value // dt.timedelta(microseconds=1)
        return format_duration(micros) if micros > 0 and micros % 1000 == 0 else str(value)
    if isinstance(value, Fraction):
        value = float(value)
    if isinstance(value, str | int | float | Decimal | np.number | np.datetime64):
        return str(value)
    raise TypeError(
        f"{name} is {value!r}, of type {type(value).__name__}: write it as on the command line"
    )

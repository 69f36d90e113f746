"""Keyword arguments of Python as the options of a command: the same names, values and words."""

from __future__ import annotations

import argparse
import datetime as dt
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.mechanisms.core.records import ConfigurationError, format_duration
from streamveil.pipelines.commands import COMMANDS
from streamveil.pipelines.flags import names_of, refuse_unknown
from streamveil.pipelines.values import take_query

# What has a shorter name here.
COLUMNS = {
    "user": "user_column",
    "value": "value_column",
    "time": "time_column",
    "key": "key_column",
}
_SHORT = {"input": "data", **{option: name for name, option in COLUMNS.items()}}
_OPTION = re.compile(r"--(\w+)")
_HELP = re.compile(r"see streamveil \S+ --help")


def options_of(command: str, arguments: Mapping[str, Any], **kept: Any) -> argparse.Namespace:
    """The options of a command that keyword arguments ask for, parsed as its flags are.

    Args:
        command: whose options.
        arguments: by name; None is an option's default.
        kept: options whose values stay as they are.

    Raises:
        ConfigurationError: for an unknown one, or a value that the command would refuse at once.
        TypeError: for one that cannot be written as text.
    """
    flags = [
        f"--{COLUMNS.get(name, name)}={_text(name, value)}"
        for name, value in arguments.items()
        if value is not None
    ]
    given, unknown = COMMANDS[command].strict().parse_known_args(flags)
    refuse_unknown(command, unknown, names_of(COMMANDS[command].help()))
    for name, value in kept.items():
        setattr(given, name, value)
    take_query(given)
    return given


def _text(name: str, value: Any) -> str:
    """A value as it is written on a command line; several are parted by commas."""
    if isinstance(value, (list, tuple)):
        if name == "time_format":  # in which there may be commas
            return "\n".join(value)
        return ",".join(_text(name, each) for each in value)
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        micros = value // dt.timedelta(microseconds=1)
        return format_duration(micros) if micros > 0 and micros % 1000 == 0 else str(value)
    if isinstance(value, Fraction):
        value = float(value)
    if isinstance(value, (str, int, float, Decimal, np.number, np.datetime64)):
        return str(value)
    raise TypeError(
        f"{name} is {value!r}, of type {type(value).__name__}: write it as on the command line"
    )


@contextmanager
def words_of(function: Callable[..., Any]) -> Iterator[None]:
    """Let errors inside name arguments of a function in place of the options of its command."""
    try:
        yield
    except ConfigurationError as error:
        raise type(error)(in_words_of(function, str(error))) from None


def in_words_of(function: Callable[..., Any], text: str) -> str:
    """What a command says, with the arguments of its function in place of its options.

    What is for the command alone keeps its dashes.
    """
    arguments = inspect.signature(function).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in arguments.values())

    def named(option: re.Match[str]) -> str:
        name = _SHORT.get(option[1], option[1])
        return name if any_name or name in arguments else option[0]

    return _OPTION.sub(named, _HELP.sub(f"see help(streamveil.{function.__name__})", text))

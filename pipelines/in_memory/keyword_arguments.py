"""Keyword arguments of Python as the options of a command: the same names, values and words."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import flag, spelled
from streamveil.pipelines.in_memory.run_options import USUAL_RUN
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.parsers import take_query

# What has a shorter name here.
COLUMNS = {
    "user": "user_column",
    "value": "value_column",
    "time": "time_column",
    "key": "key_column",
}
_SHORT = {"input": "data", **{option: name for name, option in COLUMNS.items()}}


def options_of(command: str, arguments: Mapping[str, Any], **kept: Any) -> argparse.Namespace:
    """The options of a command that keyword arguments ask for.

    Args:
        command: whose options.
        arguments: by name; None is an option's default.
        kept: options whose values stay as they are.

    Raises:
        ConfigurationError: for an unknown one, or a value that the command would refuse at once.
        TypeError: for one that cannot be written as text.
    """
    given = COMMANDS[command].take(
        {COLUMNS.get(name, name): value for name, value in arguments.items()}
    )
    for name, value in kept.items():
        setattr(given, name, value)
    take_query(given)
    return given


@contextmanager
def words_of(function: Callable[..., Any]) -> Iterator[None]:
    """Let messages inside name arguments of a function in place of the options of its command.

    What is for the command alone keeps its dashes.
    """
    arguments = inspect.signature(function).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in arguments.values())
    names = {*arguments, *(vars(USUAL_RUN) if "run" in arguments else ())}

    def spell(option: str) -> str:
        name = _SHORT.get(option, option)
        return name if any_name or name in names else flag(option)

    with spelled(spell, lambda _: f"see help(streamveil.{function.__name__})"):
        try:
            yield
        except ConfigurationError as error:
            raise error from None  # else Python prints its cause first

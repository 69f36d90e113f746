"""Strict flags: an unknown one is an error, with a guess at what was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from streamveil.mechanisms.records import ConfigurationError

T = TypeVar("T")


class StrictParser(argparse.ArgumentParser):
    """A parser that raises ConfigurationError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse the flags."""
        raise ConfigurationError(message)


def help_parser(command: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """A parser to add a command's own options to, and print its help."""
    return argparse.ArgumentParser(
        prog=f"streamveil {command}",
        description=description.strip(),
        epilog=epilog,
        allow_abbrev=False,
    )


def show_help(own: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Print help and exit, if asked to."""
    if "-h" in argv or "--help" in argv:
        own.print_help()
        raise SystemExit(0)


def refuse_unknown(
    command: str, argv: Sequence[str], own: argparse.ArgumentParser, everything: StrictParser
) -> argparse.Namespace:
    """Parse with `everything`; an unknown flag is an error that names one like it."""
    known, unknown = everything.parse_known_args(list(argv))
    for flag in unknown:
        hint = _near(flag, own, 0.6) or _near(flag, everything, 0.85)
        hint = f"did you mean {hint}?" if hint else f"see streamveil {command} --help"
        raise ConfigurationError(f"unknown option {flag}: {hint}")
    return known


def parse_own_flags(
    command: str,
    description: str,
    add_options: Callable[[argparse.ArgumentParser], None],
    argv: Sequence[str],
) -> argparse.Namespace:
    """Read the flags of a command that runs no pipeline, so has none of Beam's.

    Exits with help for --help. Raises ConfigurationError.
    """
    own = help_parser(command, description)
    add_options(own)
    show_help(own, argv)
    strict = StrictParser(add_help=False, allow_abbrev=False)
    add_options(strict)
    return refuse_unknown(command, argv, own, strict)


def is_true(name: str, text: str) -> bool:
    """Read the value of a flag that is on or off. Raises ConfigurationError."""
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise ConfigurationError(f"--{name}={text} is neither true nor false")
    return found


def numbers(
    option: str, text: str, kind: Callable[[str], T], check: Callable[[T], object]
) -> list[T]:
    """Read numbers with commas between, each once, in order; `check` refuses one that is wrong.

    Raises ConfigurationError.
    """
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        whole = "whole " if kind is int else ""
        raise ConfigurationError(
            f"--{option}={text}: write {whole}numbers, separated by commas"
        ) from None
    for number in found:
        try:
            check(number)
        except ConfigurationError as error:
            raise ConfigurationError(f"--{option}={text}: {error}") from None
    return list(dict.fromkeys(found))


def _near(flag: str, parser: argparse.ArgumentParser, likeness: float) -> str | None:
    known = [name for action in parser._actions for name in action.option_strings]
    near = difflib.get_close_matches(flag.split("=")[0], known, n=1, cutoff=likeness)
    return near[0] if near else None

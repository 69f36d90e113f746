"""Strict flags: an unknown one is an error, with a guess at what was meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, TypeVar

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import help_of

T = TypeVar("T")

# Flags as far apart in spelling as these, from 0 to 1, are not meant for each other. Beam has
# hundreds of flags: one that sounds alike by chance leads astray.
_LIKENESS, _LIKENESS_TO_BEAM = 0.7, 0.85

_OF_FILESYSTEM = re.compile(
    "--(s3_|azure_|hdfs_|(blob_service_endpoint|project|impersonate_service_account|gcp_oauth_scopes?)(=|$))"
)


class StrictParser(argparse.ArgumentParser):
    """A parser that raises ConfigurationError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse the flags."""
        raise ConfigurationError(message)


def refuse_unknown(
    command: str, unknown: Sequence[str], own: Collection[str], beams: Collection[str] = ()
) -> None:
    """Refuse unknown flags: a ConfigurationError that names one like the first of them.

    Args:
        command: what was run.
        unknown: what is no flag of it, nor of Beam.
        own: the names of its flags.
        beams: those of Beam's.
    """
    for flag in unknown:
        hint = nearest(flag, own, _LIKENESS) or nearest(flag, beams, _LIKENESS_TO_BEAM)
        hint = f"did you mean {hint}?" if hint else help_of(command)
        raise ConfigurationError(f"unknown option {flag}: {hint}")


def is_of_filesystem(flag: str) -> bool:
    """Whether a flag of Beam says how to reach the files of a filesystem."""
    return _OF_FILESYSTEM.match(flag) is not None


def nearest(flag: str, names: Collection[str], likeness: float = _LIKENESS) -> str | None:
    """The name that a flag may have been meant for: one that it begins, or is like.

    Dashes are not compared: they make all flags alike.
    """
    known = {name.lstrip("-"): name for name in names}
    given = flag.split("=")[0].lstrip("-").replace("-", "_").lower()
    if not flag.startswith("--") or not given:
        return None
    begun = sorted((name for name in known if name.startswith(given)), key=len)
    near = begun or difflib.get_close_matches(given, known, n=1, cutoff=likeness)
    return known[near[0]] if near else None


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

"""Options of a command, one by one, for those who give them otherwise than on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence

from streamveil.pipelines.commands import AddOptions


def meaning_of(action: argparse.Action) -> str:
    """The help of an option, in which argparse has percent signs twice."""
    return (action.help or "").replace("%%", "%")


def parameters_of(
    options: Sequence[AddOptions], without: Collection[str] = ()
) -> dict[str, argparse.Action]:
    """The options that these declare, by name and in order, but for some."""
    parser = argparse.ArgumentParser(add_help=False)
    for add in options:
        add(parser)
    return {action.dest: action for action in parser._actions if action.dest not in without}

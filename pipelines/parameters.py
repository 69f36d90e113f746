"""Options of a command, one by one, for those who give them otherwise than on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence

from apache_beam.options.pipeline_options import PipelineOptions


def meaning_of(action: argparse.Action) -> str:
    """The help of an option, in which argparse has percent signs twice."""
    return (action.help or "").replace("%%", "%")


def parameters_of(
    kinds: Sequence[type[PipelineOptions]], without: Collection[str] = ()
) -> dict[str, argparse.Action]:
    """The options of several classes by name, in order, but for some."""
    parser = argparse.ArgumentParser(add_help=False)
    for kind in kinds:
        kind._add_argparse_args(parser)
    return {action.dest: action for action in parser._actions if action.dest not in without}

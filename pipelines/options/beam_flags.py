"""Beam's flags: which ones there are, and an error for any other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.pipelines.options.declarations import HOW, shown_by
from streamveil.pipelines.options.flags import StrictParser, is_of_filesystem, refuse_unknown
from streamveil.pipelines.options.flink_flags import add_flink_options
from streamveil.pipelines.options.option import COLLECT, PER_RECORD, RELEASE


class FlinkOptions(PipelineOptions):
    """Options of Beam's Flink runner."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_flink_options(parser)


class CommandOptions(PipelineOptions):
    """Options of commands that run on a runner, which a service shows among Beam's.

    No command reads them here. Beam takes those of all classes at once, so this is one class.
    """

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        options = {**shown_by(PER_RECORD), **shown_by(COLLECT), **shown_by(RELEASE)}
        for name, option in options.items():
            if name not in HOW:
                option.add_to(parser, read=True)


def check_flags(
    command: str, flags: Sequence[str], own: Sequence[str], *, runs_on_beam: bool = True
) -> None:
    """Raise ConfigurationError where Beam does not know one of the flags.

    Args:
        command: name of the command.
        flags: what it was given beside its own options, with values.
        own: names of its own options, one of which may have been meant.
        runs_on_beam: whether it takes all of Beam's flags, and not just those of its filesystems.
    """
    parser = StrictParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for kind in _subclasses(PipelineOptions):
        if kind is not CommandOptions:
            kind._add_argparse_args(parser)
    if not runs_on_beam:
        _drop_others(parser)
    _, unknown = parser.parse_known_args(list(flags))
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    refuse_unknown(command, unknown, own, known)


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        if "_add_argparse_args" in vars(child):
            yield child
        yield from _subclasses(child)


def _drop_others(parser: argparse.ArgumentParser) -> None:
    """Leave the flags of filesystems."""
    known = parser._option_string_actions
    for name in [name for name in known if not is_of_filesystem(name)]:
        del known[name]
    parser._actions = [action for action in parser._actions if action in known.values()]

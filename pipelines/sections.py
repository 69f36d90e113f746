"""Options by what they are for: the sections of every command's --help, always in one order."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

COMPARED = "what is compared"
EVENTS = "what is read"
ASSUMED = "what is assumed"
TIME = "slots of time"
BINS = "bins"
STATISTIC = "the statistic"
PRIVACY = "protection"
RESULTS = "what is written"
GOING_ON = "a run that goes on"
WORK = "how it runs"
OPERATOR = "what an operator sees"
SECTIONS = (
    *(COMPARED, EVENTS, ASSUMED, TIME, BINS, STATISTIC, PRIVACY, RESULTS, GOING_ON, WORK, OPERATOR),
)


def section(parser: argparse.ArgumentParser, title: str) -> Callable[..., Any]:
    """What adds an option to a section of the parser, which is made when it is not there."""
    for group in parser._action_groups:
        if group.title == title:
            return group.add_argument
    return parser.add_argument_group(title).add_argument


class CommandHelp(argparse.ArgumentParser):
    """A parser to print the help of a command: required options first, the others by section."""

    def __init__(
        self,
        command: str,
        description: str,
        required: Sequence[str],
        example: str,
        beam: bool = False,
    ) -> None:
        """Of the command; `required` options have no default, `beam`: those of Beam pass too."""
        super().__init__(prog=f"streamveil {command}", allow_abbrev=False)
        self._about = description
        self._required = required
        self._example = example
        self._beam = beam

    def format_usage(self) -> str:
        """One line: the options are listed below it."""
        return f"usage: {self.prog} [options]{' [options of Apache Beam]' if self._beam else ''}\n"

    def format_help(self) -> str:
        """The text of --help."""
        formatter = self._get_formatter()
        formatter.add_text(self._about)
        known = {action.dest: action for action in self._actions}
        required = [known[name] for name in self._required]
        self._add_section(formatter, "required", required)
        groups = {group.title: group._group_actions for group in self._action_groups}
        for title in (*SECTIONS, "options"):
            others = [a for a in groups.get(title, ()) if a not in required]
            self._add_section(formatter, title, others)
        if self._beam:
            formatter.add_text(
                "All options of Apache Beam pass through, such as --runner; without it the "
                "command runs in this process."
            )
        else:
            formatter.add_text(
                "Options of Apache Beam's filesystems pass through, such as --s3_endpoint_url."
            )
        example = "\n    ".join(self._example.strip().splitlines())
        return f"{self.format_usage()}\n{formatter.format_help()}\nexample:\n    {example}\n"

    @staticmethod
    def _add_section(
        formatter: argparse.HelpFormatter, title: str, actions: list[argparse.Action]
    ) -> None:
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()

"""The help of a command: in short, in full, and as a page of the documentation."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from streamveil.pipelines.options.command import Command
from streamveil.pipelines.options.option import SECTIONS, Option

_INDENT, _COLUMN, _WIDEST = 2, 24, 100


def full_help(command: Command) -> str:
    """All options by section, those that are required first."""
    required = [command.options[name] for name in command.required]
    sections = {"required": required}
    for title in SECTIONS:
        found = [option for option in command.options.values() if option.section == title]
        sections[title] = [option for option in found if option not in required]
    width = _width()
    parts = [_usage(command), *_wrapped(command.about, width), ""]
    for title, options in sections.items():
        if options:
            parts += [f"{title}:", *_listed(command, options, width), ""]
    parts += [*_wrapped(_passing(command), width), ""]
    return "\n".join([*parts, "example:", *_indented(command.examples[0])])


def short_help(command: Command) -> str:
    """The options that most people need, and examples; the full help where there is no such."""
    if not command.most_used:
        return full_help(command)
    width = _width()
    parts = [_usage(command), *_wrapped(command.about, width), ""]
    for name in command.most_used:
        option = command.options[name]
        parts.append(f"{' ' * _INDENT}{_head(option):<{_COLUMN}}{option.brief}")
    parts += ["", *_wrapped(_passing(command), width)]
    parts += [f"streamveil {command.name} --help lists all {len(command.options)} options.", ""]
    parts.append("examples:")
    for example in command.examples:
        parts += _indented(example)
    return "\n".join(parts)


def reference(commands: Iterable[Command]) -> str:
    """A page of Markdown with all options of all commands."""
    parts = ["# Options", "", "This page lists the options of every command, as `--help` does.", ""]
    for command in commands:
        parts += [f"## streamveil {command.name}", "", command.about, ""]
        for title in SECTIONS:
            rows = [
                f"| `{_head(option)}` | {_escaped(option.meaning(command.name))} |"
                for option in command.options.values()
                if option.section == title
            ]
            if rows:
                parts += [f"### {title.capitalize()}", "", "| option | meaning |", "|---|---|"]
                parts += [row.replace("\n", " ") for row in rows] + [""]
    return "\n".join(parts)


def _usage(command: Command) -> str:
    """One line: the options are listed below it."""
    beam = " [Apache Beam options]" if command.beam else ""
    return f"usage: streamveil {command.name} [options]{beam}\n"


def _passing(command: Command) -> str:
    if command.beam:
        return (
            "All Apache Beam options, such as --runner, are passed on to Beam. Without --runner, "
            "the command runs in this process."
        )
    return "Options of the Beam filesystems, such as --s3_endpoint_url, are passed on to Beam."


def _head(option: Option) -> str:
    """The option with what stands for its value."""
    if option.bare:
        return f"--{option.name}"
    value = option.metavar or f"{{{','.join(option.choices)}}}"
    return f"--{option.name} {f'[{value}]' if option.alone else value}"


def _listed(command: Command, options: Iterable[Option], width: int) -> list[str]:
    lines = []
    for option in options:
        head = " " * _INDENT + _head(option)
        meaning = textwrap.wrap(
            option.meaning(command.name), width - _COLUMN, break_on_hyphens=False
        )
        if len(head) < _COLUMN - 1:
            head = f"{head:<{_COLUMN}}{meaning.pop(0)}"
        lines += [head, *(" " * _COLUMN + line for line in meaning)]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _indented(example: str) -> list[str]:
    return ["  " + line for line in example.strip().splitlines()]


def _escaped(text: str) -> str:
    """Text in a cell of Markdown."""
    for sign in "|*<":
        text = text.replace(sign, f"\\{sign}")
    return text


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST) - 2

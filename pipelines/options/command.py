"""A command: the options that it takes, and how what it was given is read, once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import help_of, opt
from streamveil.pipelines.console.logs import LOG_FORMATS
from streamveil.pipelines.options.declarations import HOW, known_to, reasons, saying, shown_by
from streamveil.pipelines.options.flags import (
    StrictParser,
    is_of_filesystem,
    nearest,
    refuse_unknown,
)
from streamveil.pipelines.options.option import CARD, Option, defaults_of, refuse
from streamveil.pipelines.options.parsers import take_query

_NAMED_TWICE = {
    "input": "{first} and --input both say where the events are: leave one of them out",
    "card": "two cards are named, {first} and {second}: name one",
}


@dataclass(frozen=True)
class Command:
    """What a command takes."""

    name: str
    about: str
    required: Sequence[str]
    """Options without a default, for the help."""
    examples: Sequence[str]
    """Calls; the full help shows the first."""
    check: Callable[[Any], None]
    """Refuses values that are wrong; raises ConfigurationError."""
    own: Callable[[], Sequence[Option]] = tuple
    """Options that are declared elsewhere, imported when they are needed."""
    beam: bool = True
    """Whether Beam's own options pass through; if not, only those of its filesystems do."""
    unnamed: str | None = None
    """The option whose name may be left out where its value comes first."""
    most_used: Sequence[str] = ()
    """Options of the short help; without them there is the full one alone."""

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """Those that it takes, by name."""
        return {**shown_by(self.name), **{option.name: option for option in self.own()}}

    @cached_property
    def known(self) -> Mapping[str, Option]:
        """The same with those that it refuses."""
        return {**known_to(self.name), **self.options}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """What all that it knows hold when they are not given."""
        return defaults_of(self.known.values())

    def take(self, values: Mapping[str, Any]) -> argparse.Namespace:
        """The options with these values, as text or as Python has them; None is a default.

        Raises:
            ConfigurationError: for a name or a value that is wrong.
            TypeError: for a value that cannot be written as text.
        """
        given = argparse.Namespace(**self.defaults)
        for name, value in values.items():
            if name not in self.known:
                near = nearest(f"--{name}", self.flags)
                hint = f"did you mean {opt[near.lstrip('-')]}?" if near else help_of(self.name)
                raise ConfigurationError(f"unknown option {opt[name]}={value}: {hint}")
            if value is not None:
                setattr(given, name, self.known[name].read(value))
        return given

    @property
    def flags(self) -> list[str]:
        """The names of its options on a command line."""
        return [f"--{name}" for name in self.options]

    def request(self, argv: Sequence[str]) -> Request:
        """Split the arguments of a command line: its own options as text, and all others."""
        parser = StrictParser(add_help=False, allow_abbrev=False)
        for option in self.known.values():
            option.add_to(parser)
        first = argv[0] if self.unnamed and argv and argv[0][:1] != "-" else None
        others: list[str] = []
        split, fault = argparse.Namespace(), None
        try:
            _, others = parser.parse_known_args(list(argv if first is None else argv[1:]), split)
        except ConfigurationError as error:
            fault = error
        if self.name == CARD and others and others[-1][:1] != "-":
            first = others.pop()
        texts = vars(split)
        if first is not None and self.unnamed:
            second = texts.setdefault(self.unnamed, first)
            if second is not first and (self.name != CARD or second != first):
                message = _NAMED_TWICE[self.unnamed].format(first=first, second=second)
                fault = ConfigurationError(message)
        return Request(self, tuple(argv), texts, tuple(others), fault)


@dataclass(frozen=True)
class Request:
    """What a command was given."""

    command: Command
    argv: Sequence[str]
    texts: Mapping[str, Any]
    """By the name of an option of the command: its text, or a list of texts."""
    others: Sequence[str]
    """Flags that might be Beam's."""
    fault: ConfigurationError | None = None
    """Why the arguments cannot be split."""

    @property
    def wants_help(self) -> str | None:
        """The flag that asks for help, if there is one."""
        return next((flag for flag in ("--help", "-h") if flag in self.argv), None)

    @property
    def log_format(self) -> str | None:
        """The form of log lines, whatever else is wrong."""
        form = self.texts.get("log_format")
        return form if form in LOG_FORMATS else None

    @property
    def is_dry(self) -> bool:
        """Whether nothing is to be released."""
        return str(self.texts.get("dry_run")).lower() == "true"

    @property
    def shown(self) -> list[str]:
        """All arguments but for those that say how the command runs, as flags with values."""
        own = [
            f"--{name}={text}"
            for name, texts in self.texts.items()
            for text in (texts if isinstance(texts, list) else [texts])
            if name not in HOW
        ]
        return [*own, *self.others]

    def read(self) -> argparse.Namespace:
        """The options, checked as far as can be before a file is read.

        Raises ConfigurationError.
        """
        if self.fault is not None:
            raise self.fault
        command = self.command
        given = command.take(self.texts)
        if self.others:
            self._refuse_unknown()
        refuse(given, command.defaults, reasons(command.name), saying(command.name))
        take_query(given)
        command.check(given)
        return given

    def _refuse_unknown(self) -> None:
        """Raise ConfigurationError where a flag is neither the command's nor one of Beam's."""
        name, flags, beam = self.command.name, self.command.flags, self.command.beam
        if not beam and not any(map(is_of_filesystem, self.others)):
            refuse_unknown(name, self.others, flags)
        from streamveil.pipelines.options.beam_flags import (
            check_flags,  # Beam takes a second to import
        )

        check_flags(name, self.others, flags, runs_on_beam=beam)

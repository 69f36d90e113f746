"""What messages have in common: how they name options, and say how a part is installed.

Each front spells options in its own way: the command line has flags, Python and Beam YAML have
arguments of functions.

    >>> f"give an end ({opt.end})"
    'give an end (--end)'
    >>> with spelled(lambda name: name):
    ...     f"give an end ({opt.end}): {help_of('release')}"
    'give an end (end): see streamveil release --help'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Spell = Callable[[str], str]


def flag(name: str) -> str:
    """An option as on a command line."""
    return f"--{name}"


def _see_help(command: str) -> str:
    return f"see streamveil {command} --help"


_SPELL: ContextVar[Spell] = ContextVar("spell", default=flag)
_HELP: ContextVar[Spell] = ContextVar("help", default=_see_help)


class _OptionNames:
    """Names of options, as they are spelled where a message is made."""

    def __getattr__(self, name: str) -> str:
        return _SPELL.get()(name)

    def __getitem__(self, name: str) -> str:
        return _SPELL.get()(name)


opt = _OptionNames()


def help_of(command: str) -> str:
    """Where the options of a command are explained."""
    return _HELP.get()(command)


@contextmanager
def spelled(spell: Spell, help: Spell = _see_help) -> Iterator[None]:
    """Have messages that are made inside name options, and their help, so."""
    before = _SPELL.set(spell), _HELP.set(help)
    try:
        yield
    finally:
        _SPELL.reset(before[0])
        _HELP.reset(before[1])


def install_line(extra: str) -> str:
    """The command that installs an extra, and where to run it.

    Example:
        >>> install_line("demo")
        "run python -m pip install '.[demo]' in a clone of streamveil"
    """
    return f"run python -m pip install '.[{extra}]' in a clone of streamveil"

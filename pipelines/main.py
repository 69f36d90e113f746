"""The command line: `streamveil COMMAND [options]`."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from streamveil import __version__
from streamveil.pipelines.console.standard_streams import lasting_streams

if TYPE_CHECKING:
    from streamveil.pipelines.options.command import Request

USAGE = """usage: streamveil COMMAND [options]

Publish differentially private statistics of an event stream, within each user's privacy budget.

commands:
  release     release private statistics of events from files or a stream
  collect     simulate local differential privacy, where devices add the noise
  per-record  release statistics that protect each record by its own budget
  evaluate    compare the errors of several mechanisms on the same streams
  audit       attack a configuration, and compare what this proves with the guarantee
  plan        predict the error of queries, or the epsilon that they need
  card        explain the card of a run, or check it against the ledger and the releases
  demo        release a year of real flights, and show the result on a page
  completion  print a script that completes commands and options in bash, zsh or fish

streamveil COMMAND --help lists a command's options, as does streamveil help COMMAND.
"""


# Whether the process was started by :func:`program`.
_alone = False


def program() -> int:
    """Run :func:`main` as the entry point of a process, in which jobs do not import pandas."""
    global _alone
    _alone = True
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns its exit code: 0 done, 1 failed, 2 asked for what cannot be done, 3 nothing released
    because most of the input was lost, 4 an audit found a violation. A release whose words cannot
    be printed is done; what a command does for its words alone has failed then.
    """
    arguments = [_underscored(each) for each in (sys.argv[1:] if argv is None else argv)]
    with lasting_streams() as printed:
        code, released = _main(arguments)
        printed.flush()
        if printed.error is None or printed.error.errno == errno.EPIPE:
            return code  # who closes a pipe has read enough
        lost = f"standard output cannot be written to ({printed.error.strerror})"
        if code == 0 and released:
            print(f"streamveil: {lost}; what was released stays", file=sys.stderr)
            return 0
        print(f"streamveil: {lost}", file=sys.stderr)
        return code or 1


def _main(arguments: Sequence[str]) -> tuple[int, bool]:
    """Run a command; gives its exit code, and whether it releases something where that is 0."""
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        if arguments[1:]:
            arguments = [arguments[1], "--help"]
        else:
            print(USAGE)
            return 0, False
    if not arguments:
        print(USAGE)
        return 2, False
    if arguments[0] == "--version":
        print(__version__)
        return 0, False
    name, rest = arguments[0], arguments[1:]
    if name == "completion":
        return _complete(rest), False
    if name not in _COMMANDS:
        near = difflib.get_close_matches(name, [*_COMMANDS, "completion"], n=1)
        hint = f"did you mean {near[0]}?" if near else "see streamveil --help"
        print(f"streamveil: unknown command {name!r}: {hint}", file=sys.stderr)
        return 2, False
    try:
        from streamveil.pipelines.console.logs import logging_as
        from streamveil.pipelines.options.command_table import COMMANDS

        request = COMMANDS[name].request(rest)
        if request.wants_help:
            from streamveil.pipelines.options.help import full_help, short_help

            print((short_help if request.wants_help == "-h" else full_help)(request.command))
            return 0, False
        with logging_as(request.log_format):
            return _run(request), name in _RELEASING and not request.is_dry
    except KeyboardInterrupt:  # it has not come so far as to log
        print(f"streamveil {name}: interrupted", file=sys.stderr)
        return 130, False


def _complete(shells: Sequence[str]) -> int:
    """Print the completion script of a shell; gives the exit code."""
    from streamveil.pipelines.options.completion import SHELLS, script

    if len(shells) != 1 or shells[0] not in SHELLS:
        usage = f"usage: streamveil completion {{{','.join(SHELLS)}}}"
        asks = list(shells) in (["--help"], ["-h"])
        print(usage, file=sys.stdout if asks else sys.stderr)
        return 0 if asks else 2
    print(script(shells[0]), end="")
    return 0


def _not_utf8(argument: str) -> str | None:
    """An argument in which a byte is no text, with that byte escaped; else None."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return argument.encode(errors="backslashreplace").decode()
    return None


def _underscored(argument: str) -> str:
    """A flag with underscores in its name, as all of them are declared; Beam's have both."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _run(request: Request) -> int:
    """Run a command, and say in one line why it cannot; gives the exit code."""
    from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
    from streamveil.mechanisms.core.lazy_names import lacks_beam, needs_beam
    from streamveil.mechanisms.core.records import ConfigurationError, InputLost, NothingChosen
    from streamveil.pipelines.console.errors import in_one_line, is_explained, may_pass, reason_of
    from streamveil.pipelines.console.logs import tell_aside

    name = request.command.name

    def refused(why: str, code: int) -> int:
        tell_aside(f"streamveil {name}: {why}", logging.ERROR)
        return code

    if label := next(filter(None, map(_not_utf8, request.argv)), None):
        remedy = "rename the file, or name one of the input by its folder or by a glob"
        return refused(f"{label} is not UTF-8 text: {remedy}", 2)
    if label := _not_utf8(os.getcwd()):
        return refused(f"the working folder {label} is not UTF-8 text: work in another one", 2)
    try:
        return _call(request)
    except InputLost as error:
        return refused(str(error), 3)
    except (BudgetExceeded, NothingChosen) as error:  # it was run, and may have cost budget
        return refused(in_one_line(str(error)), 1)
    except ConfigurationError as error:
        # Whatever starts a run again, such as systemd, is to do so where only the machine failed.
        return refused(in_one_line(str(error)), 1 if may_pass(error) else 2)
    except KeyboardInterrupt:
        return refused("interrupted", 130)
    except Exception as error:
        if lacks_beam(error):
            return refused(needs_beam("this"), 2)
        if not is_explained(error):
            logging.getLogger("streamveil").error("%s failed", name, exc_info=True)
        return refused(f"failed: {reason_of(error)}", 1)


def _call(request: Request) -> int:
    """Read the options of a command and run its module, which is not imported before."""
    began = time.monotonic()  # to import what a command needs may take seconds
    from streamveil.pipelines.options.execution import Execution

    name, given = request.command.name, request.read()
    if _alone and name in _JOBS:
        _hide_pandas()
    line = shlex.join(["streamveil", name, *request.argv])
    # Also of commands that need no runner: filesystems take their options.
    execution = Execution.of(request.others, request.shown, line=line, began=began)
    module = import_module(f"streamveil.pipelines.commands.{name.replace('-', '_')}")
    code: int = module.main(given, execution)
    return code


def _hide_pandas() -> None:
    """Have pyarrow take pandas for not installed, for good.

    It imports pandas when it first converts a Python value. That takes a third of a second, and no
    job converts anything to or from pandas.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """Where modules are found, and pandas is not."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no job needs pandas", name=fullname)


_COMMANDS = ("release", "collect", "per-record", "evaluate", "audit", "plan", "card", "demo")
_JOBS = ("release", "collect", "per-record")
_RELEASING = (*_JOBS, "demo")

"""The command line: `streamveil COMMAND [options]`."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from streamveil import __version__
from streamveil.pipelines.standard_streams import lasting_streams

USAGE = """usage: streamveil COMMAND [options]

Publish statistics of an event stream, keeping every user's privacy requirement.

commands:
  release     events from files or a stream, private histograms per slot to a file or a stream
  collect     the same in the local setting: devices perturb, the server sees no raw value
  per-record  counts, sums and maxima that protect each record by a budget of its own
  evaluate    several mechanisms on the same streams: which one errs least
  audit       what an attacker can prove that a configuration tells, beside its promise
  plan        which error questions will have, and which epsilon they need
  card        what was promised, in words; or checked against ledger and releases
  demo        a year of real flights, released and shown on a page

streamveil COMMAND --help lists a command's options, as does streamveil help COMMAND.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns its exit code: 0 done, 1 failed, 2 asked for what cannot be done, 3 nothing released
    because most of the input was lost, 4 an audit found a violation. A release whose words cannot
    be printed is done; what a command does for its words alone has failed then.
    """
    arguments = [_underscored(each) for each in (sys.argv[1:] if argv is None else argv)]
    with lasting_streams() as printed:
        code = _main(arguments)
        printed.flush()
        if printed.error is None or printed.error.errno == errno.EPIPE:
            return code  # who closes a pipe has read enough
        lost = f"standard output cannot be written to ({printed.error.strerror})"
        if code == 0 and _releases(arguments):
            print(f"streamveil: {lost}; what was released stays", file=sys.stderr)
            return 0
        print(f"streamveil: {lost}", file=sys.stderr)
        return code or 1


def _releases(arguments: Sequence[str]) -> bool:
    """Whether a command that ran to its end has released something."""
    from streamveil.pipelines.commands import COMMANDS
    from streamveil.pipelines.flags import is_true

    if not arguments or arguments[0] not in _RELEASING:
        return False
    given, _ = COMMANDS[arguments[0]].strict().parse_known_args(arguments[1:])
    return not is_true("dry_run", getattr(given, "dry_run", "false"))


def _main(arguments: Sequence[str]) -> int:
    """Run a command; gives its exit code."""
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        if arguments[1:]:
            arguments = [arguments[1], "--help"]
        else:
            print(USAGE)
            return 0
    if not arguments:
        print(USAGE)
        return 2
    if arguments[0] == "--version":
        print(__version__)
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        near = difflib.get_close_matches(command, _COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see streamveil --help"
        print(f"streamveil: unknown command {command!r}: {hint}", file=sys.stderr)
        return 2
    try:
        from streamveil.pipelines.logs import log_format_of, logging_as

        with logging_as(log_format_of(rest)):
            return _run(command, rest)
    except KeyboardInterrupt:  # it has not come so far as to log
        print(f"streamveil {command}: interrupted", file=sys.stderr)
        return 130


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


def _run(command: str, rest: Sequence[str]) -> int:
    """Run a command, and say in one line why it cannot; gives the exit code."""
    from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
    from streamveil.mechanisms.core.lazy_names import lacks_beam, needs_beam
    from streamveil.mechanisms.core.records import ConfigurationError, InputLost, NothingChosen
    from streamveil.pipelines.errors import in_one_line, is_explained, may_pass, reason_of
    from streamveil.pipelines.logs import tell_aside

    def refused(why: str, code: int) -> int:
        tell_aside(f"streamveil {command}: {why}", logging.ERROR)
        return code

    if label := next(filter(None, map(_not_utf8, rest)), None):
        remedy = "rename the file, or name one of the input by its folder or by a glob"
        return refused(f"{label} is not UTF-8 text: {remedy}", 2)
    if label := _not_utf8(os.getcwd()):
        return refused(f"the working folder {label} is not UTF-8 text: work in another one", 2)
    try:
        return _COMMANDS[command](rest)
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
            logging.getLogger("streamveil").error("%s failed", command, exc_info=True)
        return refused(f"failed: {reason_of(error)}", 1)


def _run_job(name: str, argv: Sequence[str]) -> int:
    """Run a command that takes events to releases."""
    from streamveil.pipelines.commands import read
    from streamveil.pipelines.execution import Execution

    given, flags = read(name, argv)
    command = import_module(f"streamveil.pipelines.{name.replace('-', '_')}")
    code: int = command.main(given, Execution.of(flags, argv))
    return code


def _evaluate(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read
    from streamveil.pipelines.execution import Execution

    given, others = read("evaluate", argv)
    from streamveil.pipelines import evaluate

    Execution.of(others)  # whose options the filesystems take
    return evaluate.main(given, shlex.join(["streamveil", "evaluate", *argv]))


def _audit(argv: Sequence[str]) -> int:
    began = time.monotonic()  # to import what an audit needs takes seconds
    from streamveil.pipelines.commands import read
    from streamveil.pipelines.execution import Execution

    given, others = read("audit", argv)
    from streamveil.pipelines.audit import command

    Execution.of(others)  # whose options the filesystems take
    return command.main(given, shlex.join(["streamveil", "audit", *argv]), began)


def _plan(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read
    from streamveil.pipelines.execution import Execution

    given, others = read("plan", argv)
    from streamveil.pipelines import plan

    Execution.of(others)  # whose options the filesystems take
    return plan.main(given)


def _card(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read
    from streamveil.pipelines.execution import Execution

    given, others = read("card", argv)
    from streamveil.pipelines.cards import command

    Execution.of(others)  # whose options the filesystems take
    return command.main(given)


def _demo(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, others = read("demo", argv)
    from streamveil.pipelines import demo
    from streamveil.pipelines.execution import Execution

    return demo.main(given, Execution.of(others))


# Commands import what they need when they run: --help does not wait for Beam.
_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "release": partial(_run_job, "release"),
    "collect": partial(_run_job, "collect"),
    "per-record": partial(_run_job, "per-record"),
    "evaluate": _evaluate,
    "audit": _audit,
    "plan": _plan,
    "card": _card,
    "demo": _demo,
}
_RELEASING = ("release", "collect", "per-record", "demo")


if __name__ == "__main__":
    raise SystemExit(main())

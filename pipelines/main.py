"""The command line: `streamveil COMMAND [options]`."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

USAGE = """usage: streamveil COMMAND [options]

Publish statistics of an event stream, keeping every user's privacy requirement.

commands:
  release     events from files or a stream, private histograms per slot to a file or a stream
  collect     the same in the local setting: devices perturb, the server sees no raw value
  per-record  counts, sums and maxima that protect each record by a budget of its own
  evaluate    several mechanisms on the same streams: which one errs least
  demo        a year of real flights, released and shown on a page

streamveil COMMAND --help lists a command's options.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns its exit code: 0 done, 1 failed, 2 asked for what cannot be done, 3 nothing released
    because most of the input was lost.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(version("streamveil"))
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        near = difflib.get_close_matches(command, _COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see streamveil --help"
        print(f"streamveil: unknown command {command!r}: {hint}", file=sys.stderr)
        return 2
    _quiet_beam()
    from streamveil.mechanisms.odometer import BudgetExceeded
    from streamveil.mechanisms.records import ConfigurationError, InputLost

    try:
        return _COMMANDS[command](rest)
    except InputLost as error:
        print(f"streamveil {command}: {error}", file=sys.stderr)
        return 3
    except ConfigurationError as error:
        print(f"streamveil {command}: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except BudgetExceeded as error:
        print(f"streamveil {command}: {_one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"streamveil {command}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        refused = _refused_by_disk(error)
        if refused is None:
            logging.getLogger("streamveil").error("%s failed", command, exc_info=True)
        print(
            f"streamveil {command}: failed: {_one_line(refused or _reason(error))}", file=sys.stderr
        )
        return 1


def _one_line(text: str) -> str:
    """A message as one line, whatever the names and values in it hold."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _refused_by_disk(error: BaseException) -> str | None:
    """What a disk refused, here or in the text that a runner reports of a worker; else None.

    Such an error has a remedy, and no use for a traceback.
    """
    told = _DISK_ERROR.search(str(error))
    if isinstance(error, OSError):
        number, name = error.errno, error.filename
    else:
        number, name = (int(told[1]), told[2]) if told else (None, None)
    if number not in _DISK_REMEDIES:
        cause = error.__cause__ or error.__context__
        return None if cause is None else _refused_by_disk(cause)
    return f"{name or 'a disk'}: {os.strerror(number)}: {_DISK_REMEDIES[number]}"


_DISK_ERROR = re.compile(r"\[Errno (\d+)\] [^:'\n\\]+(?:: '([^'\n]+?)')?")
_DISK_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, and run again"),
    errno.EROFS: "mount its disk for writing, or choose another place",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this user write there"),
    errno.EIO: "look after its disk before anything is written there",
}


def _reason(error: Exception) -> str:
    """What is told of an error: its last line, or of one in Java all its causes."""
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+[.])*(.+)$", text, re.MULTILINE)
    if causes:
        return "; ".join(dict.fromkeys(causes))
    return [type(error).__name__, *text.splitlines()][-1]


def _release(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, _ = read("release", argv)
    from streamveil.pipelines import release
    from streamveil.pipelines.launch import parse_flags

    return release.main(parse_flags("release", argv), dry=given.dry_run)


def _collect(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, _ = read("collect", argv)
    from streamveil.pipelines import collect
    from streamveil.pipelines.launch import parse_flags

    return collect.main(parse_flags("collect", argv), dry=given.dry_run)


def _per_record(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, _ = read("per-record", argv)
    from streamveil.pipelines import per_record
    from streamveil.pipelines.launch import parse_flags

    return per_record.main(parse_flags("per-record", argv), dry=given.dry_run)


def _evaluate(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, _ = read("evaluate", argv)
    from streamveil.pipelines import evaluate

    return evaluate.main(given, shlex.join(["streamveil", "evaluate", *argv]))


def _demo(argv: Sequence[str]) -> int:
    from streamveil.pipelines.commands import read

    given, others = read("demo", argv)
    from streamveil.pipelines import demo
    from streamveil.pipelines.launch import parse_flags

    return demo.main(given, parse_flags("demo", argv, others))


# Commands import what they need when they run: --help does not wait for Beam.
_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "release": _release,
    "collect": _collect,
    "per-record": _per_record,
    "evaluate": _evaluate,
    "demo": _demo,
}


def _quiet_beam() -> None:
    """Keep warnings, but not Beam's remarks about clouds that nobody asked for."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())


if __name__ == "__main__":
    raise SystemExit(main())

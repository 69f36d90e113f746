"""The command line: `streamveil COMMAND [options]`."""

from __future__ import annotations

import logging
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
    """Run a command; returns its exit code: 0 done, 1 failed, 2 asked for what cannot be done."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(version("streamveil"))
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        print(f"streamveil: unknown command {command!r}\n\n{USAGE}", file=sys.stderr)
        return 2
    _quiet_beam()
    from streamveil.mechanisms import BudgetExceeded, ConfigurationError

    try:
        return _COMMANDS[command](rest)
    except ConfigurationError as error:
        print(f"streamveil {command}: {error}", file=sys.stderr)
        return 2
    except BudgetExceeded as error:
        print(f"streamveil {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"streamveil {command}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        logging.getLogger("streamveil").error("%s failed", command, exc_info=True)
        print(f"streamveil {command}: failed: {_reason(error)}", file=sys.stderr)
        return 1


def _reason(error: Exception) -> str:
    """What is told of an error: its last line, or of one in Java all its causes."""
    text = str(error).strip()
    causes = re.findall(r"^Caused by: (?:[\w$]+[.])*(.+)$", text, re.MULTILINE)
    if causes:
        return "; ".join(dict.fromkeys(causes))
    return [type(error).__name__, *text.splitlines()][-1]


def _release(argv: Sequence[str]) -> int:
    from streamveil.pipelines import jobs, release
    from streamveil.pipelines.launch import parse_flags

    options = (jobs.JobOptions, jobs.EventOptions, release.ReleaseOptions)
    return release.main(parse_flags("release", options, argv))


def _collect(argv: Sequence[str]) -> int:
    from streamveil.pipelines import collect, jobs, release
    from streamveil.pipelines.launch import parse_flags

    options, refused = (jobs.JobOptions, jobs.EventOptions), (release.ReleaseOptions,)
    return collect.main(parse_flags("collect", options, argv, refused))


def _per_record(argv: Sequence[str]) -> int:
    from streamveil.pipelines import jobs, per_record, release
    from streamveil.pipelines.launch import parse_flags

    options = (per_record.PerRecordOptions, jobs.EventOptions)
    refused = (jobs.JobOptions, release.ReleaseOptions)
    return per_record.main(parse_flags("per-record", options, argv, refused))


def _evaluate(argv: Sequence[str]) -> int:
    from streamveil.pipelines import evaluate
    from streamveil.pipelines.flags import parse_own_flags

    given = parse_own_flags("evaluate", evaluate.DESCRIPTION, evaluate.add_options, argv)
    return evaluate.main(given, shlex.join(["streamveil", "evaluate", *argv]))


def _demo(argv: Sequence[str]) -> int:
    from streamveil.pipelines import demo
    from streamveil.pipelines.launch import parse_flags

    return demo.main(parse_flags("demo", (demo.DemoOptions,), argv))


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

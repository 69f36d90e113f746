"""`streamveil collect`: the local setting played through, events in, releases out."""

from __future__ import annotations

from argparse import Namespace

from streamveil.pipelines.commands.release import run_command
from streamveil.pipelines.options.execution import Execution


def main(given: Namespace, execution: Execution) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    return run_command("collect", given, execution)

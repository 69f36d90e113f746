"""`streamveil evaluate`: mechanisms side by side on the same streams, and which one to choose."""

from __future__ import annotations

from argparse import Namespace

from streamveil.pipelines.evaluation.from_options import compared
from streamveil.pipelines.options.execution import Execution


def main(given: Namespace, execution: Execution) -> int:
    """Run the command; returns the exit code."""
    comparison = compared(given, execution.line)
    print(comparison)
    if given.output:
        comparison.write(given.output)
    if given.page:
        comparison.write_page(given.page)
    for path in (given.output, given.page, given.rejected):
        if path:
            print(f"wrote {path}")
    return 0

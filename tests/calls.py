"""Calls of `sv.release` and `sv.collect` with options by name alone, as the command has them."""

from streamveil.pipelines.in_memory.run_options import USUAL_RUN, RunOptions


def arguments(options):
    """The arguments of a call: rarer options are in `run`."""
    rare = {name: value for name, value in options.items() if name in vars(USUAL_RUN)}
    given = {name: value for name, value in options.items() if name not in rare}
    return {**given, "run": RunOptions(**rare)} if rare else given

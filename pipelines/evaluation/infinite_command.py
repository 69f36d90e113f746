"""`streamveil evaluate --guarantee=infinite`: mechanisms with one budget for ever compared."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from streamveil.io import write_text
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.words import number_of
from streamveil.pipelines.evaluation.infinite import (
    Drawn,
    Histograms,
    InfiniteTask,
    Summed,
    infinite_tasks,
    run,
)
from streamveil.pipelines.evaluation.infinite_streams import INFINITE_STREAMS
from streamveil.pipelines.evaluation.infinite_tables import (
    SCHEMA,
    advice,
    markdown,
    rows_of,
)
from streamveil.pipelines.evaluation.real import real_stream
from streamveil.pipelines.evaluation.sources import Counted
from streamveil.pipelines.evaluation.streams import REAL
from streamveil.pipelines.evaluation.tables import write_rows
from streamveil.pipelines.evaluation.workers import all_results
from streamveil.pipelines.guarantees import INFINITE, epsilons_of
from streamveil.pipelines.options import TABLE_OPTIONS
from streamveil.pipelines.progress import progress, steps

DEFAULT_SLOTS = 1000
OPTIONS = ("events",)
"""Those that have no meaning with another guarantee."""
REFUSED = ("epsilons", "windows", "users", *TABLE_OPTIONS)
"""Those that have none with this one."""


def compare(
    given: argparse.Namespace,
    mechanisms: Sequence[str],
    processes: int,
    count: Callable[[Path], Counted] | None,
    command: str,
) -> list[str]:
    """Compare, print and write; gives what was written.

    Args:
        given: the options as parsed.
        mechanisms: names with options.
        processes: how many run at a time.
        count: counts the user's own events into a folder, if there are any.
        command: what to run to get the same again.

    Raises:
        ConfigurationError: for anything wrong.
    """
    for name in REFUSED:
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"--{name} is about windows: leave it out with --guarantee={INFINITE}, where all "
                "have one budget, --epsilon"
            )
    epsilons = epsilons_of(given.epsilon)
    drawn, real = _streams(given)
    if not (drawn or real or count):
        raise ConfigurationError(
            f"--streams is missing: name streams, of {', '.join([*INFINITE_STREAMS, *REAL])}, or "
            "give events of your own as --input"
        )
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        # Wrong names show before anything is counted.
        infinite_tasks(drawn or [Drawn("even", 1)], epsilons, mechanisms, given.seeds)
        sources: list[Histograms] = [*drawn]
        for name in real:
            with progress(f"streamveil evaluate, counting {name}"):
                sources.append(Summed(real_stream(name, Path(folder))))
        if count is not None:
            sources.append(Summed(count(Path(folder))))
        todo: list[InfiniteTask] = infinite_tasks(sources, epsilons, mechanisms, given.seeds)
        abouts = {source.name: about(source) for source in sources}
        with steps("streamveil evaluate", len(todo) * len(mechanisms), "runs") as done:
            runs = all_results(run, todo, processes, done)
    rows = rows_of(runs)
    print(markdown(rows))
    print(advice(rows), end="")
    if given.output:
        write_rows(given.output, rows, SCHEMA, markdown(rows))
    if given.page:
        from streamveil.pipelines.evaluation.infinite_page import page_of

        write_text(given.page, page_of(runs, abouts, command))
    return [path for path in (given.output, given.page, given.rejected) if path]


def about(source: Histograms) -> str:
    """What a stream is, for people."""
    slots, bins = source.shape
    size = f"{number_of(slots, 'slot')}, {number_of(bins, 'bin')}"
    if not isinstance(source, Drawn):
        return size
    stream = INFINITE_STREAMS[source.name]
    events = stream.events if source.events is None else source.events
    return f"{stream.about}; {number_of(events, 'event')} a slot, {size}"


def _streams(given: argparse.Namespace) -> tuple[list[Drawn], list[str]]:
    """The synthetic streams, and names of real ones."""
    names = list(dict.fromkeys(part.strip() for part in (given.streams or "").split(",") if part))
    for name in names:
        if name not in {**INFINITE_STREAMS, **REAL}:
            raise ConfigurationError(
                f"--streams: {name!r} is unknown with --guarantee={INFINITE}: choose of "
                f"{', '.join([*INFINITE_STREAMS, *REAL])}"
            )
    for option in ("slots", "events"):
        number = getattr(given, option)
        if number is not None and number < 1:
            raise ConfigurationError(f"--{option}={number}: give 1 or more")
        if number is not None and set(names) <= set(REAL):
            raise ConfigurationError(
                f"--{option} is for synthetic streams: give --streams, or leave it out"
            )
    slots = DEFAULT_SLOTS if given.slots is None else given.slots
    made = [Drawn(name, slots, given.events) for name in names if name not in REAL]
    return made, [name for name in names if name in REAL]

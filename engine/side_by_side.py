"""Work on the parts of an input side by side, in threads, with the results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from streamveil.engine import metrics

Part = TypeVar("Part")
Result = TypeVar("Result")

_MOST_THREADS = 4


def side_by_side(
    work: Callable[[Part], Iterable[Result]], parts: Iterable[Part], threads: int | None = None
) -> Iterator[Result]:
    """What `work` gives of each part, in the order of the parts.

    While threads work on parts, the thread that asks makes the next one, such as by reading a file.
    That pays where both spend their time in libraries that release the interpreter's lock. Whoever
    interrupts it waits for the parts that are being worked on.

    Args:
        work: what is done with a part; it may count, and changes nothing that another part needs.
        parts: as many of them are held at a time as there are threads.
        threads: how many work; None for one for each core, up to four, as each takes memory for a
            part of its own.

    Raises:
        Exception: what `work` or `parts` raises, after the results of all parts before.

    >>> list(side_by_side(lambda part: [part, -part], [1, 2]))
    [1, -1, 2, -2]
    """
    threads = threads or min(_cores(), _MOST_THREADS)
    waiting: deque[Future[tuple[list[Result], metrics.Counts]]] = deque()
    parts, fault = iter(parts), None
    with ThreadPoolExecutor(threads) as pool:
        while fault is None:
            try:
                waiting.append(pool.submit(copy_context().run, _counted, work, next(parts)))
            except StopIteration:
                break
            except Exception as error:
                fault = error  # raised after what parts before may raise
            if len(waiting) >= threads:
                yield from _results(waiting.popleft())
        while waiting:
            yield from _results(waiting.popleft())
    if fault is not None:
        try:
            raise fault
        finally:
            del fault  # or it would hold this frame, and that the fault


def _counted(
    work: Callable[[Part], Iterable[Result]], part: Part
) -> tuple[list[Result], metrics.Counts]:
    with metrics.counting() as counts:
        return list(work(part)), counts


def _results(done: Future[tuple[list[Result], metrics.Counts]]) -> list[Result]:
    results, counts = done.result()
    for name, amount in counts.counters.items():
        metrics.count(name, amount)
    for name, value in counts.largest.items():
        metrics.observe(name, value)
    return results


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

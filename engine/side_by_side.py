"""The parts of an input side by side, in threads; what comes of them is in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from streamveil.engine import metrics

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Part], Iterable[Result]], parts: Iterable[Part], threads: int | None = None
) -> Iterator[Result]:
    """What `work` gives of each part, in the order of the parts.

    The work is done while the next parts are made by the thread that asks, such as by reading a
    file, which pays where both spend their time in libraries that release the interpreter's lock.

    Args:
        work: what is done with a part; it may count, and changes nothing that another part needs.
        parts: as many of them are held at a time as there are threads.
        threads: how many work; None for one for each core.

    Raises:
        Exception: what `work` or `parts` raises, after the results of all parts before.

    >>> list(side_by_side(lambda part: [part, -part], [1, 2]))
    [1, -1, 2, -2]
    """
    parts = iter(parts)
    first = list(islice(parts, 2))
    if len(first) < 2:  # most inputs are one part, which needs no thread
        for part in first:
            yield from work(part)
        return
    threads = threads or _cores()
    waiting: deque[Future[tuple[list[Result], metrics.Counts]]] = deque()
    parts, fault = chain(first, parts), None
    with ThreadPoolExecutor(threads) as pool:
        while True:
            try:
                part = next(parts)
            except StopIteration:
                break
            except Exception as error:  # told after what went wrong before
                fault = error
                break
            waiting.append(pool.submit(_counted, work, part))
            if len(waiting) >= threads:
                yield from _told(waiting.popleft())
        while waiting:
            yield from _told(waiting.popleft())
    if fault is not None:
        raise fault


def _counted(
    work: Callable[[Part], Iterable[Result]], part: Part
) -> tuple[list[Result], metrics.Counts]:
    with metrics.counting() as counts:
        return list(work(part)), counts


def _told(done: Future[tuple[list[Result], metrics.Counts]]) -> list[Result]:
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

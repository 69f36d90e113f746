"""Work spread over processes: one task after the other in each, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from typing import TypeVar

# How many threads the libraries below NumPy start.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Task = TypeVar("Task")
Result = TypeVar("Result")


def all_results(
    work: Callable[[Task], list[Result]],
    todo: Sequence[Task],
    processes: int,
    done: Callable[[int], None] = lambda results: None,
) -> list[Result]:
    """Do all tasks; the results come in the order of the tasks, whoever did them.

    Args:
        work: does one task; a function of a module, for it is named to other processes.
        todo: the tasks.
        processes: how many at a time; with 1 they run in this process.
        done: called with the number of results that were just finished.

    Raises:
        Exception: what `work` raises, as soon as it does.
    """
    found: dict[int, list[Result]] = {}
    # Closed at once, not when the error that ends it is forgotten: that ends the processes.
    with closing(_finished(work, todo, min(processes, len(todo)))) as finished:
        for i, results in finished:
            found[i] = results
            done(len(results))
    return [one for i in sorted(found) for one in found[i]]


def _finished(
    work: Callable[[Task], list[Result]], todo: Sequence[Task], processes: int
) -> Generator[tuple[int, list[Result]], None, None]:
    if processes <= 1:
        yield from ((i, work(task)) for i, task in enumerate(todo))
        return
    # Spawned, not forked: a fork of a process with threads may stop forever.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with (
        _one_thread_each(),
        # An interrupt ends a child at once: what it was at is lost anyhow.
        ProcessPoolExecutor(
            processes, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL)
        ) as pool,
    ):
        futures = {pool.submit(work, task): i for i, task in enumerate(todo)}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        except BaseException:
            # Leaving the pool would wait for all that is running, perhaps for minutes.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.kill()
            raise


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let child processes inherit an environment that limits libraries to one thread.

    Otherwise, in each child process, the libraries of NumPy start one thread for every core.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update({name: value or "1" for name, value in before.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]

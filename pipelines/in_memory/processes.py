"""Worker processes of this machine, which take elements through a part of a pipeline.

The part goes to each of them once, the elements one by one to whoever is free. What comes back is
in the order of the elements, so it does not depend on who was faster.
"""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

from apache_beam.internal import cloudpickle
from apache_beam.io.filesystems import FileSystems

from streamveil.pipelines.errors import WorkerDied
from streamveil.pipelines.in_memory.parcels import Memory
from streamveil.pipelines.progress import PROGRESS
from streamveil.pipelines.threads import one_thread_each


class Work(Protocol):
    """What a worker process does."""

    def begin(self) -> None:
        """Get ready, once in each process."""

    def do(self, element: Any) -> Any:
        """What comes of an element."""


class Processes:
    """Worker processes, started when they are first needed, and ended with the block."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._workers: list[_Worker] = []
        self._memory = Memory.of(number if number > 1 else 0)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._memory.close()

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def results(self, work: Work, elements: deque[Any]) -> Iterator[Any]:
        """What comes of each element, in their order.

        Args:
            work: is sent to each process, by value, with the options of Beam's filesystems.
            elements: go to one process each, and are taken away here.

        Raises:
            WorkerDied: if one of the processes does.
            Exception: what one of them raises, as it is.
        """
        options = cloudpickle.dumps(FileSystems._pipeline_options)
        part = pickle.dumps((options, cloudpickle.dumps(work)))
        while len(self._workers) < min(self.number, len(elements)):
            self._workers.append(_Worker(self._memory.where(len(self._workers))))
        try:
            for worker in self._workers:
                worker.send(_PART, part)
            yield from self._in_turn(elements)
        except BaseException:
            self._end()  # others are at work for nothing
            raise

    def _in_turn(self, elements: deque[Any]) -> Iterator[Any]:
        turns = count()
        busy: dict[Any, tuple[_Worker, int]] = {}

        def go_on(worker: _Worker) -> None:
            if elements:
                worker.send(_ELEMENT, elements.popleft())
                busy[worker.connection] = worker, next(turns)

        for worker in self._workers:
            go_on(worker)
        early: dict[int, Any] = {}
        turn = 0
        while busy:
            for connection in wait(list(busy)):
                worker, at = busy.pop(connection)
                early[at] = worker.result()
                go_on(worker)
            while turn in early:
                yield early.pop(turn)
                turn += 1


_PART, _ELEMENT = range(2)  # what a message to a process holds


class _Worker:
    """A process, and the way to it."""

    def __init__(self, memory: Memory) -> None:
        # Spawned, not forked: a fork of a process with threads may stop forever.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._memory = memory
        self._process = context.Process(target=_serve, args=(theirs, memory), daemon=True)
        with one_thread_each():
            self._process.start()
        theirs.close()

    def send(self, kind: int, what: Any) -> None:
        """Send something. Raises WorkerDied."""
        try:
            self.connection.send_bytes(self._memory.to_worker((kind, what)))
        except OSError as error:
            raise self._died() from error

    def result(self) -> Any:
        """What came of the last element. Raises what the process did, or WorkerDied."""
        try:
            answer: _Answer = self._memory.at_parent(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._died() from error
        for record in answer.told:
            logging.getLogger(record.name).handle(record)
        if answer.error is not None:
            raise answer.error from RuntimeError(answer.trace)
        return answer.found

    def end(self) -> None:
        """End the process, whatever it is at."""
        self.connection.close()
        self._process.kill()
        self._process.join()

    def _died(self) -> WorkerDied:
        self._process.join(timeout=5)
        code = self._process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerDied(
            f"a worker process {how}; the system does that where memory is short: give fewer "
            "--processes"
        )


class _Answer(NamedTuple):
    """What a worker process says of an element."""

    found: Any
    error: Exception | None
    trace: str
    told: list[logging.LogRecord]
    """What was logged meanwhile."""


def _serve(connection: Connection, memory: Memory) -> None:
    """In a worker process: take elements through a part of a pipeline, until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt ends it at once
    told = _Told()
    logging.getLogger().addHandler(told)
    logging.getLogger(PROGRESS).setLevel(logging.INFO)
    work: Work | None = None
    part = b""
    while True:
        try:
            kind, what = memory.at_worker(connection.recv_bytes())
        except (EOFError, OSError):
            return  # whoever started it is gone
        if kind == _PART:
            work, part = None, what
            continue
        try:
            if work is None:
                options, content = pickle.loads(part)
                FileSystems.set_options(pickle.loads(options))  # the work may read a file at once
                work = pickle.loads(content)
                work.begin()
            answer = _Answer(work.do(what), None, "", told.records)
            message = memory.from_worker(answer)
        except Exception as error:
            answer = _Answer(None, _sendable(error), traceback.format_exc(), told.records)
            message = memory.from_worker(answer)
        with suppress(BrokenPipeError, ConnectionResetError):  # see above
            connection.send_bytes(message)
        told.records.clear()


class _Told(logging.handlers.QueueHandler):
    """Keeps what is logged, for the process that started this one to log it."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.records: list[logging.LogRecord] = []

    def enqueue(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _sendable(error: Exception) -> Exception:
    """The error, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")

"""State that goes back in time is a ledger that forgets: it is kept from happening, and noticed.

The cell of a stage that the other cells are checked against carries a number, one more with each
write, and the process remembers the last number of each key that it wrote. A bundle that reads an
older number, or finds that another bundle has the key, fails: it would spend what is spent.

Two ways back are lawful. A bundle that failed is run again from the state that it began with: what
it wrote does not count. It has failed when its DoFn is torn down, or when its thread begins another
bundle; where an error tears the DoFn down, also if its own part of the bundle had ended. And a job
that was restored from a checkpoint goes on from there, also where its process lives on, as that
which launched a job with workers in it: its worker is a new one, which had read nothing when the
newer number was written. Otherwise nothing is forgotten, however often a runner tries.

What other processes wrote is not known. Where a runner lets two of them have one key, parts that
have numbers, and a sink that refuses a second release, are what is left: see
docs/explanation/streams.md.
"""

from __future__ import annotations

import itertools
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from streamveil.engine.stream_step import went_back

Written = tuple[int, int]
"""A number, and the moment at which it was written."""

_NOTHING: Written = (0, 0)


@dataclass(eq=False)
class _Bundle:
    """A bundle of a stage that goes on."""

    thread: int
    numbers: dict[Hashable, int] = field(default_factory=dict)
    """By key that it has, the number that it read or wrote last."""
    replaced: dict[Hashable, tuple[Written, Written]] = field(default_factory=dict)
    """By key, what was known of it before this bundle ended, and what since."""


@dataclass(eq=False)
class _Stage:
    """What the process knows of a stage of a pipeline."""

    written: dict[Hashable, Written] = field(default_factory=dict)
    """By key, the number that the last bundle left, and the moment of its end."""
    held: dict[Hashable, tuple[_Bundle, int]] = field(default_factory=dict)
    """By key, the bundle that has it, and the moment at which that took it."""
    threads: dict[int, _Bundle] = field(default_factory=dict)
    """By thread, the bundle that it runs."""
    workers: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary)
    """The moment at which each worker of the process first read state of the stage."""

    def begin(self) -> _Bundle:
        """A bundle begins in this thread."""
        thread = threading.get_ident()
        if thread in self.threads:
            self.leave(self.threads[thread], ended=False)
        bundle = self.threads[thread] = _Bundle(thread)
        return bundle

    def take(self, bundle: _Bundle, key: Hashable, number: int, worker: object) -> None:
        """A bundle takes a key, of which it read this number."""
        since = 0 if worker is None else self.workers.setdefault(worker, next(_moments))
        _, taken = self.held.get(key, (None, -1))
        if taken >= since:
            raise went_back(f"two bundles have the state of key {key!r} at once")
        newest, moment = self.written.get(key, _NOTHING)
        if number < newest and moment >= since:
            raise went_back(f"state {number} of key {key!r} is read after state {newest}")
        self.held[key] = bundle, next(_moments)
        bundle.numbers[key] = number

    def leave(self, bundle: _Bundle, *, ended: bool) -> None:
        """A bundle leaves its keys; what it wrote is state if it ended as it should."""
        moment = next(_moments)
        if self.threads.get(bundle.thread) is bundle:
            del self.threads[bundle.thread]
        for key, number in bundle.numbers.items():
            if self.held.get(key, (None, 0))[0] is bundle:
                del self.held[key]
                if ended:
                    bundle.replaced[key] = self.written.get(key, _NOTHING), (number, moment)
                    self.written[key] = number, moment

    def take_back(self, bundle: _Bundle) -> None:
        """A bundle that ended has failed after all, in a step behind this one."""
        for key, (before, since) in bundle.replaced.items():
            if self.written[key] == since:
                self.written[key] = before


@dataclass(eq=False)
class _Process:
    """What a process remembers, for as long as it lives: some numbers a stage and key."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    stages: dict[bytes, _Stage] = field(default_factory=lambda: defaultdict(_Stage))


_moments = itertools.count(1)
_process = _Process()


@dataclass(frozen=True, eq=False)
class _Cell:
    """A ReadModifyWrite cell of a key, whose values are numbered."""

    fence: Fence
    bundle: _Bundle
    key: Hashable
    state: Any

    def read(self) -> Any:
        """The value; None before it was written. Raises StateWentBack."""
        number, value = self.state.read() or (0, None)
        self.fence._read(self.bundle, self.key, number, _worker_of(self.state))
        return value

    def write(self, value: Any) -> None:
        """Write it, once it was read."""
        self.bundle.numbers[self.key] += 1
        self.state.write((self.bundle.numbers[self.key], value))


def _worker_of(state: Any) -> object | None:
    """What stands for the worker that a cell is of, where Beam has such: its way to the runner."""
    return getattr(getattr(state, "_underlying_bag_state", None), "_state_handler", None)


class Fence:
    """Numbers the state of a DoFn, key by key, and refuses what goes back: see :class:`Fenced`."""

    def __init__(self) -> None:
        # Drawn where the pipeline is built: all copies of the DoFn, wherever, are one stage.
        self._name = uuid.uuid4().bytes
        self._bundle: _Bundle | None = None
        self._last: _Bundle | None = None

    def __getstate__(self) -> bytes:
        """Only what makes it the same stage."""
        return self._name

    def __setstate__(self, name: bytes) -> None:
        """A copy, in no bundle."""
        self._name, self._bundle, self._last = name, None, None

    def begin(self) -> None:
        """A bundle begins; if another did not end, it failed."""
        self.leave(ended=False)
        with _process.lock:
            self._bundle = _process.stages[self._name].begin()
        self._last = None

    def leave(self, *, ended: bool) -> None:
        """The bundle is over, as it should or not."""
        if self._bundle is not None:
            with _process.lock:
                _process.stages[self._name].leave(self._bundle, ended=ended)
            self._bundle, self._last = None, self._bundle if ended else None

    def fail(self) -> None:
        """The bundle has failed, or the last one, if none goes on."""
        self.leave(ended=False)
        if self._last is not None:
            with _process.lock:
                _process.stages[self._name].take_back(self._last)
            self._last = None

    def cell(self, key: Hashable, state: Any) -> _Cell:
        """A cell with numbers, from a ReadModifyWrite cell of the key that can hold tuples."""
        if self._bundle is None:
            self.begin()
        assert self._bundle is not None
        return _Cell(self, self._bundle, key, state)

    def _read(self, bundle: _Bundle, key: Hashable, number: int, worker: object) -> None:
        known = bundle.numbers.get(key)
        if known is None:
            with _process.lock:
                _process.stages[self._name].take(bundle, key, number, worker)
        elif known != number:
            raise went_back(f"state {number} of key {key!r} is read after state {known}")


class Fenced:
    """What a stateful DoFn is besides, so that its fence knows where its bundles begin and end."""

    _fence: Fence
    """Made with it, once for all its copies."""

    def start_bundle(self) -> None:
        """A bundle begins."""
        self._fence.begin()

    def finish_bundle(self) -> None:
        """It has ended."""
        self._fence.leave(ended=True)

    def teardown(self) -> None:
        """A bundle that did not end has failed, and so has the last one if there was an error."""
        if sys.exc_info()[0] is None:
            self._fence.leave(ended=False)
        else:
            self._fence.fail()

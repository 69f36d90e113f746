"""What one worker process makes for another: it passes the process between them unseen.

A value goes to memory that all of them share, and what passes is its place there. Else it would be
copied four times more, by the one process that all others wait for.
"""

from __future__ import annotations

import io
import os
import pickle
from multiprocessing import reduction
from typing import Any, NamedTuple

Place = bytes | tuple[int, int, int]
"""Of a pickled value: itself, or whose it is in shared memory, where it begins, and its size."""

_FEW_BYTES = 1 << 14  # no more are passed as they are


class Parcel(NamedTuple):
    """A value that a worker process gives for another one: it leaves as a :class:`Passed`."""

    value: Any


class Passed:
    """A value on its way between worker processes: the one that gets it has the value itself."""

    def __init__(self, place: Place, memory: Memory) -> None:
        self.place = place
        self._memory = memory

    def open(self) -> Any:
        """The value, where it stays in the process between."""
        return self._memory.read(self.place)


class Memory:
    """Memory that processes share, each of which writes to a part of its own.

    It has no name and is gone with the last process that has it. It grows until then, to what the
    process between would hold otherwise. Where a system has no such memory, or no more of it,
    values pass as they are.
    """

    def __init__(self, parts: list[int], mine: int = 0) -> None:
        self._parts = parts  # file descriptors
        self._mine = mine
        self._end = 0

    @classmethod
    def of(cls, number: int) -> Memory:
        """New memory for so many processes."""
        memory = cls([])
        try:
            for _ in range(number):
                memory._parts.append(os.memfd_create("streamveil"))
        except (AttributeError, OSError):  # a system has none, or a sandbox gives none
            memory.close()
        return memory

    def where(self, mine: int) -> Memory:
        """The same for the process that writes to that part."""
        return Memory(self._parts, mine)

    def __reduce__(self) -> tuple[Any, ...]:  # for a process that is started
        return _joined, ([reduction.DupFd(part) for part in self._parts], self._mine)

    def close(self) -> None:
        """Let go of it here."""
        for part in self._parts:
            os.close(part)
        self._parts.clear()

    def write(self, value: Any) -> Place:
        """Where the value is now."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if not self._parts or len(data) <= _FEW_BYTES:
            return data
        end, rest = self._end, memoryview(data)
        try:
            while rest:
                done = os.pwrite(self._parts[self._mine], rest, end)
                rest, end = rest[done:], end + done
        except OSError:  # there is no room for it
            return data
        begin, self._end = self._end, end
        return self._mine, begin, len(data)

    def read(self, place: Place) -> Any:
        """The value at a place."""
        if isinstance(place, bytes):
            return pickle.loads(place)
        part, begin, size = place
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            done = os.preadv(self._parts[part], [rest], begin)
            rest, begin = rest[done:], begin + done
        return pickle.loads(data)

    def from_worker(self, what: Any) -> memoryview:
        """What a worker process gives, pickled: of parcels the places."""
        data = io.BytesIO()
        _FromWorker(data, self).dump(what)
        return data.getbuffer()

    def at_parent(self, data: bytes) -> Any:
        """The same in the process between: of parcels what is passed."""
        return _AtParent(data, self).load()

    def to_worker(self, what: Any) -> memoryview:
        """What a worker process gets, pickled: of what is passed the places."""
        data = io.BytesIO()
        _ToWorker(data, pickle.HIGHEST_PROTOCOL).dump(what)
        return data.getbuffer()

    def at_worker(self, data: bytes) -> Any:
        """The same there: of what is passed the values."""
        return _AtWorker(data, self).load()


def _joined(parts: list[Any], mine: int) -> Memory:
    memory = Memory([part.detach() for part in parts], mine)
    if memory._parts:  # another process may have written here, and what it wrote be on its way
        memory._end = os.fstat(memory._parts[mine]).st_size
    return memory


class _FromWorker(pickle.Pickler):
    def __init__(self, file: io.BytesIO, memory: Memory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def persistent_id(self, one: Any) -> Place | None:
        return self._memory.write(one.value) if isinstance(one, Parcel) else None


class _ToWorker(pickle.Pickler):
    def persistent_id(self, one: Any) -> Place | None:
        return one.place if isinstance(one, Passed) else None


class _AtParent(pickle.Unpickler):
    def __init__(self, data: bytes, memory: Memory) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = memory

    def persistent_load(self, place: Place) -> Any:
        return Passed(place, self._memory)


class _AtWorker(_AtParent):
    def persistent_load(self, place: Place) -> Any:
        return self._memory.read(place)

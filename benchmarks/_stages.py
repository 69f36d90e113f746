"""Stateful steps of a pipeline run by hand: their own code over state in memory, byte by byte.

A local runner takes 0.1 s a slot and remembers every key; this takes a millisecond, and what it
remembers is what a step keeps.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.core import _StateDoFnParam, _TimerDoFnParam
from apache_beam.transforms.userstate import BagStateSpec, StateSpec
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp


class Cell:
    """One bag or value of one key, as bytes; and what a timer of that key is set to."""

    def __init__(self, spec: StateSpec) -> None:
        self._coder = spec.coder
        self._items: list[bytes] = []
        self._is_bag = isinstance(spec, BagStateSpec)

    @property
    def is_empty(self) -> bool:
        """Whether a runner would forget it."""
        return not self._items

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self._items))

    def read(self) -> Any:
        """All items of a bag, or the value."""
        found = [self._coder.decode(item) for item in self._items]
        return found if self._is_bag else found[0] if found else None

    def add(self, item: Any) -> None:
        """Add to a bag."""
        self._items.append(self._coder.encode(item))

    def write(self, value: Any) -> None:
        """Replace a value."""
        self._items = [self._coder.encode(value)]

    def clear(self) -> None:
        """Forget it."""
        self._items = []


class _Timer:
    def __init__(self, timers: dict[Any, Timestamp], place: Any) -> None:
        self._timers = timers
        self._place = place

    def set(self, time: Timestamp) -> None:
        """Arm it, in place of what it was set to."""
        self._timers[self._place] = time


class Stage:
    """One stateful DoFn, with the state of all its keys."""

    def __init__(self, fn: beam.DoFn) -> None:
        fn.setup()
        self._fn = fn
        self._cells: dict[Any, dict[str, Cell]] = {}
        self._timers: dict[Any, Timestamp] = {}
        self._specs: dict[str, Any] = {}

    @property
    def size(self) -> int:
        """Bytes of state, of all keys."""
        return sum(cell.size for cells in self._cells.values() for cell in cells.values())

    @property
    def keys(self) -> int:
        """Keys with state."""
        return len(self._cells)

    def process(self, elements: Iterable[Any]) -> Iterator[Any]:
        """Outputs of some elements."""
        for element in elements:
            yield from self._call(self._fn.process, element[0], None, element)

    def fire(self, watermark: Timestamp) -> Iterator[Any]:
        """Outputs of the timers that the watermark has passed, in order."""
        while due := [place for place, time in self._timers.items() if time <= watermark]:
            place = min(due, key=self._timers.__getitem__)
            time = self._timers.pop(place)
            key, name = place
            callback = getattr(self._fn, self._specs[name]._attached_callback.__name__)
            yield from self._call(callback, key, time)

    def _call(self, method: Any, key: Any, time: Timestamp | None, *given: Any) -> list[Any]:
        cells = self._cells.setdefault(key, {})
        arguments = {}
        for name, parameter in inspect.signature(method).parameters.items():
            asked = parameter.default
            if isinstance(asked, _StateDoFnParam):
                spec = asked.state_spec
                arguments[name] = cells.setdefault(spec.name, Cell(spec))
            elif isinstance(asked, _TimerDoFnParam):
                spec = asked.timer_spec
                self._specs[spec.name] = spec
                arguments[name] = _Timer(self._timers, (key, spec.name))
            elif asked is beam.DoFn.KeyParam:
                arguments[name] = key
            elif asked is beam.DoFn.TimestampParam:
                arguments[name] = MIN_TIMESTAMP if time is None else time
        outputs = list(method(*given, **arguments) or ())
        if all(cell.is_empty for cell in cells.values()):
            del self._cells[key]
        return outputs

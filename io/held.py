"""Values in memory that steps of a pipeline in this process share: they are pickled by a number."""

from __future__ import annotations

import itertools
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from streamveil.mechanisms.core.records import ConfigurationError

T = TypeVar("T")


class Held(Generic[T]):
    """A value that does not travel with a pipeline.

    Args:
        value: what is held.
        elsewhere: the text of the ConfigurationError that another process raises, which has no
            such value.
    """

    def __init__(self, value: T, elsewhere: str) -> None:
        self.value = value
        self._elsewhere = elsewhere
        self._number = next(_NUMBERS)
        _HELD[self._number] = self

    def __reduce__(self) -> Any:
        return _held, (self._number, self._elsewhere)


_NUMBERS = itertools.count()
_HELD: WeakValueDictionary[int, Held[Any]] = WeakValueDictionary()


def _held(number: int, elsewhere: str) -> Held[Any]:
    if number not in _HELD:
        raise ConfigurationError(elsewhere)
    return _HELD[number]

"""Hosts a step of the engine at the end of a bounded input, after a GroupByKey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam

from streamveil.engine.messages import Output
from streamveil.transforms.on_beam import Message, emitted


class AtEnd(beam.DoFn):
    """Takes all messages of a key through a step, and gives its outputs; without state.

    What a GroupByKey gives has the time of the end of all times, so a timer that waited for
    messages at the end of a slot would fire before them.

    Args:
        step: called with a key and its messages, in any order, and with the keys that were
            discovered, if they are a side input. It is pickled, and may keep with it what it makes
            once.
    """

    def __init__(self, step: Callable[..., Iterator[Output]]) -> None:
        self._step = step

    def process(
        self, element: tuple[Any, Iterable[Message]], keys: bytes | None = None
    ) -> Iterator[Any]:
        """The outputs, as a DoFn yields them."""
        given = () if keys is None else (keys,)
        yield from map(emitted, self._step(*element, *given))

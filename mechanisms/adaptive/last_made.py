"""What is made of a state once, and not again before the state is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")


class LastMade(Generic[T]):
    """Remembers what it made last, for as long as it is asked for the same of the same objects.

    Between two releases beliefs stay what they are, and every slot asks for them. Arrays are told
    by who they are, not by what is in them: from then on nobody can write into them.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._of: tuple[Any, ...] | None = None
        self._made: T

    def __call__(self, *parts: Any) -> T:
        """What is made of these."""
        last = self._of
        if last is None or any(one is not other for one, other in zip(parts, last, strict=True)):
            self._made = self._make(*parts)
            self._of = parts
            made = self._made if isinstance(self._made, tuple) else (self._made,)
            for one in (*parts, *made):
                if isinstance(one, np.ndarray):
                    one.setflags(write=False)
        return self._made

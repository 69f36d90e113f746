"""The last warnings of a run, for those who look at its page and not at its log."""

from __future__ import annotations

import logging
from typing import Any

from streamveil.mechanisms.core.records import format_time

WARNINGS_KEPT = 20


class Warnings(logging.Handler):
    """Hears warnings, and keeps the last ones; one that comes again is counted."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._heard: dict[str, tuple[int, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take one; the lock of the handler is held."""
        words = record.getMessage().removeprefix("warning: ")
        times, _ = self._heard.pop(words, (0, 0.0))
        self._heard[words] = times + 1, record.created
        while len(self._heard) > WARNINGS_KEPT:
            del self._heard[next(iter(self._heard))]

    def records(self) -> list[dict[str, Any]]:
        """For the page, the newest first."""
        self.acquire()
        try:
            heard = list(self._heard.items())
        finally:
            self.release()
        return [
            {"time": format_time(int(when * 1e6)), "words": words, "times": times}
            for words, (times, when) in reversed(heard)
        ]

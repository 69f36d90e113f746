"""What a run does when a signal ends it: Ctrl-C, SIGTERM, or SIGHUP of a closed terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from streamveil.pipelines.console.logs import tell_aside

_SECONDS_BETWEEN_LOOKS = 0.1


@contextmanager
def stopping() -> Iterator[Callable[[float], bool]]:
    """Gives a way to wait so many seconds, and to know whether a signal came meanwhile.

    The first Ctrl-C, SIGTERM or SIGHUP lets what runs come to its end; the next one acts as ever.
    """
    asked = False
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        restore()

    def stopped_within(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))
        return asked

    for number in (signal.SIGINT, *_heard()):
        before[number] = signal.signal(number, ask)
    try:
        yield stopped_within
    finally:
        restore()


@contextmanager
def ending(last_words: Callable[[], str]) -> Iterator[None]:
    """On SIGTERM or SIGHUP end at once, with the exit code of that signal.

    `last_words` cleans up and says what it did, for a line of the log. Outside the main thread,
    where signals do not come, this does nothing.
    """

    def end(number: int, _: object) -> None:
        try:
            name = signal.Signals(number).name
            tell_aside(f"streamveil: stopped by {name}: {last_words()}", logging.ERROR)
            sys.stdout.flush()
        finally:
            os._exit(128 + number)  # threads that write must not finish a file now

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in _heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def before_ending(act: Callable[[], object]) -> Iterator[None]:
    """On SIGTERM or SIGHUP do this, and then what was to be done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found: dict[int, Any] = {number: signal.getsignal(number) for number in _heard()}
    # What is ignored ends nothing, and what is not Python's cannot be put back.
    before = {n: handler for n, handler in found.items() if handler not in (signal.SIG_IGN, None)}

    def end(number: int, frame: Any) -> None:
        try:
            act()
        finally:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def _heard() -> list[signal.Signals]:
    """Those that ask a run to end; not SIGHUP where `nohup` has a run outlive its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]

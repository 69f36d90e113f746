"""What a command says, and how: bare lines for a person, or with time and level for a collector.

Without `--log_format` results go to stdout and all else to stderr, as a person reads them. With it
all that a run says is lines of one form on stderr, which say when, how grave and by whom: its
results, errors and progress, and what Beam and the workers in this process log.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

LOG_FORMATS = TEXT, JSON = "text", "json"
_COLOURS = {logging.WARNING: "33", logging.ERROR: "31"}  # yellow and red


class _Bare(logging.Handler):
    """Prints messages alone, without time or level."""

    def __init__(self, stream: str) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        stream = getattr(sys, self._stream)
        print(_coloured(record.getMessage(), record.levelno, stream), file=stream, flush=True)


class _Coloured(logging.Formatter):
    """Level and logger before a message, in the colour of its level."""

    def format(self, record: logging.LogRecord) -> str:
        return _coloured(super().format(record), record.levelno, sys.stderr)


def _coloured(text: str, level: int, stream: TextIO) -> str:
    """Colour warnings and errors on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    colour = _COLOURS.get(level)
    if colour is None or os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def _logger(name: str, stream: str) -> logging.Logger:
    """A logger whose lines a person sees bare, whatever level others are shown from."""
    logger = logging.getLogger(f"streamveil.{name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Bare(stream))
    return logger


_PRINTED = _logger("result", "stdout")
_ASIDE = _logger("run", "stderr")


def tell(text: str, level: int = logging.INFO) -> None:
    """Say what came of a run: on stdout, where there is no `--log_format`."""
    _log(_PRINTED, level, text)


def tell_aside(text: str, level: int = logging.INFO) -> None:
    """Say how a run goes, or why it does not: on stderr."""
    _log(_ASIDE, level, text)


def _log(logger: logging.Logger, level: int, text: str) -> None:
    for line in text.splitlines():
        logger.log(level, "%s", line)


def is_bare() -> bool:
    """Whether a person reads it, not a collector of logs."""
    return not _ASIDE.propagate


@contextmanager
def heard_by(handler: logging.Handler) -> Iterator[None]:
    """Send what streamveil prints and logs to a handler while the block runs."""
    own = [logger for logger in (_PRINTED, _ASIDE) if not logger.propagate]
    loggers = [logging.getLogger("streamveil"), *own]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _Lines(logging.Formatter):
    """Time, level and logger before every line, those of tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_time(record)} {record.levelname} {record.name}: "
        return "\n".join(head + line for line in super().format(record).splitlines() or [""])


class _Objects(logging.Formatter):
    """An object of JSON in a line, with a traceback as one string."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)  # ASCII, which every stderr can hold


_FORMATTERS = {TEXT: _Lines, JSON: _Objects}


def _time(record: logging.LogRecord) -> str:
    time = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_whole(record: logging.LogRecord) -> bool:
    """Make a line readable whose values do not fit it, by a fault of whoever logs it."""
    try:
        record.getMessage()
    except (TypeError, ValueError):
        record.msg, record.args = f"{record.msg} {record.args}", None
    return True


def _log_uncaught(thrown: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    """Log what a thread or a destructor raised, which Python would print."""
    if thrown.exc_type is SystemExit:
        return
    error = thrown.exc_value or thrown.exc_type()
    logging.getLogger("py.uncaught").error(
        "uncaught: %r", error, exc_info=(thrown.exc_type, error, thrown.exc_traceback)
    )


@contextmanager
def logging_as(log_format: str | None) -> Iterator[None]:
    """Log and tell in this form while the block runs; None is for a person."""
    root = logging.getLogger()
    root.addFilter(_is_asked_for)
    if log_format is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Coloured("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[log_format]())
    handler.addFilter(_is_whole)
    root.addHandler(handler)
    bare = {logger: logger.handlers for logger in (_PRINTED, _ASIDE)}
    for logger in bare:
        logger.handlers, logger.propagate = [], True
    logging.captureWarnings(True)
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = _log_uncaught
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        logging.captureWarnings(False)
        for logger, handlers in bare.items():
            logger.handlers, logger.propagate = handlers, False
        root.removeHandler(handler)


def _is_asked_for(record: logging.LogRecord) -> bool:
    """Leave out Beam's remarks about clouds that nobody asked for."""
    return "apitools not found" not in record.getMessage()

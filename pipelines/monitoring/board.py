"""What the page of a run shows, as one JSON object: what is public, and what is raw.

Public is what was released, and what it cost; raw is what depends on events in other ways. Threads
of the server make it when somebody asks. The run only says what it knows, and waits for nobody.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import MICROSECONDS, Slots, format_time
from streamveil.pipelines.monitoring.budget import LEDGER, Budget
from streamveil.pipelines.monitoring.condition import Condition, condition_of, seen_at
from streamveil.pipelines.monitoring.status import Status
from streamveil.pipelines.monitoring.warnings import Warnings
from streamveil.pipelines.reports.history import History, Series, ShownSlot
from streamveil.pipelines.reports.labels import slot_name
from streamveil.pipelines.reports.summary import Summary

FORMAT = 1
"""Of the JSON: it grows when a field goes or changes its meaning."""
BINS_SHOWN = 24
# Passes may end within the slots of a long query, and their files then have no row.
_PASSES_KEPT = 500
_SECOND = MICROSECONDS["s"]
_NUMBER = re.compile(r"-(\d{8})(?:\.\w+)?$")


class Board:
    """What is shown of one run."""

    def __init__(
        self,
        command: str,
        slots: Slots,
        histories: Sequence[History],
        status: Callable[[], Status],
        of_events: Callable[[Summary], Summary],
        warnings: Warnings,
        interval: int,
        file_clock: bool,
    ) -> None:
        """Of the streams or queries in the histories.

        Args:
            command: what the run is called.
            slots: that windows of users are in.
            histories: of what was released.
            status: what is known of the run at any moment.
            of_events: from the event accounting of its passes to what the page shows.
            warnings: that it gave.
            interval: from one look to the next at most, in microseconds.
            file_clock: whether a file says the time that closes slots.
        """
        self._command = command
        self._histories = histories
        self._status = status
        self._of_events = of_events
        self._warnings = warnings
        self._interval = interval
        self._file_clock = file_clock
        self._budget = Budget(slots)
        self._unread: deque[str] = deque(maxlen=10)
        # Of passes: their files by kind. The run adds at one end, and takes no lock.
        self._waiting: deque[Mapping[str, str]] = deque(maxlen=_PASSES_KEPT)
        self._has_ledger = False
        self._before: int | None = None
        self._reading = threading.Lock()
        self._edition = 0
        self._public: dict[str, Any] = self._public_part()

    def begun(self, files: Mapping[str, Sequence[str]]) -> None:
        """Take the results of all passes before the run, by kind, the newest last."""
        self._has_ledger = LEDGER in files
        passes: dict[str, dict[str, str]] = defaultdict(dict)
        for kind, paths in files.items():
            for path in paths[-_PASSES_KEPT:]:
                found = _NUMBER.search(path)
                passes[found[1] if found else ""][kind] = path
        newest = [passes[number] for number in sorted(passes)]
        if newest:
            self._before = _written(newest[-1].values())
        self._waiting.extend(newest)

    def wrote(self, files: Mapping[str, str]) -> None:
        """Take the results of one more pass, by kind."""
        self._waiting.append(dict(files))

    @property
    def condition(self) -> Condition:
        """How the run is doing now."""
        now = _now()
        return condition_of(seen_at(self._status(), now, self._file_clock), now, self._interval)

    def record(self) -> dict[str, Any]:
        """What `/status.json` says."""
        now = _now()
        status = seen_at(self._status(), now, self._file_clock)
        condition = condition_of(status, now, self._interval)
        return {
            "format": FORMAT,
            "time": format_time(now),
            "public": self._read(),
            "raw": {
                "condition": condition.name,
                "words": condition.words,
                "lag": self._lag(status),
                "events": {
                    "since": format_time(status.since),
                    **self._of_events(status.totals).figures(),
                },
                "warnings": [*self._warnings.records(), *self._unreadable()],
            },
        }

    def _read(self) -> dict[str, Any]:
        """What is public, with the results that came since the last time."""
        with self._reading:
            taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if taken:
                files: dict[str, list[str]] = defaultdict(list)
                for passed in reversed(taken):
                    for kind, path in passed.items():
                        files[kind].append(path)
                for history in self._histories:
                    self._unread.extend(history.read(files))
                self._unread.extend(self._budget.read(files))
                self._edition += 1
                self._public = self._public_part()
            return {**self._public, "has_ledger": self._has_ledger}

    def _public_part(self) -> dict[str, Any]:
        return {
            "command": self._command,
            "edition": f"{self._status().since}-{self._edition}",
            "sections": [_section(history) for history in self._histories],
            "budget": self._budget.record(),
        }

    def _lag(self, status: Status) -> dict[str, Any]:
        done = status.released
        event_lag = None
        if done is not None and status.clock is not None and not done.is_over:
            event_lag = max(status.clock - done.until, 0) / _SECOND
        return {
            "released_until": None if done is None else format_time(done.until),
            "next_closes": None if done is None or done.is_over else format_time(done.closes),
            "clock": _formatted(status.clock),
            "clock_file": self._file_clock,
            "seconds": status.lag / _SECOND,
            "event_seconds": event_lag,
            "backlog_slots": status.backlog,
            "waits_for": status.waits_for,
            "looked_at": _formatted(status.looked),
            "released_at": _formatted(status.passed or self._before),
            "release_delay_seconds": status.delay / _SECOND if status.passed else None,
            "pass_since": _formatted(status.passing),
            "longest_pass_seconds": status.longest / _SECOND,
            "passes": status.passes,
        }

    def _unreadable(self) -> list[dict[str, Any]]:
        return [{"time": None, "words": one, "times": 1} for one in self._unread]


def _section(history: History) -> dict[str, Any]:
    return {
        "name": history.name,
        "about": history.about,
        "unit": history.unit,
        "figures": list(history.series[0].outputs),
        "series": [_series(one, history.largest) for one in history.series],
    }


def _series(series: Series, largest: bool) -> dict[str, Any]:
    bins = _busiest(series, largest)
    return {
        "length": series.slots.text,
        "span": slot_name(series.slots),
        "bins": len(series.labels),
        "shown": [series.labels[j] for j in sorted(bins)],
        "first": sorted(bins).index(bins[0]) if bins else 0,
        "slots": [_slot(one, series, sorted(bins)) for one in series.shown],
    }


def _busiest(series: Series, largest: bool) -> list[int]:
    """The bins that matter most, so many as are shown, by what was released of them."""
    if not series.shown:
        return list(range(len(series.labels)))[:BINS_SHOWN]
    value, low, high = np.array([one.cells[:, 0].T for one in series.shown]).transpose(1, 0, 2)
    key = -np.nansum(value, axis=0) if largest else np.nan_to_num(high - low, nan=np.inf).mean(0)
    return [int(j) for j in np.argsort(key, kind="stable")[:BINS_SHOWN]]


def _slot(shown: ShownSlot, series: Series, bins: Sequence[int]) -> dict[str, Any]:
    notes = np.array(shown.notes, object).reshape(-1, len(series.outputs))
    return {
        "slot": shown.slot,
        "start": format_time(series.slots.start(shown.slot)),
        "end": format_time(series.slots.end(shown.slot)),
        "status": shown.status,
        "values": _cells(shown.cells, bins),
        "revised": None if shown.revised is None else _cells(shown.revised, bins),
        "revised_at": _formatted(shown.revised_at),
        "notes": [list(notes[j]) for j in bins] if len(notes) else None,
        "ranks": [shown.ranks[j] for j in bins] if shown.ranks else None,
    }


def _cells(cells: Floats, bins: Sequence[int]) -> list[list[list[float | None]]]:
    """Value and both ends of its interval, by bin and figure; None where nothing is known."""
    known = cells[list(bins)].round(6).astype(object)
    known[~np.isfinite(cells[list(bins)])] = None
    rows: list[list[list[float | None]]] = known.tolist()
    return rows


def _written(paths: Any) -> int | None:
    """When the files of a pass were written, in microseconds; None if nobody knows any more."""
    times = []
    for path in paths:
        try:
            times.append(os.stat(path).st_mtime_ns // 1000)
        except OSError:  # moved away
            continue
    return max(times, default=None)


def _formatted(time: int | None) -> str | None:
    return None if time is None else format_time(time)


def _now() -> int:
    return time.time_ns() // 1000

"""Where mutants are put on trial: what `streamveil audit` is asked about, and pairs of worlds.

The command audits requirements that never change, of one stream, of many questions or of devices,
and statistics of records. All else has a scene of its own: a stream or a release with a promise
about one user, the target. In one of its worlds the target's events are there, in the other one
they are not, or they are others. Who looks on sees what leaves, in so many runs, each with noise of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from streamveil.mechanisms import (
    DynamicStream,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    Slots,
    dynamic_mechanism,
    infinite_mechanism,
    mechanism,
)
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.presence_filter import PresenceFilter
from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.core.budgets import Requirements, asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.per_record import Inverse
from streamveil.mechanisms.portfolio.portfolio_filter import PortfolioFilter
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules
from streamveil.mechanisms.presence.counted_filter import CountedFilter
from streamveil.mechanisms.presence.limits import terms
from streamveil.mechanisms.protocol import Setting, SlotRelease
from streamveil.pipelines.audit.auditing import audited
from streamveil.pipelines.audit.devices import audited_devices
from streamveil.pipelines.audit.findings import Findings
from streamveil.pipelines.audit.questions import audited_questions
from streamveil.pipelines.audit.record_canaries import Canary, of_values
from streamveil.pipelines.audit.records import Records, audited_records
from streamveil.pipelines.audit.runs import Exact

KEY = bytes(range(32))
STATUSES = ("published", "predicted", "skipped", "nullified")

Shown = np.ndarray
"""What was seen of each run, integers of shape (runs, parts)."""


@dataclass(frozen=True)
class Scene:
    """Two neighbouring worlds, and what was promised of them."""

    what: str
    claim: float
    """The epsilon that was promised."""
    world: Callable[[bool, int, str], Shown]
    """What is shown: with the target's events or without, of so many runs, by a seed."""
    runs: int
    """Of each world, for a verdict."""


@contextmanager
def no_filters() -> Iterator[None]:
    """Nobody stands at the door: what mechanisms take for right leaves."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (WindowFilter, PresenceFilter, CountedFilter, PortfolioFilter):
            patch.setattr(kind, "charge", lambda *_: None)
        patch.setattr(ChangingFilter, "_check", lambda *_: None)
        follow = UserFilters._follow

        def unlimited(self: UserFilters, users: Users) -> None:
            follow(self, users)
            self.caps = np.full_like(self.caps, 1 << 60)

        patch.setattr(UserFilters, "_follow", unlimited)
        yield


# ---- requirements that never change ---------------------------------------------------------


class Restarting(Exact):
    """A stream that goes on from a saved state before every slot."""

    def release(self, slot: int, counts: np.ndarray) -> SlotRelease:
        """As the exact driver does."""
        self._state = self._stream.decode(self._stream.encode(self._state))
        return super().release(slot, counts)


# What `streamveil audit` is asked for: runs with canaries of each class and of each kind, and bins.
RUNS, BINS, CONFIDENCE = 4, 16, 0.95


@dataclass(frozen=True)
class Command:
    """What `streamveil audit` is asked about: it finds the worst cases by itself."""

    what: str
    mechanism: str
    asked: Sequence[Requirement]
    options: Mapping[str, Any] = field(default_factory=dict)

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited(
            self.asked,
            mechanism=self.mechanism,
            runs=runs,
            bins=BINS,
            seed=seed,
            confidence=CONFIDENCE,
            **self.options,
        )


@dataclass(frozen=True)
class Asking:
    """The same of `streamveil audit --questions`."""

    what: str
    portfolio: Portfolio
    asked: Sequence[Requirement]

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_questions(
            self.portfolio, self.asked, runs=runs, bins=BINS, seed=seed, confidence=CONFIDENCE
        )


@dataclass(frozen=True)
class Reporting:
    """The same of devices."""

    what: str
    mechanism: str
    asked: Sequence[Requirement]
    bins: int

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_devices(
            self.asked,
            mechanism=self.mechanism,
            runs=runs,
            bins=self.bins,
            seed=seed,
            confidence=CONFIDENCE,
        )


@dataclass(frozen=True)
class Recorded:
    """The same of a statistic of records."""

    what: str
    records: Records
    canaries: Sequence[Canary]

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_records(
            self.records, self.canaries, runs=runs, seed=seed, confidence=CONFIDENCE
        )


FALLING = Inverse(10.0, 50.0, 3.0)
RECORDS = of_values(FALLING, FALLING.bounds)
COUNTED = Records("count", FALLING.bounds, FALLING, "hat")
REPLACED = {"adjacency": REPLACE, "sensitivity": 2}
TWO_REPLACED = {"adjacency": REPLACE, "sensitivity": 4}
COMMANDS = {
    "uniform": Command("one publication a slot", "uniform", [Requirement(3, 2.4)]),
    "classes": Command(
        "one publication a slot, sampled; a stream of its own, as worst cases sample nobody",
        "uniform",
        [Requirement(2, 2.0), Requirement(2, 10.0)],
        {"sizes": np.array([1, 50]), "counts": np.zeros((240, 2, BINS), np.int64)},
    ),
    "replaced": Command(
        "one publication a slot, two events are replaced",
        "uniform",
        [Requirement(2, 2.4)],
        TWO_REPLACED,
    ),
    "pba": Command("PBA", "pba", [Requirement(3, 3.1)]),
    "pbd": Command("PBD", "pbd", [Requirement(3, 3.1)]),
    "present": Command("PBA of two classes", "pba", [Requirement(3, 3.0), Requirement(3, 9.0)]),
    "restarted": Command(
        "PBD from saved states", "pbd", [Requirement(3, 6.0)], {"make_driver": Restarting}
    ),
    "weights": Command(
        "adaptive of two classes", "adaptive", [Requirement(2, 3.0), Requirement(2, 6.0)]
    ),
    "moved": Command("adaptive, an event is replaced", "adaptive", [Requirement(2, 3.0)], REPLACED),
    "gate": Command("adaptive, mostly gate", "adaptive:gate=0.5", [Requirement(3, 4.0)]),
    "sums": Command(
        "adaptive without gate, audits and reserve",
        "adaptive:gate=0:audit=0:reserve=0",
        [Requirement(3, 3.0)],
    ),
    "questions": Asking(
        "two questions, of base slots and of three of them",
        Portfolio(
            Slots.of("1h"),
            (
                Question("hour", mechanism="uniform"),
                Question("shift", slots=3, mechanism="uniform"),
            ),
        ),
        [Requirement(3, 3.0)],
    ),
    "devices": Reporting("LBU's devices of 2 symbols", "lbu", [Requirement(4, 3.0)], 1),
    "symbols": Reporting("rotation's devices of 5 symbols", "rotation", [Requirement(4, 3.0)], 4),
    "bits": Reporting(
        "rotation's devices that report 12 bits", "rotation", [Requirement(4, 1.0)], 11
    ),
    "one event": Reporting(
        "devices that tell one event of a window", "rotation:turns=4", [Requirement(4, 3.0)], 2
    ),
    "counted": Recorded("a count of records with budgets of their own", COUNTED, RECORDS),
    "domains": Recorded(
        "a count by the domains of budgets", replace(COUNTED, mechanism="prdp"), RECORDS
    ),
    "running": Recorded("a running total of counts", replace(COUNTED, running=True), RECORDS),
    "asked again": Reporting(
        "devices of 4 symbols that are asked the same again", "rotation", [Requirement(2, 3.0)], 3
    ),
}


def shown(release: SlotRelease, others: int) -> int:
    """A slot as one number: its status, and on which side of the others its bins are."""
    sides = np.sign(release.counts - others) + 1
    return 9 * STATUSES.index(release.status) + 3 * int(sides[0]) + int(sides[1])


# ---- requirements that change ---------------------------------------------------------------

SLOTS = 3
TARGET, OTHERS, LATER, STRICTER = asked_units(
    [
        [1, 40.0, SLOTS, 3.0],
        [1, 90.0, SLOTS, 90.0],
        [1, 40.0, 1, 30.0],
        [1, 0.5, 1, 0.5],
    ]
)


@dataclass(frozen=True)
class Changing:
    """The target asks for something else from the second slot on, and is in these slots."""

    name: str
    first: np.ndarray
    later: np.ndarray
    present: Sequence[int]
    others: Sequence[int] = (3, 20, 3)

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        machine = dynamic_mechanism(self.name, Setting(2, SLOTS))
        asked, sizes = np.stack([self.first, OTHERS]), np.array([1, 50])
        stream = DynamicStream(machine, asked, sizes, NoiseSource(KEY))
        change = Moves(np.array([0]), np.array([2]), np.array([1]), self.later[None])
        rows = []
        for run in range(runs):
            stream._noise = NoiseSource(KEY, f"{seed} {there} {run}")
            state, seen = stream.start(), []
            for slot, others in enumerate(self.others):
                cells = [(1, 0, others), (1, 1, others)]
                if there and slot in self.present:
                    cells.append((2 if slot else 0, 0, 1))
                moves = change if slot == 1 else Moves.none()
                cohorts = CohortCounts(*np.array(cells).T)
                state, release = stream.release(state, slot, cohorts, moves)
                seen.append(shown(release, others))
            rows.append(seen)
        return np.array(rows)


# ---- limits on presence ---------------------------------------------------------------------


@dataclass(frozen=True)
class Limited:
    """The first slot of each block counts; the target comes with a window, or after it.

    A slot behind the window is without the target in either world, so that no block of its length
    ends with it.
    """

    window: int
    epsilon: float
    slots: int

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        limit, asked = Limit(1, 1), Requirement(self.window, self.epsilon)
        begins = self.window // 2 + 2
        ends = begins + self.window
        when = np.append(
            np.arange(begins, ends if there else begins), np.arange(ends + 1, self.slots)
        )
        who, classes = np.zeros((2, len(when)), np.int64)
        rules = Rules.of([limit], [asked], ADD_REMOVE)
        layers = Counters(rules, KEY, who).layers(who, when, classes, self.slots)
        # As many runs side by side, in a bin each.
        counts = np.zeros((self.slots, 1, runs), np.int64)
        counts[when[layers == 0]] = 1
        people = Population(Requirements([limit.priced(asked)]), np.array([runs]), runs)
        stream = ReleaseStream(
            mechanism("uniform", people),
            NoiseSource(KEY, f"{seed} {there}"),
            presence=terms([limit], [asked]),
        )
        state, seen = stream.start(), []
        for slot, table in enumerate(counts):
            state, release = stream.release(state, slot, table)
            seen.append(release.counts > 0)
        return np.stack(seen, axis=1).astype(np.int64)


# ---- one budget forever ---------------------------------------------------------------------


@dataclass(frozen=True)
class Forever:
    """The target is in bin 0 of every slot; what is seen is the epoch and the share of bin 0."""

    text: str
    epsilon: float
    counts: tuple[tuple[int, ...], ...]

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        table = np.array(self.counts, np.int64)
        table[:, 0] += there
        machine = infinite_mechanism(self.text, table.shape[1], self.epsilon)
        rows = []
        for run in range(runs):
            stream = ReleaseStream(machine, NoiseSource(KEY, f"{seed} {there} {run}"))
            state, seen = stream.start(), []
            for slot, row in enumerate(table):
                state, release = stream.release(state, slot, row[None])
                seen += [
                    int(release.diagnostics.get("epoch", 0)),
                    int(np.rint(release.shares[0] * 400)),
                ]
            rows.append(seen)
        return np.array(rows)


def _near() -> tuple[int, ...]:
    """Counts of 50 bins whose distance is about where the first gate opens."""
    machine = infinite_mechanism("gated:p=4:f_s=0.9:worth=0:chance=0:total=1000", 50, 1.0)
    first = 20 + int((machine.guard(machine.prices(1, 1000), 0) - 1) / 1.96)
    return (first, *(20,) * 49)


NEAR = _near()


# ---- events ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Events:
    """Events as a table: each target has two in each of two bins, of which one may count."""

    epsilon: float
    slots: int

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        import pyarrow as pa

        import streamveil as sv

        # Somebody else is there in either world, in a bin of their own.
        users = np.tile(np.repeat(np.arange(runs), 4), self.slots)
        days = np.repeat(np.arange(self.slots), 4 * runs)
        bins = np.tile(2 * np.repeat(np.arange(runs), 4) + np.tile([0, 0, 1, 1], runs), self.slots)
        kept = slice(None) if there else slice(0)
        users, days = np.append(users[kept], runs), np.append(days[kept], 0)
        bins = np.append(bins[kept], 2 * runs)
        names = [f"b{i}" for i in range(2 * runs + 1)]
        times = [f"2024-05-0{1 + day}T12:00:00Z" for day in days.tolist()]
        places = [names[i] for i in bins.tolist()]
        table = pa.table({"user": users.astype(str).tolist(), "place": places, "time": times})
        released = sv.release(
            table,
            user="user",
            value="place",
            time="time",
            slot="1d",
            domain=names,
            requirements={str(i): (self.slots, self.epsilon) for i in range(runs + 1)},
            mechanism="uniform",
            start="2024-05-01",
            end=f"2024-05-0{1 + self.slots}",
            noise_key=NoiseSource(KEY, f"{seed} {there}").sealing_key,
        ).to_pandas()
        counts = released["count"].to_numpy().reshape(self.slots, -1)
        counts = counts[:, :-1].reshape(self.slots, runs, 2)
        return (counts > 0).astype(np.int64).transpose(1, 0, 2).reshape(runs, -1)


SCENES = {
    "changing": Scene(
        "DPBD, E = 3 over 3 slots; in the second one the target asks for ten times as much",
        3.0,
        Changing("dpbd", TARGET, LATER, range(SLOTS)),
        800,
    ),
    "stricter": Scene(
        "DPBD; from the second slot on the target asks for E = 0.5 a slot",
        0.5,
        Changing("dpbd", LATER, STRICTER, [1], others=(3, 20)),
        800,
    ),
    "limited": Scene(
        "one slot of each block of 11 counts, E = 3 over 11 slots",
        3.0,
        Limited(11, 3.0, 45),
        20_000,
    ),
    "forever": Scene(
        "gated, E = 2 forever: the gate opens in the third slot",
        2.0,
        Forever(
            "gated:p=4:latest=3:shrink=none:worth=0:total=200",
            2.0,
            ((100, 100), (100, 100), (0, 4000)),
        ),
        1500,
    ),
    "gate forever": Scene(
        "gated, E = 1 forever, counts near where the gate opens",
        1.0,
        Forever("gated:p=4:f_s=0.9:worth=0:chance=0:total=1000", 1.0, (NEAR,)),
        2000,
    ),
    "drawn": Scene(
        "DPI over sums of slots, E = 2 forever",
        2.0,
        Forever("dpi:pool=50:precision=10:total=6:mode=cumulative", 2.0, ((1, 3, 2),) * 12),
        200,
    ),
    "events": Scene(
        "events through sv.release, of which one in a slot counts, E = 2 over 2 slots",
        2.0,
        Events(2.0, 2),
        5000,
    ),
}

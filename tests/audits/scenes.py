"""Where mutants are put on trial: what `streamveil audit` is asked about, and pairs of worlds.

The command audits requirements over windows, also where they change, limits on presence and one
budget forever, of one stream, and many questions. All else has a scene of its own: a release with a
promise about one user, the target. In one of its worlds the target's events are there, in the other
one they are not, or they are others. Who looks on sees what leaves, in so many runs, each with
noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from streamveil.mechanisms import (
    NoiseSource,
    Requirement,
    Slots,
)
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.presence_filter import PresenceFilter
from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import REPLACE, DynamicRequirement
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.client.device import Device
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.messages import Assignment, decode_report, encode_assignment
from streamveil.mechanisms.local.oracles import supports
from streamveil.mechanisms.local.protocol import GRR, Ask, LocalRelease, Users
from streamveil.mechanisms.per_record import Bounds, RunningTotal, statistic
from streamveil.mechanisms.portfolio.portfolio_filter import PortfolioFilter
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.counted_filter import CountedFilter
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.registry import local_mechanism
from streamveil.pipelines.audit.auditing import audited
from streamveil.pipelines.audit.changes import audited_changes
from streamveil.pipelines.audit.findings import Findings
from streamveil.pipelines.audit.for_ever import audited_for_ever
from streamveil.pipelines.audit.presence import audited_presence
from streamveil.pipelines.audit.questions import audited_questions
from streamveil.pipelines.audit.runs import Exact
from tests.mechanisms.local.populations import SERVER, tally_of

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


def _extent(seed: int, runs: int) -> dict[str, Any]:
    return {"runs": runs, "bins": BINS, "seed": seed, "confidence": CONFIDENCE}


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
            **_extent(seed, runs),
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
        return audited_questions(self.portfolio, self.asked, **_extent(seed, runs))


@dataclass(frozen=True)
class Endless:
    """The same of one budget forever."""

    what: str
    mechanism: str
    epsilon: float

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_for_ever(
            self.epsilon,
            mechanism=self.mechanism,
            **_extent(seed, runs),
        )


@dataclass(frozen=True)
class Limited:
    """The same where users count in a few slots only."""

    what: str
    asked: Requirement
    limit: Limit

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_presence(
            *([self.asked], [self.limit]),
            mechanism="uniform",
            **_extent(seed, runs),
        )


@dataclass(frozen=True)
class Changing:
    """The same of requirements that change."""

    what: str
    mechanism: str
    asked: Sequence[Requirement]
    later: Sequence[DynamicRequirement]

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_changes(
            self.asked,
            changes=self.later,
            mechanism=self.mechanism,
            **_extent(seed, runs),
        )


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
    "changing": Changing(
        "DPBD, E = 3 over 3 slots or 30 in each, and users change from one to the other",
        "dpbd",
        [Requirement(3, 3.0), Requirement(1, 30.0)],
        (),
    ),
    "stricter": Changing(
        "DPBD, E = 30 a slot, and users change to E = 0.5 a slot",
        "dpbd",
        [Requirement(1, 30.0)],
        (DynamicRequirement(1, 0.5, 1, 0.5),),
    ),
    "limited": Limited(
        "one slot of each block of 11 counts, E = 3 over 11 slots",
        Requirement(11, 3.0),
        Limit(1, 1),
    ),
    "forever": Endless(
        "gated, E = 2 forever, of means of three slots",
        "gated:p=4:latest=3:shrink=none:worth=0:total=200",
        2.0,
    ),
    "gate forever": Endless(
        "gated, E = 1 forever, mostly gate", "gated:p=4:f_s=0.9:worth=0:chance=0:total=1000", 1.0
    ),
    "drawn": Endless(
        "DPI over sums of slots, E = 2 forever",
        "dpi:pool=50:precision=10:total=6:mode=cumulative",
        2.0,
    ),
}


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


# ---- devices --------------------------------------------------------------------------------

ANSWERS = (0, 1, None, 0, 1, 1, 0)
"""What the server is told: slots that publish, and slots that do not."""


@dataclass(frozen=True)
class Reporting:
    """Every user is a run: all report symbol 0 in a window, or all report symbol 1."""

    name: str
    window: int
    epsilon: float
    symbols: int

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        asked = (
            Requirement(self.window // 2, 2 * self.epsilon),
            Requirement(self.window, self.epsilon),
        )
        users = Users(asked, np.arange(2 * runs, dtype=np.int32) % 2, self.symbols)
        made = local_mechanism(self.name, users)
        users = made.users
        devices = Devices(users, NoiseSource(KEY, f"{seed} {there}").sealing_key)
        state, seen = made.start(), []
        values = np.full(2 * runs, int(not there))
        for slot, answer in enumerate(ANSWERS):
            random = SERVER.slot(slot, b"")
            state, reply = made.begin(state, slot, random)
            while not isinstance(reply, LocalRelease):
                told = self._told(devices, reply, values)
                if len(ANSWERS) - self.window <= slot:
                    seen.append(told)
                state, reply = made.take(state, tally_of(reply, users, answer), random)
        return np.array(seen).T[1::2]

    def _told(self, devices: Devices, ask: Ask, values: np.ndarray) -> np.ndarray:
        """What every user reports, 0 for not asked."""
        told = np.zeros(len(values), np.int64)
        for k, asked, reports in devices.reports(ask, values):
            kinds, which = np.unique(reports, axis=0, return_inverse=True)
            each = [supports(ask.oracles[k], self.symbols, one) for one in kinds[:, None]]
            told[asked] = (1 + np.array(each) @ (1 << np.arange(self.symbols)))[which.ravel()]
        return told


@dataclass(frozen=True)
class Asked:
    """A device that is asked the same again, and once more in the next slot of its window."""

    epsilon: float
    symbols: int

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        asks = [
            encode_assignment(
                Assignment("", slot, 1, bytes(16), to_units(self.epsilon) // 2, GRR, self.symbols)
            )
            for slot in (0, 1)
        ]
        rows = []
        for run in range(runs):
            key = NoiseSource(KEY, f"{seed} {there} {run}").sealing_key
            device = Device(key, Requirement(2, self.epsilon), self.symbols)
            answers = [
                decode_report(device.report(ask, slot, int(not there))).answer
                for slot, ask in enumerate(asks)
                for _ in range(3)
            ]
            rows.append(answers)
        return np.array(rows)


# ---- single records -------------------------------------------------------------------------

RATES = Bounds(0.2, 3.0, 10.0)
VALUES, BUDGETS = np.array([1.0, 8.0, 9.9, 3.0]), np.array([2.5, 0.3, 0.9, 0.7])


@dataclass(frozen=True)
class Record:
    """A record among four others; what is seen are the noisy totals by node, in noise scales."""

    kind: str
    name: str
    value: float
    budget: float
    ticks: int = 0
    """Of a running total, with the record at the second one; 0 for one release."""

    def __call__(self, there: bool, runs: int, seed: str) -> Shown:
        made = statistic(self.kind, self.name, RATES)
        values, budgets = np.append(VALUES, self.value), np.append(BUDGETS, self.budget)
        rest, one = made.tally(values, budgets, np.array([0, 0, 0, 0, 1]), 2)
        part = made.add([rest, one]) if there else rest
        if self.ticks:
            worlds = [
                self._running(made, rest, each, runs, f"{seed} {there}") for each in (rest, part)
            ]
        else:
            source = NoiseSource(KEY, f"{seed} {there}").slot(0, b"").words("audit")
            worlds = [[(rest, None)], [(part, made.nodes.noisy(part, source, runs=runs))]]
        shown = []
        for (base, _), (_, noisy) in zip(*worlds, strict=True):
            low, high = base.reshape(2, -1)
            exact = (low + high * 2.0**24) * 2.0**made.grid.exponent
            scaled = (noisy.totals - exact) / np.sqrt(noisy.variances / 2)
            shown += [np.clip(np.rint(4 * scaled), -16, 24), made.select(noisy)[:, None]]
        return np.concatenate(shown, axis=1).astype(np.int64)

    def _running(self, made, rest, part, runs, name):
        """What is released of some ticks, and of which part."""
        many = ManyRuns(made, runs)
        total = RunningTotal(many, context=name.encode())
        state = total.start()
        for tick in range(1, self.ticks + 1):
            state, _ = total.tick(state, part if tick == 2 else rest, NoiseSource(KEY))
        return many.seen


class ManyRuns:
    """A statistic released many times at once, which remembers what it published of what."""

    def __init__(self, made, runs) -> None:
        self.made, self.runs, self.seen = made, runs, []
        self.name, self.bounds, self.add = made.name, made.bounds, made.add
        self.identity = made.identity

    def noisy(self, part, noise, shares):
        noisy = self.made.nodes.noisy(part, noise.words("audit"), shares, self.runs)
        self.seen.append((part, noisy))
        return noisy

    def estimate(self, noisy):
        return noisy


SCENES = {
    "events": Scene(
        "events through sv.release, of which one in a slot counts, E = 2 over 2 slots",
        2.0,
        Events(2.0, 2),
        5000,
    ),
    "devices": Scene(
        "LBU's devices of 2 symbols, E = 3 over 4 slots",
        3.0,
        Reporting("lbu", 4, 3.0, 2),
        20_000,
    ),
    "symbols": Scene(
        "rotation's devices of 5 symbols, E = 3 over 4 slots",
        3.0,
        Reporting("rotation", 4, 3.0, 5),
        100_000,
    ),
    "bits": Scene(
        "rotation's devices that report 12 bits, E = 1 over 4 slots",
        1.0,
        Reporting("rotation", 4, 1.0, 12),
        100_000,
    ),
    "one event": Scene(
        "devices that tell one event of a window, E = 3 over 4 slots",
        3.0,
        Reporting("rotation:turns=4", 4, 3.0, 3),
        100_000,
    ),
    "asked again": Scene(
        "a device of 4 symbols that is asked the same again, E = 3 over 2 slots",
        3.0,
        Asked(3.0, 4),
        2000,
    ),
    "counted": Scene(
        "a count of records with budgets of their own, E = 1.1",
        1.1,
        Record("count", "hat", 7.0, 1.1),
        20_000,
    ),
    "domains": Scene(
        "a count by the domains of budgets, E = 0.75 below a boundary at 0.8",
        0.75,
        Record("count", "prdp", 7.0, 0.75),
        20_000,
    ),
    "running": Scene(
        "a running total of counts, E = 1.1",
        1.1,
        Record("count", "hat", 7.0, 1.1, ticks=5),
        20_000,
    ),
}

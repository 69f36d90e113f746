"""Where mutants are put on trial: what `streamveil audit` is asked about, and pairs of worlds.

The command audits requirements over windows, also where they change, participation limits and one
budget forever, of one stream, many queries, devices and statistics of records. What is around
these has a scene of its own: a release with a promise about one user, the target. In one of its
worlds the target's events are there, in the other one they are not, or they are others. Who looks
on sees what leaves, in so many runs, each with noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Requirement, Slots
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.presence_filter import PresenceFilter
from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.core.records import REPLACE, DynamicRequirement, Lifetime
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.per_record import Inverse
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.counted_filter import CountedFilter
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import QueryFilter
from streamveil.pipelines.audit.auditing import audited, audited_queries
from streamveil.pipelines.audit.changes import audited_changes
from streamveil.pipelines.audit.devices.auditing import audited_devices
from streamveil.pipelines.audit.findings import Findings
from streamveil.pipelines.audit.lifetime import audited_for_ever
from streamveil.pipelines.audit.presence import audited_presence
from streamveil.pipelines.audit.records.auditing import Records, audited_records
from streamveil.pipelines.audit.records.canaries import Canary, of_values
from streamveil.pipelines.audit.rounds import Extent
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
        for kind in (WindowFilter, PresenceFilter, CountedFilter, QueryFilter):
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


BRIEF = Extent(runs=RUNS)
"""As few runs as an audit may have."""


def _extent(seed: int, runs: int) -> Extent:
    return Extent(runs, seed=seed, confidence=CONFIDENCE)


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
            bins=BINS,
            extent=_extent(seed, runs),
            **self.options,
        )


@dataclass(frozen=True)
class Asking:
    """The same of `streamveil audit --queries`."""

    what: str
    query_set: QuerySet
    asked: Sequence[Requirement]

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_queries(self.query_set, self.asked, bins=BINS, extent=_extent(seed, runs))


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
            bins=BINS,
            extent=_extent(seed, runs),
        )


@dataclass(frozen=True)
class Limited:
    """The same where users count in a few slots only."""

    what: str
    asked: Requirement
    limit: Limit
    mechanism: str = "uniform"

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_presence(
            *([self.asked], [self.limit]),
            mechanism=self.mechanism,
            bins=BINS,
            extent=_extent(seed, runs),
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
            bins=BINS,
            extent=_extent(seed, runs),
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
            bins=self.bins,
            extent=_extent(seed, runs),
        )


@dataclass(frozen=True)
class Recorded:
    """The same of a statistic of records."""

    what: str
    records: Records
    canaries: Sequence[Canary]

    def findings(self, seed: int, runs: int = RUNS) -> Findings:
        """An audit."""
        return audited_records(self.records, self.canaries, extent=_extent(seed, runs))


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
    "queries": Asking(
        "two queries, of base slots and of three of them",
        QuerySet(
            Slots.of("1h"),
            (
                Query("hour", mechanism="uniform"),
                Query("shift", slots=3, mechanism="uniform"),
            ),
        ),
        [Requirement(3, 3.0)],
    ),
    "queries pba": Asking(
        "two queries by PBA",
        QuerySet(
            Slots.of("1h"),
            (Query("hour", mechanism="pba"), Query("shift", slots=3, mechanism="pba")),
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
    "lives": Limited(
        "two slots of a life count, E = 6 forever", Lifetime(6.0), Limit(None, in_life=2)
    ),
    "limited pba": Limited(
        "PBA where one slot of each block of 11 counts", Requirement(11, 3.0), Limit(1, 1), "pba"
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
        counts = released["value"].to_numpy().reshape(self.slots, -1)
        counts = counts[:, :-1].reshape(self.slots, runs, 2)
        return (counts > 0).astype(np.int64).transpose(1, 0, 2).reshape(runs, -1)


SCENES = {
    "events": Scene(
        "events through sv.release, of which one in a slot counts, E = 2 over 2 slots",
        2.0,
        Events(2.0, 2),
        5000,
    ),
}

"""A small stream of every family and mechanism, of which the state after some slots is saved.

`python -m tests.transforms.saved_streams FILE` writes what this version saves, and what it releases
next from there; with `--new`, of those streams alone that no file beside it has. With
`--next EARLIER ...` it writes to files of earlier versions what this one releases next from their
states: see CONTRIBUTING.md.
"""

import argparse
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engine.per_record.budgets import ValueBudget
from streamveil.engine.stream.by_cohort import _SlotCounts
from streamveil.engine.stream.played_devices import PlayedDevicesConfig
from streamveil.mechanisms import (
    DYNAMIC_MECHANISMS,
    MECHANISMS,
    Categories,
    Lifetime,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.local.client.device import Device
from streamveil.mechanisms.local.messages import Assignment, encode_assignment
from streamveil.mechanisms.local.protocol import GRR
from streamveil.mechanisms.per_record.budget_functions import Inverse
from streamveil.mechanisms.registry import (
    INFINITE_MECHANISMS,
    LOCAL_MECHANISMS,
    PER_RECORD_MECHANISMS,
)
from streamveil.transforms import CollectHistograms, Columns
from streamveil.transforms.per_record import statistics
from streamveil.transforms.release_plan import PrivateHistograms
from tests.transforms.asked_streams import asked_streams
from tests.transforms.limited_streams import limited_streams

KEY = bytes(range(32))
SLOTS = 4
"""After which the state is saved; the next one is released from it."""
LONG = 100
"""After so many, the first time that the second engine of `adaptive` has all that it can have."""
CYCLE, LAG = 4, 3

USERS = [f"user {i}" for i in range(24)]
REGISTRY = Registry.of({user: (1 + i % 3, 0.5 + i % 2) for i, user in enumerate(USERS)})
CROWD = Registry.of({f"user {i}": (8 + 4 * (i % 2), 0.4 + 0.2 * (i % 2)) for i in range(3000)})
MANY = Registry.of({f"user {i}": (8 + 4 * (i % 2), 0.4 + 0.2 * (i % 2)) for i in range(400)})
FOREVER = Registry.of(default=(Lifetime(2.0), len(USERS)))
HOUR = Slots.of("1h")
COLUMNS = Columns("user", ("place",), "time")
CHANGE = (2, 0.75, 3, 1.25)

STATISTICS = {
    "count": statistics.PerRecordCount,
    "sum": statistics.PerRecordSum,
    "max": statistics.PerRecordMax,
    "distinct": statistics.PerRecordDistinctCount,
    "running": statistics.PerRecordRunningTotal,
}


@dataclass(frozen=True)
class Driven:
    """A driver of the engine, what comes in a slot, and what is compared of a release."""

    driver: Any
    counted: Callable[[int], Any]
    result_of: Callable[[Any, Any], Any]
    slots: int = SLOTS
    """After which the state is saved, as soon as it is `ripe`."""
    ripe: Callable[[Any], bool] = lambda state: True

    def saved(self) -> bytes:
        state, slot = self.driver.start(), 0
        while slot < self.slots or not self.ripe(state):
            state, _ = self.driver.release(state, slot, self.counted(slot))
            slot += 1
        return bytes(self.driver.encode(state))

    def read(self, data: bytes) -> None:
        self.driver.decode(data)

    def following(self, data: bytes) -> Any:
        state = self.driver.decode(data)
        slot = self.driver.next_slot(state)
        return self.result_of(*self.driver.release(state, slot, self.counted(slot)))


class OfDevice:
    """One client's device."""

    def _answered(self, device: Device, slot: int) -> bytes:
        asked = Assignment("rides", slot, 1, bytes([slot]) * 16, 1 << 38, GRR, 3)
        return device.report(encode_assignment(asked), slot, slot % 3)

    def saved(self) -> bytes:
        device = Device(KEY, Requirement(3, 1.0), 3, "rides")
        for slot in range(SLOTS):
            self._answered(device, slot)
        return device.encode()

    def read(self, data: bytes) -> None:
        Device.decode(data, KEY)

    def following(self, data: bytes) -> Any:
        device = Device.decode(data, KEY)
        return [self._answered(device, SLOTS).hex(), device.remaining(SLOTS)]


def _symbols(slot: int) -> Any:
    return np.random.default_rng([1, slot]).choice(3, len(USERS), p=[0.5, 0.3, 0.2])


def _by_class(registry: Registry) -> Callable[[int], Any]:
    def counted(slot: int) -> Any:
        table = np.zeros((len(registry.classes), 2), np.int64)
        symbols = _symbols(slot)
        here = symbols < 2
        classes = REGISTRY.class_of % len(registry.classes)
        np.add.at(table, (classes[here], symbols[here]), 1)
        return table

    return counted


def _cyclic(slot: int) -> Any:
    """Counts of many users, which rise and fall."""
    rates = np.outer(MANY.sizes, [0.5, 0.3]) * (1 + 0.6 * np.sin(2 * np.pi * slot / CYCLE))
    return np.minimum(np.random.default_rng([3, slot]).poisson(rates), MANY.sizes[:, None])


def _weekly(slot: int) -> Any:
    """Counts of a crowd in many bins, which rise and fall together in a week."""
    shares = np.array([0.2, 0.15, 0.1, 0.1, 0.05, 0.05]) * (0.8 if slot % 7 > 4 else 1.1)
    return np.random.default_rng([4, slot]).poisson(np.outer(CROWD.sizes, shares))


def _by_cohort(by_class: Callable[[int], Any]) -> Callable[[int], Any]:
    """One user of the first class moves in slot 1, and is counted no more."""

    def counted(slot: int) -> Any:
        table = by_class(slot)
        classes, bins = np.nonzero(table)
        counts = CohortCounts(classes, bins, table[classes, bins])
        if slot != 1:
            return _SlotCounts(counts, Moves.none())
        moved = (np.array([value], np.int64) for value in (0, 100, 1))
        return _SlotCounts(counts, Moves(*moved, asked_units([CHANGE])))

    return counted


def _released(state: Any, release: Any) -> Any:
    return [release.counts.tolist(), release.status, release.spent.tolist()]


def _revised(state: Any, release: Any) -> Any:
    revisions = [[one.slot, one.counts.tolist()] for one in release.revisions]
    return [*_released(state, release), revisions]


def _of_engine_two(state: Any) -> bool:
    """Whether a sum runs, a cycle is found, and a release is kept for revisions."""
    has = state.mechanism
    return bool(has.running and has.cycle.found is not None and has.ring and has.ring.releases)


def _with_factor(state: Any) -> bool:
    """Whether a common factor is used, also by slots that wait for revisions."""
    has = state.mechanism.factor
    return bool(has and has.used and any(len(one.scale) for one in has.past))


def _histograms(
    name: str,
    registry: Registry,
    changing: bool = False,
    places: tuple[str, ...] = ("cafe", "park"),
    slots: Slots = HOUR,
    **more: Any,
) -> Any:
    transform = PrivateHistograms(
        registry, Categories(places), slots, COLUMNS, name, noise_key=KEY, **more
    )
    return transform.ledgers(transform.layout(bounded=not changing), changing).make()


def _collected(name: str, **more: Any) -> CollectHistograms:
    domain = Categories(("cafe", "park"))
    return CollectHistograms(REGISTRY, domain, HOUR, COLUMNS, name, noise_key=KEY, **more)


def _local(
    name: str, slots: int = SLOTS, released: Any = _released, **more: Any
) -> dict[str, Driven]:
    """The edge, and the server that gets its transcripts."""
    setting = _collected(name, **more).setting
    layout = PrivateHistograms(
        REGISTRY, Categories(("cafe", "park")), HOUR, COLUMNS, noise_key=KEY
    ).layout(bounded=False)
    edge = PlayedDevicesConfig(setting, layout).make()
    state, transcripts = edge.start(), []
    for slot in range(slots + 1):
        state, transcript = edge.release(state, slot, _symbols(slot).astype(np.int32))
        transcripts.append(transcript)

    def tallies(_: Any, transcript: Any) -> Any:
        return [[one.supports.tolist(), one.reports.tolist()] for one in transcript.tallies]

    return {
        f"edge {name}": Driven(edge, lambda slot: _symbols(slot).astype(np.int32), tallies, slots),
        f"server {name}": Driven(setting.make(), transcripts.__getitem__, released, slots),
    }


def _per_record(kind: str, name: str, **windows: Any) -> Driven:
    value = None if kind == "count" else "amount"
    options = {"time": "time", "slots": HOUR, "first_slot": 0, "noise_key": KEY, **windows}
    budget = ValueBudget("amount", Inverse(20.0, 100.0, 5.0))
    transform = STATISTICS[kind](budget, value, value_max=100.0, mechanism=name, **options)
    plan = transform.plan()
    made = plan.statistic()

    def part(slot: int) -> Any:
        amounts = np.random.default_rng([2, slot]).uniform(0, 100, 200).round()
        batch = pa.RecordBatch.from_pydict(
            {"amount": amounts, "time": pa.array([slot * HOUR.length] * 200, pa.timestamp("us"))}
        )
        ((_, found),) = plan.source.parts(batch, made)
        return found

    def released(_: Any, release: Any) -> Any:
        return [float(f"{release.estimate:.9g}"), float(f"{release.stderr:.9g}")]

    return Driven(plan.make().of(0), part, released)


def streams() -> dict[str, Any]:
    """All of them by name."""
    found: dict[str, Any] = {"device": OfDevice()}
    for name in MECHANISMS:
        found[f"fixed {name}"] = Driven(_histograms(name, REGISTRY), _by_class(REGISTRY), _released)
    for name in DYNAMIC_MECHANISMS:
        driver = _histograms(name, REGISTRY, changing=True)
        found[f"changing {name}"] = Driven(driver, _by_cohort(_by_class(REGISTRY)), _released)
    cyclic = f"adaptive:cycle={CYCLE}"
    for kind, counted in (("fixed", _cyclic), ("changing", _by_cohort(_cyclic))):
        driver = _histograms(cyclic, MANY, kind == "changing", revise=LAG)
        found[f"{kind} {cyclic}"] = Driven(driver, counted, _revised, LONG, _of_engine_two)
    for kind, counted in (("fixed", _weekly), ("changing", _by_cohort(_weekly))):
        days = {"places": tuple("abcdef"), "slots": Slots.of("1d"), "revise": LAG}
        driver = _histograms("adaptive", CROWD, kind == "changing", **days)
        found[f"{kind} adaptive by day"] = Driven(driver, counted, _revised, LONG, _with_factor)
    for name in INFINITE_MECHANISMS:
        driver = _histograms(name, FOREVER)
        found[f"infinite {name}"] = Driven(driver, _by_class(FOREVER), _released)
    for name in LOCAL_MECHANISMS:
        found |= _local(name)
    found |= _local(f"rotation:cycle={CYCLE}", 6 * CYCLE, _revised, revise=LAG)
    for kind, names in PER_RECORD_MECHANISMS.items():
        for name in names:
            found[f"{kind} {name}"] = _per_record(kind, name)
    found["sliding sum hat"] = _per_record("sum", "hat", sliding=2)
    found["sliding max framework"] = _per_record("max", "framework", sliding=2)
    found["running hat"] = _per_record("running", "hat")
    return found | limited_streams(KEY, "adaptive") | asked_streams()


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--next", type=Path, nargs="+", default=[], dest="earlier")
    given = parser.parse_args()
    all_of_them = streams()
    record = {}
    others = given.file.parent.glob("states_*.json") if given.new else []
    known = {name for path in others if path != given.file for name in json.loads(path.read_text())}
    for name, stream in all_of_them.items():
        if name in known:
            continue
        data = stream.saved()
        record[name] = {
            "state": base64.b64encode(data).decode(),
            "next": stream.following(data),
        }
    _write(given.file, record)
    for path in given.earlier:
        record = json.loads(path.read_text())
        for name, one in record.items():
            one["next"] = all_of_them[name].following(base64.b64decode(one["state"]))
        _write(path, record)


if __name__ == "__main__":
    main()

"""Answers to queries, pass by pass, their steps driven by hand: a pass takes some milliseconds.

The first pass ends within slots of two queries, whose events are in its state.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engine.count.query_counter import slot_counts
from streamveil.engine.messages import Kind, Message, array_to_bytes
from streamveil.engine.stream.query_driver import PublishAnswers
from streamveil.engine.stream.query_plan import columns_for
from streamveil.engine.stream.saved_queries import Saved
from streamveil.mechanisms import Categories, Registry, Requirement, Slots
from streamveil.mechanisms.queries.bounds import AutoBounds, are_known
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryEntry
from streamveil.mechanisms.queries.slot_answers import SlotAnswer
from streamveil.mechanisms.queries.statistics import Mean, Quantiles
from streamveil.transforms.release_plan import PrivateAnswers

CUT, LAST = 10, 15
"""The first base slot of the second pass, and its last."""
HOUR = Slots.of("1h")
USERS = [f"user {i}" for i in range(40)]
REGISTRY = Registry.of(
    {user: (6 + i % 2, 20.0) for i, user in enumerate(USERS)}, default=(Requirement(8, 15.0), 10)
)
PLACES = {"value": ("place",), "domain": Categories(("cafe", "park"))}
CHOSEN = np.array([[0.0, 90.0]])


def batch(first: int, last: int) -> pa.RecordBatch:
    """Events of members and others in some base slots, several of a user in a longer slot."""
    found: dict[str, list[Any]] = {"user": [], "place": [], "speed": [], "time": []}
    for slot in range(first, last + 1):
        random = np.random.default_rng([4, slot])
        for user in random.integers(50, size=60).tolist():
            place, speed = int(random.integers(2)), float(random.integers(100))
            row = (f"user {user}", ("cafe", "park")[place], speed, slot * HOUR.length)
            for column, value in zip(found.values(), row, strict=True):
                column.append(value)
    return pa.RecordBatch.from_pydict(
        {**found, "time": pa.array(found["time"], pa.timestamp("us", "UTC"))}
    )


@dataclass(frozen=True)
class Asked:
    """Hourly counts, also by half a day, a mean every four hours and quantiles every eight."""

    mean: Any
    planned: bool = False
    """Whether shares are planned, and again from answers."""

    @cached_property
    def transform(self) -> PrivateAnswers:
        query_set = QuerySet(
            HOUR,
            (
                Query("visits", times=(12,), **PLACES),
                Query("speed", slots=4, statistic=self.mean, max_contributions=2, **PLACES),
                Query("slow", slots=8, statistic=Quantiles("speed", (0, 30, 60, 90), (0.5,))),
            ),
        )
        even = None if self.planned else np.tile(REGISTRY.classes.budgets // 4, (3, 1))
        columns = columns_for(query_set, "user", "time")
        return PrivateAnswers(
            query_set, REGISTRY, columns, even, noise_key=bytes(range(32)), ends=False
        )

    @cached_property
    def driver(self) -> Any:
        ledgers = self.transform.ledgers(self.transform.layout(bounded=True))
        return (ledgers if are_known(self.transform.query_set) else ledgers.under(CHOSEN)).make()

    def driver_of(self, data: bytes | None) -> Any:
        """What goes on from a state, whose shares another version may have planned."""
        driver = self.driver
        if data is None:
            return driver
        saved = Saved.read(data, driver.key)
        saved.asked(self.transform.query_set)  # refuses other bounds
        if (saved.shares == driver.ledgers.shares).all():
            return driver
        return replace(driver.ledgers, shares=saved.shares).make()

    def passed(self, first: int, last: int, resume: bytes | None) -> tuple[list[Any], bytes]:
        """What is answered in some base slots, and the state after them."""
        made = replace(self.transform, first_slot=first, last_slot=last, resume=resume)
        known = are_known(made.query_set)
        layout = made.layout(bounded=True)
        counter = made.counter(layout)
        events, _ = made.event_mapper(None if known else array_to_bytes(CHOSEN)).map(
            batch(first, last)
        )
        came = defaultdict(list)
        for block, key, packed, _ in counter.pack(events, layout, counter.bounding):
            message = layout.message(Kind.EVENTS, block, key, packed.to_bytes())
            came[(*key, block)].append(message)
        for key, message in made.kept(layout):
            came[key].append(message)
        messages_of: dict[int, list[Message]] = defaultdict(list)
        kept = []
        for key, messages in came.items():
            for _, message in counter.messages(key, counter.bound(key, messages)):
                (kept if message.kind is Kind.WAITING else messages_of[message.slot]).append(
                    message
                )
        driver = self.driver_of(resume)
        state = driver.start() if resume is None else driver.decode(resume)
        found = []
        for slot in range(first, last + 1):
            counted = slot_counts(messages_of[slot], layout)
            state, releases = driver.release(state, slot, counted)
            outputs = PublishAnswers(ends=False)(driver, state, slot, releases, 0)
            found += [_plain_values(output.value) for output in outputs]
        return found, driver.encode(state, kept)

    def saved(self) -> bytes:
        return self.passed(0, CUT - 1, None)[1]

    def read(self, data: bytes) -> Any:
        driver = self.driver_of(data)
        return driver.decode(data), driver.kept(data)

    def following(self, data: bytes) -> Any:
        return self.passed(CUT, LAST, data)[0]


def _plain_values(one: SlotAnswer | QueryEntry) -> list[Any]:
    if isinstance(one, QueryEntry):
        return [one.query, one.last_base_slot, one.spent.tolist(), one.spent_in_window.tolist()]
    values = [float(f"{value:.9g}") for value in one.values.ravel()]
    return [one.query, one.length, one.slot, one.status, values]


def asked_streams() -> dict[str, Asked]:
    """Under bounds and shares that were given, and those that a run chose and planned."""
    return {
        "answers": Asked(Mean("speed", 0, 100)),
        "answers planned": Asked(Mean("speed", 0, 100), planned=True),
        "answers chosen": Asked(AutoBounds("mean", "speed")),
    }

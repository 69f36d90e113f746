"""A stream where users count in a few slots only, released pass by pass, its steps driven by hand.

A pass takes some milliseconds. Who counts, what is asked for and what waits is in its state.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from streamveil.engine.count.changes import spread
from streamveil.engine.count.chosen_limits import choice_message, limits_from
from streamveil.engine.count.counter import Counter
from streamveil.engine.count.event_codes import pack
from streamveil.engine.count.shards import close_at_end
from streamveil.engine.messages import Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig, release_at_end
from streamveil.mechanisms import Categories, Lifetime, Registry, Requirement, Slots
from streamveil.mechanisms.core.records import CHANGE_COLUMNS
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import EVERY_SLOT
from streamveil.transforms import Columns
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.release_plan import PrivateHistograms
from tests.transforms.stand_ins import whole

STREAM = "histogram"
CUT, LAST = 38, 47
"""The first slot of the second pass, and its last."""
HOUR = Slots.of("1h")
USERS = [f"user {i}" for i in range(24)]
STRANGERS = [f"stranger {i}" for i in range(6)]
# Windows of 30 and 36 slots are limited; those of 6 are not.
ASKED = [(30, 30.0), (36, 60.0), (6, 20.0)]
OTHERS = (Requirement(30, 30.0), 20)
REGISTRY = Registry.of({user: ASKED[i % 3] for i, user in enumerate(USERS)}, default=OTHERS)
LIVES = Registry.of(default=(Lifetime(40.0), 30))
LONGEST = Registry.of({user: (24 - i % 3, ASKED[i % 3][1]) for i, user in enumerate(USERS)})
LEAVES = (None,) * 4
CHANGES = [
    ("user 1", 3, (20, 30.0, 20, 30.0)),
    ("user 2", 9, (24, 60.0, 10, 70.0)),
    ("user 4", 24, (24, 20.0, 24, 20.0)),
    ("user 5", 35, LEAVES),
    ("user 7", 41, (24, 30.0, 24, 30.0)),
    ("stranger 0", 5, (24, 30.0, 24, 30.0)),
    ("stranger 1", 30, (24, 60.0, 24, 60.0)),
    ("stranger 2", 40, (24, 60.0, 24, 60.0)),
]


def visits() -> list[tuple[str, str, int]]:
    """Some users are there all the time, most are rarely; some twice in a slot."""
    random = np.random.default_rng(20)
    rows = []
    for number, user in enumerate([*USERS, *STRANGERS]):
        for slot in np.flatnonzero(random.random(LAST + 1) < (0.9, 0.3, 0.1)[number % 4 % 3]):
            rows += [(user, ("cafe", "park")[random.integers(2)], int(slot))] * random.integers(
                1, 3
            )
    return rows


VISITS = visits()


def batch_of(rows: Sequence[tuple[str, str, int]]) -> pa.RecordBatch:
    """Events, each a millisecond into its slot."""
    users, places, slots = (list(column) for column in zip(*rows, strict=True))
    times = pa.array(np.array(slots) * HOUR.length + 1000, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict({"user": users, "place": places, "time": times})


def changes_of(rows: Sequence[tuple[str, int, Any]]) -> pa.RecordBatch:
    """Changes of requirements."""
    names = ("user", "slot", *CHANGE_COLUMNS[-4:])
    kinds = [pa.string(), pa.int64(), *[pa.float64()] * 4]
    columns = zip(*((user, slot, *asked) for user, slot, asked in rows), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


@dataclass(frozen=True)
class Limited:
    """Such a stream."""

    key: bytes
    mechanism: str
    registry: Registry
    limit: Any
    changes: Sequence[tuple[str, int, Any]] = ()
    """All of them are input of one pass."""
    since: int = 0
    """The first slot of that pass: those before do not know that requirements may change."""
    choice: Message | None = None
    """Which limits the first pass chooses."""

    def transform(self, first: int, last: int | None, state: bytes | None) -> PrivateHistograms:
        """A pass over some slots."""
        return PrivateHistograms(
            self.registry,
            Categories(("cafe", "park")),
            HOUR,
            Columns("user", ("place",), "time"),
            self.mechanism,
            noise_key=self.key,
            max_contributions=2,
            first_slot=first,
            last_slot=last,
            resume=state,
            limit=self.limit,
            changing=bool(self.changes) and first >= self.since,
        )

    def counted(self, first: int, last: int, state: bytes | None = None) -> list[Message]:
        """What the shards tell in a pass: counts, and what they keep."""
        made = self.transform(first, last, state)
        layout = made.layout(bounded=True)
        step = AtEnd(
            partial(
                close_at_end,
                made.shard_logic(layout, SlotClock(HOUR), changes=made.changing, keeps=True),
            )
        )
        return [
            output[1]
            for shard in self._shards(made, layout, self._chosen(state))
            for output in step.process(shard)
            if not isinstance(output, beam.pvalue.TaggedOutput)
        ]

    def _chosen(self, state: bytes | None) -> list[Message]:
        return [self.choice] if self.choice and state is None else []

    def released(
        self, first: int, last: int, state: bytes | None = None
    ) -> tuple[list[Any], bytes]:
        """What a pass releases, and the state after it."""
        made = self.transform(first, last, state)
        layout, sent = made.layout(bounded=True), self.counted(first, last, state)
        config = ReleaseConfig(
            partial(one_driver, made.ledgers(layout, made.changing)),
            SlotClock(HOUR),
            Publish(HOUR, self.mechanism),
            first,
            last,
            state,
            keeps=True,
        )
        releasing, found = AtEnd(partial(release_at_end, config)), defaultdict(list)
        for output in releasing.process((STREAM, whole([*sent, *self._chosen(state)]))):
            tagged = isinstance(output, beam.pvalue.TaggedOutput)
            value = getattr(output.value, "value", output.value)
            found[output.tag if tagged else None].append(value)
        ((_, after),) = found["state"]
        return found[None], after

    def _shards(self, made: Any, layout: Any, choice: Sequence[Message]) -> Any:
        """What each shard gets in a pass."""
        shards = defaultdict(list)
        counter = Counter(made._known, layout, made.bounding, STREAM, True)
        rows = [row for row in VISITS if made.first_slot <= row[2] <= made.last_slot]
        mapped, _ = made.event_mapper(made.changing).map(batch_of(rows))
        for block, key, packed, _ in pack(mapped, layout, counter.bounding):
            events = layout.message(Kind.EVENTS, block, key, packed.to_bytes())
            ((shard, seen),) = counter.messages(
                (*key, block), counter.bound((*key, block), [events])
            )
            shards[shard].append(seen)
        for message in made._kept:
            shards[layout.key(message.shard)].append(message)
        if self.changes and made.first_slot == self.since:
            mapped_changes, _ = made.change_mapper().map(changes_of(self.changes))
            for key, some in spread(mapped_changes, made.shards):
                asked = layout.message(Kind.CHANGES, some.first, key, some.to_bytes())
                shards[key].append(asked)
        for one in choice:
            for part in range(layout.parts):
                of_shard = choice_message(limits_from(one), part, layout.parts)
                shards[layout.key(part)].append(of_shard)
        return shards.items()

    def saved(self) -> bytes:
        """The state after the first pass."""
        return self.released(0, CUT - 1)[1]

    @cached_property
    def _driver(self) -> Any:
        made = self.transform(0, None, None)
        return made.ledgers(made.layout(bounded=True), made.changing).make()

    def read(self, data: bytes) -> tuple[Any, list[Message]]:
        """What is remembered of releases, and what shards keep, as a pass reads it that goes on."""
        driver = self._driver if self.choice is None else self._driver.gone_on(data)
        return driver.decode(data), driver.kept(data)

    def following(self, data: bytes) -> Any:
        """What is released in the second pass."""
        return summaries(self.released(CUT, LAST, data)[0])


def summaries(releases: Sequence[Any]) -> Any:
    """Of each release its counts, status and the share that is kept."""
    return [
        [one.counts.tolist(), one.status, float(f"{one.diagnostics['kept_share']:.9g}")]
        for one in releases
    ]


def limited_streams(key: bytes, mechanism: str) -> dict[str, Limited]:
    """One of each kind, by name."""
    fixed = partial(Limited, key, mechanism)
    auto = [EVERY_SLOT, Limit(1, 2, chosen=True), Limit(2, 2, chosen=True)]
    return {
        f"limited {mechanism}": fixed(REGISTRY, Limit(2, 2)),
        f"lives {mechanism}": fixed(LIVES, Limit(None, in_life=5)),
        f"both {mechanism}": fixed(REGISTRY, Limit(2, 2, in_life=4)),
        f"limited changing {mechanism}": fixed(LONGEST, Limit(1, 2), CHANGES),
        f"chosen {mechanism}": fixed(REGISTRY, Auto(), choice=choice_message(auto)),
    }

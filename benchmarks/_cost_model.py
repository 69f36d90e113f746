"""The cost model: what an event, a user and a slot cost, and what a service comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[Any]


@dataclass(frozen=True)
class Service:
    """What there is to release."""

    events_per_second: float
    users: int
    bins: int
    slot_seconds: float


@dataclass(frozen=True)
class Pieces:
    """The measured rows, by what they are of."""

    events: list[Row]
    messages: list[Row]
    registries: list[Row]
    slots: list[Row]

    @classmethod
    def of(cls, tables: Sequence[dict[str, Any]]) -> Pieces:
        """Of the tables of one run."""
        return cls(*([list(row) for row in one["rows"]] for one in tables[:4]))

    def _event(self, users: float, inside: bool) -> Row:
        """The row of the batches of a stream whose number of users is nearest."""
        size = min(row[2] for row in self.events)
        rows = [row for row in self.events if (row[1] == "yes") == inside and row[2] == size]
        return min(rows, key=lambda row: abs(row[0] - users))

    def _slot(self, bins: int) -> Row:
        """The row of the nearest number of bins, with one shard."""
        return min(self.slots, key=lambda row: (abs(row[0] - bins), row[1]))

    def slot_ms(self, bins: int) -> float:
        """Of a slot at the hot key of a stream, in proportion to the bins above those measured."""
        row = self._slot(bins)
        return row[4] * max(bins / row[0], 1)

    def file_slot_ms(self, bins: int) -> float:
        """The same of an input with an end."""
        row = self._slot(bins)
        return row[5] * max(bins / row[0], 1)

    def plan(self, service: Service) -> Iterator[tuple[str, Any, Any]]:
        """What a service comes to: by name, for users in the table and for users outside it."""
        rows = [self._event(service.users, inside) for inside in (True, False)]
        parse = self.messages[-1][1]
        rate = service.events_per_second

        def both(name: str, inside: float, outside: float) -> tuple[str, float, float]:
            return name, inside, outside

        yield both("cores to gather and parse messages", *(rate * parse / 1e9,) * 2)
        yield both("cores to map and bound", *(rate * row[3] / 1e9 for row in rows))
        yield both("cores to count", *(rate * row[4] / 1e9 for row in rows))
        share = self.slot_ms(service.bins) / 1e3 / service.slot_seconds
        yield both("% of a core that the hot key takes", 100 * share, 100 * share)
        # Codes of users in the table take 4 bytes where they are measured, and 8 where they must.
        wide = 2 if service.users * service.bins > 1 << 32 else 1
        shuffled, state = ((rows[0][i] * wide, rows[1][i]) for i in (5, 6))
        yield both("MB/s through the shuffle", *(rate * size / 1e6 for size in shuffled))
        waiting = rate * service.slot_seconds
        yield both("GB of state in one open slot", *(waiting * size / 1e9 for size in state))
        table = self.registries[-1][2] * service.users / 1e9
        yield both("GB of memory for the table, in each worker process", table, 0.0)
        near = self._slot(service.bins)
        yield both("kB to the hot key a slot", near[2] / 1e3, near[2] / 1e3)
        yield both("kB of state of the hot key", near[3] / 1e3, near[3] / 1e3)

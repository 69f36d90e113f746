"""Discovery of keys from a bounded input, before a query set is released.

The input is either a whole stream, or a pass over a part of one discovery slot. In the first case,
all keys that are found are listed from the first slot on. In the second case, the first pass of a
discovery slot closes the one before: keys that were found in it are listed from this pass on, and
keys whose estimates were below their errors leave. The field `growing` of a plan says which case
applies. The pairs of a discovery slot are kept for the next pass. So a discovery slot has the same
pairs, however many passes read them. `one_by_one.py` makes the passes of a longer input.

The memory grows with the number of pairs of a key and a user. No key is dropped to save memory. If
there are too many pairs, the run stops (`check_pairs`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine import metrics
from streamveil.engine.encode.event_mapper import keys_of_texts, not_discovered
from streamveil.engine.encode.query_mapper import KeyEvents, slices_of
from streamveil.engine.encode.text import keyed_digest
from streamveil.engine.messages import (
    arrays_from_bytes,
    arrays_to_bytes,
    compressed,
    expanded,
    narrow,
)
from streamveil.engine.run.gathered import Batches
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.discovery.discovery import Discovery
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.key_draw import (
    MOST_PAIRS,
    Pairs,
    TooManyPairs,
    Words,
    changes,
    check_pairs,
    distinct,
)
from streamveil.mechanisms.queries.discovered import Discoverer, Excess, Listed, declared

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


_Columns = tuple[npt.NDArray[Any], ...]
"""Users, classes, base slots and numbers of keys: shape (n, 2), and (n,) each."""


def discover_keys(plan: QueryPlan, events: Batches) -> QueryPlan:
    """The plan with the keys of all queries that discover them.

    The keys are private: see `mechanisms/queries/discovered.py`.

    Args:
        plan: what is released.
        events: all batches of the input, or those in the range of a pass, which lies in one
            discovery slot. They are read once more when the plan is released.

    Raises:
        ConfigurationError: if keys cannot be discovered. No budget is spent.
        TooManyPairs: if a discovery slot does not fit in memory.
        BudgetExceeded: if a user's budget would be exceeded.
    """
    mapper = plan.event_mapper()
    return discover_from(
        plan,
        (
            pairs
            for batch in events
            for part in slices_of(batch)
            if part.num_rows
            for pairs in enumerate(mapper.keys_of(part))
        ),
    )


def discover_from(plan: QueryPlan, pairs: Iterable[tuple[int, KeyEvents]]) -> QueryPlan:
    """As :func:`discover_keys`, from events that are read already.

    Args:
        plan: what is released.
        pairs: the number of a query, among those that discover keys, and events for it. They may
            come in any order, and more than once.
    """
    assert len(plan.discovery_ranges) <= 1, "the listed keys would change within the pass"
    discoverers = plan.discoverers()
    kept = _kept_before(plan.discovery, len(discoverers))
    excess = {one.name: over for one, over in zip(plan.query_set, plan.excess, strict=False)}
    gathered = [
        _Gathered(plan, one, before, excess.get(one.query.name))
        for one, before in zip(discoverers, kept, strict=True)
    ]
    try:
        with metrics.counting():  # events are counted when they are released
            for number, events in pairs:
                gathered[number].add(events)
            for one in gathered:
                one.check()
    except TooManyPairs as error:
        if plan.resume is None:
            raise
        raise TooManyPairs(
            f"{error}; the sample and the windows of a stream that has begun cannot change: start "
            "a new stream with others, which spends the users' budgets again"
        ) from None
    if not plan.growing:
        return plan.with_keys({one.query.name: one.discover() for one in gathered})
    found = {one.query.name: one.listed for one in gathered}
    after = state_codec.pack(SCHEMAS, {"queries": [one.record() for one in gathered]})
    return plan.with_keys(found, after)


def with_allowed_keys(plan: QueryPlan) -> QueryPlan:
    """The plan with only the keys that are always listed, which costs nothing."""
    always = {one.query.name: Listed(one.keys.rules.allow) for one in plan.discoverers()}
    return plan.with_keys(always)


def distinct_pairs(events: KeyEvents) -> KeyEvents:
    """Each pair of a key and a user once in each base slot; texts become a dictionary."""
    coded = events.texts
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    numbers = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    some = distinct(events.base_slots, numbers, *events.users.T)
    columns = events.base_slots[some], events.users[some], events.members[some]
    return KeyEvents(*columns, coded.take(pa.array(some)))


SCHEMAS = {
    1: state_codec.record_schema(
        "Discovery",
        queries={
            "type": "array",
            "items": state_codec.record_schema(
                "OpenSlot",
                slot="long",
                texts="bytes",
                pairs="bytes",
                filter=DiscoveryFilter.SCHEMA,
            ),
        },
    )
}
"""Schemas of the state for the next pass: for each query, its last discovery slot."""


def _kept_before(discovery: bytes, queries: int) -> list[Mapping[str, Any] | None]:
    """What the previous pass kept for each query; None in the first pass."""
    if not discovery:
        return [None] * queries
    _, record = state_codec.unpack(SCHEMAS, discovery)
    return list(record["queries"])


@dataclass(frozen=True, eq=False)
class _Keys:
    """The keys of a query, in the order of their digests, after all events were read."""

    numbers: Integers
    """The key of each candidate, shape (candidates,)."""
    first: Integers
    """The first candidate of each key, shape (keys,)."""
    digests: Words
    """Of each key, shape (keys, 2)."""
    unlisted: Flags
    """For each key whether it is still unlisted, shape (keys,). Changed in place."""

    @classmethod
    def of(cls, digests: Words) -> _Keys:
        """The keys of candidates with these digests."""
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        fresh = changes(*digests[order].T)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(fresh) - 1
        first = order[fresh]
        return cls(numbers, first, digests[first], np.ones(len(first), bool))


class _Gathered:
    """The pairs of a key and a user of one query, so far.

    A key has another number in each batch. Its digest is the same in all batches.
    """

    def __init__(
        self,
        plan: QueryPlan,
        discoverer: Discoverer,
        kept: Mapping[str, Any] | None,
        excess: Excess | None,
    ) -> None:
        self.query = discoverer.query
        self._rules = discoverer.keys.rules
        before = discoverer.keys
        known = before.values if before.found else self._rules.allow
        self.listed = Listed(known, before.since, before.ended)
        """Keys that are listed in the pass, or in a bounded input before the discovery."""
        self._length, self._slots_of = discoverer.length, discoverer.slots_of
        self._class_of = plan.known.classes_with_other
        self._counted = discoverer.terms.weights > 0
        secret = plan.discovery_key()
        self._digest_key = secret.derived("digests of keys").first
        self._filter = discoverer.filter()
        self._discovery = Discovery(
            discoverer.terms,
            self._filter,
            secret,
            plan.discovery_identity(discoverer.query),
            sample=discoverer.keys.sample,
            test_mode=plan.test_mode,
        )
        self._forget()
        self._parts: dict[int, list[_Columns]] = defaultdict(list)
        """By discovery slot."""
        self._next: int | None = None
        """The discovery slot of a stream that is closed next."""
        if plan.growing:
            assert plan.first_slot is not None
            now = plan.first_slot // self._length
            if kept is None:
                self._next = now
            else:
                self._continue(kept)
                self._close(now, None if before.stay else excess)

    def _forget(self) -> None:
        """Forget all candidates, after keys were listed or left."""
        self._texts: list[pa.Array] = []
        """Candidates of each batch: texts that may be discovered."""
        self._digests = [np.empty((0, 2), np.uint64)]
        """Digests of these texts."""
        self._numbered = 0
        never = not_discovered(declared(self.query), self._rules)
        self._never = pa.array([*never, *self.listed.keys], pa.large_string())
        """Texts that are no keys, or that are public already."""

    def _continue(self, kept: Mapping[str, Any]) -> None:
        """Continue from what the previous pass kept."""
        self._next = int(kept["slot"])
        self._filter.read(kept["filter"])
        offsets, texts = arrays_from_bytes(kept["texts"])
        buffers = pa.py_buffer(offsets), pa.py_buffer(texts)
        numbers = self._number(pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers))
        users, *integers = arrays_from_bytes(expanded(kept["pairs"]))
        if len(users):
            classes, base_slots, keys = (one.astype(np.int64) for one in integers)
            base_slots += self._next * self._length
            self._parts[self._next].append((users, classes, base_slots, numbers[keys]))

    def add(self, events: KeyEvents) -> None:
        """Add the events of a batch, by discovery slot, each pair of a base slot once.

        Events of users who are not counted, such as those with delta 0, are left out.
        """
        texts = keys_of_texts(events.texts, self._rules)
        numbers = np.append(self._number(texts.dictionary), -1)
        keys = numbers[texts.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)]
        classes, slots = self._class_of[events.members], self._slots_of(events.base_slots)
        some = np.flatnonzero((keys >= 0) & self._counted[classes])
        rows = (events.base_slots[some], keys[some], *events.users[some].T)
        some = some[distinct(*rows)]
        some = some[np.argsort(slots[some], kind="stable")]
        found, starts = np.unique(slots[some], return_index=True)
        for slot, mine in zip(found.tolist(), np.split(some, starts)[1:], strict=True):
            self._parts[slot].append(
                (events.users[mine], classes[mine], events.base_slots[mine], keys[mine])
            )
            # With some room, so that not each batch of a slot that is almost full leads to a sort.
            self._check(slot, MOST_PAIRS + MOST_PAIRS // 8)

    def check(self) -> None:
        """Raise TooManyPairs if a discovery slot has too many pairs. All events were added."""
        for slot in self._parts:
            self._check(slot, MOST_PAIRS)

    def _check(self, slot: int, most: int) -> None:
        """Keep each pair once if there are more than `most` rows: batches may repeat a pair.

        Raises TooManyPairs if more than `MOST_PAIRS` pairs are left.
        """
        parts = self._parts[slot]
        if sum(len(users) for users, *_ in parts) <= most:
            return
        users, classes, base_slots, numbers = map(np.concatenate, zip(*parts, strict=True))
        keys = _Keys.of(np.concatenate(self._digests))
        numbers = keys.first[keys.numbers[numbers]]
        rows = (base_slots, numbers, *users.T)
        once = distinct(*rows)
        check_pairs(len(once), MOST_PAIRS)
        self._parts[slot] = [(users[once], classes[once], base_slots[once], numbers[once])]

    def _number(self, texts: pa.Array) -> Integers:
        """New numbers for the texts that may be discovered, and -1 for all others."""
        known = pc.and_(pc.is_valid(texts), pc.invert(pc.is_in(texts, self._never)))
        candidates = texts.filter(known)
        self._texts.append(candidates)
        self._digests.append(keyed_digest(candidates, self._digest_key))
        numbers = np.full(len(texts), -1, np.int64)
        numbers[known.to_numpy(zero_copy_only=False)] = self._numbered + np.arange(len(candidates))
        self._numbered += len(candidates)
        return numbers

    def discover(self) -> Listed:
        """Find the keys of all discovery slots, which are all listed from the first slot on."""
        # In a slot without pairs no key can be found. A wrong time may be many such slots away.
        by_slot = self._find(sorted(self._parts), _Keys.of(np.concatenate(self._digests)))
        return Listed((*self.listed.keys, *(key for _, found in by_slot for key in found)))

    def _close(self, now: int, excess: Excess | None) -> None:
        """Close all discovery slots before that of the pass.

        A key that is found in one of them is listed from the base slot after this discovery slot.
        Keys whose released estimates were below their errors leave.

        Args:
            now: the discovery slot of the pass.
            excess: of the estimates in the discovery slot before; None if all keys stay.
        """
        assert self._next is not None
        if self._next == now:
            return
        if excess is not None:
            low = excess.low(now - 1, len(self.listed.keys))
            self.listed = self.listed.without(low, now * self._length)
        keys = _Keys.of(np.concatenate(self._digests))
        for slot, found in self._find(range(self._next, now), keys):
            self.listed = self.listed.with_found(found, (slot + 1) * self._length)
        self._next = now
        self._forget()

    def record(self) -> dict[str, Any]:
        """What the next pass continues from: a record of `SCHEMAS`."""
        assert self._next is not None
        pairs, texts = self._kept(_Keys.of(np.concatenate(self._digests)))
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[: len(texts) + 1] if offsets else np.zeros(1)
        in_slot = pairs.base_slots - self._next * self._length
        numbers = (narrow(one) for one in (pairs.classes, in_slot, pairs.keys))
        return {
            "slot": self._next,
            "texts": arrays_to_bytes(
                ends.astype(np.int64), np.frombuffer(data or b"", np.uint8)[: int(ends[-1])]
            ),
            "pairs": compressed(arrays_to_bytes(pairs.users, *numbers)),
            "filter": self._filter.record(),
        }

    def _find(self, slots: Sequence[int], keys: _Keys) -> Iterator[tuple[int, list[str]]]:
        """Discovery slots, each with the keys that are found in it."""
        for slot in slots:
            found = self._discovery.find(slot, self._pairs(slot, keys))
            keys.unlisted[found] = False
            yield slot, self._texts_of(keys.first[found]).to_pylist()

    def _pairs(self, slot: int, keys: _Keys) -> Pairs:
        """Take the pairs of a discovery slot whose keys are not listed."""
        pairs = _together(self._parts.pop(slot, []), keys)
        return pairs if keys.unlisted.all() else pairs.of(keys.unlisted[pairs.keys])

    def _kept(self, keys: _Keys) -> tuple[Pairs, pa.Array]:
        """The distinct pairs of the open discovery slot, and the texts of their keys.

        They are in an order that does not depend on the order of the events.
        """
        assert self._next is not None
        pairs = self._pairs(self._next, keys)
        some, numbers = np.unique(pairs.keys, return_inverse=True)
        columns = numbers, pairs.base_slots, *pairs.users.T
        order = np.lexsort(columns)
        rows = order[changes(*(one[order] for one in columns))]
        pairs = replace(pairs, keys=numbers, digests=pairs.digests[some]).of(rows)
        return pairs, self._texts_of(keys.first[some])

    def _texts_of(self, numbers: Integers) -> pa.Array:
        """The texts of some candidates."""
        if len(self._texts) != 1:
            self._texts = [pa.chunked_array(self._texts, pa.large_string()).combine_chunks()]
        return self._texts[0].take(pa.array(numbers))


def _together(parts: list[_Columns], keys: _Keys) -> Pairs:
    """The pairs of a discovery slot."""
    nothing = np.zeros(0, np.int64)
    parts = [(np.empty((0, 2), np.uint64), nothing, nothing, nothing), *parts]
    users, classes, base_slots, numbers = (
        np.concatenate(some) for some in zip(*parts, strict=True)
    )
    return Pairs(users, classes, base_slots, keys.numbers[numbers], keys.digests)

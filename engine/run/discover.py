"""Discovery of keys from a bounded input, before a query set is released."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine import metrics
from streamveil.engine.encode.event_mapper import NO_KEY, keys_of_texts
from streamveil.engine.encode.query_mapper import KeyEvents, slices_of
from streamveil.engine.encode.text import keyed_digest
from streamveil.engine.run.gathered import Batches
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.domains import parts_of
from streamveil.mechanisms.discovery.discovery import Discovery
from streamveil.mechanisms.discovery.key_draw import (
    MOST_PAIRS,
    Pairs,
    Words,
    check_pairs,
    order_of_equals,
)
from streamveil.mechanisms.queries.discovered import Discoverer

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


def discover_keys(plan: QueryPlan, events: Batches) -> QueryPlan:
    """The plan with the keys of all queries that are to discover them.

    The keys are private: see `mechanisms/queries/discovered.py`.

    Args:
        plan: what is released.
        events: all batches of the input, which is read once more when the plan is released.

    Raises:
        ConfigurationError: for what cannot be done; nothing is spent.
        TooManyPairs: if a discovery slot does not fit in memory.
        BudgetExceeded: rather than spend more than the budget of a user.
    """
    gathered = [_Gathered(plan, one) for one in plan.discoverers()]
    mapper = plan.event_mapper()
    with metrics.counting():  # events are counted when they are released
        for batch in events:
            for part in slices_of(batch):
                if part.num_rows:
                    for one, some in zip(gathered, mapper.keys_of(part), strict=True):
                        one.add(some)
    return plan.with_keys({one.query.name: one.discover() for one in gathered})


class _Gathered:
    """The pairs of a key and a user of one query, so far.

    Until all are there a key has another number in each batch, and is known by its digest.
    """

    def __init__(self, plan: QueryPlan, discoverer: Discoverer) -> None:
        self.query = discoverer.query
        self._rules = discoverer.keys.rules
        _, *bins = parts_of(self.query.domain)
        named = [name for name in bins if name is not None]
        self._never = pa.array(
            ["", NO_KEY, *self._rules.deny, *self._rules.allow, *named], pa.large_string()
        )
        """Texts that are no keys, or that are public already."""
        self._length = discoverer.length
        self._class_of = plan.known.classes_with_other
        secret = plan.discovery_key()
        self._digest_key = secret.derived("digests of keys").first
        self._discovery = Discovery(
            discoverer.terms,
            discoverer.filter(),
            secret,
            plan.discovery_identity(discoverer.query),
            sample=discoverer.keys.sample,
        )
        self._texts: list[pa.Array] = []
        """Candidates of each batch."""
        self._digests = [np.empty((0, 2), np.uint64)]
        """Of the same."""
        self._numbered = 0
        self._parts: dict[int, list[tuple[Words, Integers, Integers, Integers]]] = defaultdict(list)
        """Users, classes, base slots and numbers of keys, by discovery slot."""

    def add(self, events: KeyEvents) -> None:
        """Add the events of a batch, by discovery slot, each pair of a base slot once."""
        texts = keys_of_texts(events.texts, self._rules)
        numbers = np.append(self._number(texts.dictionary), -1)
        keys = numbers[texts.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)]
        some = np.flatnonzero(keys >= 0)
        rows = (events.base_slots[some], keys[some], *events.users[some].T)
        order = order_of_equals(*rows)
        fresh = np.ones(len(order), bool)
        fresh[1:] = np.any([one[order[1:]] != one[order[:-1]] for one in rows], axis=0)
        some = some[order[fresh]]
        classes, slots = self._class_of[events.members], events.base_slots // self._length
        for slot in np.unique(slots[some]).tolist():
            mine = some[slots[some] == slot]
            columns = events.users, classes, events.base_slots, keys
            self._parts[slot].append(tuple(one[mine] for one in columns))
            check_pairs(sum(len(users) for users, *_ in self._parts[slot]), MOST_PAIRS)

    def _number(self, texts: pa.Array) -> Integers:
        """New numbers of the texts that may be discovered, and -1 of all others."""
        known = pc.and_(pc.is_valid(texts), pc.invert(pc.is_in(texts, self._never)))
        candidates = texts.filter(known)
        self._texts.append(candidates)
        self._digests.append(keyed_digest(candidates, self._digest_key))
        numbers = np.full(len(texts), -1, np.int64)
        numbers[known.to_numpy(zero_copy_only=False)] = self._numbered + np.arange(len(candidates))
        self._numbered += len(candidates)
        return numbers

    def discover(self) -> tuple[str, ...]:
        """The keys that are listed: those that always are, and those that were found, in order."""
        digests = np.concatenate(self._digests)
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        fresh = np.ones(len(order), bool)
        fresh[1:] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
        keys = np.empty(len(order), np.int64)
        keys[order] = np.cumsum(fresh) - 1
        first, digests = order[fresh], digests[order[fresh]]
        unlisted, listed = np.ones(len(digests), bool), list(self._rules.allow)
        for slot in range(min(self._parts, default=0), max(self._parts, default=-1) + 1):
            pairs = _together(self._parts.pop(slot, []), keys, digests)
            pairs = pairs.of(unlisted[pairs.keys])  # all of them need not stay in memory
            found = self._discovery.find(slot, pairs)
            for each in found:
                unlisted[each.place] = False
                listed.append(self._text(int(first[each.place])))
        return tuple(listed)

    def _text(self, number: int) -> str:
        """The text of a number."""
        for texts in self._texts:
            if number < len(texts):
                break
            number -= len(texts)
        return str(texts[number].as_py())


def _together(
    parts: list[tuple[Words, Integers, Integers, Integers]], keys: Integers, digests: Words
) -> Pairs:
    """The pairs of a discovery slot, where `keys` has the key of each number."""
    nothing = np.zeros(0, np.int64)
    parts = [(np.empty((0, 2), np.uint64), nothing, nothing, nothing), *parts]
    users, classes, base_slots, numbers = (
        np.concatenate(some) for some in zip(*parts, strict=True)
    )
    return Pairs(users, classes, base_slots, keys[numbers], digests)

"""Events of a slot that is not over: they come back as they were, in whatever blocks and shards."""

import collections
import itertools
from dataclasses import replace

import numpy as np
import pytest

from streamveil.engine.count import carried_queries
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.event_codes import MEMBERS, STRANGERS, Layout, pack
from streamveil.engine.encode.event_mapper import Events
from streamveil.mechanisms.core.records import UNIFORM

BLOCK, EDGE = 8, 5
LAYOUT = Layout(BLOCK, users=20, classes=2, bins=3, shards=2)


def events(kind, number, seed):
    draw = np.random.default_rng(seed)
    slots, bins = draw.integers(EDGE + 1, size=number), draw.integers(3, size=number)
    users = draw.integers(20, size=number)
    if kind == MEMBERS:
        return Events(slots, bins, users, np.zeros((0, 2), np.uint64))
    digests = np.stack([users + 1_000, users**3], axis=1).astype(np.uint64)
    return Events(slots, bins, np.full(number, -1), digests)


def groups(kind, parts, layout):
    """Events of each group of some parts."""
    found = collections.Counter()
    for part in parts:
        if kind == MEMBERS:
            found.update(part.codes.tolist())
            found.update(dict(zip(part.codes[part.at].tolist(), part.more.tolist(), strict=True)))
        else:
            found.update(map(tuple, part.codes.tolist()))
    return found


@pytest.mark.parametrize("kind", [MEMBERS, STRANGERS])
def test_what_is_kept_comes_back(kind):
    bounding, packed = Bounding(1, UNIFORM), collections.defaultdict(list)
    for seed in range(3):  # batches
        for _, (_, shard), part, _ in pack(events(kind, 400, seed), LAYOUT, bounding):
            packed[shard].append(part)
    everything = groups(kind, itertools.chain(*packed.values()), LAYOUT)
    over, back = [], collections.defaultdict(list)
    wide = replace(LAYOUT, block=64, shards=3)
    for parts in packed.values():
        before, since = carried_queries.split(kind, parts, EDGE, LAYOUT)
        over += before
        kept = carried_queries.together(kind, since, EDGE, LAYOUT)
        if kind == MEMBERS:
            assert (np.diff(kept.codes.astype(np.int64)) > 0).all()
            assert kept.codes.max() < LAYOUT.users * LAYOUT.bins
        for shard, some in carried_queries.placed(kind, kept, EDGE, LAYOUT):
            back[shard].append(some)
        for shard, some in carried_queries.placed(kind, kept, 40, wide):
            users = some.codes // 3 % 20 if kind == MEMBERS else some.codes[:, 0]
            assert (users % 3 == shard).all()
            slots = some.codes // 60 if kind == MEMBERS else some.codes[:, 2] // 3
            assert (slots == 40).all()
    assert sorted(back) == sorted(packed)
    rest = groups(kind, itertools.chain(*back.values()), LAYOUT)
    assert rest.total() > 100
    assert groups(kind, over, LAYOUT) + rest == everything


def test_nothing_is_kept_of_nothing():
    ((_, _, part, _), *_) = pack(events(MEMBERS, 10, 1), LAYOUT, Bounding(1, UNIFORM))
    _, since = carried_queries.split(MEMBERS, [part], BLOCK, replace(LAYOUT, block=64))
    assert not len(carried_queries.together(MEMBERS, since, BLOCK, LAYOUT).codes)

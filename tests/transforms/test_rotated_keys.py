"""Another noise key from a slot on: what was before stays, what comes after changes."""

import pickle

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.stream.noise_keys import GivenKey, SameKey
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    NoiseSource,
    Population,
    Registry,
    ReleaseStream,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.records import Lifetime
from streamveil.mechanisms.local.tokens import Tokens
from streamveil.mechanisms.randomness.noise import NoiseKeys
from streamveil.mechanisms.registry import mechanism
from streamveil.transforms import CollectHistograms, Columns, RotatedKey

OLD, NEW, NEWEST = bytes(range(32)), bytes(range(50, 82)), bytes(range(100, 132))
SLOTS, ROTATED = 8, 4
USERS = [f"u{i}" for i in range(40)]
REGISTRY = Registry.of({user: (1 + i % 3, 1.0 + i % 2) for i, user in enumerate(USERS)})
ROWS = [(u, "ab"[(i * s) % 2], s) for s in range(SLOTS) for i, u in enumerate(USERS) if (i + s) % 3]

slots = st.integers(-(2**40), 2**40)


def rotated(start=ROTATED):
    return RotatedKey(GivenKey(OLD), ((start, GivenKey(NEW)),))


# ---- the mechanisms ------------------------------------------------------------------------------


@given(st.lists(slots, unique=True, max_size=4).map(sorted), slots)
def test_a_slot_has_the_noise_of_its_key(starts, slot):
    keys = NoiseKeys(OLD, tuple((start, bytes([i]) * 32) for i, start in enumerate(starts)))
    before = [bytes([i]) * 32 for i, start in enumerate(starts) if start <= slot]
    one, other = (NoiseSource(key, "s").slot(slot, b"d") for key in (keys, [OLD, *before][-1]))
    words = [noise.words("p").draw(4).tolist() for noise in (one, other)]
    assert words[0] == words[1]
    shifted = keys.counted_from(100)
    assert shifted.at(slot - 100) == keys.at(slot)


@pytest.mark.parametrize("name", ["adaptive", "pba", "bd"])
@given(rotation=st.integers(0, 13), counts=st.integers(0, 2**32))
@settings(max_examples=20)
def test_all_is_as_it_was_before_the_new_key_and_no_noise_after(name, rotation, counts):
    population = Population((Requirement(2, 0.5),), np.array([40]), 2, 1)
    tables = np.random.default_rng(counts).integers(0, 40, (12, 1, 2))

    def released(key):
        stream = ReleaseStream(mechanism(name, population), NoiseSource(key))
        state, found = stream.start(), []
        for slot, table in enumerate(tables):
            state, release = stream.release(state, slot, table)
            found.append(release.counts.tolist())
        return found

    keys = NoiseKeys(OLD, ((rotation, NEW),))
    assert released(OLD)[:rotation] == released(keys)[:rotation]
    for slot in range(14):
        one, other = (NoiseSource(key).slot(slot, b"").words("").draw(2) for key in (OLD, keys))
        assert (one == other).all() == (slot < rotation)


def test_tokens_change_with_the_key_of_their_slot():
    keys = NoiseKeys(OLD, ((5, NEW),))
    assert Tokens(keys, "s").token(4, 1, 9) == Tokens(OLD, "s").token(4, 1, 9)
    token = Tokens(keys, "s").token(5, 1, 9)
    assert token == Tokens(NEW, "s").token(5, 1, 9)
    assert Tokens(keys, "s").user_of(5, 1, Tokens(OLD, "s").token(5, 1, 9)) is None


# ---- pipelines -----------------------------------------------------------------------------------


class Changing(beam.PTransform):
    """The transform over events, and one change of requirement."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def expand(self, events):
        change = {"user": ["u0"], "slot": [3], "window_backward": [2], "epsilon_backward": [0.5]}
        change |= {"window_forward": [2], "epsilon_forward": [0.5]}
        batch = pa.RecordBatch.from_pydict(change)
        changes = events.pipeline | "Changes" >> beam.Create([batch], reshuffle=False)
        return (events, changes) | "Histograms" >> self.transform


def fixed(kit, key, name="adaptive", registry=REGISTRY):
    return kit.histograms(
        registry, mechanism=name, noise_key=key, first_slot=0, last_slot=SLOTS - 1
    )


def collect(kit, key):
    columns = Columns("user", ("value",), "time")
    bins, options = Categories(("a", "b")), {"first_slot": 0, "last_slot": SLOTS - 1}
    return CollectHistograms(
        REGISTRY, bins, Slots.of("1h"), columns, mechanism="plpa+", noise_key=key, **options
    )


MADE = {
    "adaptive": fixed,
    "pba": lambda kit, key: fixed(kit, key, "pba"),
    "dynamic": lambda kit, key: Changing(fixed(kit, key, "dpba")),
    "infinite": lambda kit, key: fixed(
        kit, key, "horizon:slots=8", Registry.of(default=(Lifetime(8.0), 0))
    ),
    "collect": collect,
}


@pytest.mark.slow
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_slots_before_keep_the_old_key(run_on, kit, runner, made):
    old, new, newer = (
        run_on(runner, made(kit, key), [kit.batch(ROWS)]).releases
        for key in (OLD, rotated(), RotatedKey(rotated().first, ((ROTATED, GivenKey(NEWEST)),)))
    )
    kit.assert_same_releases(old[:ROTATED], new[:ROTATED])
    later = [[str((r.counts, r.shares)) for r in some[ROTATED:]] for some in (old, new, newer)]
    assert later[0] != later[1] != later[2] != later[0]


# Users without a requirement of their own are distinguished by codes made with the first key: a
# user with events in several batches of the slot in which the key changes counts once.
def test_strangers_are_the_same_under_the_new_key(run_on, kit, runner):
    registry = Registry.of(default=(Requirement(1, 4000.0), 10))
    rows = [(f"x{i}", "a", slot) for i in range(10) for slot in range(SLOTS)]
    transform = fixed(kit, rotated(), "pbd", registry)
    ran = run_on(runner, transform, [kit.batch(rows), kit.batch(rows[::-1])])
    assert [r.counts.tolist() for r in ran.releases] == [[10, 0]] * SLOTS
    assert transform.event_mapper().stranger_key == fixed(kit, OLD).event_mapper().stranger_key


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (((5, NEW), (5, NEWEST)), "no two"),
        (((5, NEW), (4, NEWEST)), "by slot"),
        (((5, b"short"),), "5 bytes"),
        (((5, OLD),), "two are the same"),
        (((5, NEW), (6, OLD)), "two are the same"),
    ],
)
def test_keys_that_cannot_take_each_others_place(kit, later, words):
    key = RotatedKey(GivenKey(OLD), tuple((slot, GivenKey(each)) for slot, each in later))
    with pytest.raises(ConfigurationError, match=words) as raised:
        fixed(kit, key)
    assert repr(OLD) not in str(raised.value)


# A worker that knows of no later key would release slots that others release with it.
@pytest.mark.parametrize("other", [OLD, rotated(ROTATED + 1), rotated().first])
def test_a_worker_with_other_keys_refuses(other):
    key = SameKey.of(rotated())
    source = SameKey.of(other).source
    with pytest.raises(ConfigurationError, match="not the one that the launch got"):
        SameKey(source, key.check)()
    assert pickle.loads(pickle.dumps(key))() == rotated()()

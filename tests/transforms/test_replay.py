"""A bundle may run twice, and neither that nor who is present may change what is decided.

The noise of a slot is a function of the key, the slot and all counts so far; the control flow is
a function of what was released, never of the counts themselves.
"""

import copy
from functools import partial

import numpy as np
import pytest

from streamveil.engine.count.event_codes import BlockCounts, Layout
from streamveil.engine.messages import Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.configuration import Configuration
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.noise_keys import GivenKey
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig, release_at_end
from streamveil.mechanisms import Registry, Requirement, Slots
from streamveil.mechanisms.core.records import (
    NULLIFIED,
    PUBLISHED,
    SKIPPED,
    InputLost,
    LedgerEntry,
    Release,
)
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import MECHANISMS, SCHEDULES, mechanism
from streamveil.transforms import in_time
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.in_time import InTime
from tests.transforms.stand_ins import Hosted, whole

KEY = bytes(range(32))
SECOND = 1_000_000
USERS = [f"u{i}" for i in range(24)]
REGISTRY = Registry.of({u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate(USERS)})


# ---- the release stage, driven by hand ---------------------------------------------------------


def at_end(config, elements):
    """What the release stage of a bounded input gives."""
    fn = AtEnd(partial(release_at_end, config))
    return list(fn.process(("histogram", whole(elements))))


class Stage(Hosted):
    """The release stage of a stream that never ends and its state for one stream."""

    def __init__(self, config):
        super().__init__(ReleaseInTime(config), "histogram")

    def process(self, message):
        self.fn = InTime(self.fn.step)  # every bundle may be another worker's
        return self.take(message)


def plain_values(outputs):
    """What a bundle put out, as plain values that can be compared."""
    plain = []
    for output in outputs:
        value = getattr(output, "value", output)
        value = getattr(value, "value", value)
        if isinstance(value, Release):
            plain.append((value.slot, value.status, value.counts.tolist(), str(value.stderr)))
        elif isinstance(value, LedgerEntry):
            plain.append((value.slot, value.spent.tolist(), value.spent_in_window.tolist()))
        elif not isinstance(value, (tuple, int)):  # the state that is left is looked at on its own
            plain.append(value.to_pylist())
    return plain


def config(block):
    population = facts()
    layout = Layout(block, len(USERS), len(population.requirements), population.bins, 1)
    ledgers = Configuration("pba", population, layout, GivenKey(KEY), "histogram")
    slots = Slots(SECOND)
    make = partial(one_driver, ledgers)
    return ReleaseConfig(make, SlotClock(slots), Publish(slots, "pba"), keeps=True)


def facts():
    return Population(REGISTRY.classes, REGISTRY.sizes, 3)


def parts(block, config, seed):
    """Counts of a block from two shards."""
    generator = np.random.default_rng(seed)
    layout = config.drivers()("histogram").layout
    size = layout.block * layout.classes * layout.bins
    for number in range(2):
        cells = np.sort(generator.choice(size, size // 2, replace=False))
        counts = BlockCounts(block, cells, generator.integers(1, 9, cells.size))
        yield Message(Kind.COUNTS, block, number, counts.to_bytes(), 2)


# In a stream each element may be run again: nothing of a slot comes out before its last part.
def test_a_bundle_of_a_stream_that_runs_twice_gives_the_same(monkeypatch):
    # Since when parts wait is no release.
    monkeypatch.setattr(in_time._Kept, "now", 1_000_000)
    made = Stage(config(block=1))
    elements = [Message(Kind.START, 2)]
    elements += [data for slot in (2, 3, 5, 4) for data in parts(slot, made.fn.step.config, slot)]
    slots = []
    for data in elements:
        again = copy.deepcopy(made)
        first, second = plain_values(made.process(data)), plain_values(again.process(data))
        assert first == second
        assert state_of(made) == state_of(again)
        slots.append([output[0] for output in first[::2]])
    assert slots == [[], [], [2], [], [3], [], [], [], [4, 5]]


def state_of(made):
    """The state that a bundle leaves, byte by byte."""
    return [vars(cell) for cell in made.cells]


@pytest.mark.parametrize("seed", range(4))
def test_order_of_a_streams_elements_does_not_matter(seed):
    results = []
    for order in (np.arange(13), np.random.default_rng(seed).permutation(13)):
        made = Stage(config(block=1))
        elements = [Message(Kind.START, 0)]
        elements += [data for slot in range(6) for data in parts(slot, made.fn.step.config, slot)]
        results.append([one for i in order for one in plain_values(made.process(elements[i]))])
        assert made.waiting.bag == []
        _, progress = made.progress.value
        assert progress == (0, 6, {}, None)
    assert results[0] == results[1]
    assert [output[0] for output in results[0][::2]] == list(range(6))


# The order in which counts reach the stage, and how they are cut, are up to the runner.
def test_order_of_elements_does_not_matter():
    made = config(block=4)
    elements = [data for block in (0, 1, 5) for data in parts(block, made, block)]
    results = []
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(elements))
        *outputs, left = at_end(made, [elements[i] for i in order])
        next_slot, written = left.value
        assert next_slot == 24
        results.append((plain_values(outputs), written))
    assert all(result == results[0] for result in results)
    assert [output[0] for output in results[0][0][::2]] == list(range(24))


# What a runner dropped is no quiet time: nothing is released unless all that was sent has come.
@pytest.mark.parametrize(
    ("words", "should"),
    [((), "an unknown number"), ((5,), "5"), ((7,), "7"), ((6, 6), "6")],
    ids=["no word", "one too many", "one too few", "two words"],
)
def test_nothing_is_released_without_the_word_that_all_came(words, should):
    made = config(block=4)
    fn = AtEnd(partial(release_at_end, made))
    elements = [data for block in (0, 1, 5) for data in parts(block, made, block)]
    elements += [Message(Kind.WHOLE, payload=b"%d" % number) for number in words]
    with pytest.raises(
        InputLost, match=f"6 messages .* {should} were expected: an earlier step fail"
    ):
        next(fn.process(("histogram", elements)))


# ---- the stream of releases ----------------------------------------------------------------------


def tables(seed, slots=40):
    shape = (len(REGISTRY.classes), 3)
    return np.random.default_rng(seed).integers(0, 6, (slots, *shape))


def release_all(name, counts, restart):
    """Releases of a stream whose state goes through bytes before every slot, or never."""
    population = facts()
    stream = ReleaseStream(mechanism(name, population), NoiseSource(KEY, "histogram"))
    state, found = stream.start(), []
    for slot, table in enumerate(counts):
        if restart:
            stream = ReleaseStream(mechanism(name, population), NoiseSource(KEY, "histogram"))
            data = stream.encode(state)
            state = stream.decode(data)
            assert stream.encode(state) == data
        state, made = stream.release(state, slot, table)
        found.append((made.status, made.counts.tolist(), made.spent.tolist(), made.epsilon))
    return found


@pytest.mark.many
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_stream_that_goes_through_bytes_releases_the_same(name):
    counts = tables(1)
    once = release_all(name, counts, restart=False)
    assert once == release_all(name, counts, restart=True)
    if name in SCHEDULES:
        assert len({status for status, *_ in once}) > 1


# Decoding does not consume the bytes: a slot released again from them is the same release, and
# with one more event it has other noise.
def test_a_slot_released_again_from_the_same_state(monkeypatch):
    always = "streamveil.mechanisms.wevent.pwsm.dissimilarity"
    monkeypatch.setattr(always, lambda *args: float("inf"))
    counts = tables(2)
    population = facts()
    stream = ReleaseStream(mechanism("bd", population), NoiseSource(KEY, "histogram"))
    state = stream.start()
    for slot in range(10):
        data = stream.encode(state)
        _, again = stream.release(stream.decode(data), slot, counts[slot])
        state, made = stream.release(stream.decode(data), slot, counts[slot])
        assert (made.status, made.spent.tolist()) == (again.status, again.spent.tolist())
        np.testing.assert_array_equal(made.counts, again.counts)
        assert stream.encode(state) != data
    other = counts[slot].copy()
    other[0, 0] += 1
    _, changed = stream.release(stream.decode(data), slot, other)
    difference = changed.counts - made.counts
    assert made.status == changed.status == PUBLISHED
    assert np.count_nonzero(difference) > 1  # the same noise would show the one event


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pba", "pbd"])
def test_a_pipeline_run_twice_gives_the_same(run_on, kit, runner, name):
    rows = [(u, "ab"[(i * s) % 2], s) for s in (0, 3, 4, 70) for i, u in enumerate(USERS)]
    transform = kit.histograms(REGISTRY, mechanism=name, noise_key=KEY)
    once, twice = (run_on(runner, transform, [kit.batch(rows)]) for _ in range(2))
    kit.assert_same_releases(once.releases, twice.releases)
    assert once.slots == list(range(71))


# ---- presence does not steer ------------------------------------------------------------------

CROWDS = {
    "nobody": [],
    "one": [("u0", "a", 3)],
    "some": [(u, "a", s) for u in USERS[::4] for s in range(12)],
    "all but those": [(u, "b", s) for i, u in enumerate(USERS) if i % 4 for s in range(12)],
    "strangers too": [(f"x{i}", "a", s) for i in range(30) for s in range(0, 12, 2)],
}


# With the one noisy answer that may steer fixed, whoever is present: same statuses, thresholds,
# errors and prices, in every slot.
@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCHEDULES, "uniform", "sample", "lbu", "plbu"])
def test_presence_does_not_change_the_control_flow(here, kit, monkeypatch, name):
    listed = name in ("lbu", "plbu")  # in these all users report, so none may be guessed
    registry = Registry.of(
        {u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate(USERS)},
        default=None if listed else (Requirement(3, 1.0), 50),
    )
    # Whether a slot that may publish does so; fixed, whatever is in it.
    answers = [False, True, False, False, True, True, False, True, True, False, False, True]
    outcomes = set()
    for who, rows in CROWDS.items():
        if listed and who == "strangers too":
            continue
        left = iter(answers)
        monkeypatch.setattr(
            "streamveil.mechanisms.wevent.pwsm.dissimilarity",
            lambda *_, left=left: float("inf") if next(left) else float("-inf"),
        )
        transform = kit.histograms(
            registry, mechanism=name, noise_key=KEY, first_slot=0, last_slot=11
        )
        ran = here(transform, [kit.batch(rows)])
        outcomes.add(
            (
                tuple((r.slot, r.status, r.published_slot, r.epsilon) for r in ran.releases),
                tuple(
                    (e.slot, e.users.tobytes(), e.spent.tobytes(), e.spent_in_window.tobytes())
                    for e in ran.ledger
                ),
                str(ran.distributions),
                tuple(sorted((k, n) for k, n in ran.counters.items() if k.startswith("slots_"))),
            )
        )
    assert len(outcomes) == 1
    ((releases, *_),) = outcomes
    statuses = [status for _, status, _, _ in releases]
    if name in SCHEDULES:
        assert {PUBLISHED, SKIPPED} <= set(statuses) <= {PUBLISHED, SKIPPED, NULLIFIED}

"""What is saved of any stream: read by later versions, and never accepted when it was changed."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from streamveil.engine.count.changes import Changes
from streamveil.engine.messages import arrays_from_bytes, several_from_bytes
from streamveil.mechanisms import ConfigurationError, NoiseSource
from streamveil.mechanisms.driver.saved_state import Keeper
from streamveil.mechanisms.presence.limits import EVERY_SLOT
from streamveil.mechanisms.randomness.noise import NoiseKeys
from tests.transforms import asked_streams, saved_streams
from tests.transforms.limited_streams import CUT, LAST, Limited, summaries

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.stem for path in GOLDEN.glob("states_*.json"))
FLIPS = 10_000


@pytest.fixture(scope="module")
def streams():
    return saved_streams.streams()


@pytest.fixture(scope="module")
def saved(streams):
    return {name: stream.saved() for name, stream in streams.items()}


def refused(stream, data):
    """Whether bytes are refused as they should be: anything else that is raised gets out."""
    try:
        stream.read(data)
    except ConfigurationError as error:
        return "wrong checksum" in str(error) and "\n" not in str(error)
    return False


# Every version's states are read by all later ones, which go on exactly as it would have.
@pytest.mark.parametrize("version", VERSIONS)
def test_states_of_earlier_versions_go_on(streams, version):
    written = json.loads((GOLDEN / f"{version}.json").read_text())
    assert written.keys() <= streams.keys()
    for name, one in written.items():
        following = streams[name].following(base64.b64decode(one["state"]))
        assert json.dumps(following) == json.dumps(one["next"]), name


@pytest.fixture(scope="module")
def recorded():
    """The state of each stream that was recorded last."""
    files = [json.loads((GOLDEN / f"{version}.json").read_text()) for version in VERSIONS]
    return {name: base64.b64decode(one["state"]) for file in files for name, one in file.items()}


def test_all_streams_have_their_states_on_record(streams, recorded):
    assert recorded.keys() == streams.keys()
    kinds = {"fixed", "changing", "infinite", "edge", "server", "sliding", "running"}
    assert kinds | {"limited", "lives"} <= {name.split()[0] for name in recorded}


# What only a long stream has is on record: a sum that runs, a cycle, releases that revisions need.
def test_the_states_on_record_have_all_that_a_state_can_have(streams, recorded):
    cyclic = [name for name in recorded if name.endswith("cycle=4")]
    assert len(cyclic) == 4
    for name in cyclic:
        stream = streams[name]
        state = stream.driver.decode(recorded[name])
        known = (state.server if name.startswith("edge") else state).mechanism
        assert known.ring.releases
        assert stream.ripe(state)
        if "rotation" in name:
            assert known.seasons.cycles > 3
            assert len(known.past) == 3


# A factor that is used, and what revisions need of it.
def test_so_have_those_with_a_common_factor(streams, recorded):
    for kind in ("fixed", "changing"):
        stream = streams[f"{kind} adaptive by day"]
        assert stream.ripe(stream.driver.decode(recorded[f"{kind} adaptive by day"]))


# Who counted, of members and of strangers; what is asked for, now and later; the limits chosen.
def test_so_have_those_of_streams_where_users_count_in_a_few_slots(streams, recorded):
    for name, limits, lives in (("limited", 2, 0), ("lives", 0, 1), ("both", 2, 2)):
        state, kept = streams[f"{name} adaptive"].read(recorded[f"{name} adaptive"])
        assert all(sums.any() for sums in state.sums.values())
        tallies = [arrays_from_bytes(one.payload) for one in kept]
        assert sum(len(arrays[1]) > 0 for arrays in tallies) == limits
        assert sum(len(arrays[4]) > 0 for arrays in tallies) == lives
    _, kept = streams["limited changing adaptive"].read(recorded["limited changing adaptive"])
    for one in kept:
        known, waiting = several_from_bytes(one.payload)
        counted, asking = map(arrays_from_bytes, several_from_bytes(known))
        assert len(counted[1]) > 0
        assert len(asking[0]) > 0
        assert Changes.from_bytes(waiting).first >= CUT
    chosen = streams["chosen adaptive"]
    driver = chosen._driver.gone_on(recorded["chosen adaptive"])
    assert [one.max_slots for one in driver.limits] == [EVERY_SLOT.max_slots, 1, 2]


# Ledgers, what is usual, and events of slots that are not over, of members and strangers.
def test_so_have_those_of_queries(streams, recorded):
    for name in ("answers", "answers chosen", "answers planned"):
        state, kept = streams[name].read(recorded[name])
        assert state.next_slot == asked_streams.CUT
        learnt = [one is not None and one.settled().parts.any() for one in state.usual]
        assert learnt == [0, 1, 1]
        assert [one.unfinished for sums in state.times for one in sums] == [True]
        assert (state.plan is not None) == (name == "answers planned")
        assert sorted((one.slot, one.shard // 3) for one in kept) == [
            *((11, 0), (11, 1), (15, 0), (15, 1)),
        ]
        whole, _ = streams[name].passed(0, asked_streams.LAST, None)
        following = streams[name].following(recorded[name])
        assert whole[-len(following) :] == following


@pytest.mark.slow
def test_a_stream_in_two_passes_releases_what_one_does(streams, saved):
    limited = {name: one for name, one in streams.items() if isinstance(one, Limited)}
    assert len(limited) == 5
    for name, stream in limited.items():
        whole, _ = stream.released(0, LAST)
        assert stream.following(saved[name]) == summaries(whole[CUT:])


def test_no_flip_of_one_bit_is_accepted(streams, saved):
    random = np.random.default_rng(16)
    each, tried = -(-FLIPS // len(streams)), 0
    for name, stream in streams.items():
        data = saved[name]
        stream.read(data)
        for bit in random.integers(8 * len(data), size=each).tolist():
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert refused(stream, bytes(flipped)), (name, bit)
            tried += 1
    assert tried >= FLIPS


@pytest.mark.parametrize("name", ["device", "fixed uniform", "changing dpbd", "count hat"])
def test_no_flip_of_a_small_state_is_accepted(streams, saved, name):
    data = saved[name]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert refused(streams[name], bytes(flipped)), bit


def test_no_state_that_was_cut_or_went_on_is_accepted(streams, saved):
    random = np.random.default_rng(17)
    for name, stream in streams.items():
        data = saved[name]
        cuts = {0, 1, 4, 19, 20, 21, len(data) - 1, *random.integers(len(data), size=40).tolist()}
        for cut in cuts:
            assert refused(stream, data[:cut]), (name, cut)
        assert refused(stream, data + b"\0")
        assert refused(stream, data + data)


# From here users may begin to change: that stream goes on from what was written before.
MIGRATED = {
    (f"changing {name}", f"fixed {name}")
    for name in ("adaptive", "adaptive:cycle=4", "adaptive by day")
}


# A state of one family is none of another, even where bytes would fit.
def test_no_state_passes_for_that_of_another_stream(streams, saved):
    for name, stream in streams.items():
        for other, data in saved.items():
            if other != name and (name, other) not in MIGRATED:
                with pytest.raises(ConfigurationError, match=r"wrong checksum|another conf"):
                    stream.read(data)


# ---- the keeper --------------------------------------------------------------------------------

PARTS = {"mechanism": b"pba", "bins": b"cafe park", "columns": b"user"}


def test_a_refusal_names_the_parts_that_differ():
    source = NoiseSource(bytes(32))
    data = Keeper(source, PARTS).write(b"state")
    for changed, words in (
        ({"bins": b"cafe pier"}, "the bins changed"),
        ({"bins": b"", "columns": b""}, "the bins and the columns changed"),
        ({"slots": b"new"}, "the slots changed"),
        (dict.fromkeys(PARTS, b""), "the bins, the columns and the mechanism changed"),
    ):
        with pytest.raises(ConfigurationError, match=f"another configuration: {words} since"):
            Keeper(source, {**PARTS, **changed}).read(data)
    reordered = {name: PARTS[name] for name in sorted(PARTS)[::-1]}
    assert Keeper(source, reordered).read(data) == b"state"


# What is public could be guessed and tried on a digest of it: the digests take the key.
def test_the_digests_of_the_parts_take_the_key():
    one, other = (Keeper(NoiseSource(bytes([i]) * 32), PARTS).write(b"") for i in (1, 2))
    assert len(one) == len(other)
    same = sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
    assert same < 0.7  # names and lengths
    assert not set(re.findall(rb"(?s).{16}", one[-60:])) & set(re.findall(rb"(?s).{16}", other))


# Who holds the first key still reads what was written before another took its place.
def test_a_state_outlives_the_key_that_comes_later():
    first, later = bytes([1]) * 32, bytes([2]) * 32
    data = Keeper(NoiseSource(first), PARTS).write(b"state")
    rotated = NoiseSource(NoiseKeys(first, ((7, later),)))
    assert Keeper(rotated, PARTS).read(data) == b"state"
    assert Keeper(NoiseSource(first), PARTS).read(Keeper(rotated, PARTS).write(b"x")) == b"x"
    for other in (NoiseSource(later), NoiseSource(first, "another stream")):
        with pytest.raises(ConfigurationError, match="wrong checksum"):
            Keeper(other, PARTS).read(data)

"""The noise key on its way to the workers: the same one, and never shown."""

import pickle
from pathlib import Path

import pytest

from streamveil.engine.stream.noise_keys import GivenKey, SameKey
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.randomness.noise import NoiseKeys

KEY = b"never-show-this-key-to-anyone-!!"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


def test_the_same_key_is_given(file):
    for key in (KEY, GivenKey(KEY), file.read_bytes):
        same = SameKey.of(key)
        assert same() == pickle.loads(pickle.dumps(same))() == NoiseKeys(KEY)


def test_no_key_is_a_fresh_one():
    one, other = SameKey.of(None), SameKey.of(None)
    assert len(one().first) == 32
    assert one() == one() != other()


@pytest.mark.parametrize("change", [bytes(32), b"", KEY[:-1], KEY + b"\n"])
def test_another_key_is_refused(file, change):
    same = pickle.loads(pickle.dumps(SameKey.of(file.read_bytes)))
    file.write_bytes(change)
    with pytest.raises(ConfigurationError, match=r"not the one that the launch got|noise key has"):
        same()
    file.write_bytes(KEY)
    assert same() == NoiseKeys(KEY)


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_a_key_of_another_length_is_refused(key):
    for given in (key, lambda: key):
        with pytest.raises(ConfigurationError, match=f"noise key has {len(key)} bytes"):
            SameKey.of(given)


# What travels to compare with is not the key, and the refusal names the source, not the key.
def test_the_key_is_neither_sent_nor_shown(file):
    same = SameKey.of(file.read_bytes)
    file.write_bytes(bytes(range(32)))
    assert KEY not in pickle.dumps(same)
    with pytest.raises(ConfigurationError, match="read_bytes") as raised:
        same()
    for text in (str(raised.value), repr(same), repr(SameKey.of(KEY))):
        assert KEY.decode() not in text
        assert KEY.hex() not in text
    assert Path(file).read_bytes().hex() not in str(raised.value)

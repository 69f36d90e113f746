"""Saved bytes with a keyed checksum: nothing else passes."""

import hashlib

import numpy as np
import pytest

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.state_codec import checksum, seal, unseal
from streamveil.mechanisms.randomness.noise import derived_key, digest

KEY = bytes(range(32))
DATA = b"spent: 1, 2, 3"


def test_what_was_sealed_comes_back():
    for data in (b"", DATA, bytes(100_000)):
        assert unseal(KEY, b"test", seal(KEY, b"test", data)) == data


def test_no_flip_of_one_bit_and_no_cut_passes():
    sealed = seal(KEY, b"test", DATA)
    others = [sealed[:size] for size in range(len(sealed))]
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        others.append(bytes(flipped))
    for other in [*others, sealed + b"\0", DATA, b"\0" + sealed]:
        with pytest.raises(ConfigurationError, match="damaged or cut short") as refused:
            unseal(KEY, b"test", other)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "purpose"), [(KEY, b"tes"), (KEY, b"test2"), (derived_key(KEY, "x"), b"test")]
)
def test_another_key_or_purpose_is_refused(key, purpose):
    with pytest.raises(ConfigurationError, match="another noise key"):
        unseal(key, purpose, seal(KEY, b"test", DATA), "the manifest")


def test_forging_takes_the_key():
    # Whatever is public, and an unkeyed digest of it, does not pass.
    rng = np.random.default_rng(1)
    own = seal(KEY, b"test", DATA)
    for forged in (
        hashlib.blake2b(DATA, digest_size=16).digest(),
        digest(b"test", DATA, size=16),
        rng.bytes(16),
    ):
        with pytest.raises(ConfigurationError):
            unseal(KEY, b"test", own[:4] + forged + DATA)


def test_the_format_stays():
    assert seal(KEY, b"test", DATA)[:4] == b"svs\x01"
    assert checksum(KEY, b"test", DATA).hex() == "d498b9671ee7943400b33c820299462a"

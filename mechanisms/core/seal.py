"""A keyed checksum on saved bytes: who has not got the key can neither alter nor make them.

Any change of the bytes, be it one bit, is noticed but for a chance of 2**-128. The checksum tells
nothing about the key. It does not hide the bytes, and bytes that were sealed once stay valid for
ever: an old copy in the place of a newer one must be found by other means.
"""

from __future__ import annotations

import hashlib
import hmac

from streamveil.mechanisms.core.records import ConfigurationError

CHECKSUM_BYTES = 16

# What sealed bytes begin with: whose they are, and the version of this format.
_MARK = b"svs\x01"
_BEGIN = len(_MARK) + CHECKSUM_BYTES


def checksum(key: bytes, purpose: bytes, data: bytes) -> bytes:
    """Keyed BLAKE2b of bytes: `CHECKSUM_BYTES` bytes, and no noise is ever drawn from them.

    Args:
        key: 32 secret bytes; the noise key itself may be given, since this use of it has a
            domain of its own.
        purpose: what the bytes are: those of one purpose do not pass as those of another.
        data: what is protected.
    """
    state = hashlib.blake2b(key=key, digest_size=CHECKSUM_BYTES, person=b"streamveil seal")
    state.update(len(purpose).to_bytes(8, "little"))
    state.update(purpose)
    state.update(data)
    return state.digest()


def seal(key: bytes, purpose: bytes, data: bytes) -> bytes:
    """The bytes behind a mark and their checksum: see :func:`checksum`."""
    return _MARK + checksum(key, purpose, data) + data


def unseal(key: bytes, purpose: bytes, sealed: bytes, what: str = "the state") -> bytes:
    """The bytes that were sealed.

    Raises ConfigurationError, which names them by `what`, for others: changed, cut, sealed with
    another key or for another purpose, or never sealed.
    """
    data = sealed[_BEGIN:]
    written = sealed[:_BEGIN]
    if not hmac.compare_digest(written, _MARK + checksum(key, purpose, data)):
        raise ConfigurationError(
            f"{what} ({len(sealed)} bytes) has a wrong checksum: it was damaged or cut short, or "
            "it was written with another noise key, for another stream or by a version without "
            "checksums; bring back a whole copy of the newest one, with its noise key"
        )
    return data

"""Tokens: what ties a report to the assignment that it answers.

A token names the user and a keyed code over stream, slot, round and user, so that the server needs
to remember none, and nobody else can make one. Devices send it back as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from streamveil.mechanisms.randomness.noise import NoiseKeys

_USER = struct.Struct("<i")
_CODE_BYTES = 16
TOKEN_BYTES = _USER.size + _CODE_BYTES


class Tokens:
    """The tokens of one stream. Raises ConfigurationError for a key that is not 32 bytes."""

    def __init__(self, key: bytes | NoiseKeys, stream: str) -> None:
        self._keys = NoiseKeys.of(key)
        self._stream = len(stream.encode()).to_bytes(8, "little") + stream.encode()

    def token(self, slot: int, round: int, user: int) -> bytes:
        """The token of an assignment to a user, by index."""
        code = hashlib.blake2b(
            self._stream + struct.pack("<qqq", slot, round, user),
            key=self._keys.at(slot),
            digest_size=_CODE_BYTES,
            person=b"streamveil token",
        )
        return _USER.pack(user) + code.digest()

    def user_of(self, slot: int, round: int, token: bytes) -> int | None:
        """The user whose token of that slot and round this is; None if it is nobody's."""
        if len(token) != TOKEN_BYTES:
            return None
        (user,) = _USER.unpack_from(token)
        try:
            right = self.token(slot, round, user)
        except struct.error:  # a slot or round beyond 64 bits
            return None
        return user if hmac.compare_digest(token, right) else None

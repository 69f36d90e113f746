"""Whether a file is still the one that was read: a digest of its beginning and its end."""

from __future__ import annotations

import hashlib

from streamveil.io.filesystems import open_to_read

_BYTES = 1 << 16


def ends_of(path: str, size: int) -> str:
    """Digest of the first and the last 64 kB of a file of `size` bytes, in hexadecimal.

    What has no bytes is not opened: a pipe would wait for somebody to write to it. Raises OSError,
    or what its filesystem raises for a file that is not there.
    """
    digest = hashlib.blake2b(digest_size=16)
    if not size:
        return digest.hexdigest()
    with open_to_read(path) as file:
        digest.update(file.read(_BYTES))
        if size > _BYTES:
            file.seek(max(_BYTES, size - _BYTES))
            digest.update(file.read(_BYTES))
    return digest.hexdigest()

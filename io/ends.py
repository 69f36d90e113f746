"""Whether a file is still the one that was read: a digest of its beginning and its end."""

from __future__ import annotations

import hashlib

from streamveil.io.filesystems import open_to_read

_BYTES = 1 << 16


def ends_of(path: str, size: int) -> str:
    """Return a hexadecimal digest of the first and the last 64 kB of a file of `size` bytes.

    A file of size 0 is not opened, because it may be a pipe, and reading from a pipe could block.

    Raises:
        OSError: if the file does not exist. Some filesystems raise a different error in this case.
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

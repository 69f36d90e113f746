"""Small private files of JSON that only the owner of the noise key can write or alter.

    {
     "version": 2,
     ...
     "digest": "...",
     "seal": "..."
    }

`digest` tells a damaged file, even without the key; `seal` is keyed, and tells one that somebody
without the key made or edited. Both are of exactly these bytes: a file that says the same in other
bytes is refused as well. Such a file is replaced whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.state_codec import checksum

PART = ".part"
"""How the name of what is being written ends."""


@dataclass(frozen=True)
class SealedRecord:
    """A record and what proves it."""

    record: Mapping[str, Any]
    seal: str
    """Keyed checksum of the record, in hexadecimal; it also identifies the record."""

    @classmethod
    def of(cls, key: bytes, purpose: bytes, record: Mapping[str, Any]) -> SealedRecord:
        """Seal a record of plain JSON with the noise key; `purpose` says what it is."""
        return cls(record, checksum(key, purpose, _text(record).encode()).hex())

    @classmethod
    def read(cls, path: Path, version: int) -> SealedRecord:
        """The record of a file that is not damaged; its seal is not looked at yet.

        Raises ConfigurationError for a damaged file, one of another version, and what is no file
        that can be read.
        """
        try:
            text = path.read_bytes().decode()
            record = json.loads(text)
            written = record["version"]
            if "digest" in record:
                del record["digest"]
                found = cls(record, record.pop("seal"))
                if found.text != text:
                    raise ValueError("its digest is of other bytes")
                if written == version:
                    return found
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read ({error.strerror}): let this user read it, or bring the "
                "file back as it was, from a backup"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"{path} cannot be read ({type(error).__name__}: {error}): it was damaged or "
                "edited; restore it from a backup"
            ) from error
        raise ConfigurationError(
            f"{path} cannot be read: it is of version {written}, not {version}: use the version "
            "of streamveil that wrote it, or start a new stream in another folder, which spends "
            "the users' budgets again"
        )

    @cached_property
    def text(self) -> str:
        """The content of a file."""
        text = _text(self.record)
        digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
        # The same as the record with these two written anew: that takes a while for many inputs.
        return f'{text.removesuffix(_END)},\n "digest": "{digest}",\n "seal": "{self.seal}"{_END}'

    def is_sealed_by(self, key: bytes, purpose: bytes) -> bool:
        """Whether the owner of the noise key made this for the purpose."""
        return hmac.compare_digest(self.of(key, purpose, self.record).seal, self.seal)


_END = "\n}\n"


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def write_private(path: Path, text: str, lasting: bool = True) -> None:
    """Replace a file, whole or not at all, by one that its owner alone can read.

    Only if it is `lasting` the disk is waited for, so that it outlives the loss of power.
    """
    part = path.with_name(path.name + PART)
    with naming(path):
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
        if lasting:
            sync(path.parent)


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let an error of writing to an open file, such as of a full disk, name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, outlive the loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

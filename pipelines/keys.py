"""Where the noise key comes from: a file, the environment, or fresh randomness."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from apache_beam.io.filesystems import FileSystems

from streamveil.mechanisms.noise import KEY_BYTES
from streamveil.mechanisms.records import ConfigurationError

ENVIRONMENT = "STREAMVEIL_NOISE_KEY"

_REMEDY = (
    "make one with: python -c 'import secrets; print(secrets.token_hex(32))' > KEYFILE; "
    "chmod 600 KEYFILE"
)
_HEX_OR_BASE64 = re.compile(rb"[0-9A-Za-z+/=_-]*")


@dataclass(frozen=True)
class KeyFile:
    """Reads the noise key where it is needed, so that it does not travel with the pipeline.

    Every worker must be able to read the file. Raises ConfigurationError when called if it
    cannot be read, holds fewer than 32 bytes, or is a local file that others can read.
    """

    path: str

    def __call__(self) -> bytes:
        """The key: 32 bytes."""
        if os.path.isfile(self.path):
            mode = os.stat(self.path).st_mode
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise ConfigurationError(
                    f"noise key file {self.path} is open to every user of the machine (mode "
                    f"{stat.S_IMODE(mode):o}): chmod 600 it, and use a new key if it was seen"
                )
        try:
            with FileSystems.open(self.path) as file:
                content = file.read()
        except Exception as error:
            raise ConfigurationError(
                f"noise key file {self.path} cannot be read ({error}): {_REMEDY}"
            ) from error
        return _key_of(content, f"noise key file {self.path}")


@dataclass(frozen=True)
class KeyFromEnvironment:
    """Reads the noise key from the environment of the process that needs it."""

    variable: str = ENVIRONMENT

    def __call__(self) -> bytes:
        """The key: 32 bytes."""
        return _key_of(os.fsencode(os.environ.get(self.variable, "")), f"variable {self.variable}")


def noise_key(path: str | None) -> Callable[[], bytes] | None:
    """The key that the user chose, checked; None for fresh randomness in every run."""
    key: Callable[[], bytes] | None = None
    if path:
        key = KeyFile(path)
    elif ENVIRONMENT in os.environ:
        key = KeyFromEnvironment()
    if key is not None:
        key()
    return key


def _key_of(content: bytes, where: str) -> bytes:
    secret = _without_line_end(content)
    if len(secret) < KEY_BYTES:
        raise ConfigurationError(
            f"{where} holds {len(secret)} bytes, a noise key needs {KEY_BYTES} or more: {_REMEDY}"
        )
    return hashlib.blake2b(secret, digest_size=KEY_BYTES).digest()


def _without_line_end(content: bytes) -> bytes:
    """The key as it was written: editors put white space around text, random bytes are no text."""
    text = content.strip()
    if _HEX_OR_BASE64.fullmatch(text):
        return text
    for end in (b"\r\n", b"\n"):
        if content.endswith(end) and len(content) - len(end) >= KEY_BYTES:
            return content.removesuffix(end)
    return content

"""Where the noise key comes from: `--noise_key`, the environment, or fresh randomness."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from streamveil.engine.stream.noise_keys import GivenKey, RotatedKey
from streamveil.io.faults import blaming
from streamveil.io.filesystems import open_to_read, require_filesystem
from streamveil.io.secret_manager import secret_of
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault, Slots
from streamveil.mechanisms.randomness.noise import KEY_BYTES, NoiseKeys
from streamveil.pipelines.options.declarations import ENVIRONMENT
from streamveil.pipelines.options.parsers import key_places

_REMEDY = (
    "bring back the key of the stream, or for a new stream make one with: "
    "python -c 'import secrets; print(secrets.token_hex(32))' > KEYFILE; chmod 600 KEYFILE"
)
_HEX_OR_BASE64 = re.compile(rb"[0-9A-Za-z+/=_-]*")
_VERSION = re.compile(r"(projects/[^/]+/secrets/[^/]+/versions/)([^/]+)")


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
                    f"noise key file {self.path} can be read by every user of the machine (mode "
                    f"{stat.S_IMODE(mode):o}): chmod 600 it, and use a new key if it was seen"
                )
        require_filesystem(self.path)
        try:
            with (
                blaming(f"noise key file {self.path} could not be read", self.path),
                open_to_read(self.path) as file,
            ):
                content = file.read()
        except MachineFault:
            raise
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


@dataclass(frozen=True)
class KeyFromSecretManager:
    """Reads the noise key from Google Secret Manager where it is needed.

    Raises ConfigurationError at construction for a version that is not a number, and when called
    if the service does not give it; MachineFault where it cannot be asked now, or its answer
    is damaged.
    """

    version: str
    """projects/P/secrets/S/versions/N"""

    def __post_init__(self) -> None:
        """Check the name."""
        match = _VERSION.fullmatch(self.version)
        if "/locations/" in self.version:
            raise ConfigurationError(
                f"secret:{self.version} is a secret of one region, which cannot be read here: "
                "write secret:projects/P/secrets/S/versions/N"
            )
        if match is None:
            raise ConfigurationError(
                f"secret:{self.version} is not a version of a secret: write "
                "secret:projects/P/secrets/S/versions/N"
            )
        if not re.fullmatch("[1-9][0-9]*", match[2]):
            raise ConfigurationError(
                f"secret:{self.version} is not always the same key: workers and retries would "
                "get another key once the secret changes; name the version by its number, as in "
                f"secret:{match[1]}1"
            )

    def __call__(self) -> bytes:
        """The key: 32 bytes."""
        return _key_of(secret_of(self.version), f"secret:{self.version}")


_KINDS: dict[str, Callable[[str], Callable[[], bytes]]] = {
    "file": KeyFile,
    "env": KeyFromEnvironment,
    "secret": KeyFromSecretManager,
}


def noise_key(
    places: str | bytes | None, slots: Slots | None = None
) -> Callable[[], bytes | NoiseKeys] | None:
    """The key that the user chose, checked; None for fresh randomness in every run.

    Args:
        places: `PLACE`, or `PLACE,PLACE@SLOT,...` for keys that take its place; what a file of a
            key holds, for a caller in Python; the variable STREAMVEIL_NOISE_KEY, if it is set, when
            None.
        slots: how time is cut, which tells the slot of a time.

    Raises:
        ConfigurationError: for a place without a key. What it says never holds the key, even if
            that was given in place of a place.
    """
    card_key()  # an invalid key is refused before anything is released
    key: Callable[[], bytes | NoiseKeys] | None = None
    if isinstance(places, bytes):
        key = GivenKey(_key_of(places, "the noise key that was given"))
    elif places is not None:
        (_, first), *later = key_places(places, slots)
        key = one = _source_of(first)
        if later:
            key = RotatedKey(one, tuple((start, _source_of(place)) for start, place in later))
    elif ENVIRONMENT in os.environ:
        key = KeyFromEnvironment()
    if key is not None:
        key()
    return key


CARD_ENVIRONMENT = "STREAMVEIL_CARD_KEY"
"""The variable with the key that cards are signed with."""


def card_key() -> bytes | None:
    """The key that cards are signed with: 32 bytes, None where none is given.

    Raises ConfigurationError for a variable with too short a key.
    """
    if CARD_ENVIRONMENT not in os.environ:
        return None
    content = os.fsencode(os.environ[CARD_ENVIRONMENT])
    secret = _without_line_end(content)
    if len(secret) < KEY_BYTES:
        raise ConfigurationError(
            f"variable {CARD_ENVIRONMENT} holds {len(secret)} bytes, a key of cards needs "
            f"{KEY_BYTES} or more: make one with python -c 'import secrets; "
            "print(secrets.token_hex(32))'"
        )
    return hashlib.blake2b(secret, digest_size=KEY_BYTES, person=b"streamveil card").digest()


def _source_of(place: str) -> Callable[[], bytes]:
    kind, _, name = place.partition(":")
    return _KINDS[kind](name)


def _key_of(content: bytes, where: str) -> bytes:
    secret = _without_line_end(content)
    if len(secret) < KEY_BYTES:
        raise ConfigurationError(
            f"{where} holds {len(secret)} bytes, a noise key needs {KEY_BYTES} or more: {_REMEDY}"
        )
    if len(secret) == KEY_BYTES:  # as transforms take them: the same bytes are the same key
        return secret
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

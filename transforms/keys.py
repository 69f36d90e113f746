"""The noise key on its way to the workers: never shown, and the same on all of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from streamveil.mechanisms.noise import KEY_BYTES, derived_key
from streamveil.mechanisms.records import ConfigurationError


@dataclass(frozen=True)
class GivenKey:
    """A noise key held in memory; it travels with the pipeline and is never shown."""

    key: bytes

    def __call__(self) -> bytes:
        """The key."""
        return self.key

    def __repr__(self) -> str:
        return "GivenKey(<secret>)"


@dataclass(frozen=True)
class SameKey:
    """A way to get the noise key that refuses another key than the launch got.

    Workers with different keys, or one that restarts after the key has changed, would count users
    outside the registry twice and give a slot that is run again other noise.
    """

    source: Callable[[], bytes]
    check: bytes
    """What the right key derives for this purpose; it says nothing about the key."""

    @classmethod
    def of(cls, key: bytes | Callable[[], bytes] | None) -> SameKey:
        """Get the key for the first time; fresh randomness for None.

        Raises ConfigurationError for a key that is not 32 bytes.
        """
        if not callable(key):
            key = GivenKey(secrets.token_bytes(KEY_BYTES) if key is None else key)
        return cls(key, _check_of(key()))

    def __call__(self) -> bytes:
        """The key; raises ConfigurationError when it is not the one of the launch."""
        key = self.source()
        if _check_of(key) != self.check:
            raise ConfigurationError(
                f"the noise key that a worker got from {self.source!r} is not the one that the "
                "launch got: it changed, or differs on this worker; give all of them the same key "
                "and launch again"
            )
        return key


def _check_of(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"the noise key has {len(key)} bytes: give {KEY_BYTES} random ones"
        )
    return derived_key(key, "check")

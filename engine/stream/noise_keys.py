"""The noise key on its way to the workers: never shown, and the same on all of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.randomness.noise import KEY_BYTES, NoiseKeys, derived_key

NoiseKey = bytes | Callable[[], bytes | NoiseKeys]
"""32 secret bytes, or a picklable way to get them, such as a :class:`RotatedKey`."""


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
class RotatedKey:
    """A sequence of noise keys. Each later key replaces the previous key from a given slot onwards.

    With several keys, you can change the noise key of a stream while the stream runs.
    """

    first: Callable[[], bytes]
    """Function that returns the first key, which has 32 bytes."""
    later: tuple[tuple[int, Callable[[], bytes]], ...]
    """For each later key, the first slot that uses the key and a function that returns the key."""

    def __call__(self) -> NoiseKeys:
        """The keys. Raises ConfigurationError for slots that do not ascend, or a key used twice."""
        keys = NoiseKeys(self.first(), tuple((start, get()) for start, get in self.later))
        if len({keys.first, *(key for _, key in keys.later)}) <= len(keys.later):
            raise ConfigurationError(
                f"of the noise keys of {self!r} two are the same: a key that was replaced must "
                "not return: make a new one"
            )
        return keys


@dataclass(frozen=True)
class SameKey:
    """A way to get the noise key that refuses another key than the launch got.

    Workers with different keys, or one that restarts after the key has changed, would count users
    outside the registry twice and give a slot that is run again other noise.
    """

    source: Callable[[], bytes | NoiseKeys]
    check: NoiseKeys
    """What the right keys derive for this purpose; it says nothing about the keys."""

    @classmethod
    def of(cls, key: NoiseKey | None) -> SameKey:
        """Get the key for the first time; fresh randomness for None.

        Raises ConfigurationError for a key that is not 32 bytes.
        """
        if not (key is None or callable(key) or isinstance(key, (bytes, bytearray))):
            raise ConfigurationError(
                f"noise_key is of type {type(key).__name__}: give 32 secret bytes, as "
                "secrets.token_bytes(32) makes them, or a function that gets them"
            )
        if not callable(key):
            key = GivenKey(secrets.token_bytes(KEY_BYTES) if key is None else key)
        return cls(key, NoiseKeys.of(key()).derived("check"))

    def __call__(self) -> NoiseKeys:
        """The keys; raises ConfigurationError when they are not those of the launch."""
        keys = NoiseKeys.of(self.source())
        if keys.derived("check") != self.check:
            raise ConfigurationError(
                f"the noise key that a worker got from {self.source!r} is not the one that the "
                "launch got: it changed, or differs on this worker; give all of them the same key "
                "and launch again"
            )
        return keys

    def derived(self, purpose: str) -> bytes:
        """The key of what must not change within a stream, from the key that comes first.

        Args:
            purpose: `strangers` for the codes of users outside the registry, `bounding` for the
                draws of which of a user's events count, `presence` for the phases of users.
        """
        return derived_key(self().first, purpose)

    def refuse_later(self, why: str) -> None:
        """Raise ConfigurationError if the key changes with a slot."""
        if self.check.later:
            raise ConfigurationError(
                f"the noise key changes from slot {self.check.later[0][0]} on, but {why}; or give "
                f"one key alone ({opt.noise_key})"
            )

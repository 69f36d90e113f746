"""States on their way to a file or a runner: sealed, and bound to what they were written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.identity import encoded, of_mechanism
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.state_codec import checksum, seal, unseal
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

Parts = Mapping[str, bytes]
"""What a configuration is made of: the name of each part, for people, and its identity."""

_PURPOSE = b"state"

NOTHING_MORE: Parts = {}

# Parts that streams of several kinds have.
KIND = "kind of stream"
MECHANISM = "mechanism"
REQUIREMENTS = "requirements"
USERS = "table of users"
BINS = "bins"
SLOTS = "slots"
COLUMNS = "columns"
STREAM = "name of the stream"
SENSITIVITY = "sensitivity"
QUANTUM = "most that an event adds to a bin"
LONGEST_WINDOW = "longest window"
KEEP = "choice of the events that are kept"
LIMIT = "limit on presence"
CHANGING = "requirements may change"
TEST_MODE = "test mode"


def public_facts(
    kind: str, mechanism: str, requirements: Any, users: bytes, bins: int
) -> dict[str, bytes]:
    """The parts that a stream of any kind has; `users` is their identity."""
    return {
        KIND: encoded(kind),
        MECHANISM: of_mechanism(mechanism),
        REQUIREMENTS: encoded(requirements),
        USERS: users,
        BINS: encoded(bins),
    }


def of_parts(parts: Parts) -> bytes:
    """Digest of a configuration, whatever the order of its parts: 32 bytes."""
    return digest(*(part for name in sorted(parts) for part in (name.encode(), parts[name])))


class Keeper:
    """Writes and reads the states of one stream under one configuration.

    Written is, under a checksum that takes the noise key, a digest of every part of the
    configuration and the state. The digests are keyed, so that they tell nothing about the parts.
    The checksum is by the key that the stream started with, whatever takes its place later.

    Args:
        noise: of the stream.
        parts: of the configuration.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "Saved", parts={"type": "map", "values": "bytes"}, state="bytes"
        )
    }

    def __init__(self, noise: NoiseSource, parts: Parts) -> None:
        self._key = noise.sealing_key
        self._parts = {
            name: checksum(self._key, f"part {name}".encode(), parts[name])
            for name in sorted(parts)
        }

    def write(self, state: bytes) -> bytes:
        """The state to be saved."""
        record = {"parts": self._parts, "state": state}
        return seal(self._key, _PURPOSE, state_codec.pack(self.SCHEMAS, record))

    def read(self, data: bytes) -> bytes:
        """The state that was written.

        Raises ConfigurationError for bytes that are not what was written, and for those that
        another configuration wrote: it says which parts differ.
        """
        _, record = state_codec.unpack(self.SCHEMAS, unseal(self._key, _PURPOSE, data))
        written = record["parts"]
        names = sorted(written.keys() | self._parts.keys())
        differ = [name for name in names if written.get(name) != self._parts.get(name)]
        if LIMIT in differ and USERS not in differ:
            # What a slot may cost follows from the limit: nobody asks for something else.
            differ = [name for name in differ if name != REQUIREMENTS]
        if differ:
            raise ConfigurationError(
                f"this state belongs to another configuration: {_listed(differ)} changed since "
                "it was written; use the options that it was written with, or start a new "
                "stream, which spends the users' budgets again"
            )
        return bytes(record["state"])


def _listed(names: Sequence[str]) -> str:
    limit = f"participation limit ({opt.max_slots})"
    *first, last = (f"the {limit if name == LIMIT else name}" for name in names)
    return f"{', '.join(first)} and {last}" if first else last

"""State as bytes that a later release of streamveil can still read, and nobody else can make.

The bytes are one version byte and an Avro record. A module that changes its record adds a schema
under the next version and keeps the old one. Avro is imported when something is saved: whoever
reads options or starts a device has no use for it yet.

Before the bytes leave they are sealed with a keyed checksum: who has not got the key can neither
alter nor make them. Any change, be it one bit, is noticed but for a chance of 2**-128. The checksum
tells nothing about the key. It does not hide the bytes, and bytes that were sealed once stay valid
forever: an old copy in the place of a newer one must be found by other means.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import ConfigurationError

Schema = dict[str, Any]

LONGS: Schema = {"type": "array", "items": "long"}


def record_schema(name: str, /, **types: Any) -> Schema:
    """Schema of a record with fields of these types, written in this order."""
    fields = [{"name": field, "type": kind} for field, kind in types.items()]
    return {"type": "record", "name": name, "fields": fields}


# Rows of a table of amounts, equal neighbours written once.
RUNS: Schema = {"type": "array", "items": record_schema("Run", repeat="long", row=LONGS)}

CHECKSUM_BYTES = 16

# What sealed bytes begin with: whose they are, and the version of this format.
_MARK = b"svs\x01"
_BEGIN = len(_MARK) + CHECKSUM_BYTES


def pack(schemas: Mapping[int, Schema], record: Mapping[str, Any]) -> bytes:
    """Encode a record under the newest of the versioned schemas."""
    from fastavro import schemaless_writer

    version = max(schemas)
    buffer = io.BytesIO()
    buffer.write(bytes([version]))
    schemaless_writer(buffer, schemas[version], record)
    return buffer.getvalue()


def unpack(schemas: Mapping[int, Schema], data: bytes) -> tuple[int, dict[str, Any]]:
    """Decode bytes into (version, record).

    Raises ValueError when they were written by a release newer than this one.
    """
    from fastavro import schemaless_reader

    version = data[0] if data else -1
    if version not in schemas:
        raise ValueError(
            f"state version {version} is not among {sorted(schemas)}: it was written by a newer "
            "streamveil, or it is not state; run the version that wrote it, or a later one"
        )
    buffer = io.BytesIO(data)
    buffer.seek(1)
    record: Any = schemaless_reader(buffer, schemas[version], None)
    return version, record


def runs_of(rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Write rows of shape (T, K) as runs of equal neighbours."""
    if not len(rows):
        return []
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    lengths = np.diff(starts, append=len(rows))
    return [
        {"repeat": int(n), "row": rows[start].tolist()}
        for start, n in zip(starts, lengths, strict=True)
    ]


def rows_of(runs: list[dict[str, Any]], width: int) -> npt.NDArray[np.int64]:
    """Read rows of shape (T, width) back from runs. Raises ConfigurationError for another width."""
    for run in runs:
        check_length(run["row"], width, "classes of users")
    rows = np.array([run["row"] for run in runs], dtype=np.int64).reshape(-1, width)
    return np.repeat(rows, [run["repeat"] for run in runs], axis=0)


def table_to_bytes(table: npt.NDArray[np.int64]) -> bytes:
    """Write integers of any shape."""
    return np.ascontiguousarray(table, "<i8").tobytes()


def table_from_bytes(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Read a table of that shape back, as an array of its own."""
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(shape)


def check_length(values: Sized, wanted: int, what: str) -> None:
    """Refuse state of another configuration: raises ConfigurationError."""
    if len(values) != wanted:
        raise ConfigurationError(
            f"the state is for {len(values)} {what}, not {wanted}: it belongs to another "
            "configuration; use the options that it was written with, or start a new stream, "
            "which spends the users' budgets again"
        )


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

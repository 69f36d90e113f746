"""How Arrow record batches travel between Beam's workers."""

from __future__ import annotations

import pyarrow as pa
from apache_beam import coders

from streamveil.engine.messages import batch_from_bytes, batch_to_bytes


class RecordBatchCoder(coders.Coder):
    """Encode an Arrow record batch as an IPC stream, including the metadata of its schema.

    The encoding contains only the rows of the batch, even if the batch is a slice of a larger
    table. For such a slice, Beam's default coder (pickle) would encode the whole table.
    """

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Encode one batch."""
        return batch_to_bytes(value)

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """Decode a batch. The arrays of the batch use the memory of `encoded` without a copy."""
        return batch_from_bytes(encoded)

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Return the size of the rows in bytes, without encoding the batch."""
        return value.nbytes

    def is_deterministic(self) -> bool:
        """Return False, because two equal batches may be encoded as different bytes."""
        return False

    def to_type_hint(self) -> type:
        """The type of the values."""
        return pa.RecordBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(pa.RecordBatch, RecordBatchCoder)

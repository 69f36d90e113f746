"""Lists of messages of a broker to batches of events, parsed column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.messages import REJECTED, Output
from streamveil.io.cells import record_json
from streamveil.io.events import MAX_RECORD_BYTES, UNPARSABLE, rejected_batch, tell_read
from streamveil.io.files import Columns, event_batch
from streamveil.io.message_formats import FORMATS, Parsed, read_framed_messages
from streamveil.io.schema_registry import SchemaRegistry

# More would only cost memory: from here on the fixed costs of a batch vanish.
BATCH_MESSAGES = 10_000
BATCH_BYTES = 1 << 24
MAX_MESSAGE_BYTES = 1 << 24  # taken apart, brackets alone may be thirty times as large

FIELD_TOO_LONG = "field too long"
MAX_FIELD_BYTES = MAX_RECORD_BYTES


class MessageParser:
    """Parses lists of messages. Its arguments are the fields of :class:`ParseMessages`."""

    def __init__(
        self,
        source: str,
        columns: Columns,
        silent: bool,
        message_format: str = "json",
        max_field_bytes: int = MAX_FIELD_BYTES,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._source = source
        self._columns = columns
        self._silent = silent
        self._limit = max_field_bytes
        self._read = (
            FORMATS[message_format]
            if registry is None
            else partial(read_framed_messages, message_format, registry)
        )

    def parse(self, messages: list[bytes]) -> Iterator[Output]:
        """Batches of the events of some messages, and dead letters (`REJECTED`).

        Unless silent, it tells those who wait how many events were read, but counts none.
        """
        letters: dict[str, list[tuple[int | None, str, bytes]]] = {}
        name_of = cache(lambda index: sha256(messages[index]).hexdigest())

        def reject(
            index: int, place: int | None, detail: str, record: bytes, reason: str = UNPARSABLE
        ) -> None:
            if self._silent:
                return
            if place is not None:
                detail += f"; in the message with SHA-256 {name_of(index)}"
            letters.setdefault(reason, []).append((place, detail, record))

        read = 0

        def rejected() -> Iterator[Output]:
            nonlocal read
            for reason, records in letters.items():
                read += len(records)
                yield Output(rejected_batch(self._source, records, reason), REJECTED)
            letters.clear()

        for message in messages:
            if len(message) > MAX_MESSAGE_BYTES:
                detail = f"a message of {len(message)} bytes, more than {MAX_MESSAGE_BYTES}"
                reject(0, None, detail, message)
        messages = [message for message in messages if len(message) <= MAX_MESSAGE_BYTES]
        for parsed in self._read(messages, self._columns, reject):
            kept = self._within_limit(parsed, reject)
            yield from rejected()
            if len(kept.messages):
                read += len(kept.messages)
                yield Output(event_batch(self._source, self._columns, kept.arrays, kept.places))
        yield from rejected()
        if not self._silent:
            tell_read(read)

    def _within_limit(self, parsed: Parsed, reject: Callable[..., None]) -> Parsed:
        """The events without a field that is too long; the others go to `reject`."""
        long: dict[int, str] = {}
        for name, array in zip(self._columns, parsed.arrays, strict=True):
            lengths = pc.binary_length(array)
            if (pc.max(lengths).as_py() or 0) > self._limit:
                over = pc.fill_null(pc.greater(lengths, self._limit), False)
                for row in np.flatnonzero(over.to_numpy(zero_copy_only=False)).tolist():
                    long.setdefault(
                        row,
                        f"{name!r} has {lengths[row]} bytes, more than max_field_bytes "
                        f"({self._limit})",
                    )
        if not long:
            return parsed
        places = parsed.places
        for row, detail in sorted(long.items()):
            place = None if places is None else int(places[row])
            record = record_json(self._columns, parsed.arrays, row)
            reject(int(parsed.messages[row]), place, detail, record, FIELD_TOO_LONG)
        keep = np.ones(len(parsed.messages), bool)
        keep[list(long)] = False
        return Parsed(
            [array.filter(pa.array(keep)) for array in parsed.arrays],
            parsed.messages[keep],
            None if places is None else places[keep],
        )

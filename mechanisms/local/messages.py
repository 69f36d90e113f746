"""What server and client send to each other: Avro records, with a version.

A message is one version byte and the Avro record of that version. Files and brokers that carry
schemas of their own can hold the plain records instead (`ASSIGNMENT_SCHEMA`, `REPORT_SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.local.oracles import Reports
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0
from streamveil.mechanisms.local.tokens import TOKEN_BYTES

ASSIGNMENT_SCHEMA: state_codec.Schema = {
    "type": "record",
    "name": "Assignment",
    "namespace": "streamveil",
    "doc": "A server asks one device for a report.",
    "fields": [
        {"name": "stream", "type": "string", "doc": "What is reported about."},
        {"name": "slot", "type": "long"},
        {"name": "round", "type": "int", "doc": "1, or 2 for those asked later in the slot."},
        {"name": "token", "type": "bytes", "doc": "Secret of server and device: it names the ask."},
        {"name": "price", "type": "long", "doc": "Budget to spend, in units of 2**-40 epsilon."},
        {"name": "oracle", "type": "string", "doc": "grr, oue or oue0."},
        {"name": "symbols", "type": "int", "doc": "Number d of values to choose from."},
    ],
}
REPORT_SCHEMA: state_codec.Schema = {
    "type": "record",
    "name": "Report",
    "namespace": "streamveil",
    "doc": "A device answers an assignment.",
    "fields": [
        {"name": "token", "type": "bytes", "doc": "That of the assignment."},
        {"name": "slot", "type": "long"},
        {"name": "round", "type": "int"},
        {
            "name": "answer",
            "type": ["int", "bytes"],
            "doc": "By grr the symbol; else d bits, the first symbol's first, filled with zeros.",
        },
    ],
}

_ASSIGNMENTS = {1: ASSIGNMENT_SCHEMA}
_REPORTS = {1: REPORT_SCHEMA}


@dataclass(frozen=True)
class Assignment:
    """What a server asks of one device: the fields of `ASSIGNMENT_SCHEMA`."""

    stream: str
    slot: int
    round: int
    token: bytes
    price: int
    oracle: str
    symbols: int


@dataclass(frozen=True)
class Report:
    """What a device answers: the fields of `REPORT_SCHEMA`."""

    token: bytes
    slot: int
    round: int
    answer: int | bytes


def encode_assignment(assignment: Assignment) -> bytes:
    """Bytes of an assignment."""
    return state_codec.pack(_ASSIGNMENTS, asdict(assignment))


def decode_assignment(data: bytes) -> Assignment:
    """Assignment of bytes. Raises ValueError for bytes that are none."""
    return Assignment(**_read(_ASSIGNMENTS, data, "assignment"))


def encode_report(report: Report) -> bytes:
    """Bytes of a report."""
    return state_codec.pack(_REPORTS, asdict(report))


def decode_report(data: bytes) -> Report:
    """Report of bytes. Raises ValueError for bytes that are none."""
    return Report(**_read(_REPORTS, data, "report"))


def largest_report(symbols: int) -> int:
    """Bytes of the longest report that an honest device can make of so many symbols.

    Whatever is longer need not be read.
    """
    longest = Report(bytes(TOKEN_BYTES), -(1 << 63), (1 << 31) - 1, bytes(-(-symbols // 8)))
    return max(len(encode_report(longest)), len(encode_report(replace(longest, answer=symbols))))


def check_answer(symbols: int, answer: int | bytes) -> None:
    """Raise ValueError for an answer that no honest device gives, whatever its oracle."""
    read_answer(GRR if isinstance(answer, int) else OUE, symbols, answer)


def read_answer(kind: str, symbols: int, answer: int | bytes) -> Reports:
    """An answer as a chunk of one report, as `oracles.supports` counts it.

    Raises ValueError for an answer that no honest device gives.
    """
    if kind == GRR and isinstance(answer, int) and 0 <= answer < symbols:
        return np.array([answer], np.int64)
    if kind in (OUE, OUE0) and isinstance(answer, bytes):
        bits: npt.NDArray[np.uint8] = np.frombuffer(answer, np.uint8)
        padding = -symbols % 8
        if bits.size == -(-symbols // 8) and not bits[-1] & ((1 << padding) - 1):
            return bits[None]
    shown = f"{len(answer)} bytes" if isinstance(answer, bytes) else str(answer)
    raise ValueError(f"answer {shown} is not a report by {kind} of {symbols} symbols")


def _read(schemas: Mapping[int, state_codec.Schema], data: bytes, what: str) -> dict[str, Any]:
    try:
        version, record = state_codec.unpack(schemas, data)
        if version == max(schemas) and state_codec.pack(schemas, record) != data:
            raise ValueError("it continues after its end")
    except (ValueError, EOFError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"a message of {len(data)} bytes is not a {what} that this version of streamveil "
            f"reads: {error}"
        ) from error
    return record

"""What a public fact is, as bytes that are the same in every process and every later version.

Noise and saved states are bound to these bytes: were they to change, all states would be refused
and all noise be drawn anew. So they are written down field by field, never taken from a `repr`.

A type lists its fields in a :class:`Form`:

    @dataclass(frozen=True)
    class Columns(Identified):
        IDENTITY = Form("columns", ("user", "time"), later={"zone": None})

To add a field later, name it under `later`, with the value that means "as it was before the field
existed". Where a value has it, the field is left out, so that what is on record keeps its identity.
That value stays what it is, even if the default of the field changes one day. Never rename a field
or a tag of a form, and never move a field out of `later`. A field that changes nothing that is
released is named under `apart`. `tests/mechanisms/core/test_identity.py` holds the bytes of every
form, and fails for a field that is nowhere.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

_LENGTH = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")


@dataclass(frozen=True)
class Form:
    """How the identity of a type is written."""

    tag: str
    """Of the type, different for all types."""
    fields: tuple[str, ...]
    """Names of the attributes that it always has."""
    later: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that were added since, and the value of each at which it is left out."""
    apart: tuple[str, ...] = ()
    """Attributes that are no part of it."""


class Identified:
    """A public fact with an identity: see the module."""

    IDENTITY: ClassVar[Form]

    def identity(self) -> bytes:
        """Bytes that equal values share, and no two others."""
        form = self.IDENTITY
        named = {name: encoded(getattr(self, name)) for name in (*form.fields, *form.later)}
        for name, as_before in form.later.items():
            if named[name] == encoded(as_before):
                del named[name]
        return encoded(form.tag) + encoded(named)


def encoded(value: Any) -> bytes:
    """Bytes of a value: equal ones have the same, and no two others.

    Numbers are equal by value, 1 and 1.0 are; mappings whatever their order; tuples and lists by
    their items; arrays by their kind, shape and elements. A function without an `identity` of its
    own counts by its module and name, and by its fields if it is a dataclass: to keep them is up to
    its author.

    Raises TypeError for a type without an identity.
    """
    if hasattr(value, "identity"):
        return _framed(b"o", value.identity())
    if value is None:
        return _framed(b"n", b"")
    if isinstance(value, bytes):
        return _framed(b"y", value)
    if isinstance(value, str):
        return _framed(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bool, np.bool_)):
        return _framed(b"b", bytes([bool(value)]))
    if isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer()):
        whole = int(value)  # type: ignore[call-overload]
        return _framed(b"i", whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, Real):
        return _framed(b"f", _DOUBLE.pack(value))
    if isinstance(value, np.ndarray):
        kind = value.dtype.newbyteorder(">")
        data = np.ascontiguousarray(value, kind).tobytes()
        return _framed(b"a", encoded((kind.str, value.shape, data)))
    if isinstance(value, Mapping):
        items = ((encoded(key), encoded(item)) for key, item in value.items())
        return _framed(b"m", b"".join(key + item for key, item in sorted(items)))
    if isinstance(value, Sequence):
        return _framed(b"l", b"".join(map(encoded, value)))
    if callable(value):
        return _framed(b"c", _of_function(value))
    raise TypeError(f"{type(value).__qualname__} {value!r} has no identity: give it one")


def of_mechanism(text: str) -> bytes:
    """Identity of NAME:OPTION=VALUE:OPTION=VALUE, whatever the order of the options."""
    name, *options = text.split(":")
    return encoded((name, sorted(options)))


def name_of(function: Callable[..., Any]) -> str:
    """Module and name of a function: unlike its repr, no address."""
    inner = inspect.unwrap(function)
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_function(function: Callable[..., Any]) -> bytes:
    if not is_dataclass(function):
        return encoded(name_of(function))
    values = {one.name: getattr(function, one.name) for one in fields(function)}
    return encoded((name_of(function), values))


def _framed(kind: bytes, data: bytes) -> bytes:
    return kind + _LENGTH.pack(len(data)) + data

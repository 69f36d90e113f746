"""Messages of Protobuf as columns, by schemas that are known only when a message comes."""

from __future__ import annotations

import base64
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from streamveil.io.schema_registry import Stored
from streamveil.mechanisms.core.records import MachineFault

MAX_MESSAGE_BYTES = 1 << 20
"""A message in memory may be a hundred times as large as its bytes are."""
MAX_DEPTH = 32
"""Types inside each other."""

_MAIN = "streamveil_main.proto"
_COMPILE_SECONDS = 120
# Files that come with the runtime, and are no references of a schema.
_BUILT_IN = re.compile(r"(google/(?:protobuf|type)|confluent)/[a-z0-9_/]+\.proto")
_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', re.MULTILINE)
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_INT32: pa.int64(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
}


class _Column(NamedTuple):
    """How the values of a field are read."""

    kind: pa.DataType
    value_of: Callable[[Any], Any]
    """The value in a message, None for one that is not there."""


class ProtobufReader(NamedTuple):
    """How messages of one type are read."""

    message: Any
    """Its class."""
    columns: tuple[_Column | None, ...]
    """Of each column wanted; None where there is no such field."""

    @property
    def kinds(self) -> list[pa.DataType]:
        """Types of the columns."""
        return [pa.string() if each is None else each.kind for each in self.columns]

    def row(self, body: bytes) -> list[Any]:
        """The values of a message. Raises whatever its bytes make Protobuf raise."""
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"it has {len(body)} bytes, more than {MAX_MESSAGE_BYTES}")
        message = self.message.FromString(body)
        return [None if each is None else each.value_of(message) for each in self.columns]


def split_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a message's type in its file, which stands before it, and the message.

    Raises ValueError for what is none.
    """
    number, at = _varint(body, 0)
    if number == 0:
        return (0,), body[at:]
    if not 0 < number <= MAX_DEPTH:
        raise ValueError(f"its type is said to be {number} types deep")
    path = []
    for _ in range(number):
        index, at = _varint(body, at)
        path.append(index)
    return tuple(path), body[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as Protobuf's sint64, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it does not say which type it is")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


@lru_cache(maxsize=1024)  # of types in use, also of those that cannot be used
def protobuf_reader(
    schema: Stored, path: tuple[int, ...], columns: tuple[str, ...], by: Stored | None = None
) -> ProtobufReader | Exception:
    """How messages of a type are read, by their own schema or by another one.

    An error for a schema that cannot be used, that has no such type, or whose fields of these names
    hold something else than text, numbers, booleans or times. Raises MachineFault.
    """
    try:
        return _reader(schema, path, columns, by)
    except MachineFault:
        raise
    except Exception as error:  # whatever a schema holds, it stops nothing
        return error


def _reader(
    schema: Stored, path: tuple[int, ...], columns: tuple[str, ...], by: Stored | None
) -> ProtobufReader:
    types: Any = _usable_file(schema).message_types_by_name.values()
    kind: Any = None
    for index in path:
        if not 0 <= index < len(types):
            raise ValueError(f"its schema has no type {'.'.join(map(str, path))}")
        kind = list(types)[index]
        types = kind.nested_types
    if by is not None:
        name = kind.full_name
        try:
            kind = _usable_file(by).pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(f"the reader's schema has no type {name}") from None
    fields = kind.fields_by_name
    return ProtobufReader(
        GetMessageClass(kind),
        tuple(_column(fields[name]) if name in fields else None for name in columns),
    )


def _column(field: Any) -> _Column:
    name, inner = field.name, field.message_type
    if _is_repeated(field):
        what = "a map" if inner is not None and inner.GetOptions().map_entry else "a list"
    elif inner is not None and inner.full_name == _TIMESTAMP:
        return _Column(pa.string(), _present(field, lambda time: time.ToJsonString()))
    elif inner is not None and inner.full_name in _WRAPPERS:
        value = _column(inner.fields_by_name["value"])
        return _Column(value.kind, _present(field, value.value_of))
    elif inner is not None:
        what = f"a message {inner.full_name}"
    elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        symbols = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _Column(pa.string(), _present(field, lambda n: symbols.get(n, str(n))))
    elif field.cpp_type in _KINDS:
        return _Column(_KINDS[field.cpp_type], _present(field, lambda value: value))
    elif field.type == FieldDescriptor.TYPE_STRING:
        return _Column(pa.string(), _present(field, lambda value: value))
    else:
        what = "bytes"
    raise ValueError(f"its column {name!r} holds {what}: send text, numbers, booleans or times")


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # versions of Protobuf before 6 have the label
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated)


def _present(field: Any, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Read a field of a message; None if it is not there, and no value is declared for that."""
    name = field.name
    if not field.has_presence or field.has_default_value:
        return lambda message: read(getattr(message, name))
    return lambda message: read(getattr(message, name)) if message.HasField(name) else None


def _usable_file(schema: Stored) -> Any:
    """The file of a schema, in a pool of its own. Raises what keeps it from being used."""
    found = _file(schema)
    if isinstance(found, Exception):
        raise found
    return found


@lru_cache(maxsize=1024)
def _file(schema: Stored) -> Any:
    try:
        return _new_file(schema)
    except MachineFault:
        raise
    except Exception as error:  # a message may name any type of a schema that cannot be compiled
        return error


def _new_file(schema: Stored) -> Any:
    files = {name: _serialized(name, text) or text for name, text in schema.references}
    files[_MAIN] = _serialized(_MAIN, schema.text) or schema.text
    pool = DescriptorPool()
    try:
        for each in _in_order(files):
            pool.AddSerializedFile(each.SerializeToString())
        return pool.FindFileByName(_MAIN)
    except (TypeError, KeyError) as error:  # what the pool does not take
        raise ValueError(f"its schema cannot be used: {' '.join(str(error).split())}") from error


def _serialized(name: str, text: str) -> Any:
    """A schema as its descriptor, if it is one; None for source text."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except Exception:  # whatever text is no descriptor
        return None
    found.name = name
    return found


def _in_order(files: dict[str, Any]) -> Iterator[Any]:
    """Descriptors of all files and of what they import, those first that others import."""
    imported = {
        name
        for each in files.values()
        for name in (_IMPORT.findall(each) if isinstance(each, str) else each.dependency)
    }
    known: dict[str, Any] = {}
    for name in sorted(imported - files.keys()):
        if not _BUILT_IN.fullmatch(name):
            raise ValueError(f"its schema imports {name}, which the registry does not give with it")
        _add_built_in(_built_in(name), known)
    ready = [*known.values(), *(each for each in files.values() if not isinstance(each, str))]
    sources = {name: each for name, each in files.items() if isinstance(each, str)}
    return iter(_compiled(sources, ready) if sources else ready)


def _built_in(name: str) -> Any:
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith("confluent/"):
        module = f"confluent_kafka.schema_registry.{module}"
    try:
        return importlib.import_module(module).DESCRIPTOR
    except ImportError:
        raise ValueError(f"its schema imports {name}, which is not known here") from None


def _add_built_in(file: Any, known: dict[str, Any]) -> None:
    for each in file.dependencies:
        _add_built_in(each, known)
    if file.name not in known:
        known[file.name] = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(known[file.name])


def _compiled(sources: dict[str, str], ready: Sequence[Any]) -> Sequence[Any]:
    """Descriptors of the main file and of all that it needs, by the compiler of Protobuf."""
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        place = Path(folder, "sources")
        for name, text in sources.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name:
                raise ValueError(f"its schema needs {name!r}, which is not a name of a file")
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        given, found = Path(folder, "given"), Path(folder, "found")
        given.write_bytes(descriptor_pb2.FileDescriptorSet(file=ready).SerializeToString())
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{place}", "--include_imports"]
        command += [f"--descriptor_set_in={given}", f"--descriptor_set_out={found}", _MAIN]
        place.mkdir(exist_ok=True)
        try:
            done = subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineFault(f"a schema of Protobuf could not be compiled: {error}") from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()
            said = (line for line in lines if ".proto:" in line)  # beside the log of the compiler
            why = next(said, f"exit code {done.returncode}")
            why = why.replace(f"{place}/", "").replace(_MAIN, "it")
            raise ValueError(f"its schema cannot be compiled: {why}")
        return descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes()).file

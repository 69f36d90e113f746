"""Schemas and messages in Confluent's wire format, made by hand."""

import base64
import io
import json
import struct

import fastavro
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

from streamveil.io.schema_registry import Stored

FIELD = descriptor_pb2.FieldDescriptorProto


class Registry:
    """Knows the schemas that it is given, by their ids."""

    def __init__(self, schemas, by=None):
        self.schemas, self.by = schemas, by

    def of(self, ids):
        return {each: self.schemas.get(each, f"the registry has no schema {each}") for each in ids}

    def reader(self):
        return None if self.by is None else self.schemas[self.by]


def avro(fields, references=(), **more):
    text = json.dumps({"type": "record", "name": "Event", "fields": fields, **more})
    return Stored("AVRO", text, tuple((name, json.dumps(each)) for name, each in references))


def frame(schema_id, body):
    return struct.pack(">bI", 0, schema_id) + body


def avro_body(schema, record):
    named = {}
    for _, text in schema.references:
        fastavro.parse_schema(json.loads(text), named)
    written = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(schema.text), named)
    fastavro.schemaless_writer(written, parsed, record)
    return written.getvalue()


def file_of(name="events.proto", **given):
    return descriptor_pb2.FileDescriptorProto(name=name, package="demo", syntax="proto3", **given)


def add(message, name, number, kind, **given):
    given = {"label": FIELD.LABEL_OPTIONAL, **given}
    return message.field.add(name=name, number=number, type=kind, **given)


def protobuf(file, references=()):
    return Stored(
        "PROTOBUF", encoded(file), tuple((each.name, encoded(each)) for each in references)
    )


def encoded(file):
    return base64.b64encode(file.SerializeToString()).decode()


def message_class(name, *files):
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    for each in files:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

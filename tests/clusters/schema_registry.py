"""A registry of schemas for tests, and producers that write by Confluent's own serialisers."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from tests.clusters.fault_proxy import FaultProxy
from tests.clusters.free_ports import free_ports

HERE = Path(__file__).parent
PATIENCE = 120.0
API = "/apis/ccompat/v7"


class SchemaRegistryServer:
    """Apicurio: producers talk to it, and what is tested through a proxy."""

    def __init__(self, home, work):
        self.home, self.work = home, work
        port, self.port = free_ports(2)
        self.upstream = f"http://127.0.0.1:{self.port}{API}"
        self.proxy = FaultProxy(f"127.0.0.1:{self.port}", port)
        self.url = f"{self.proxy.url}{API}"
        self.process = None

    def start(self):
        log = (self.work / "registry.log").open("w")
        command = [HERE / "registry.sh", "start", self.home, str(self.port)]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"{self.upstream}/subjects", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < end, (self.work / "registry.log").read_text()
                time.sleep(0.2)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def close(self):
        self.proxy.stop()
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def register(self, subject, text, kind="AVRO", references=()):
        """Register a schema as other clients do, in its own words; gives its id."""
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        request = urllib.request.Request(
            f"{self.upstream}/subjects/{quote(subject, safe='')}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["id"]

    @property
    def client(self):
        from confluent_kafka.schema_registry import SchemaRegistryClient

        return SchemaRegistryClient({"url": self.upstream})

    def writer(self, subject, kind, schema):
        """Makes messages of values: `schema` is text, or a class of Protobuf."""
        from confluent_kafka.serialization import MessageField, SerializationContext

        context = SerializationContext(subject, MessageField.VALUE)
        if kind == "avro":
            from confluent_kafka.schema_registry.avro import AvroSerializer

            serializer = AvroSerializer(self.client, schema)
        elif kind == "json":
            from confluent_kafka.schema_registry.json_schema import JSONSerializer

            serializer = JSONSerializer(schema, self.client)
        else:
            from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

            settings = {"use.deprecated.format": False}
            serializer = ProtobufSerializer(schema, self.client, settings)
        return lambda value: serializer(value, context)

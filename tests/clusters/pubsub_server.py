"""A Pub/Sub server of its own for a test, its clients, and a proxy that breaks connections."""

import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress

from tests.clusters.free_ports import free_ports

PROJECT = "projects/a-project"
HOST = "PUBSUB_EMULATOR_HOST"
DEADLINE = 10  # seconds to acknowledge, the least that Pub/Sub allows


class Server:
    """What `tests/clusters/pubsub.sh install` built, with topics of events and of results."""

    def __init__(self, binary):
        self.binary = binary
        self.port, self.control = free_ports(2)
        self.address = f"localhost:{self.port}"
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, str(self.port), str(self.control)], stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline()
        self.connect()
        for name in ("events", "releases"):
            self.publisher.create_topic(name=f"{PROJECT}/topics/{name}")
        self.subscribe("events")
        self.subscribe("results", "releases")

    def connect(self):
        from google.cloud import pubsub

        before, os.environ[HOST] = os.environ.get(HOST), self.address
        self.publisher, self.subscriber = pubsub.PublisherClient(), pubsub.SubscriberClient()
        os.environ.pop(HOST) if before is None else os.environ.update({HOST: before})

    def subscribe(self, name, topic=None):
        self.subscriber.create_subscription(
            name=f"{PROJECT}/subscriptions/{name}",
            topic=f"{PROJECT}/topics/{topic or name}",
            ack_deadline_seconds=DEADLINE,
        )

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def send(self, *messages, **attributes):
        """Publish events, or bytes as they are; wait until the server has them."""
        sent = [
            self.publisher.publish(
                f"{PROJECT}/topics/events",
                each if isinstance(each, bytes) else json.dumps(each).encode(),
                **attributes,
            )
            for each in messages
        ]
        return [each.result(60) for each in sent]

    def results(self, seconds=2.0, enough=None):
        """Messages of the topic of releases, as objects, until none came for so long."""
        found, place = [], f"{PROJECT}/subscriptions/results"
        end = time.monotonic() + seconds
        while time.monotonic() < end and (enough is None or len(found) < enough):
            got = self.subscriber.pull(
                request={"subscription": place, "max_messages": 1000}, timeout=60
            ).received_messages
            if got:
                ids = [one.ack_id for one in got]
                self.subscriber.acknowledge(request={"subscription": place, "ack_ids": ids})
                found += [json.loads(one.message.data) for one in got]
                end = time.monotonic() + seconds
        return found

    def fail(self, call, code=0, times=-1, seconds=0.0):
        """Let the next calls wait, and fail with a code of gRPC."""
        query = f"call={call}&code={code}&times={times}&seconds={seconds}"
        urllib.request.urlopen(f"http://localhost:{self.control}/?{query}").close()

    def mend(self):
        for call in ("Pull", "Acknowledge", "Publish"):
            self.fail(call, times=0)


class Proxy:
    """Hands on what goes to a server, until it resets a connection after so many bytes."""

    def __init__(self, port):
        self.server = port
        self.left = None
        self.resets = 0
        self.listening = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                server = socket.create_connection(("localhost", self.server))
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._hand_on, args=pair, daemon=True).start()

    def _hand_on(self, source, target, answers):
        with suppress(OSError):
            while data := source.recv(1 << 12):
                if answers and self.left is not None:
                    self.left -= len(data)
                    if self.left < 0:
                        self.left, self.resets = None, self.resets + 1
                        break
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                one.close()

    def close(self):
        self.listening.close()

"""Results of committed passes that a Pub/Sub topic has not got yet, as files of a state folder.

    outbox/releases-00000012.jsonl

A pass moves its results here as it moves them to any other place. Each line is published as one
message, in the order of the passes, and a file is removed when the topic has all of it. A process
that dies in between publishes the file again, so a topic may hold a release twice, both alike, with
the same `slot`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamveil.io.pubsub_faults import reaching
from streamveil.io.sealed import sync
from streamveil.io.snapshot import OUTBOX
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

_NAME = re.compile(r"(.+)-(\d{8,})[.]jsonl")
# Seconds for the answer to one request.
_PATIENCE = 30.0


@dataclass(eq=False)
class Outbox:
    """Local files that store results until the results are published to Pub/Sub topics."""

    topics: Mapping[str, str]
    """`projects/PROJECT/topics/NAME` for each kind of result, such as `releases`."""
    folder: Path
    _client: Any = None

    @classmethod
    def opened(cls, topics: Mapping[str, str], state: Path) -> Outbox:
        """Open the outbox in a state folder, or create it if it does not exist.

        Raises:
            ConfigurationError: if an earlier run left a kind of result, such as revisions, in the
                outbox, and this run has no topic for results of this kind.
        """
        outbox = cls(topics, state / OUTBOX)
        if topics:
            outbox.folder.mkdir(mode=0o700, exist_ok=True)
            sync(state)
        for path, kind in outbox._waiting().items():
            if kind not in topics:
                raise ConfigurationError(
                    f"{path} is not published yet, and no topic is given for {kind}: give the one "
                    "of the run before until it has all of them"
                )
        return outbox

    def place(self, kind: str) -> str:
        """The path in the outbox for one kind of result, such as `releases`.

        Each pass (a commit of closed slots) has a file of its own, with the number of the pass in
        the file name.
        """
        return str(self.folder / f"{kind}.jsonl")

    def publish(self) -> None:
        """Publish all results in the outbox, and remove each file when its results are published.

        Raises:
            ConfigurationError: if a topic cannot be used, or a result is too large for a message.
            MachineFault: if the service cannot be reached.
        """
        for path, kind in self._waiting().items():
            topic = self.topics[kind]
            lines = [line for line in path.read_bytes().split(b"\n") if line]
            try:
                with reaching(topic):
                    self._send(topic, lines)
            except BaseException as error:
                self._close()  # a new client begins without the delays of one that failed
                if isinstance(error, ConfigurationError):
                    raise ConfigurationError(
                        f"{error}; the results are committed, wait in {self.folder}, and are "
                        f"published when the run resumes with {opt.resume}"
                    ) from error
                raise
            path.unlink()
            sync(self.folder)

    def _close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.transport.close()
            self._client = None

    def _send(self, topic: str, lines: list[bytes]) -> None:
        if self._client is None:
            from google.cloud import pubsub

            self._client = pubsub.PublisherClient()
        try:
            sent = [
                self._client.publish(topic, line, retry=None, timeout=_PATIENCE) for line in lines
            ]
        except ValueError as error:  # of the library, of a message that is too large
            raise ConfigurationError(
                f"pubsub:{topic} does not take a result: {error}: publish it in another way, "
                "move its file away, and write the next results to a file"
            ) from error
        for one in sent:
            one.result(2 * _PATIENCE)

    def _waiting(self) -> dict[Path, str]:
        """The files that are there, and their kinds, in the order of the passes."""
        there = self.folder.glob("*.jsonl") if self.folder.exists() else ()
        found = {path: _NAME.fullmatch(path.name) for path in there}
        ours = {path: match for path, match in found.items() if match}
        return {
            path: ours[path][1] for path in sorted(ours, key=lambda p: (int(ours[p][2]), p.name))
        }

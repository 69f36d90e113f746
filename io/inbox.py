"""Messages of a Pub/Sub subscription, kept as files for runs whose runner keeps no checkpoints.

    inbox/000000000012.parquet        messages as they came, and by what each is recognised
    inbox/000000000012.acknowledged   when Pub/Sub had heard that they are kept
    inbox/unsettled                   when a process last asked that has not kept all it was given

Messages are acknowledged when their file is on the disk under its name, and never before, so a
process that dies loses none. Those that it had not acknowledged come again when their time to be
acknowledged is over, which the next look waits for, and others as Pub/Sub sees fit. They are
recognised by their id and the time of publishing, which Google sets both: a
file is removed when its events are released and none of its messages can come again.
"""

from __future__ import annotations

import glob
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.engine.messages import Output
from streamveil.io.files import reading
from streamveil.io.message_batches import BATCH_BYTES, BATCH_MESSAGES, MessageParser
from streamveil.io.pubsub_faults import reaching
from streamveil.io.sealed import PART, naming, sync
from streamveil.io.snapshot import INBOX
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

if TYPE_CHECKING:
    from streamveil.io.pubsub import ReadPubSubEvents

_SCHEMA = pa.schema([("key", pa.string()), ("data", pa.binary())])
_ENDING, _ACKNOWLEDGED = ".parquet", ".acknowledged"

_UNSETTLED = "unsettled"
# Messages in one answer, and seconds for it.
_ONE_PULL, _PATIENCE = 1000, 15.0
# The service may have none at hand though there are some: so often it must say so, and seconds
# between. A query that it answers when there is one cannot be ended without a message getting
# lost for as long as its acknowledgement is waited for.
_TIMES_EMPTY, _PAUSE = 3, 0.25
# Seconds after which a message comes again that was given to a process which is gone: the usual
# time to acknowledge, and a little.
_COMES_AGAIN = 11.0
# Seconds that messages may wait to be written: less than the shortest time to acknowledge, of 10.
_GATHERING = 2.0
# Seconds after which Pub/Sub does not deliver an acknowledged message again; it may wait 600 for an
# acknowledgement that it has not heard, and keeps a message for 31 days at most.
_MAY_RETURN = 900.0
_KEPT_AT_MOST = 32 * 86400.0


@dataclass(eq=False)
class Inbox:
    """Local files that store Pub/Sub messages until results that use the messages are published."""

    source: ReadPubSubEvents
    """The subscription, and how its messages are read."""
    folder: Path
    _files: dict[int, Path] = field(default_factory=dict)
    """The files by number, in the order of the numbers."""
    _keys: dict[str, int] = field(default_factory=dict)
    """For each message that may be delivered again, the number of the file that has it."""
    _unheard: dict[int, set[str]] = field(default_factory=dict)
    """Messages of each file of which Pub/Sub has not heard that they are kept."""
    _client: Any = None
    _complete: float = 0.0
    """When the last look began that has found all there was, in seconds since the epoch."""

    @classmethod
    def opened(cls, source: ReadPubSubEvents, state: Path) -> Inbox:
        """Open the inbox in a state folder.

        If the inbox does not exist, it is created. Incomplete files in the inbox are removed.

        Raises:
            ConfigurationError: if the Pub/Sub source is a topic instead of a subscription, or if
                the source has settings that runs with a saved state do not support, such as
                `id_label`.
        """
        if source.subscription is None:
            raise ConfigurationError(
                f"a run with {opt.state} reads a subscription, which keeps messages between its "
                f"runs, and pubsub:{source.topic} is a topic: create a subscription of it, and "
                f"name that"
            )
        for name in ("timestamp_attribute", "id_label"):
            if getattr(source, name) is not None:
                raise ConfigurationError(
                    f"{name}={getattr(source, name)} has no effect with {opt.state}, which closes "
                    "slots by the clock and recognises messages by the id that Google gives them: "
                    "leave it out"
                )
        folder = state / INBOX
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(state)
        for path in folder.glob(f"*{PART}"):
            path.unlink()
        for path in folder.glob(f"*{_ACKNOWLEDGED}"):
            if not path.with_suffix(_ENDING).exists():
                path.unlink()
        inbox = cls(source, folder)
        for path in sorted(folder.glob(f"*{_ENDING}")):
            inbox._take_up(path)
        return inbox

    @property
    def place(self) -> str:
        """The name of the subscription."""
        assert self.source.subscription is not None
        return self.source.subscription

    @property
    def pattern(self) -> str:
        """A glob that matches the files of the inbox."""
        return os.path.join(glob.escape(str(self.folder)), f"*{_ENDING}")

    def receive(self, stopped: Callable[[], bool]) -> bool:
        """Store in the inbox all messages that were published before this call.

        Args:
            stopped: function that returns whether to stop early.

        Returns:
            Whether all messages were stored.

        Raises:
            ConfigurationError: if the subscription cannot be used.
            MachineFault: if the service cannot be reached.
            OSError: if a file cannot be written.
        """
        begun, empty = time.time(), 0
        mark = self.folder / _UNSETTLED
        settled = min(os.path.getmtime(mark), begun) + _COMES_AGAIN if mark.exists() else 0.0
        try:
            while empty < _TIMES_EMPTY or time.time() < settled:
                if stopped():
                    return False
                mark.touch(0o600)
                messages = self._gather()
                self._keep(messages)
                if any(_published(one) <= begun * 1e9 for one in messages):
                    empty = 0
                elif messages and time.time() >= settled:
                    empty = _TIMES_EMPTY  # all that came before is here
                else:
                    empty += 1
                    time.sleep(_PAUSE)
        except BaseException:
            self._close()  # a new client begins without the delays of one that failed
            with suppress(OSError):
                mark.touch(0o600)
            raise
        mark.unlink(missing_ok=True)
        self._complete = begun
        return True

    def _gather(self) -> list[Any]:
        """Some messages: as many as come in a moment, within bounds."""
        messages: list[Any] = []
        size, until = 0, time.monotonic() + _GATHERING
        while len(messages) < BATCH_MESSAGES and size < BATCH_BYTES and time.monotonic() < until:
            with reaching(self.place):
                # Google advises against this way to ask: see _TIMES_EMPTY.
                answer = self._call("pull", max_messages=_ONE_PULL, return_immediately=True)
            received = type(answer).pb(answer).received_messages  # the wrappers take their time
            if not received:
                break
            messages += received
            size += sum(len(one.message.data) for one in received)
        return messages

    def forget(self, released: Collection[str]) -> None:
        """Remove each file whose messages were used in published results and cannot arrive again.

        The newest file is never removed. Later files get higher numbers than the newest file, so no
        number is used twice.
        """
        now, gone = time.time(), set()
        for number, path in list(self._files.items())[:-1]:
            if str(path) not in released:
                continue
            mark = path.with_suffix(_ACKNOWLEDGED)
            heard = os.path.getmtime(mark) if mark.exists() else None
            may_return = heard is None or heard > self._complete - _MAY_RETURN
            if may_return and os.path.getmtime(path) > now - _KEPT_AT_MOST:
                continue
            path.unlink()
            mark.unlink(missing_ok=True)
            del self._files[number]
            self._unheard.pop(number, None)
            gone.add(number)
        if gone:
            self._keys = {key: of for key, of in self._keys.items() if of not in gone}

    def _take_up(self, path: Path) -> None:
        """Know the messages of a file that is there."""
        number = int(path.stem)
        with reading(str(path)):
            keys = pq.read_table(path, columns=["key"]).column("key").to_pylist()
        self._files[number] = path
        self._keys.update(dict.fromkeys(keys, number))
        if not path.with_suffix(_ACKNOWLEDGED).exists():
            self._unheard[number] = set(keys)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, name: str, **request: Any) -> Any:
        if self._client is None:
            from google.cloud import pubsub

            self._client = pubsub.SubscriberClient()
        call = getattr(self._client, name)
        return call(request={"subscription": self.place, **request}, retry=None, timeout=_PATIENCE)

    def _keep(self, received: Sequence[Any]) -> None:
        """Write what is new to a file, then acknowledge all."""
        fresh = {key: one.message.data for one in received if (key := _key(one)) not in self._keys}
        if fresh:
            number = max(self._files, default=0) + 1
            path = self.folder / f"{number:012d}{_ENDING}"
            self._write(path, fresh)
            self._files[number] = path
            self._keys.update(dict.fromkeys(fresh, number))
            self._unheard[number] = set(fresh)
        rest = iter(received)
        while some := list(itertools.islice(rest, _ONE_PULL)):
            with reaching(self.place):
                self._call("acknowledge", ack_ids=[one.ack_id for one in some])
            for one in some:
                self._heard(_key(one))

    def _write(self, path: Path, fresh: dict[str, bytes]) -> None:
        part = path.with_name(path.name + PART)
        table = pa.table([list(fresh), list(fresh.values())], schema=_SCHEMA)
        with naming(path):
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "wb") as file:
                pq.write_table(table, file)
                file.flush()
                os.fsync(handle)
            os.rename(part, path)
            sync(self.folder)

    def _heard(self, key: str) -> None:
        """Note that Pub/Sub has taken the acknowledgement of a message."""
        number = self._keys[key]
        unheard = self._unheard.get(number)
        if unheard is None:
            return
        unheard.discard(key)
        if not unheard:
            del self._unheard[number]
            self._files[number].with_suffix(_ACKNOWLEDGED).touch(0o600)


def inbox_outputs(
    files: Iterable[str], source: ReadPubSubEvents, again: bool = False
) -> Iterator[Output]:
    """Read events from the files of an inbox, in the order of the files.

    Args:
        files: paths of the files.
        source: the Pub/Sub source, whose settings determine how messages are parsed.
        again: whether an earlier run has already read these files. If true, messages that cannot be
            parsed are skipped without dead letters, because the earlier run has reported these
            messages.

    Yields:
        Batches of events, and dead letters (rejected messages) with the tag `REJECTED`. A dead
            letter names the file of the inbox as its source.

    Raises:
        ConfigurationError: if a file cannot be read.
        MachineFault: if a file of the inbox cannot be read, or if the schema registry cannot be
            reached.
    """
    for path in files:
        parser = MessageParser(
            path,
            source.columns,
            again,
            source.message_format,
            source.max_field_bytes,
            source.registry,
        )
        with reading(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_MESSAGES, columns=["data"]):
                yield from parser.parse(batch.column(0).to_pylist())


def _published(received: Any) -> int:
    """When it was published, in nanoseconds since the epoch."""
    nanoseconds: int = received.message.publish_time.ToNanoseconds()
    return nanoseconds


def _key(received: Any) -> str:
    """By what a message is recognised: a service that forgot all gives ids once more."""
    return f"{received.message.message_id}@{_published(received)}"

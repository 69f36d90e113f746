"""Schemas of messages from a registry that speaks the API of Confluent's Schema Registry.

A registry that is away, or refuses, stops the reading: nothing is known then of the messages. A
schema that it does not know is a fault of the message alone.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

from streamveil.io.filesystems import open_to_read, require_filesystem
from streamveil.io.optional import require_registry_client
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault

MAX_ID = (1 << 31) - 1
MAX_SCHEMA_BYTES = 1 << 18
MAX_REFERENCES = 256
RETRIES = {"timeout": 10, "max.retries": 10, "retries.wait.ms": 1000, "retries.max.wait.ms": 20_000}
"""About a minute of trying again, with growing pauses."""
AGAIN_AFTER = 1.0
"""Seconds until an unknown schema is requested once more: a registry of several nodes may lag."""
UNKNOWN_FOR = 60.0
"""Seconds for which an unknown schema is not requested again."""

# Codes of errors of the API: of no subject, version or schema; each comes with status 404.
_NOT_KNOWN = frozenset({40401, 40402, 40403})
_NOT_FOUND = 404
_NOT_ALLOWED = frozenset({401, 403})
_MOST_UNKNOWN = 1 << 16
_MOST_NESTED = 32
_LONGEST = 300


@dataclass(frozen=True)
class SchemaRegistry:
    """The address of a schema registry, which is needed to decode Confluent's wire format.

    Raises:
        ConfigurationError: if the address of the registry is not an HTTP URL or contains a
            password, or if `credentials` or the id of the schema is not valid.
    """

    url: str
    """`http://HOST:PORT` or `https://HOST:PORT`, with an optional path. Several addresses,
    separated by commas, are tried in order."""
    credentials: str | None = None
    """Place where workers find USER:PASSWORD, such as `file:PATH` or `env:NAME`."""
    reader_schema: int | None = None
    """Id of the schema that defines the names and the defaults of fields. By default, each message
    is read with the schema that it names."""

    def __post_init__(self) -> None:
        """Check all of it."""
        if "@" in self.url:
            raise ConfigurationError(
                "schema_registry holds credentials, which would be logged: leave them out, and "
                "name the place that has them (schema_registry_credentials=file:PATH or env:NAME)"
            )
        for url in self.url.split(","):
            if not re.fullmatch(r"https?://[^\s/?#,]+(/[^\s?#,]*)?", url):
                raise ConfigurationError(
                    f"schema_registry {url!r} is not an address: write http://HOST:PORT or "
                    "https://HOST:PORT"
                )
        if self.credentials is not None and not re.fullmatch(r"(file|env):.+", self.credentials):
            raise ConfigurationError(
                "schema_registry_credentials does not name a place: write file:PATH or env:NAME, "
                "where the workers find USER:PASSWORD"
            )
        if self.reader_schema is not None and not 0 <= self.reader_schema <= MAX_ID:
            raise ConfigurationError(
                f"reader_schema {self.reader_schema} is not the id of a schema: name a number "
                f"from 0 to {MAX_ID}"
            )


class Stored(NamedTuple):
    """A schema as a registry keeps it."""

    kind: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    text: str
    references: tuple[tuple[str, str], ...]
    """Name and text of each schema that it needs, those first that others need."""


class _Unusable(ValueError):  # noqa: N818
    """A schema that the registry knows cannot be used."""


@lru_cache(maxsize=16)
def schemas_of(registry: SchemaRegistry) -> Schemas:
    """The schemas of a registry, which all threads of a process share."""
    return Schemas(registry)


class Schemas:
    """Schemas by their ids; each is requested once, as none ever changes."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._found: dict[int, Stored | str] = {}
        self._unknown: dict[int, float] = {}
        self._lock = threading.Lock()

    def of(self, ids: Iterable[int]) -> Mapping[int, Stored | str]:
        """The schema of each id, or what is wrong with it.

        Raises MachineFault for a registry that does not answer as it should.
        """
        wanted = set(ids)
        with self._lock:
            if missing := self._ask(wanted):
                time.sleep(AGAIN_AFTER)
                for schema_id in self._ask(missing):
                    self._unknown[schema_id] = time.monotonic()
            return {
                schema_id: self._found.get(schema_id, f"the registry has no schema {schema_id}")
                for schema_id in wanted
            }

    def reader(self) -> Stored | None:
        """The schema by which all messages are read, if there is one.

        Raises MachineFault as :meth:`of` does, and ConfigurationError if the registry has none.
        """
        wanted = self._registry.reader_schema
        if wanted is None:
            return None
        found = self.of((wanted,))[wanted]
        if isinstance(found, str):
            raise ConfigurationError(
                f"reader_schema={wanted} cannot be read from {self._registry.url}: {found}: name "
                "the id of one that it has"
            )
        return found

    def _ask(self, wanted: set[int]) -> set[int]:
        """Ask for those that are not known yet; gives those that the registry does not know."""
        now, missing = time.monotonic(), set()
        if len(self._unknown) > _MOST_UNKNOWN:
            self._unknown.clear()
        for schema_id in wanted - self._found.keys():
            since = self._unknown.get(schema_id)
            if schema_id > MAX_ID or (since is not None and now - since < UNKNOWN_FOR):
                continue
            try:
                found = self._stored(schema_id)
            except _Unusable as error:
                self._found[schema_id] = f"schema {schema_id} cannot be used: {error}"
                continue
            if found is None:
                missing.add(schema_id)
            else:
                self._found[schema_id] = found
        return missing

    def _stored(self, schema_id: int) -> Stored | None:
        schema = self._call(lambda: self._client.get_schema(schema_id, fmt="serialized"))
        if schema is None:
            return None
        references: dict[str, str] = {}
        self._collect(schema, references, 0)
        _check_size(schema.schema_str)
        return Stored(schema.schema_type or "AVRO", schema.schema_str, tuple(references.items()))

    def _collect(self, schema: Any, references: dict[str, str], depth: int) -> None:
        """Add what a schema needs, and before it what that needs."""
        if depth > _MOST_NESTED:
            raise _Unusable("its references are nested too deeply")
        for each in schema.references or ():
            name, subject, version = each.name, each.subject, each.version
            if name in references:
                continue
            found = self._call(
                partial(self._client.get_version, subject, version, True, "serialized")
            )
            if found is None:
                raise _Unusable(f"the registry does not have what it needs, {subject} {version}")
            self._collect(found.schema, references, depth + 1)
            references[name] = found.schema.schema_str
            _check_size(found.schema.schema_str)
            if len(references) > MAX_REFERENCES:
                raise _Unusable(f"it needs more than {MAX_REFERENCES} others")

    def _call(self, ask: Callable[[], Any]) -> Any:
        """What the registry answers; None for what it does not know. Raises MachineFault."""
        try:
            return ask()
        except (MachineFault, ConfigurationError):
            raise
        except Exception as error:  # of the client, of HTTP, or of an answer that is none
            status = getattr(error, "http_status_code", None)
            if status == _NOT_FOUND and getattr(error, "error_code", None) in _NOT_KNOWN:
                return None
            if status in _NOT_ALLOWED:
                remedy = "give credentials that it takes (schema_registry_credentials)"
            elif status == _NOT_FOUND:
                remedy = "look at the address, which is not that of a registry (schema_registry)"
            else:
                remedy = "look whether the registry and the way to it are up"
            text = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
            raise MachineFault(
                f"schema registry {self._registry.url} says: {text}: {remedy}, and run it again"
            ) from error

    @cached_property
    def _client(self) -> Any:
        require_registry_client(f"schema_registry={self._registry.url}")
        from confluent_kafka.schema_registry import SchemaRegistryClient

        settings: dict[str, Any] = {"url": self._registry.url, **RETRIES}
        if self._registry.credentials is not None:
            settings["basic.auth.user.info"] = _credentials(self._registry.credentials)
        return SchemaRegistryClient(settings)


def _check_size(text: str) -> None:
    if len(text) > MAX_SCHEMA_BYTES:
        raise _Unusable(f"it has {len(text)} characters, more than {MAX_SCHEMA_BYTES}")


def _credentials(place: str) -> str:
    """USER:PASSWORD, which no error shows. Raises ConfigurationError, or MachineFault."""
    kind, _, name = place.partition(":")
    if kind == "env":
        found = os.environ.get(name, "")
    else:
        require_filesystem(name)
        try:
            with open_to_read(name) as file:
                found = file.read().decode()
        except Exception as error:
            raise ConfigurationError(
                f"schema_registry_credentials={place} cannot be read: {type(error).__name__}: let "
                "the workers read a file with USER:PASSWORD there"
            ) from error
    found = found.strip()
    if ":" not in found:
        raise ConfigurationError(
            f"schema_registry_credentials={place} holds no USER:PASSWORD: write them there, with a "
            "colon between them"
        )
    return found

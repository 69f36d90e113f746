"""What some sources and sinks need beyond a plain installation."""

from __future__ import annotations

import importlib
import os
import shutil

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import install_line


def require_google(module: str, what: str) -> None:
    """Raise ConfigurationError unless that client library of Google is installed."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{what} needs Google's client libraries ({error}): {install_line('gcp')}"
        ) from error


def require_registry_client(what: str, protobuf: bool = False) -> None:
    """Raise ConfigurationError unless the client of schema registries is installed.

    With `protobuf`, also what compiles schemas of Protobuf.
    """
    modules = ["confluent_kafka.schema_registry", *(["grpc_tools"] if protobuf else [])]
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{what} needs the client of schema registries ({error}): {install_line('registry')}"
        ) from error


def require_java(what: str) -> None:
    """Raise ConfigurationError unless a Java runtime is found, as Beam looks for it."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java" if home is None else os.path.join(home, "bin", "java")):
        raise ConfigurationError(
            f"{what} needs Java, in which Beam's Kafka connector is written, and there is "
            f"{'no java on the PATH' if home is None else f'none in JAVA_HOME={home}'}: install a "
            "Java runtime of version 11 or later, or name an expansion service that is running "
            "(--beam_services)"
        )

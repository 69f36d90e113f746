"""Where events come from and releases go to, as text: which of it names a stream, and how."""

from __future__ import annotations

import os

_KAFKA = "kafka:HOST:PORT/TOPIC"
_TOPIC = "pubsub:projects/PROJECT/topics/NAME"

# By what stands before the first colon.
SOURCES = {
    "pubsub": f"pubsub:projects/PROJECT/subscriptions/NAME or {_TOPIC}",
    "kafka": _KAFKA,
    "watch": "watch:GLOB",
}
SINKS = {
    "bigquery": "bigquery:PROJECT.DATASET.TABLE",
    "pubsub": _TOPIC,
    "kafka": _KAFKA,
    "folder": "folder:PATH",
}
SOURCE_FORMS, SINK_FORMS = ", ".join(SOURCES.values()), ", ".join(SINKS.values())


def is_stream(location: str) -> bool:
    """Whether a location is that of a stream, not of files; a source of one has no end."""
    return location.partition(":")[0] in {*SOURCES, *SINKS}


def may_hold_files(folder: str) -> bool:
    """Whether a folder of this machine is there, and files may be made in it."""
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)

"""Where events come from and releases go to, as text: which of it names a stream, and how."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeGuard

_KAFKA = "kafka:HOST:PORT/TOPIC"
_TOPIC = "pubsub:projects/PROJECT/topics/NAME"

# By what stands before the first colon. Sources have no end, but for tables.
TABLES = {"bigquery": "bigquery:PROJECT.DATASET.TABLE or bigquery:SELECT ..."}
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
TABLE_FORM = TABLES["bigquery"]
SOURCE_FORMS = ", ".join(SOURCES.values())
"""The forms of the names of sources, for messages and help."""
SINK_FORMS = ", ".join(SINKS.values())
"""The forms of the names of sinks, for messages and help."""

EXISTS = (
    "the output exists already and is never overwritten: delete it, or choose another name. "
    "Releasing the same events again with another noise key spends the users' budgets again"
)


def is_stream(location: str) -> bool:
    """Whether a location names a stream or a table rather than files."""
    return location.partition(":")[0] in {*TABLES, *SOURCES, *SINKS}


def is_endless(location: str) -> bool:
    """Whether a location is an unbounded source."""
    return is_stream(location) and not is_bigquery(location)


def is_bigquery(location: object) -> TypeGuard[str]:
    """Whether a location is a table or a query of BigQuery."""
    return isinstance(location, str) and location.startswith("bigquery:")


def name_of(location: str) -> str:
    """What events that are read there are called: by the table, or by the file without endings."""
    if not is_bigquery(location):
        return Path(location).name.split(".")[0]
    place = location.partition("?")[0]
    return "query" if " " in place or "\n" in place else place.rpartition(".")[2]


def may_hold_files(folder: str) -> bool:
    """Whether a folder of this machine is there, and files may be made in it."""
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)

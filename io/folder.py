"""A folder of results: a file for each, which is written once and never changed."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from streamveil.io.files import is_there, reading, storing
from streamveil.io.filesystems import create, delete, give_name, is_local, join, open_to_read, split
from streamveil.io.result_messages import ResultMessages
from streamveil.io.sealed import sync
from streamveil.mechanisms.core.wording import opt


class AlreadyReleasedError(RuntimeError):
    """The error for a result that was already published with different content."""


@dataclass(eq=False)
class WriteReleasesToFolder(beam.PTransform):
    """Write each release to a file of its own. A release is never replaced. The output is the path.

    The name of a file contains the start of its slot in UTC. The content is the same as that of a
    .jsonl file which :class:`WriteReleases` writes. If the file already exists with the same
    content, nothing happens, so a runner may retry a step. If the file exists with different
    content, the step fails with :class:`AlreadyReleasedError`, because two different releases of a
    slot would break the privacy guarantee.

    If two processes write the same file at the same time, the file of the first process is kept on
    HDFS, on Azure Blob Storage and on local filesystems with hard links. On other filesystems, the
    second process may replace this file. On a local filesystem, a file survives a power failure
    once the transform has emitted the path of the file.
    """

    folder: str
    """The folder, on any Beam filesystem. It is created if it does not exist."""
    _: KW_ONLY
    messages: ResultMessages
    """The form of the results, such as :func:`release_messages` with the keys."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, results: PCollection[Any]) -> PCollection[str]:
        """Write the results."""
        return results | "WriteOnce" >> beam.Map(
            _write_result, self.folder, self.messages
        ).with_output_types(str)


def _write_result(result: Any, folder: str, messages: ResultMessages) -> str:
    name, what, data = messages.file(result)
    path = join(folder, name)
    if not write_once(path, data):
        raise AlreadyReleasedError(
            f"{path}: {what} was released before with other content, and is not released again: "
            "find out whether two jobs write here, or the job began anew with other input or "
            f"another noise key; give another job a folder of its own ({opt.output})"
        )
    return path


def write_once(path: str, data: bytes) -> bool:
    """Give a file its content, whole, unless it is there; says whether it has that content now."""
    if not is_there(path):
        folder, name = split(path)
        temporary = join(folder, f".{name}.{uuid.uuid4().hex}.part")
        try:
            with storing(path):
                _write(temporary, data)
                with contextlib.suppress(FileExistsError):
                    give_name(temporary, path, replace=False)
        finally:
            with contextlib.suppress(Exception):
                delete(temporary)
    if is_local(path):  # also if another one gave it its name, and died then
        sync(Path(path).parent)
    with reading(path), contextlib.closing(open_to_read(path)) as handle:
        return bool(handle.read() == data)


def _write(path: str, data: bytes) -> None:
    with contextlib.closing(create(path)) as handle:
        handle.write(data)
    if is_local(path):  # a name that outlives the loss of power must not be of an empty file
        sync(Path(path))

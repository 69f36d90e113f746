"""A folder of results: a file for each, which is written once and never changed."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from streamveil.io.answers import answer_json
from streamveil.io.files import is_there, reading, storing
from streamveil.io.filesystems import create, delete, give_name, is_local, join, open_to_read, split
from streamveil.io.jsonlines import json_text
from streamveil.io.per_record import per_record_json
from streamveil.io.releases import release_json
from streamveil.io.revisions import revision_json
from streamveil.io.sealed import sync
from streamveil.mechanisms.core.records import EPOCH, PerRecordRow, Release, Revision, format_time
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer


class AlreadyReleasedError(RuntimeError):
    """A result that was published before comes again with other content."""


def release_file(release: Release) -> tuple[str, str, bytes]:
    """Name of the file of a release, what it is of, and the release as a line of JSON."""
    name = f"release-{_stamp(release.start)}.json"
    return name, f"slot {release.slot}", release_json(release) + b"\n"


def revision_file(revision: Revision) -> tuple[str, str, bytes]:
    """The same of a revision."""
    name = f"revision-{_stamp(revision.start)}.json"
    return name, f"the revision of slot {revision.slot}", revision_json(revision) + b"\n"


def answer_file(answer: SlotAnswer) -> tuple[str, str, bytes]:
    """The same of an answer to a question."""
    name = f"{answer.question}.{answer.length}-{_stamp(answer.start)}.json"
    what = f"slot {answer.slot} of {answer.length} of question {answer.question!r}"
    return name, what, answer_json(answer) + b"\n"


def per_record_file(row: PerRecordRow) -> tuple[str, str, bytes]:
    """The same of a row under per-record privacy; the name has a digest of its key."""
    key = hashlib.sha256(json_text([row.key, row.statistic]).encode()).hexdigest()[:16]
    name = f"row-{_stamp(row.start)}-{_stamp(row.end)}-{key}.json"
    ends = "all times" if row.end is None else f"the window that ends at {format_time(row.end)}"
    return name, f"key {row.key!r} in {ends}", per_record_json(row) + b"\n"


def _stamp(time: int | None) -> str:
    """A time in a file name: sorted as text, times are in order."""
    if time is None:
        return "always"
    return f"{EPOCH + dt.timedelta(microseconds=time):%Y%m%dT%H%M%S.%fZ}"


@dataclass(eq=False)
class WriteReleasesToFolder(beam.PTransform):
    """Writes each release to a file of its own, whole, and only once; gives its path.

    The file is named by the start of its slot and holds the line that WriteReleases would write to
    a .jsonl file. If it is there already with this content, nothing happens: so a runner may try
    again. With other content the step fails, since a slot that is released twice, and differently,
    would break the guarantee: :class:`AlreadyReleasedError` names the slot.

    Of two that write one file at the same time the first one wins on HDFS, on Azure Blob Storage,
    and on a local filesystem, which must have hard links. Elsewhere the second one may replace what
    appeared after it looked. On a local filesystem a file that was written, once its path is given,
    outlives the loss of power, whole.
    """

    folder: str
    """On any filesystem of Beam; made if it is not there."""
    _: KW_ONLY
    to_file: Callable[[Any], tuple[str, str, bytes]] = release_file
    """Gives the name of a file, what it is of, and its content, if results are other than
    releases."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, releases: PCollection[Release]) -> PCollection[str]:
        """Build the step: write."""
        return releases | "WriteOnce" >> beam.Map(
            _write_result, self.folder, self.to_file
        ).with_output_types(str)


def _write_result(
    result: Any, folder: str, to_file: Callable[[Any], tuple[str, str, bytes]]
) -> str:
    name, what, data = to_file(result)
    path = join(folder, name)
    if not write_once(path, data):
        raise AlreadyReleasedError(
            f"{path}: {what} was released before with other content, and is not released again: "
            "find out whether two jobs write here, or the job began anew with other input or "
            "another noise key; give another job a folder of its own (--output)"
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

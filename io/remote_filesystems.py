"""Filesystems that are reached by Beam: S3, Google Cloud Storage, Azure Blob Storage and HDFS.

:mod:`streamveil.io.filesystems` is what all others use; it imports this where a path asks for it.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import BinaryIO, cast

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystemio import UploaderStream
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    AzureOptions,
    HadoopFileSystemOptions,
    PipelineOptions,
)
from apache_beam.utils import retry

from streamveil.io import azure, hdfs
from streamveil.io.found_file import FoundFile
from streamveil.io.s3 import check_credentials, share_clients
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import install_line

# The extra that a filesystem of Beam needs, by the scheme of a path, and a module of it.
_FILESYSTEMS = {
    "s3": ("aws", "boto3"),
    "gs": ("gcp", "google.cloud.storage"),
    "azfs": ("azure", "azure.storage.blob"),
    "hdfs": ("hadoop", "hdfs"),
}
_RENAMES = {"azfs": azure.give_name, "hdfs": hdfs.give_name}
_AS_IT_IS = CompressionTypes.UNCOMPRESSED


def open_to_read(path: str) -> BinaryIO:
    """Open a file as it is, its bytes not decompressed."""
    return cast(BinaryIO, FileSystems.open(path, compression_type=_AS_IT_IS))


def create(path: str) -> BinaryIO:
    """Open a file to write; its bytes are not compressed."""
    return cast(BinaryIO, FileSystems.create(path, compression_type=_AS_IT_IS))


def match(pattern: str) -> list[FoundFile]:
    """Files that match a glob, perhaps none."""
    return [
        FoundFile(file.path, file.size_in_bytes, file.last_updated_in_seconds)
        for file in FileSystems.match([pattern])[0].metadata_list
    ]


def looked_at(path: str) -> FoundFile:
    """A file as it is now."""
    file = FileSystems.get_filesystem(path).metadata(path)
    return FoundFile(file.path, file.size_in_bytes, file.last_updated_in_seconds)


def exists(path: str) -> bool:
    """Whether a file is there."""
    return bool(FileSystems.exists(path))


def delete(path: str) -> None:
    """Delete a file."""
    FileSystems.delete([path])


def give_name(temporary: str, path: str, replace: bool) -> None:
    """Rename a file, as :func:`streamveil.io.filesystems.give_name` does."""
    rename = _RENAMES.get(_scheme_of(path))
    if rename is None:
        FileSystems.rename([temporary], [path])
    else:
        rename(temporary, path, replace)


def join(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    return str(FileSystems.join(folder, name))


def split(path: str) -> tuple[str, str]:
    """The folder of a file, and its name there."""
    folder, name = FileSystems.split(path)
    return folder, name


def require(path: str) -> None:
    """Raise ConfigurationError where a path's filesystem needs what is not installed or given."""
    scheme = _scheme_of(path)
    if scheme not in _FILESYSTEMS:
        return
    extra, module = _FILESYSTEMS[scheme]
    try:
        importlib.import_module(module)
    except ImportError:
        raise ConfigurationError(
            f"{path}: files of {scheme}:// need an extra that is not installed: "
            f"{install_line(extra)}"
        ) from None
    if FileSystems._pipeline_options is None:  # in Python, before there is any pipeline
        FileSystems.set_options(PipelineOptions([]))
    _shorten_waits()
    _finish_once()
    _check_options(path, scheme)
    if scheme == "gs":
        _upload_once()
    if scheme == "s3":
        share_clients()
        check_credentials(path)
    elif scheme == "hdfs":
        hdfs.share_answers()


def take_options(flags: Sequence[str]) -> None:
    """Let filesystems take their options, such as --s3_endpoint_url, from these flags.

    A pipeline does the same when it is made, which is too late for what is looked at before; and
    most commands make none.
    """
    FileSystems.set_options(PipelineOptions(list(flags)))


def given_options() -> PipelineOptions:
    """The options that say how services are reached."""
    options = FileSystems._pipeline_options
    return options if isinstance(options, PipelineOptions) else PipelineOptions([])


def _scheme_of(path: str) -> str:
    return path.partition("://")[0]


def _check_options(path: str, scheme: str) -> None:
    """Raise ConfigurationError where nothing says how a filesystem is reached."""
    options = FileSystems._pipeline_options
    if not isinstance(options, PipelineOptions):
        return
    if scheme == "hdfs":
        given = options.view_as(HadoopFileSystemOptions)
        for name in ("hdfs_host", "hdfs_port", "hdfs_user"):
            if getattr(given, name) is None:
                raise ConfigurationError(
                    f"{path}: HDFS is reached by WebHDFS, and --{name} is missing: give "
                    "--hdfs_host, --hdfs_port and --hdfs_user"
                )
    if scheme == "azfs":
        blobs = options.view_as(AzureOptions)
        known = blobs.azure_connection_string or blobs.blob_service_endpoint
        if not (known or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")):
            raise ConfigurationError(
                f"{path}: nothing says where Azure Blob Storage is: give "
                "--azure_connection_string or --blob_service_endpoint, or set "
                "AZURE_STORAGE_CONNECTION_STRING"
            )


@cache
def _shorten_waits() -> None:
    """Let Beam say in a line that it waits for a service, and not in a page each time."""

    def shorten(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 4:
            seconds, function, said, _ = record.args
            record.msg = "waiting %.0f s before trying again (%s): %s"
            record.args = seconds, function, " ".join(str(said).split())
        return True

    logging.getLogger(retry.__name__).addFilter(shorten)


@cache
def _finish_once() -> None:
    """Let a file that could not be stored be closed.

    Beam would store it again as it is forgotten, after a run has reported that it failed, and
    wait a minute for that.
    """

    def close(self: UploaderStream) -> None:
        if not self.closed:
            try:
                self._uploader.finish()
            finally:
                io.RawIOBase.close(self)

    UploaderStream.close = close


@cache
def _upload_once() -> None:
    """The same for Google Cloud Storage, whose client has a writer of its own."""
    from google.cloud.storage.fileio import BlobWriter

    close = BlobWriter.close

    def close_once(self: BlobWriter) -> None:
        try:
            close(self)
        finally:
            self._buffer.close()

    BlobWriter.close = close_once

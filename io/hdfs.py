"""HDFS as Beam reaches it, by WebHDFS, with attempts that are repeated and answers that are read.

The client takes every error for a file that is not there where it looks one up, and tries nothing
twice.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from apache_beam.io.filesystems import FileSystems

Result = TypeVar("Result")

WAITS = [0.5, 1.0, 2.0, 4.0]
"""Seconds between attempts at what may pass."""
_TIMEOUT = 60.0  # seconds without a byte
_BUSY = frozenset({429, 500, 502, 503, 504})
_PASSING = frozenset({"RetriableException", "StandbyException"})
_MEMORY = 1 << 24  # bytes of a file to write that are not put on the disk


@cache
def share_answers() -> None:
    """Let Beam's filesystem say what a name node said, and try again what may pass."""
    import hdfs
    from apache_beam.io import filesystemio, hadoopfilesystem
    from apache_beam.io.filesystem import BeamIOError

    class Client(hdfs.InsecureClient):
        def _request(self, method: str, url: str, **given: Any) -> Any:
            def attempt() -> Any:
                answer = super(Client, self)._request(method, url, **given)
                if not answer.ok:
                    raise _error_of(answer)
                return answer

            # What has content is repeated as a whole, from its beginning.
            return attempt() if given.get("data") is not None else _repeat(attempt)

        def status(self, hdfs_path: str, strict: bool = True) -> Any:
            try:
                return super().status(hdfs_path)
            except hdfs.HdfsError as error:
                if strict or error.exception != "FileNotFoundException":
                    raise
                return None

    class Downloader(hadoopfilesystem.HdfsDownloader):
        def get_range(self, start: int, end: int) -> bytes:
            def attempt() -> bytes:
                data = bytes(super(Downloader, self).get_range(start, end))
                _check_length(len(data), end - start)
                return data

            return _repeat(attempt)

    class Uploader(filesystemio.Uploader):
        def __init__(self, client: Any, path: str) -> None:
            if client.status(path, strict=False) is not None:
                raise BeamIOError(f"Path already exists: {path}")
            self._client, self._path = client, path
            self._file = tempfile.SpooledTemporaryFile(_MEMORY)  # noqa: SIM115 - finish closes it

        def put(self, data: Any) -> None:
            self._file.write(data)

        def finish(self) -> None:
            def attempt() -> None:
                self._file.seek(0)
                self._client.write(self._path, data=self._file, overwrite=True)
                _check_length(self._client.status(self._path)["length"], size)

            with self._file:
                size = self._file.tell()
                _repeat(attempt)

    begin = hadoopfilesystem.HadoopFileSystem.__init__

    def begin_with_client(self: Any, pipeline_options: Any) -> None:
        begin(self, pipeline_options)
        made = self._hdfs_client
        user = made._session.params["user.name"]
        self._hdfs_client = Client(made.url, user=user, timeout=_TIMEOUT)

    hadoopfilesystem.HadoopFileSystem.__init__ = begin_with_client
    hadoopfilesystem.HdfsDownloader = Downloader
    hadoopfilesystem.HdfsUploader = Uploader


def give_name(temporary: str, path: str, replace: bool) -> None:
    """Rename a file in one step. Raises FileExistsError for another one, unless it is replaced."""
    import hdfs

    system = FileSystems.get_filesystem(path)
    client = system._hdfs_client
    source, target = (system._parse_url(each)[1] for each in (temporary, path))
    renamed = _identity(client.status(source))
    try:
        if replace:
            client._rename(source, destination=target, renameoptions="OVERWRITE")
        else:
            client.rename(source, target)
    except hdfs.HdfsError:  # also where an earlier attempt did it, whose answer was lost
        there = client.status(target, strict=False)
        if there is None or (replace and _identity(there) != renamed):
            raise
        if _identity(there) != renamed:
            raise FileExistsError(path) from None


def _identity(status: Any) -> tuple[Any, ...]:
    """By what a file is known again under another name; gateways do not give its number."""
    return status.get("fileId"), status["length"], status["modificationTime"]


def _repeat(attempt: Callable[[], Result]) -> Result:
    for wait in WAITS:
        try:
            return attempt()
        except Exception as error:
            if not _may_pass(error):
                raise
        time.sleep(wait)
    return attempt()


def _may_pass(error: Exception) -> bool:
    import hdfs
    import requests
    import urllib3

    if isinstance(error, hdfs.HdfsError):
        return error.exception in _PASSING or getattr(error, "status_code", None) in _BUSY
    away = requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError
    return isinstance(error, (*away, urllib3.exceptions.HTTPError))


def _error_of(answer: Any) -> Exception:
    """The error that a server answered with."""
    import hdfs

    try:
        said = answer.json()["RemoteException"]
        message, kind = said["message"], said["exception"]
    except (ValueError, LookupError, TypeError):  # of a gateway
        message, kind = f"{answer.status_code} {answer.reason}", None
    error: Exception = hdfs.HdfsError(message.partition("\n")[0], exception=kind)
    if kind is None:
        error.status_code = answer.status_code  # type: ignore[attr-defined]
    return error


def _check_length(found: int, expected: int) -> None:
    import requests

    if found != expected:
        raise requests.ConnectionError(f"{found} of {expected} bytes arrived")

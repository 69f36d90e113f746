"""S3 as Beam reaches it: one client for a while, and credentials that are looked for at once."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

from apache_beam.io.filesystems import FileSystems

from streamveil.mechanisms.core.records import ConfigurationError

# A client is made anew after so long, with credentials that may have changed on the disk.
_SECONDS = 60.0


@cache
def share_clients() -> None:
    """Let Beam use one client of S3 for all that a process does within a minute.

    Beam makes one for each operation: of a small release these were 47 of 0.2 s of CPU. And it
    takes a connection that is closed for an answer, and fails at that.
    """
    from apache_beam.io.aws.clients.s3 import boto3_client

    class Client(boto3_client.Client):
        _latest: tuple[float, int, Any, Any] = 0.0, 0, None, None

        def __init__(self, options: Any) -> None:
            made, process, given, client = Client._latest
            now = time.monotonic()
            if given is options and process == os.getpid() and now - made < _SECONDS:
                self.client = client
                self._download_request = self._download_stream = None
                self._download_pos = 0
                return
            super().__init__(options)
            Client._latest = now, os.getpid(), options, self.client

    boto3_client.Client = Client
    boto3_client.get_http_error_code = _status_of


def _status_of(error: BaseException) -> int | None:
    """The status that S3 answered with; None without an answer."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return None
    status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def check_credentials(path: str) -> None:
    """Raise ConfigurationError where this process has no credentials of S3.

    Beam would look for them again and again, for ten minutes.
    """
    from apache_beam.io.aws.clients.s3 import boto3_client

    client = boto3_client.Client(FileSystems._pipeline_options).client
    if client._request_signer._credentials is None:
        raise ConfigurationError(
            f"{path}: S3 needs credentials, and there are none: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give --s3_access_key_id and --s3_secret_access_key, or a "
            "profile or role that the AWS client finds"
        )

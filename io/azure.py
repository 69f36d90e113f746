"""Azure Blob Storage as Beam reaches it, with renames that wait until the copy is whole."""

from __future__ import annotations

import time

from apache_beam.io.filesystems import FileSystems

_PAUSE = 0.5  # seconds between looks at a copy that goes on


def give_name(temporary: str, path: str, replace: bool) -> None:
    """Rename a file. Raises FileExistsError for one that is there, unless it is replaced.

    Beam would delete what is still being copied, and takes the service of every cloud for the
    public one.
    """
    from apache_beam.io.azure.blobstorageio import parse_azfs_path
    from azure.core import MatchConditions
    from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

    client = FileSystems.get_filesystem(path)._blobstorageIO().client
    source, target = (client.get_blob_client(*parse_azfs_path(one)) for one in (temporary, path))
    condition = {} if replace else {"match_condition": MatchConditions.IfMissing}
    try:
        status = target.start_copy_from_url(source.url, **condition)["copy_status"]
    except ResourceExistsError:
        raise FileExistsError(path) from None
    said = ""
    while status == "pending":
        time.sleep(_PAUSE)
        copy = target.get_blob_properties().copy
        status, said = copy.status, copy.status_description or ""
    if status != "success":
        raise HttpResponseError(f"{path} was not copied: {status} {said}".rstrip())
    try:
        source.delete_blob()
    except ResourceNotFoundError:  # by an earlier attempt whose answer was lost
        return

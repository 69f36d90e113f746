"""A file that is whole gets its name, on any filesystem that Beam knows."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from apache_beam.io.filesystems import FileSystems
from apache_beam.io.localfilesystem import LocalFileSystem

from streamveil.io import azure, hdfs


def give_name(temporary: str, path: str, replace: bool = True) -> None:
    """Rename a file.

    Args:
        temporary: its path so far, in the same folder.
        path: its new path.
        replace: whether a file that is there is replaced. Where it is not, and is found in time,
            FileExistsError is raised: S3 and Google Cloud Storage do not look.
    """
    if is_local(path):  # Beam's own hides what a disk said
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
        return
    rename = {"azfs": azure.give_name, "hdfs": hdfs.give_name}.get(urlsplit(path).scheme)
    if rename is None:
        FileSystems.rename([temporary], [path])
    else:
        rename(temporary, path, replace)


def is_local(path: str) -> bool:
    """Whether a path is one of this machine."""
    return isinstance(FileSystems.get_filesystem(path), LocalFileSystem)

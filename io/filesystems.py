"""Files of this machine, and of any other filesystem that Beam knows, by their paths.

Beam is imported where a path names such a filesystem, as in `s3://`, and not before.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from streamveil.io.found_file import FoundFile

_SCHEME = re.compile(r"[a-zA-Z][-a-zA-Z0-9+.]*://")
_BEFORE_WILDCARD = re.compile(r"[^[*?]*")


def is_local(path: str) -> bool:
    """Whether a path is one of this machine."""
    return _SCHEME.match(path) is None


def require_filesystem(path: str) -> None:
    """Raise ConfigurationError where a path's filesystem needs what is not installed or given."""
    if not is_local(path):
        from streamveil.io import remote_filesystems

        remote_filesystems.require(path)


def open_to_read(path: str) -> BinaryIO:
    """Open a file as it is, its bytes not decompressed."""
    if is_local(path):
        return open(path, "rb")
    from streamveil.io import remote_filesystems

    return remote_filesystems.open_to_read(path)


def create(path: str) -> BinaryIO:
    """Open a file to write, with the folders that it needs; its bytes are not compressed."""
    if is_local(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return open(path, "wb")
    from streamveil.io import remote_filesystems

    return remote_filesystems.create(path)


def match(pattern: str) -> list[FoundFile]:
    """Files that match a glob as of :func:`translated`, or the one of that path; perhaps none."""
    if is_local(pattern):
        return list(_match_here(pattern))
    from streamveil.io import remote_filesystems

    return remote_filesystems.match(pattern)


def _match_here(pattern: str) -> Iterator[FoundFile]:
    if pattern.endswith(("/", "\\")):
        pattern += "*"
    before = cast(re.Match[str], _BEFORE_WILDCARD.match(pattern))[0]
    if before == pattern:
        if os.path.exists(pattern):
            yield looked_at(pattern)
        return
    matches = re.compile(translated(pattern)).match
    for folder, _, names in os.walk(os.path.dirname(before)):
        for name in names:
            path = os.path.join(folder, name)
            if matches(path):
                with contextlib.suppress(OSError):  # it went away
                    yield looked_at(path)


def translated(pattern: str) -> str:
    r"""A regular expression for a glob, as Beam reads one.

    `*` matches what has no slash, also nothing and what begins with a dot; `**` matches anything,
    `?` one character, `[...]` one of some and `[!...]` one of all others.

    >>> translated("day=*/[!_]*.csv")
    '(?ms)day=[^/\\\\]*/[^_][^/\\\\]*\\.csv\\Z'
    """
    found, rest = "", pattern
    while rest:
        some = _SET.match(rest)
        if rest.startswith("**"):
            found, rest = found + ".*", rest[2:]
        elif some:
            within = some["some"].replace("\\", "\\\\")
            within = f"\\{within}" if within.startswith("^") else within
            found += f"[{'^' if some['no'] else ''}{within}]"
            rest = rest[some.end() :]
        else:
            found += _ALONE.get(rest[0]) or re.escape(rest[0])
            rest = rest[1:]
    return rf"(?ms){found}\Z"


_SET = re.compile(r"\[(?P<no>!|(?!!))(?P<some>.[^\]]*)\]", re.DOTALL)
_ALONE = {"*": r"[^/\\]*", "?": "."}


def looked_at(path: str) -> FoundFile:
    """A file as it is now."""
    if is_local(path):
        return FoundFile(path, os.path.getsize(path), os.path.getmtime(path))
    from streamveil.io import remote_filesystems

    return remote_filesystems.looked_at(path)


def exists(path: str) -> bool:
    """Whether a file, or a folder of this machine, is there."""
    if is_local(path):
        return os.path.exists(path)
    from streamveil.io import remote_filesystems

    return remote_filesystems.exists(path)


def delete(path: str) -> None:
    """Delete a file."""
    if is_local(path):
        os.remove(path)
        return
    from streamveil.io import remote_filesystems

    remote_filesystems.delete(path)


def give_name(temporary: str, path: str, replace: bool = True) -> None:
    """Rename a file.

    Args:
        temporary: its path so far, in the same folder.
        path: its new path.
        replace: whether a file that is there is replaced. Where it is not, and is found in time,
            FileExistsError is raised: S3 and Google Cloud Storage do not look.
    """
    if not is_local(path):
        from streamveil.io import remote_filesystems

        remote_filesystems.give_name(temporary, path, replace)
    elif replace:
        os.replace(temporary, path)
    else:
        os.link(temporary, path)


def join(folder: str, name: str) -> str:
    """The path of a file in a folder."""
    if is_local(folder):
        return os.path.join(folder, name)
    from streamveil.io import remote_filesystems

    return remote_filesystems.join(folder, name)


def split(path: str) -> tuple[str, str]:
    """The folder of a file, absolute on this machine, and its name there."""
    if is_local(path):
        return os.path.split(os.path.abspath(path))
    from streamveil.io import remote_filesystems

    return remote_filesystems.split(path)

"""Outputs that cannot be written, or that match the input and would be read as events."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamveil.io import check_place, is_in_folder
from streamveil.io.filesystems import translated
from streamveil.io.formats import EXTENSIONS
from streamveil.io.places import is_bigquery
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.pages.document import check_pages

_WILDCARD = re.compile(r"[*?\[]")
_WATCHED, _FOLDER = "watch:", "folder:"


def refuse_in_input(inputs: Iterable[str | None], outputs: Iterable[str | None]) -> None:
    """Refuse a file to write that the pattern of an input takes in.

    Args:
        inputs: paths, folders and globs; None and streams take nothing in.
        outputs: what is written; of `folder:PATH` a file in it. Of others local paths only.

    Raises:
        ConfigurationError: with the name of the first such output.
    """
    for pattern in filter(None, inputs):
        for output in filter(None, outputs):
            if is_bigquery(pattern) or is_bigquery(output):
                _refuse_table(pattern, output)
                continue
            path = output
            if output.startswith(_FOLDER):
                path = os.path.join(output.removeprefix(_FOLDER), "release-1.json")
            if _takes_in(pattern.removeprefix(_WATCHED), path):
                raise ConfigurationError(
                    f"{output} would be written where the input {pattern} takes it in, so the next "
                    "run would read it as events: write to another folder, or narrow the input"
                )


def check_reports(given: Any, endings: Mapping[str, tuple[str, ...]], extra: str) -> None:
    """Refuse outputs that a reporting command could not write, before anything runs.

    Args:
        given: the options, among which `rejected` and `page` are outputs too.
        endings: the permitted endings of file names, by option.
        extra: the extra that installs what the page needs.

    Raises:
        ConfigurationError: with the name of the first such output.
    """
    for name, known in endings.items():
        path = getattr(given, name)
        if path and not path.endswith(known):
            raise ConfigurationError(f"{opt[name]}={path}: end the name in {' or '.join(known)}")
        if path:
            check_place(path)
    refuse_in_input([given.input], [*(getattr(given, name) for name in endings), given.rejected])
    if given.page:
        check_pages(extra)


def _refuse_table(pattern: str, output: str) -> None:
    if is_bigquery(pattern) and is_bigquery(output):
        table = pattern.partition("?")[0]
        if table == output.partition("?")[0]:
            raise ConfigurationError(
                f"{table} is the input table and would be written to: name another table"
            )


def refuse_state_in_input(inputs: Iterable[str | None], folder: str) -> None:
    """Refuse a folder of state, before it is made, whose files an input takes in.

    Raises ConfigurationError.
    """
    files = [os.path.join(folder, f"some{ending}") for ending in EXTENSIONS]
    for pattern in filter(None, inputs):
        if any(_takes_in(pattern.removeprefix(_WATCHED), each) for each in (folder, *files)):
            raise ConfigurationError(
                f"{opt.state}={folder} would be written where the input {pattern} takes it in, so "
                f"the next run would read it as events: name another folder, or narrow the input"
            )


def _takes_in(pattern: str, path: str) -> bool:
    """Whether a local pattern takes in a local path, which need not be there."""
    if "://" in pattern or "://" in path:
        return False
    place, name = os.path.split(os.path.abspath(path))
    path = os.path.join(os.path.realpath(place), name)
    if os.path.isfile(pattern):
        return os.path.realpath(pattern) == os.path.realpath(path)
    if os.path.isdir(pattern):
        return is_in_folder(path, os.path.realpath(pattern))
    pattern = os.path.abspath(pattern)
    wildcard = _WILDCARD.search(pattern)
    if wildcard is None:
        return False
    above = os.path.dirname(pattern[: wildcard.start()])
    rest = translated(pattern.removeprefix(above).lstrip("/"))
    top = os.path.join(os.path.realpath(above), "")
    if path.startswith(top) and re.match(rest, path.removeprefix(top)):
        return True
    return any(_is_or_holds(found, path) for found in _links_and_folders(pattern))


def _links_and_folders(pattern: str) -> Iterator[str]:
    """What a pattern matches now that may lead elsewhere."""
    for found in glob.iglob(pattern, recursive=True):
        if os.path.islink(found) or os.path.isdir(found):
            yield found


def _is_or_holds(found: str, path: str) -> bool:
    real = os.path.realpath(found)
    return real == os.path.realpath(path) or (os.path.isdir(real) and is_in_folder(path, real))

"""The results of passes, a file of each kind and pass, and which of them are there."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from streamveil.io import StateFolder, read_table
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt


@dataclass(frozen=True)
class PassResults:
    """Where readers look for the results of passes."""

    places: Mapping[str, str]
    """Kinds of results, as of :class:`Outputs`, and `rejected`, to the names that the user gave."""
    topics: Mapping[str, str]
    """The topics of results that have one, by kind: their places are files that wait for it."""
    folder: StateFolder
    state: str
    """The same, as the user gave it."""

    @property
    def shown(self) -> list[str]:
        """The outputs that the page shows: all but raw ones."""
        return [kind for kind in self.places if kind != "rejected"]

    def targets(self, number: int) -> dict[str, str]:
        """Where readers look for the results of a pass, by kind."""
        targets = {}
        for kind, path in self.places.items():
            root, extension = os.path.splitext(os.path.abspath(path))
            place = os.path.dirname(root)
            if "://" in path or (os.path.isdir(place) and not self.folder.beside(place)):
                raise ConfigurationError(
                    f"{path} is not on the filesystem of {opt.state}={self.state}, from "
                    "where files are renamed: put both on one"
                )
            if kind not in self.topics:
                self.folder.refuse_inside(path)
            targets[kind] = f"{root}-{number:08d}{extension}"
        return targets

    def refuse_beyond(self, passes: int) -> None:
        """Refuse a state that is older than the results which are there."""
        for kind, path in self.places.items():
            extension = os.path.splitext(path)[1]
            for found in self.numbered(kind):
                if int(found.removesuffix(extension)[-8:]) > passes:
                    raise self.older_than(found, passes)

    def numbered(self, kind: str) -> list[str]:
        """The results of passes that are there, in their order."""
        root, extension = os.path.splitext(os.path.abspath(self.places[kind]))
        # Passes have not come to eight digits, but dates have.
        return sorted(glob.glob(f"{glob.escape(root)}-0{'[0-9]' * 7}{glob.escape(extension)}"))

    def older_than(self, result: str, passes: int) -> ConfigurationError:
        """Says of a result that is there that a state of so many passes knows nothing of it."""
        where = f"{opt.state}={self.state}"
        if not passes:
            return ConfigurationError(
                f"{result} exists already, but {where} has not written anything: it is a result "
                "of a stream whose state is elsewhere; restore that folder, or name it, and "
                f"resume with {opt.resume}. If it is lost for good, start a stream that shares "
                f"no window with the released slots: a later {opt.start}, by the longest window "
                f"that any user of either stream may ask for, another {opt.state} and another "
                f"{opt.output}; a lifetime budget cannot be granted twice"
            )
        return ConfigurationError(
            f"{result} exists already, but {where} is at pass {passes}: an old copy of the "
            "folder was put back, and resuming from it would release slots again and spend the "
            "users' budgets again; bring back the newest one"
        )

    def table(self, kind: str) -> pa.Table:
        """What all passes have written of a kind and is still there."""
        tables = [read_table(path) for path in self.numbered(kind)]
        if not tables:
            raise FileNotFoundError(errno.ENOENT, "no pass has left it", self.places[kind])
        some = [table for table in tables if table.num_rows] or tables[:1]
        return pa.concat_tables(some, promote_options="permissive")

    def place(self, kind: str, path: str) -> str:
        """Where the results of that file are for readers."""
        topic = self.topics.get(kind)
        return path if topic is None else f"pubsub:{topic}"

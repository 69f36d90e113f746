"""A witness, beside the results of a stream, of how far the stream has come.

An old copy of a state folder is whole and sealed: nothing in it tells that it is old. But going on
from it would release slots again that are released, and spend their budgets again. So before the
results of a pass reach their readers, a small hidden file beside them says which pass it was; it is
never part of the folder, and a copy of the folder that is put back has to agree with it.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from streamveil.io.sealed import SealedRecord, write_private
from streamveil.mechanisms.records import ConfigurationError

_VERSION = 1
_PURPOSE = b"streamveil witness"


@dataclass(frozen=True)
class Witness:
    """What was committed when results were last moved to where this is kept."""

    stream: str
    """Which stream: `Snapshot.stream`."""
    passes: int
    """Committed so far."""
    manifest: str
    """Seal of the manifest."""


def witness_of(output: str) -> str:
    """Path of the witness beside the results that are named after `output`."""
    place, name = os.path.split(os.path.abspath(output))
    return os.path.join(place, f".{name}.witness")


def write_witness(path: str, key: bytes, witness: Witness) -> None:
    """Replace the witness, unless it says this already."""
    record = {"version": _VERSION, **dataclasses.asdict(witness)}
    text = SealedRecord.of(key, _PURPOSE, record).text()
    place = Path(path)
    if not place.exists() or place.read_bytes() != text.encode():
        write_private(place, text)


def check_witness(path: str, key: bytes, folder: Path, known: Witness) -> bool:
    """Whether there is a witness, which must not contradict what the folder says.

    Raises ConfigurationError for one that is damaged, of another stream, or that has seen more.
    """
    place = Path(path)
    if not place.exists():
        return False
    sealed = SealedRecord.read(place, _VERSION)
    where = f"the witness {path}"
    if not sealed.is_sealed_by(key, _PURPOSE) or sealed.record["stream"] != known.stream:
        raise ConfigurationError(
            f"{where} is of another stream than {folder}, or was edited: name outputs of their own "
            "(--output), or bring back the folder that belongs to these"
        )
    if sealed.record["passes"] < known.passes:
        return True
    if sealed.record["passes"] > known.passes:
        raise ConfigurationError(
            f"{where} has seen pass {sealed.record['passes']}, but {folder} knows of "
            f"{known.passes} only: an old copy of the folder was put back, and to go on from it "
            "would release slots again and spend the users' budgets again; bring back the newest "
            "copy"
        )
    if sealed.record["manifest"] != known.manifest:
        raise ConfigurationError(
            f"{where} has seen another pass {known.passes} than that of {folder}: two copies of "
            "the folder have gone on, each its own way; bring back the one that made these results"
        )
    return True


def refuse_witness(path: str, folder: Path) -> None:
    """Refuse to begin a stream where one has been. Raises ConfigurationError."""
    if os.path.exists(path):
        raise ConfigurationError(
            f"the witness {path} has seen results of a stream whose state is not in {folder}: name "
            "its folder and go on with --resume; or, for a new stream, which spends the users' "
            "budgets again, name other outputs or delete the witness"
        )

"""Reading changes of requirements: who asks for what from which slot or time on."""

from __future__ import annotations

from streamveil.io.events import columns_of
from streamveil.io.files import Patterns, input_files, require_columns
from streamveil.mechanisms.core.records import CHANGE_COLUMNS, ConfigurationError

_WHEN = ("slot", "time")


def change_columns(pattern: Patterns) -> tuple[str, ...]:
    """Return the columns of `CHANGE_COLUMNS` that are in given files of requirement changes.

    Raises:
        ConfigurationError: if no file matches, if a file cannot be read or lacks a required column,
            or if some files have a column `slot` and others a column `time`.
    """
    found: dict[tuple[str, ...], str] = {}
    for path in input_files(pattern):
        present = columns_of(path)
        when = tuple(name for name in _WHEN if name in present)
        columns = tuple(name for name in CHANGE_COLUMNS if name not in _WHEN or name in when)
        require_columns(path, columns if when else CHANGE_COLUMNS, present)
        found[columns] = path
    if len(found) > 1:
        raise ConfigurationError(
            f"{' and '.join(found.values())} do not have the same of the columns "
            f"{' and '.join(_WHEN)}: write all changes alike"
        )
    return next(iter(found))

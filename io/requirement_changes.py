"""Reading changes of requirements: who asks for what from which slot or time on."""

from __future__ import annotations

from streamveil.io.events import ReadEvents, columns_of
from streamveil.io.files import Patterns, input_files, require_columns
from streamveil.mechanisms.records import (
    CHANGE_COLUMNS,
    CHANGES_READ,
    CHANGES_REJECTED_PREFIX,
    ConfigurationError,
)

_WHEN = ("slot", "time")


def change_columns(pattern: Patterns) -> tuple[str, ...]:
    """Columns of `CHANGE_COLUMNS` that the files have, in any format that ReadEvents knows.

    Raises ConfigurationError when nothing matches, for a file that cannot be read or lacks a
    column, and for files of which some say when by a slot and others by a time.
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


class ReadRequirementChanges(ReadEvents):
    """Reads changes of requirements from all files that match, in parallel.

    Output: as that of :class:`ReadEvents`, batches of the columns `user`, `slot` or `time` or
    both, and the four figures of a dynamic requirement. The rows are not checked here.

    Raises ConfigurationError at construction as :func:`change_columns` does.
    """

    _COUNTERS = (CHANGES_READ, CHANGES_REJECTED_PREFIX)

    def __init__(self, file_pattern: Patterns) -> None:
        """Look at the files: a path or glob on any filesystem of Beam, or several."""
        super().__init__(file_pattern, columns=change_columns(file_pattern))

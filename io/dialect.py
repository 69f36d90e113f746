"""How CSV files are written."""

from __future__ import annotations

from dataclasses import dataclass

from streamveil.mechanisms.core.records import ConfigurationError


@dataclass(frozen=True)
class CsvDialect:
    """How the CSV files of an input are written, where that is said.

    Raises ConfigurationError for a delimiter that is not one character of ASCII, a quote or a line
    break, and for names of columns that are empty or repeated.
    """

    delimiter: str = ","
    """What stands between two fields."""
    columns: tuple[str, ...] | None = None
    """Names of the columns, in order, of files without a header; None where the first line names
    them."""
    any_name: bool = False
    """Whether a file whose name does not say its format is CSV."""

    def __post_init__(self) -> None:
        """Check both."""
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise ConfigurationError(
                f"the delimiter {self.delimiter!r} (--delimiter) is not one character: write it, "
                "such as ; or |, or the word tab"
            )
        names = self.columns
        if names is not None and (not names or not all(names) or len(set(names)) < len(names)):
            raise ConfigurationError(
                f"the columns {','.join(names)!r} (--columns) are not names of their own: name "
                "every field of a line once, as in user,place,time"
            )

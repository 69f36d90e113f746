"""The public domain of a histogram: what its bins are."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

MOST_GRID_CELLS = 1 << 24
"""A slot's counts of more would not fit into memory; no list of values is as easily so long."""


@dataclass(frozen=True)
class Categories(Identified):
    """A list of publicly known keys, such as categories. Each key has one bin, in this order.

    A whole number in an event is compared with the keys as decimal text. For example, the number 7
    belongs to the key "7".

    Raises:
        ConfigurationError: if the list of keys is empty, or contains an empty or repeated key.

    Example:
        >>> Categories(("cafe", "park")).bins
        2
    """

    IDENTITY = Form("categories", ("values",))

    values: tuple[str, ...]
    """The text of each bin, in order."""

    def __post_init__(self) -> None:
        """Check the list."""
        if isinstance(self.values, str):
            raise ConfigurationError(
                f"the domain is the text {self.values!r}, whose letters are not bins: give a list "
                "of values"
            )
        object.__setattr__(self, "values", tuple(str(value) for value in self.values))
        if not self.values:
            raise ConfigurationError("the domain has no bins: list at least one value")
        seen: set[str] = set()
        for value in self.values:
            if not value:
                raise ConfigurationError("the domain lists an empty value: name every bin")
            if value in seen:
                raise ConfigurationError(
                    f"the domain lists the bin {value!r} twice: list every value once"
                )
            seen.add(value)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin."""
        return self.values


@dataclass(frozen=True)
class Edges(Identified):
    """Publicly known ranges of numbers. Bin j holds values with edges[j] <= value < edges[j + 1].

    Raises:
        ConfigurationError: if there are fewer than two edges, or if the edges are infinite or not
            in ascending order.

    Example:
        >>> Edges((0, 10, 20)).labels
        ('[0, 10)', '[10, 20)')
    """

    IDENTITY = Form("edges", ("edges",))

    edges: tuple[float, ...]
    """The bounds of the bins. There is one more bound than there are bins."""

    def __post_init__(self) -> None:
        """Check the edges."""
        try:
            edges = tuple(float(edge) for edge in self.edges)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"numeric edges {self.edges!r} must be two or more numbers: give a tuple of them"
            ) from None
        object.__setattr__(self, "edges", edges)
        if len(edges) < 2 or not all(map(math.isfinite, edges)):
            raise ConfigurationError(f"numeric edges {edges} must be two or more finite numbers")
        for low, high in itertools.pairwise(edges):
            if low >= high:
                raise ConfigurationError(
                    f"numeric edges must rise strictly: {low!r} comes before {high!r}; list them "
                    "from the smallest to the largest, each once"
                )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each bin, which contains the bounds of the bin, such as `[0, 10)`."""
        return tuple(f"[{a:g}, {b:g})" for a, b in itertools.pairwise(self.edges))


@dataclass(frozen=True)
class Grid(Identified):
    """Publicly known map cells. A box in longitude and latitude is divided into rows and columns.

    Cells are numbered row by row from the south-west corner. A point on the border between two
    cells belongs to the eastern or northern cell.

    Raises:
        ConfigurationError: if the box on the map is empty or exceeds the valid coordinates, or if
            the grid has no cells or too many cells.

    Example:
        >>> Grid(-74.3, 40.5, -73.7, 40.9, columns=3, rows=2).bins
        6
    """

    IDENTITY = Form("grid", ("west", "south", "east", "north", "columns", "rows"))

    west: float
    """Western bound, in degrees of longitude from -180 to 180."""
    south: float
    """Southern bound, in degrees of latitude from -90 to 90."""
    east: float
    """Eastern bound, in degrees of longitude."""
    north: float
    """Northern bound, in degrees of latitude."""
    columns: int
    """Number of cells from west to east."""
    rows: int
    """Number of cells from south to north."""

    def __post_init__(self) -> None:
        """Check the box."""
        box = (self.west, self.south, self.east, self.north)
        inside = -180 <= self.west < self.east <= 180 and -90 <= self.south < self.north <= 90
        if not inside:
            raise ConfigurationError(
                f"grid box {box} must be west < east within 180 degrees and south < north within 90"
            )
        if self.columns < 1 or self.rows < 1:
            raise ConfigurationError(
                f"grid of {self.columns} columns and {self.rows} rows has no cell"
            )
        if self.bins > MOST_GRID_CELLS:
            raise ConfigurationError(
                f"grid of {self.columns} columns and {self.rows} rows has {self.bins:,} cells, and "
                f"at most {MOST_GRID_CELLS:,} can be counted: give fewer columns or rows"
            )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return self.columns * self.rows

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each bin, which contains the row and the column of the map cell."""
        return _labels_of_cells(self.columns, self.rows)


@lru_cache(maxsize=2)
def _labels_of_cells(columns: int, rows: int) -> tuple[str, ...]:
    """Of a grid: each slot's answer asks for them."""
    return tuple(f"r{row}c{col}" for row in range(rows) for col in range(columns))


class _OneMoreBin:
    """What domains with one more bin, the last, have in common."""

    domain: Categories | Edges | Grid | WithOther
    name: str
    _holds: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the name."""
        if not self.name:
            raise ConfigurationError(
                f"the bin for {self._holds} values has no name: name it ({opt[self._holds]})"
            )
        if self.name in self.domain.labels:
            raise ConfigurationError(
                f"the bin for {self._holds} values cannot be called {self.name!r} "
                f"({opt[self._holds]}): the domain has a bin of that name; choose another"
            )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return self.domain.bins + 1

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin."""
        return (*self.domain.labels, self.name)


@dataclass(frozen=True)
class WithOther(_OneMoreBin, Identified):
    """A bin for each publicly known key, and one more bin for all other values.

    Events with a missing value have no bin, so they are rejected. If the keys are ranges of
    numbers, events whose value is text are rejected too.

    Raises:
        ConfigurationError: if the name of the additional bin is empty, or if another bin already
            has this name.

    Example:
        >>> WithOther(Edges((0, 10, 20)), "other").bins
        3
    """

    IDENTITY = Form("with other", ("domain", "name"))
    _holds = "other"

    domain: Categories | Edges | Grid
    """The public keys without the additional bin."""
    name: str
    """Name of the additional bin."""


@dataclass(frozen=True)
class WithNull(_OneMoreBin, Identified):
    """A bin for each publicly known key, and one more bin for missing values and empty text.

    Raises:
        ConfigurationError: if the name of the additional bin is empty, or if another bin already
            has this name.

    Example:
        >>> WithNull(Categories(("cafe", "park")), "unknown").labels
        ('cafe', 'park', 'unknown')
    """

    IDENTITY = Form("with null", ("domain", "name"))
    _holds = "null"

    domain: Categories | Edges | Grid | WithOther
    """The public keys without the additional bin."""
    name: str
    """Name of the additional bin."""


Domain = Categories | Edges | Grid | WithOther | WithNull
"""The type of public keys of any kind."""

_EDGES, _GRID = "edges:", "grid:"
FILE = "file:"
"""Before the name of a file of values."""


def domain_of_numbers(text: str) -> Edges | Grid | None:
    """The domain that a text writes as numbers; None for another text.

    Args:
        text: `edges:0,10,20`, or `grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS`.

    Raises:
        ConfigurationError: for numbers that are none, or do not fit.
    """
    if text.startswith(_EDGES):
        return Edges(tuple(_numbers(text, _EDGES)))
    if not text.startswith(_GRID):
        return None
    numbers = _numbers(text, _GRID)
    if len(numbers) != 6 or not (numbers[4].is_integer() and numbers[5].is_integer()):
        raise ConfigurationError(f"domain {text!r} is not grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS")
    west, south, east, north = numbers[:4]
    return Grid(west, south, east, north, int(numbers[4]), int(numbers[5]))


def _numbers(text: str, prefix: str) -> list[float]:
    try:
        return [float(part) for part in text.removeprefix(prefix).split(",")]
    except ValueError:
        raise ConfigurationError(
            f"domain {text!r} holds something that is not a number: write numbers, separated by "
            f"commas, after {prefix!r}"
        ) from None


def is_list(text: str) -> bool:
    """Whether a text lists values: it has a comma, and does not say that it names a file."""
    return "," in text and not text.startswith(FILE)


# A value between quotation marks, in which "" is one of them, or one without any.
_LISTED = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]*))\s*(?:,|$)')


def domain_of_list(text: str) -> Categories:
    """The domain that a text lists as one CSV line, such as `A,B,"C, D"`.

    Raises:
        ConfigurationError: for a quotation mark that does not enclose a value.
    """
    values, at = list[str](), 0
    while at <= len(text):
        match = _LISTED.match(text, at)
        if match is None:
            raise ConfigurationError(
                f"the list {text!r} has a quotation mark that does not enclose a whole value: "
                'quote values as in A,"B, C","5"" pipe", or write a JSON list in a .json file'
            )
        quoted, plain = match.groups()
        values.append(plain.strip() if quoted is None else quoted.replace('""', '"'))
        at = match.end() if match[0].endswith(",") else len(text) + 1
    return Categories(tuple(values))


def list_text(values: Sequence[str]) -> str:
    """Values in the form that :func:`domain_of_list` reads, with a blank after each comma."""
    return ", ".join(
        '"{}"'.format(one.replace('"', '""')) if _QUOTED.search(one) else one for one in values
    )


_QUOTED = re.compile(r'[",]|^\s|\s$')


def check_value_columns(domain: Domain, columns: tuple[str, ...]) -> None:
    """Refuse columns of which the domain reads more or fewer. Raises ConfigurationError."""
    is_grid = isinstance(parts_of(domain).listed, Grid)
    if len(columns) == (2 if is_grid else 1):
        return
    given = ", ".join(columns) or "none"
    if is_grid:
        raise ConfigurationError(
            f"a grid reads two columns (given: {given}): name both, such as longitude,latitude"
        )
    raise ConfigurationError(
        f"the values of one column are counted (given: {given}): name one column, or combine "
        "several into one"
    )


class Parts(NamedTuple):
    """What a domain is made of."""

    listed: Categories | Edges | Grid
    other: str | None
    """Name of the bin for other values, if there is one."""
    null: str | None
    """Name of the bin for null values, if there is one."""


def parts_of(domain: Domain) -> Parts:
    """Take a domain apart; :func:`with_bins` puts it together again."""
    if isinstance(domain, WithNull):
        return parts_of(domain.domain)._replace(null=domain.name)
    if isinstance(domain, WithOther):
        return Parts(domain.domain, domain.name, None)
    return Parts(domain, None, None)


def with_bins(domain: Categories | Edges | Grid, other: str | None, null: str | None) -> Domain:
    """The domain, with a bin for other values and one for null values if these have names."""
    wider = domain if other is None else WithOther(domain, other)
    return wider if null is None else WithNull(wider, null)

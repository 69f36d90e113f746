"""Value columns as bins of a public domain."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.mechanisms.core.domains import (
    Categories,
    Domain,
    Edges,
    Grid,
    WithOther,
    check_value_columns,
)
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.transforms.columns.numbers import as_numbers
from streamveil.transforms.columns.text import TextIndex, as_text

NULL_VALUE = "null value"
NOT_A_NUMBER = "not a number"
OUTSIDE_DOMAIN = "outside the domain"

_OUTSIDE, _NULL, _NAN = -1, -2, -3
REASON_OF_CODE = {_OUTSIDE: OUTSIDE_DOMAIN, _NULL: NULL_VALUE, _NAN: NOT_A_NUMBER}


class DomainMap:
    """Maps values to bins of a domain, vectorised."""

    def __init__(self, domain: Domain, columns: tuple[str, ...]) -> None:
        self._other = domain.bins - 1 if isinstance(domain, WithOther) else _OUTSIDE
        check_value_columns(domain, columns)
        self.domain = domain.domain if isinstance(domain, WithOther) else domain
        self.columns = columns

    @cached_property
    def _index(self) -> TextIndex:
        return TextIndex(self.domain.labels)

    def bins(self, arrays: list[pa.Array]) -> npt.NDArray[np.int64]:
        """Bin of each row, int64, shape (n,); a negative code is a key of `REASON_OF_CODE`.

        Raises ConfigurationError for a column whose type the domain cannot hold.
        """
        bins = self._listed(arrays)
        bins[bins == _OUTSIDE] = self._other
        return bins

    def _listed(self, arrays: list[pa.Array]) -> npt.NDArray[np.int64]:
        """Bin of each row without one for other values."""
        if isinstance(self.domain, Categories):
            return self._categories(arrays[0])
        numbers = [self._numbers(a, c) for a, c in zip(arrays, self.columns, strict=True)]
        if isinstance(self.domain, Grid):
            bins = self._cells(*numbers)
        else:
            assert isinstance(self.domain, Edges)
            edges = np.array(self.domain.edges)
            bins = np.searchsorted(edges, numbers[0], side="right") - 1
            bins[(numbers[0] < edges[0]) | (numbers[0] >= edges[-1])] = _OUTSIDE
        bins[np.any([np.isnan(n) for n in numbers], axis=0)] = _NAN
        bins[np.any([_nulls(a) for a in arrays], axis=0)] = _NULL
        return bins.astype(np.int64)

    def _categories(self, array: pa.Array) -> npt.NDArray[np.int64]:
        text = as_text(array)
        if text is None:
            raise ConfigurationError(
                f"column {self.columns[0]!r} holds {array.type}; a list of categories matches "
                "text or whole numbers: convert it, or use numeric edges"
            )
        bins = self._index.find(text)
        if (bins < 0).any():
            bins[_nulls(text)] = _NULL
        return bins

    def _cells(self, longitude: Any, latitude: Any) -> npt.NDArray[np.int64]:
        grid = self.domain
        assert isinstance(grid, Grid)
        with np.errstate(invalid="ignore"):  # NaN becomes a null value later
            inside = (longitude >= grid.west) & (longitude < grid.east)
            inside &= (latitude >= grid.south) & (latitude < grid.north)
            x = np.where(inside, (longitude - grid.west) / (grid.east - grid.west), 0)
            y = np.where(inside, (latitude - grid.south) / (grid.north - grid.south), 0)
        # A value just below the far edge may round up to it.
        column = np.minimum((x * grid.columns).astype(np.int64), grid.columns - 1)
        row = np.minimum((y * grid.rows).astype(np.int64), grid.rows - 1)
        return np.where(inside, row * grid.columns + column, _OUTSIDE)

    def _numbers(self, array: pa.Array, column: str) -> npt.NDArray[np.float64]:
        numbers = as_numbers(array)
        if numbers is None:
            raise ConfigurationError(
                f"column {column!r} holds {array.type}; this domain needs numbers"
            )
        return numbers


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        nulls |= _nulls(array.dictionary)[array.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return nulls

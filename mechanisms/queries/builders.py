"""Functions that define queries in Python, one for each statistic.

>>> visits = sv.count("visits", by="place", keys=["cafe", "park"])
>>> bus = sv.where.kind == "bus"
>>> delay = sv.mean("delay", of="delay", bounds=(0, 30), every="1d", where=bus)

The arguments have the names and meanings of the keys in a file of queries, which
`docs/reference/queries.md` explains. Each function returns a :class:`QueryDefinition`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.domains import Categories, Edges, Grid
from streamveil.mechanisms.queries.conditions import Conditions
from streamveil.mechanisms.queries.definitions import QueryDefinition

ColumnNames = str | Sequence[str]
"""The name of a column, or the names of two columns with longitude and latitude."""
ListedKeys = Sequence[str] | Sequence[int] | npt.NDArray[Any]
"""Keys as a list or array of text or whole numbers."""
Keys = Categories | Edges | Grid | str | ListedKeys | Mapping[str, Any]
"""Public keys, given as a list, ranges of numbers, map cells, or the name of a file. `discover`, or
`{"discover": {...}}` with options, finds them privately."""
Duration = str | dt.timedelta
"""The length of a slot, such as `1h`, `1d` or `1mo`, or a timedelta."""
Durations = Duration | Sequence[Duration]
"""One length of a slot, or several lengths."""
Where = Conditions | Mapping[str, Any]
"""A filter on events, made with `sv.where` or given as a mapping from column to values."""
Levels = Sequence[Mapping[str, Sequence[str]] | str] | Mapping[str, Sequence[str]] | Literal["all"]
"""Groups of keys, in order from the smallest groups to the largest."""
Numbers = Sequence[float] | npt.NDArray[np.floating[Any]]
"""A list or array of numbers."""
Bounds = tuple[float, float] | Sequence[float] | Literal["auto"]
"""Public lower and upper bounds, or `auto` if a private estimate is to choose the bounds."""
Keep = Literal["uniform", "distinct"]
"""Which events are kept if a user has more than `max_contributions` events in a slot."""


def count(
    name: str,
    *,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Count events, by key and slot.

    Args:
        name: name of the query and of its result file. Use letters, digits, `-` and `_`, and begin
            with a letter or a digit.
        by: name of the column to group by. To group by map cells, give the names of two columns,
            the first with longitudes and the second with latitudes.
        keys: the publicly known values of the column `by`. There is a result for each of these
            values. Give a list of text or whole numbers, ranges of numbers such as `{"edges": [0,
            10, 20]}`, map cells such as `{"grid": [WEST, SOUTH, EAST, NORTH, COLUMNS, ROWS]}` in
            degrees, or the name of a file. `discover` finds the keys that enough users share, which
            needs `delta`. If you leave out `by` and `keys`, each slot has a single result.
        other: name of an extra key for all events whose value of `by` is not in `keys`. If you give
            no name, these events are rejected.
        null: name of an extra key for events whose value of `by` is null (missing, or empty text).
            If you give no name, these events are rejected.
        where: a filter, such as `sv.where.kind == "car"` or `{"kind": "car"}`. The query uses only
            events that match the filter.
        every: length of the query's slots (fixed time windows), such as `1h`, `1d`, `1w` (from
            Monday), `1mo`, `1y`, or a timedelta. The length must be a multiple of the base slot,
            which is the `slot` that you pass to `sv.release`. The default is the length of the base
            slot.
        rollups: lengths of rollups, from the shortest to the longest. A rollup is an additional
            result for a longer slot. For example, `["1d", "1w"]` adds results for each day and each
            week.
        levels: groups of keys for which results are also reported. For example, `[{"east": ["a",
            "b"]}, "all"]` adds results for a group `east` of two keys, and for all keys together.
            If the keys are discovered, a group may also list beginnings of keys, such as `"a*"`.
        max_contributions: the largest number of events that are kept per user and slot. The default
            is 1. Further events are dropped.
        keep: how to choose the events that are kept if a user has more than `max_contributions`
            events in a slot. The default `uniform` keeps a random sample, and `distinct` prefers
            events with different keys.
        mechanism: name of the mechanism that adds the noise. The default is `adaptive`. You may add
            options, written NAME:OPTION=VALUE. For example, with `adaptive:cycle=auto` the
            mechanism searches for a repeating pattern, such as a week.
        weight: how much the errors of this query matter, compared with the errors of the other
            queries. The default is 1. streamveil divides the budget between the queries so that the
            sum of the squared errors, each multiplied by the weight of its query, is small.
        share: fraction of each user's privacy budget that this query may spend, greater than 0 and
            at most 1. If you leave out this argument, streamveil chooses the fraction together with
            the fractions of the other queries.
        title: heading of the query on HTML pages. The default is the query's name.
        unit: unit of the results, such as `minutes`. HTML pages show this unit.

    Returns:
        The definition of the query. Pass this definition to `sv.release` or `sv.PrivateQueries`.

    Raises:
        ConfigurationError: if an argument is not valid, for example `keys` without `by`.

    Example:
        >>> sv.count("visits", by="place", keys=["cafe", "park"], rollups=["1d"]).by
        ('place',)
    """
    return _defined("count", locals())


def distinct(
    name: str,
    *,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Count the distinct users, by key and slot.

    If a user has several events with the same key in a slot, the user is counted once. A rollup
    adds up the results of several slots, so a user with events in three of these slots is counted
    three times. To count each user once per day, use `every="1d"` instead of hourly slots with a
    daily rollup.

    The arguments and the result are those of :func:`count`.

    Raises:
        ConfigurationError: if an argument is not valid, for example `levels` together with
            `max_contributions` above 1.

    Example:
        >>> sv.distinct("users", every="1d").statistic.name
        'distinct'
    """
    return _defined("distinct", locals())


def sum(
    name: str,
    *,
    of: str,
    bounds: Bounds,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Add up the numbers in a column, by key and slot, in the column's unit.

    The other arguments, and the result, are those of :func:`count`.

    Args:
        of: the column that contains the numbers.
        bounds: public bounds (lower, upper) in the column's unit. Values are clamped to these
            bounds. With `auto`, the bounds are chosen by a private estimate, which spends part of
            the budget.

    Raises:
        ConfigurationError: if an argument is not valid, for example bounds that are not finite or
            not in ascending order.

    Example:
        >>> sv.sum("sales", of="price", bounds=(0, 500), by="shop", keys=["a", "b"]).statistic
        Sum(column='price', lower=0.0, upper=500.0)
    """
    return _defined("sum", locals())


def mean(
    name: str,
    *,
    of: str,
    bounds: Bounds,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Estimate the mean of the numbers in a column, by key and slot, in the column's unit.

    The arguments are those of :func:`sum`.

    Example:
        >>> sv.mean("delay", of="delay", bounds=(0, 30), every="1d", unit="minutes").statistic
        Mean(column='delay', lower=0.0, upper=30.0)
    """
    return _defined("mean", locals())


def variance(
    name: str,
    *,
    of: str,
    bounds: Bounds,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Estimate the variance of the numbers in a column, by key and slot, in the unit squared.

    The arguments are those of :func:`sum`.

    Example:
        >>> sv.variance("spread", of="delay", bounds=(0, 30), every="1d").statistic
        Variance(column='delay', lower=0.0, upper=30.0)
    """
    return _defined("variance", locals())


def stddev(
    name: str,
    *,
    of: str,
    bounds: Bounds,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Estimate the standard deviation of the numbers in a column, by key and slot.

    The arguments are those of :func:`sum`.

    Example:
        >>> sv.stddev("spread", of="delay", bounds="auto", every="1d").statistic.chosen
        False
    """
    return _defined("stddev", locals())


def quantiles(
    name: str,
    *,
    of: str,
    edges: Numbers | Mapping[str, float] | None = None,
    bounds: Bounds | None = None,
    quantiles: Numbers | None = None,
    by: ColumnNames | None = None,
    keys: Keys | None = None,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    levels: Levels | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Estimate quantiles of the numbers in a column, by key and slot, in the column's unit.

    Give either `edges` or `bounds`.

    The other arguments, and the result, are those of :func:`count`.

    Args:
        of: the column that contains the numbers.
        edges: public edges of the intervals in which the numbers are counted, in ascending order.
            The quantiles are interpolated from the counts of the intervals. If you give a mapping
            such as `{"lower": 1, "upper": 3600, "intervals": 24}`, streamveil makes 24 intervals
            from 1 to 3600, whose edges are spaced evenly on a logarithmic scale.
        bounds: the lowest and the highest edge, which you may give instead of `edges`. The range
            between these edges is divided into 32 intervals of equal width. With `auto`, the bounds
            are chosen by a private estimate before the first slot. This estimate spends part of the
            budget.
        quantiles: the quantiles to estimate, as probabilities between 0 and 1, such as `[0.5,
            0.95]`. The default is the median.

    Raises:
        ConfigurationError: if an argument is not valid, for example edges that are not in ascending
            order, or a quantile outside the range from 0 to 1.

    Example:
        >>> late = sv.quantiles("late", of="delay", bounds=(0, 64), quantiles=[0.5, 0.95])
        >>> len(late.statistic.edges), late.statistic.outputs
        (33, ('p50', 'p95'))
    """
    return _defined("quantiles", locals())


def median(name: str, *, of: str, **query: Any) -> QueryDefinition:
    """Estimate the median of the numbers in a column: `sv.quantiles` with `quantiles=[0.5]`.

    Args:
        name: name of the query and of its result file. Use letters, digits, `-` and `_`, and begin
            with a letter or a digit.
        of: the column that contains the numbers.
        **query: the other arguments of `sv.quantiles`. You must give exactly one of `edges` and
            `bounds`.

    Raises:
        ConfigurationError: if an argument is not valid.

    Example:
        >>> sv.median("typical", of="delay", bounds=(0, 64)).statistic.outputs
        ('p50',)
    """
    return quantiles(name, of=of, quantiles=[0.5], **query)


def top(
    name: str,
    *,
    k: int,
    by: ColumnNames,
    keys: Keys,
    other: str | None = None,
    null: str | None = None,
    where: Where | None = None,
    every: Duration | None = None,
    rollups: Durations | None = None,
    max_contributions: int | None = None,
    keep: Keep | None = None,
    mechanism: str | None = None,
    weight: float | None = None,
    share: float | None = None,
    title: str | None = None,
    unit: str | None = None,
) -> QueryDefinition:
    """Rank the k keys with the most events in each slot, and report how certain each rank is.

    The other arguments, and the result, are those of :func:`count`.

    Args:
        k: the number of keys to report, from 1 to the number of `keys`.
        by: name of the column to group by. To group by map cells, give the names of two columns,
            the first with longitudes and the second with latitudes.
        keys: the publicly known values of the column `by` that are ranked. Give a list of text or
            whole numbers, ranges of numbers such as `{"edges": [0, 10, 20]}`, map cells such as
            `{"grid": [WEST, SOUTH, EAST, NORTH, COLUMNS, ROWS]}` in degrees, or the name of a file.

    Raises:
        ConfigurationError: if an argument is not valid, for example if k is larger than the number
            of keys.

    Example:
        >>> sv.top("busiest", by="airport", keys=["ATL", "ORD", "DFW"], k=2).statistic
        TopK(k=2)
    """
    return _defined("top", locals())


def _defined(statistic: str, given: Mapping[str, Any]) -> QueryDefinition:
    """The definition of an entry with these arguments as keys; None stands for no key."""
    written = {key: value for key, value in given.items() if value is not None}
    return QueryDefinition.of({**written, "statistic": statistic})

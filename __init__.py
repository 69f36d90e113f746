"""Private statistics of event streams, with a privacy budget for each user.

`import streamveil as sv` gives you the functions and classes that you need most. The other
functions and classes are in the packages `streamveil.mechanisms`, `streamveil.transforms` and
`streamveil.io`. A function or class is imported when you first use it, so a program loads only the
modules that it needs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamveil.io import ReadEvents, WriteReleases, read_requirements
    from streamveil.mechanisms import (
        Categories,
        ConfigurationError,
        Edges,
        Grid,
        InputLost,
        Registry,
        Requirement,
        Slots,
        simulate,
    )
    from streamveil.mechanisms.queries.builders import (
        count,
        distinct,
        mean,
        median,
        quantiles,
        stddev,
        sum,  # the builder of this name; the built-in function is not used here
        top,
        variance,
    )
    from streamveil.mechanisms.queries.conditions import where
    from streamveil.mechanisms.queries.queries import Query, QuerySet
    from streamveil.pipelines.in_memory.functions import (
        collect,
        evaluate,
        per_record,
        release,
    )
    from streamveil.pipelines.in_memory.run_options import RunOptions
    from streamveil.transforms import Columns, PrivateQueries

__version__ = "0.1.0"

__all__ = [
    "Categories",
    "Columns",
    "ConfigurationError",
    "Edges",
    "Grid",
    "InputLost",
    "PrivateQueries",
    "Query",
    "QuerySet",
    "ReadEvents",
    "Registry",
    "Requirement",
    "RunOptions",
    "Slots",
    "WriteReleases",
    "__version__",
    "collect",
    "count",
    "distinct",
    "evaluate",
    "mean",
    "median",
    "per_record",
    "quantiles",
    "read_requirements",
    "release",
    "simulate",
    "stddev",
    "sum",
    "top",
    "variance",
    "where",
]


def __getattr__(name: str) -> object:
    """Import a name when it is first used. See `lazy_names`, which is then imported too.

    Raises ImportError where it needs an extra that is not installed.
    """
    from streamveil.mechanisms.core.lazy_names import lazy_names

    return lazy_names(__name__)[0](name)


def __dir__() -> list[str]:
    """What can be had here."""
    return sorted(__all__)

"""Private statistics of event streams under personal w-event requirements.

`import streamveil as sv`: what is used most has a name here, which is imported when it is first
asked for. The rest is in `streamveil.mechanisms`, `streamveil.transforms` and `streamveil.io`.
"""

from importlib import import_module
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
    from streamveil.mechanisms.portfolio.questions import Portfolio, Question
    from streamveil.pipelines.in_memory.functions import (
        answers,
        collect,
        evaluate,
        per_record,
        release,
    )
    from streamveil.transforms import Columns, PrivateAnswers, PrivateHistograms

__version__ = "0.1.0"

__all__ = [
    "Categories",
    "Columns",
    "ConfigurationError",
    "Edges",
    "Grid",
    "InputLost",
    "Portfolio",
    "PrivateAnswers",
    "PrivateHistograms",
    "Question",
    "ReadEvents",
    "Registry",
    "Requirement",
    "Slots",
    "WriteReleases",
    "__version__",
    "answers",
    "collect",
    "evaluate",
    "per_record",
    "read_requirements",
    "release",
    "simulate",
]

_HOME = {
    **dict.fromkeys(
        ("answers", "collect", "evaluate", "per_record", "release"),
        "streamveil.pipelines.in_memory.functions",
    ),
    **dict.fromkeys(("ReadEvents", "WriteReleases", "read_requirements"), "streamveil.io"),
    **dict.fromkeys(("Portfolio", "Question"), "streamveil.mechanisms.portfolio.questions"),
    **dict.fromkeys(("Columns", "PrivateAnswers", "PrivateHistograms"), "streamveil.transforms"),
}
"""Where a name is defined; all others are in `streamveil.mechanisms`."""


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for.

    Raises ImportError where it needs an extra that is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(_HOME.get(name, "streamveil.mechanisms")), name)
    except ImportError as error:
        from streamveil.mechanisms.core.lazy_names import in_words

        raise in_words(error, f"{__name__}.{name}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What can be had here."""
    return sorted(__all__)

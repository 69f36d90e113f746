"""The mechanisms for budgets that never come back, by name. Adding one is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError, Lifetime
from streamveil.mechanisms.infinite.calendar_baselines import Constant, Doubling, Horizon
from streamveil.mechanisms.infinite.dpi import DPI
from streamveil.mechanisms.infinite.gated import Gated
from streamveil.mechanisms.protocol import Mechanism, Population, population_of
from streamveil.mechanisms.registry import parse

# A factory takes (name, population) and its options as keywords with defaults of type bool,
# float, int or str.
Factories = Mapping[str, Callable[..., Mechanism[Any]]]

# There to compare with, never advised.
_COMPARED: Factories = {
    "dpi": DPI,
    "constant": Constant,
    "doubling": Doubling,
    "horizon": Horizon,
}
INFINITE_COMPARATORS = frozenset(_COMPARED)

# These release nothing new after a horizon: they are not for infinite streams.
FINITE = frozenset({"horizon"})

INFINITE_MECHANISMS: Factories = {"gated": Gated, **_COMPARED}

INFINITE_DEFAULT = "gated"


def infinite_mechanism(
    text: str, bins: int, epsilon: float, *, users: int = 0, sensitivity: int = 1
) -> Mechanism[Any]:
    """Make a mechanism for one budget over a whole stream.

    Args:
        text: a key of `INFINITE_MECHANISMS`, with options as NAME:OPTION=VALUE:OPTION=VALUE.
        bins: number of bins d of the histogram.
        epsilon: what all releases together may cost anybody.
        users: public number of users, for the ledger alone.
        sensitivity: how much one user can change a slot's histogram in L1.

    Raises:
        ConfigurationError: for an unknown name or option, or a value that does not fit.
    """
    return mechanism_forever(text, population_of([Lifetime(epsilon)], [users], bins, sensitivity))


def mechanism_forever(text: str, population: Population) -> Mechanism[Any]:
    """Make a mechanism for a population of one :class:`Lifetime`.

    Raises as :func:`infinite_mechanism` does.
    """
    name, options = parse(text, INFINITE_MECHANISMS)
    try:
        return INFINITE_MECHANISMS[name](text, population, **options)
    except ConfigurationError as error:
        if repr(text) in str(error):
            raise
        raise ConfigurationError(f"mechanism {text!r}: {error}") from error

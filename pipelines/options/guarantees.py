"""Which promise is made, by the options --guarantee and --epsilon."""

from __future__ import annotations

import argparse

from streamveil.engine.capabilities import OF_SETS
from streamveil.engine.guarantees import INFINITE, USER, WINDOWS
from streamveil.mechanisms.core.records import ConfigurationError, Lifetime
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.options.flags import numbers

__all__ = [
    "CENTRAL",
    "INFINITE",
    "USER",
    "WINDOWS",
    "check_promise_to_queries",
    "epsilons_of",
    "promise_of",
]

CENTRAL = (WINDOWS, INFINITE, USER)
"""The guarantees where the operator sees the events."""


def promise_of(given: argparse.Namespace) -> str:
    """Which promise is made: one of `CENTRAL`.

    Raises ConfigurationError where it and the budget do not fit.
    """
    promise = given.guarantee or WINDOWS
    if promise != WINDOWS and given.epsilon is None:
        raise ConfigurationError(
            f"{opt.epsilon} is missing: {opt.guarantee}={promise} needs the lifetime budget"
        )
    if promise == WINDOWS and given.epsilon is not None:
        if hasattr(given, "epsilons"):
            instead = f"write {opt.epsilons}"
        elif getattr(given, "budget", None):
            instead = f"leave it out: {opt.budget} says it already"
        else:
            instead = f"write {opt.budget}={given.epsilon}/7d, for any 7 days in a row"
        raise ConfigurationError(
            f"{opt.epsilon}={given.epsilon} alone is a budget without a period: for a budget "
            f"that renews {instead}; for a lifetime budget give {opt.guarantee}={INFINITE} or "
            f"{USER} as well"
        )
    return str(promise)


def epsilons_of(text: str) -> list[float]:
    """Read the budgets of --epsilon, each once, in order. Raises ConfigurationError."""
    return numbers("epsilon", text, float, Lifetime)


def check_promise_to_queries(given: argparse.Namespace) -> None:
    """Refuse a guarantee that queries cannot share. Raises ConfigurationError."""
    if given.guarantee == INFINITE:
        raise ConfigurationError(
            f"{opt.guarantee}={INFINITE} is not for {opt.queries}: {OF_SETS['infinite']}"
        )

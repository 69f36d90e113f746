"""The mechanisms of per-record privacy by statistic and name. Adding one is one entry here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.base_distinct import framework_distinct
from streamveil.mechanisms.per_record.base_max import framework_max
from streamveil.mechanisms.per_record.base_sum import framework_sum
from streamveil.mechanisms.per_record.hat import HatCount, HatSum
from streamveil.mechanisms.per_record.prdp import PrdpCount, PrdpSum
from streamveil.mechanisms.per_record.protocol import Bounds, Statistic
from streamveil.mechanisms.registry import parse

# A factory takes (name, bounds), then facts with a default of None, then its options as keywords
# with defaults of type bool, float, int or str.
PerRecordFactories = Mapping[str, Callable[..., Statistic]]

PER_RECORD_MECHANISMS: Mapping[str, PerRecordFactories] = {
    "count": {"hat": HatCount, "prdp": PrdpCount},
    "sum": {"hat": HatSum, "prdp": PrdpSum, "framework": framework_sum},
    "max": {"framework": framework_max},
    "distinct": {"framework": framework_distinct},
}

# What a statistic is computed by unless its mechanism is named.
DEFAULTS: Mapping[str, str] = {
    "count": "hat",
    "sum": "hat",
    "max": "framework",
    "distinct": "framework",
}


def statistic(kind: str, text: str | None, bounds: Bounds, **facts: Any) -> Statistic:
    """Make a statistic.

    Args:
        kind: a key of `PER_RECORD_MECHANISMS`.
        text: a mechanism that it lists under `kind`, with options as
            NAME:OPTION=VALUE:OPTION=VALUE; None for the default one.
        bounds: public bounds of values and budgets.
        facts: more that is public, such as the budget function as `budget`; mechanisms that do not
            use a fact are not told.

    Raises:
        ConfigurationError: for an unknown statistic, name or option, a value that does not fit, or
            bounds that the mechanism cannot serve.
    """
    if kind not in PER_RECORD_MECHANISMS:
        known = ", ".join(PER_RECORD_MECHANISMS)
        raise ConfigurationError(f"statistic {kind!r} is unknown: choose one of {known}")
    text = text or DEFAULTS[kind]
    name, options = parse(text, PER_RECORD_MECHANISMS[kind])
    factory = PER_RECORD_MECHANISMS[kind][name]
    used = inspect.signature(factory).parameters
    told = {fact: value for fact, value in facts.items() if fact in used}
    return factory(text, bounds, **told, **options)

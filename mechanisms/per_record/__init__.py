"""Per-record privacy: the loss of a record stays within a budget that is a function of the record.

The budget itself is secret, for it reveals the record. Values and budgets in, statistics out.
"""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.mechanisms.per_record.analyzer import Analyzer
    from streamveil.mechanisms.per_record.budget_functions import (
        Inverse,
        Logarithmic,
        Lookup,
        SquareRoot,
    )
    from streamveil.mechanisms.per_record.domains import (
        domain_index,
        partition,
        select_domain,
        thresholds,
    )
    from streamveil.mechanisms.per_record.framework import Framework
    from streamveil.mechanisms.per_record.hat_partition import gap_select, hat_weights
    from streamveil.mechanisms.per_record.local_framework import LocalFramework
    from streamveil.mechanisms.per_record.own_mechanism import Measurement, Own
    from streamveil.mechanisms.per_record.protocol import (
        Additive,
        Bounds,
        Noisy,
        PerRecordRelease,
        Statistic,
    )
    from streamveil.mechanisms.per_record.randomizer import Randomizer
    from streamveil.mechanisms.per_record.running import RunningState, RunningTotal

__all__ = [
    "Additive",
    "Analyzer",
    "Bounds",
    "Framework",
    "Inverse",
    "LocalFramework",
    "Logarithmic",
    "Lookup",
    "Measurement",
    "Noisy",
    "Own",
    "PerRecordRelease",
    "Randomizer",
    "RunningState",
    "RunningTotal",
    "SquareRoot",
    "Statistic",
    "domain_index",
    "gap_select",
    "hat_weights",
    "partition",
    "select_domain",
    "thresholds",
]

__getattr__, __dir__ = lazy_names(__name__)

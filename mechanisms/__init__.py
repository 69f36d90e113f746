"""Mechanisms, privacy accounting and queries for counts in memory, without Beam or files."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.mechanisms.accounting.window_filter import BudgetExceeded, WindowFilter
    from streamveil.mechanisms.core.domains import (
        Categories,
        Domain,
        Edges,
        Grid,
        WithNull,
        WithOther,
    )
    from streamveil.mechanisms.core.records import (
        ConfigurationError,
        DynamicRequirement,
        InputLost,
        LedgerEntry,
        Lifetime,
        Release,
        Requirement,
        Slots,
    )
    from streamveil.mechanisms.core.user_table import Registry
    from streamveil.mechanisms.driver.dynamic_stream import DynamicStream
    from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
    from streamveil.mechanisms.protocol import Mechanism, Population, SlotInput, SlotRelease
    from streamveil.mechanisms.randomness.noise import NoiseSource
    from streamveil.mechanisms.registry import (
        DEFAULT,
        DYNAMIC_MECHANISMS,
        DYNAMIC_SCHEDULES,
        INFINITE_DEFAULT,
        INFINITE_MECHANISMS,
        LOCAL_DEFAULT,
        LOCAL_MECHANISMS,
        MECHANISMS,
        PER_RECORD_MECHANISMS,
        SCHEDULES,
        dynamic_mechanism,
        infinite_mechanism,
        local_mechanism,
        mechanism,
        schedule,
        statistic,
    )
    from streamveil.mechanisms.simulation import (
        InfiniteSimulation,
        LocalSimulation,
        Simulation,
        simulate,
        simulate_dynamic,
        simulate_infinite,
        simulate_local,
    )
    from streamveil.mechanisms.wevent.obs import optimal_budget_selection

__all__ = [
    "DEFAULT",
    "DYNAMIC_MECHANISMS",
    "DYNAMIC_SCHEDULES",
    "INFINITE_DEFAULT",
    "INFINITE_MECHANISMS",
    "LOCAL_DEFAULT",
    "LOCAL_MECHANISMS",
    "MECHANISMS",
    "PER_RECORD_MECHANISMS",
    "SCHEDULES",
    "BudgetExceeded",
    "Categories",
    "ConfigurationError",
    "Domain",
    "DynamicRequirement",
    "DynamicStream",
    "Edges",
    "Grid",
    "InfiniteSimulation",
    "InputLost",
    "LedgerEntry",
    "Lifetime",
    "LocalSimulation",
    "Mechanism",
    "NoiseSource",
    "Population",
    "Registry",
    "Release",
    "ReleaseStream",
    "Requirement",
    "Simulation",
    "SlotInput",
    "SlotRelease",
    "Slots",
    "StreamState",
    "WindowFilter",
    "WithNull",
    "WithOther",
    "dynamic_mechanism",
    "infinite_mechanism",
    "local_mechanism",
    "mechanism",
    "optimal_budget_selection",
    "schedule",
    "simulate",
    "simulate_dynamic",
    "simulate_infinite",
    "simulate_local",
    "statistic",
]

__getattr__, __dir__ = lazy_names(__name__)

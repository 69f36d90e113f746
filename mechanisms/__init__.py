"""The mathematics of streamveil: counts in, private releases out. No Beam, no files, no clocks."""

from streamveil.mechanisms.domains import Categories, Domain, Edges, Grid, WithOther
from streamveil.mechanisms.dynamic_stream import DynamicStream
from streamveil.mechanisms.mechanism import Mechanism, Population, SlotInput, SlotRelease
from streamveil.mechanisms.noise import NoiseSource
from streamveil.mechanisms.obs import optimal_budget_selection
from streamveil.mechanisms.odometer import BudgetExceeded, Odometer
from streamveil.mechanisms.records import (
    ConfigurationError,
    DynamicRequirement,
    InputLost,
    LedgerEntry,
    Lifetime,
    Release,
    Requirement,
    Slots,
)
from streamveil.mechanisms.registry import (
    DEFAULT,
    DYNAMIC_MECHANISMS,
    DYNAMIC_SCHEDULES,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_DEFAULT,
    LOCAL_MECHANISMS,
    MECHANISMS,
    SCHEDULES,
    dynamic_mechanism,
    infinite_mechanism,
    local_mechanism,
    mechanism,
    schedule,
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
from streamveil.mechanisms.stream import ReleaseStream, StreamState
from streamveil.mechanisms.users import Registry

__all__ = [
    "DEFAULT",
    "DYNAMIC_MECHANISMS",
    "DYNAMIC_SCHEDULES",
    "INFINITE_DEFAULT",
    "INFINITE_MECHANISMS",
    "LOCAL_DEFAULT",
    "LOCAL_MECHANISMS",
    "MECHANISMS",
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
    "Odometer",
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
]

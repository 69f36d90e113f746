"""The mathematics of streamveil: counts in, private releases out. No Beam, no files, no clocks."""

from streamveil.mechanisms.domains import Categories, Domain, Edges, Grid
from streamveil.mechanisms.mechanism import Mechanism, Population, SlotInput, SlotRelease
from streamveil.mechanisms.noise import NoiseSource
from streamveil.mechanisms.obs import optimal_budget_selection
from streamveil.mechanisms.odometer import BudgetExceeded, Odometer
from streamveil.mechanisms.records import (
    ConfigurationError,
    LedgerEntry,
    Release,
    Requirement,
    Slots,
)
from streamveil.mechanisms.registry import DEFAULT, MECHANISMS, SCHEDULES, mechanism, schedule
from streamveil.mechanisms.simulation import Simulation, simulate
from streamveil.mechanisms.stream import ReleaseStream, StreamState
from streamveil.mechanisms.users import Registry

__all__ = [
    "DEFAULT",
    "MECHANISMS",
    "SCHEDULES",
    "BudgetExceeded",
    "Categories",
    "ConfigurationError",
    "Domain",
    "Edges",
    "Grid",
    "LedgerEntry",
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
    "mechanism",
    "optimal_budget_selection",
    "schedule",
    "simulate",
]

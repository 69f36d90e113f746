"""Beam transforms: events in, private releases out."""

from streamveil.transforms.asking import CollectedReports, CollectReports
from streamveil.transforms.collecting import Collected, CollectHistograms
from streamveil.transforms.heartbeat import Heartbeat
from streamveil.transforms.histograms import (
    ADD_REMOVE,
    REPLACE,
    Outputs,
    PrivateHistograms,
)
from streamveil.transforms.mapping import Columns
from streamveil.transforms.rejects import REJECTED_SCHEMA

__all__ = [
    "ADD_REMOVE",
    "REJECTED_SCHEMA",
    "REPLACE",
    "CollectHistograms",
    "CollectReports",
    "Collected",
    "CollectedReports",
    "Columns",
    "Heartbeat",
    "Outputs",
    "PrivateHistograms",
]

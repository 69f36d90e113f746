"""Which kind of plan a plan is, for code that serves all kinds and imports none of them."""

from __future__ import annotations

from enum import Enum


class PlanKind(Enum):
    """What a plan releases."""

    HISTOGRAMS = "histograms"
    LOCAL = "local"
    QUERIES = "queries"
    RECORDS = "records"

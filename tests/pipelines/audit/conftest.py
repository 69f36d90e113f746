"""Audits that are made short."""

import pytest

from streamveil.pipelines.audit import (
    asked_worlds,
    changes,
    presence,
    questions,
    replay_worlds,
    whole_runs,
    worlds,
)


@pytest.fixture
def short(monkeypatch):
    """Runs of as few slots as there can be."""
    for module in (worlds, asked_worlds):
        monkeypatch.setattr(module, "LENGTH", 20)
    monkeypatch.setattr(worlds, "LEAST_LEAPS", 4)


@pytest.fixture(autouse=True)
def replayed_briefly(monkeypatch):
    """Worlds that are replayed are short: `tests/audits/test_replay.py` has long ones."""
    for module in (replay_worlds, whole_runs):
        monkeypatch.setattr(module, "LENGTH", 36)
    for module in (replay_worlds, presence, changes, questions):
        monkeypatch.setattr(module, "STAGES", 1)

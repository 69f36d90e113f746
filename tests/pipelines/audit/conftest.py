"""Audits that are made short."""

import pytest

from streamveil.pipelines.audit import (
    asked_worlds,
    auditing,
    changes,
    for_ever,
    presence,
    questions,
    replay_worlds,
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
    """Worlds that are replayed are short: `tests/audits` has long ones, and whole runs."""
    monkeypatch.setattr(replay_worlds, "LENGTH", 36)
    for module in (auditing, presence, questions, for_ever):
        monkeypatch.setattr(module, "second", lambda stages, _: stages)
    for module in (replay_worlds, presence, changes, questions):
        monkeypatch.setattr(module, "STAGES", 1)

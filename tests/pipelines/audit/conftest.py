"""Audits that are made short."""

import pytest

from streamveil.pipelines.audit import auditing, replay_worlds, rounds, worlds


@pytest.fixture
def short(monkeypatch):
    """Runs of as few slots as there can be."""
    monkeypatch.setattr(worlds, "LENGTH", 20)
    monkeypatch.setattr(worlds, "LEAST_LEAPS", 4)


@pytest.fixture(autouse=True)
def replayed_briefly(monkeypatch):
    """Worlds that are replayed are short: `tests/audits` has long ones, and whole runs."""
    monkeypatch.setattr(replay_worlds, "LENGTH", 36)
    monkeypatch.setattr(rounds, "_second", lambda stages, _: stages)
    monkeypatch.setattr(auditing, "STAGES", 1)

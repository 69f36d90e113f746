"""Audits that are made short."""

import pytest

from streamveil.pipelines.audit import asked_worlds, worlds


@pytest.fixture
def short(monkeypatch):
    """Runs of as few slots as there can be."""
    for module in (worlds, asked_worlds):
        monkeypatch.setattr(module, "LENGTH", 20)
    monkeypatch.setattr(worlds, "LEAST_LEAPS", 4)

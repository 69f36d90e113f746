"""What the tests of the mechanisms share."""

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def golden() -> Any:
    """Load a golden file by its name."""
    return lambda name: json.loads((GOLDEN / f"{name}.json").read_text())

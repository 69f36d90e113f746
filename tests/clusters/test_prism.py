"""What Prism does with the state of a key when it splits bundles, and that it is not let."""

import importlib
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.prism, pytest.mark.slow]


@pytest.fixture(scope="module")
def prism_split():
    """The script benchmarks/prism_split.py as a module."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # as if it were run
    return importlib.import_module("prism_split")


@pytest.mark.parametrize("split", [False, True])
def test_two_bundles_of_one_key_lose_updates_of_its_state(prism_split, request, split):
    """If the second case fails, Prism was mended: `keep_keys_whole` may go."""
    prism = Path(request.config.getoption("--prism_location")).resolve()
    found = prism_split.numbers(str(prism), split=split)
    every = list(range(1, prism_split.ELEMENTS + 1))
    assert (found == every) is not split
    assert len(found) == len(every)

"""What the tests of sources share: outputs collected in this process, and a stopwatch-free stop."""

import time

import apache_beam as beam
import pytest


class Kept:
    """Elements by name. Local runners have their workers in this process."""

    elements: dict[str, list] = {}


def _keep(element, time=beam.DoFn.TimestampParam, *, name):
    Kept.elements[name].append((element, time))


@pytest.fixture
def keep():
    """Keep all elements of a PCollection under a name; gives the list of (element, time)."""
    Kept.elements.clear()

    def keep(elements, name):
        Kept.elements[name] = []
        _ = elements | f"Keep {name}" >> beam.Map(_keep, name=name)
        return Kept.elements[name]

    return keep


@pytest.fixture
def until():
    """Wait for something to become true."""

    def until(done, seconds=60):
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.05)

    return until

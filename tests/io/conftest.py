"""What the tests of sources share: outputs collected in this process, and some releases."""

import apache_beam as beam
import numpy as np
import pytest

from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED, Release, Slots


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
def some_releases():
    """Three releases; before the first publication no error is known."""
    hour = Slots.of("1h")
    common = {"epsilon": 0.5, "mechanism": "pba"}
    errors = ([np.nan, np.nan], [1.5, 2.0], [1.5, 2.0])
    return [
        Release(
            slot=slot,
            start=hour.start(slot),
            end=hour.end(slot),
            counts=np.array([slot, -slot]),
            status=PUBLISHED if slot == 1 else SKIPPED,
            published_slot=1 if slot else None,
            stderr=np.array(errors[slot]),
            diagnostics={"gap": 0.25, "é": np.nan} if slot == 2 else {},
            **common,
        )
        for slot in range(3)
    ]

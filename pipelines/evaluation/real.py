"""Real streams by name: the demo's flights, with the demo's requirements."""

from __future__ import annotations

from pathlib import Path

from streamveil.io import read_requirements
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import UNIFORM, Slots, parse_time
from streamveil.pipelines.evaluation.data import Data, Letters
from streamveil.pipelines.evaluation.sources import Counted
from streamveil.pipelines.evaluation.streams import REAL
from streamveil.pipelines.flights import DESTINATIONS, TIME, USER, VALUE, YEAR, write_demo_input
from streamveil.pipelines.inputs import Inputs
from streamveil.transforms import ADD_REMOVE, Columns


def real_stream(name: str, folder: Path) -> Counted:
    """Count a year of flights from New York: 105 airports, 4,043 aircraft, each a user.

    Args:
        name: a key of `streams.REAL`.
        folder: where the counts go; it must outlive what is returned.

    Raises:
        ConfigurationError: when the flights are not installed.
    """
    folder = folder / name
    folder.mkdir()
    slots = Slots.of(REAL[name])
    events, requirements = write_demo_input(folder, hourly=name == "flights-hourly")
    inputs = Inputs(
        Columns(USER, (VALUE,), TIME),
        slots,
        Categories(DESTINATIONS),
        max_contributions=1,
        keep=UNIFORM,
        adjacency=ADD_REMOVE,
        first_slot=slots.index(parse_time(YEAR[0])),
        last_slot=slots.index(parse_time(YEAR[1])),
    )
    registry = read_requirements(str(requirements))
    return Data(name, str(events), None, inputs, registry).count(folder, Letters(keep=False))

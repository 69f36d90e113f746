"""The local mechanisms by name. Adding one is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError, check_shares
from streamveil.mechanisms.local.algorithms.lba import LBA
from streamveil.mechanisms.local.algorithms.lbd import LBD
from streamveil.mechanisms.local.algorithms.lbu import LBU
from streamveil.mechanisms.local.algorithms.lpa import LPA
from streamveil.mechanisms.local.algorithms.lpd import LPD
from streamveil.mechanisms.local.algorithms.plbu import PLBU
from streamveil.mechanisms.local.algorithms.plpa import PLPA, PLPAPlus
from streamveil.mechanisms.local.algorithms.plpd import PLPD, PLPDPlus
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.protocol import LocalMechanism, Users
from streamveil.mechanisms.registry import parse

# A factory takes (name, users) and its options as keywords with defaults of type bool, float, int
# or str.
LocalFactories = Mapping[str, Callable[..., LocalMechanism[Any]]]

# There to compare with, never advised.
_COMPARED: LocalFactories = {
    "lpa": LPA,
    "lpd": LPD,
    "lba": LBA,
    "lbd": LBD,
    "plbu": PLBU,
    "lbu": LBU,
}
LOCAL_COMPARATORS = frozenset(_COMPARED)

LOCAL_MECHANISMS: LocalFactories = {
    "rotation": Rotation,
    "plpa+": PLPAPlus,
    "plpd+": PLPDPlus,
    "plpa": PLPA,
    "plpd": PLPD,
    **_COMPARED,
}

LOCAL_DEFAULT = "rotation"


def local_mechanism(text: str, users: Users) -> LocalMechanism[Any]:
    """Make a local mechanism.

    Args:
        text: a key of `LOCAL_MECHANISMS`, with options as NAME:OPTION=VALUE:OPTION=VALUE.
        users: the public population.

    Raises:
        ConfigurationError: for an unknown name or option, a value that does not fit, or a
            population that the mechanism cannot ask.
    """
    name, options = parse(text, LOCAL_MECHANISMS)
    if not users.class_of.size:
        raise ConfigurationError("there are no users: nobody could be asked")
    if users.symbols < 2:
        raise ConfigurationError(
            f"reports of {users.symbols} symbols tell nothing: give 2 bins or more"
        )
    check_shares(users.classes)
    return LOCAL_MECHANISMS[name](text, users, **options)

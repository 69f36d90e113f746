"""The keys of a query that are discovered. They are public once they are found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from streamveil.mechanisms.core.arguments import is_true
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.identity import Form
from streamveil.mechanisms.core.parameter_checks import finite_number, whole
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.key_groups import NO_GROUPS, KeyGroups
from streamveil.mechanisms.discovery.key_rules import KeyRules

DISCOVER = "discover"
"""The value of `keys` with which a query discovers its keys."""
UNLISTED = "unlisted"
"""The default name of the bin for keys that are not listed."""
MOST_KEYS = 1000
"""The largest value of `max_keys`. With a larger one, no key would ever be found."""
MOST_WINDOWS = 1000
"""The largest value of `windows`."""


@dataclass(frozen=True)
class DiscoveredKeys(Categories):
    """Keys that enough users share, found by a private partition selection.

    Raises:
        ConfigurationError: if a field is out of range.
    """

    IDENTITY = Form(
        "discovered keys",
        ("values", "rules", "max_keys", "share", "sample", "found"),
        later={"windows": 1, "since": (), "groups": NO_GROUPS, "ended": (), "stay": False},
    )

    values: tuple[str, ...] = ()
    """The keys that are listed now. Before the discovery, there are none."""
    rules: KeyRules = field(default_factory=KeyRules)
    """Which texts are one key, and which keys may be published."""
    max_keys: int = 1
    """How many unlisted keys of a user are counted in a discovery slot."""
    windows: int = 1
    """Length of a discovery slot, in longest windows. A longer discovery slot contains more users
    of each key at no higher cost, but keys are found later."""
    share: float = 0.2
    """Fraction of each user's budget that the discovery may spend."""
    sample: float = 1.0
    """Fraction of all keys that may be found, to save memory."""
    found: bool = False
    """Whether the keys were discovered."""
    since: tuple[int, ...] = ()
    """For the last keys, the base slot from which each of them is listed, in ascending order. All
    keys before them are listed from the first slot on."""
    groups: KeyGroups = NO_GROUPS
    """Groups with a bin of their own for keys that are not listed. The bins follow the listed keys,
    and the bin of all other unlisted keys follows them."""
    ended: tuple[tuple[str, int, int], ...] = ()
    """Each time that a key was listed and left: the key, its first base slot and the one after its
    last."""
    stay: bool = False
    """Whether keys stay listed, however few events they have."""

    def __post_init__(self) -> None:
        """Check all fields."""
        if self.values:
            super().__post_init__()
        for name, limit in (("max_keys", MOST_KEYS), ("windows", MOST_WINDOWS)):
            number = whole(name, getattr(self, name))
            if number > limit:
                raise ConfigurationError(f"{name} is {number}: give at most {limit}")
        object.__setattr__(self, "stay", is_true(self.stay, "stay"))
        for name, most in (("share", 0.95), ("sample", 1.0)):
            value = finite_number(getattr(self, name))
            if value is None or not 0 < value <= most:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}: give a number above 0 and at most {most:g}"
                )
        if len(self.since) > len(self.values) or list(self.since) != sorted(self.since):
            raise ConfigurationError("the base slots of keys must ascend, with at most one a key")

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.values) + len(self.groups.bins)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin."""
        return (*self.values, *self.groups.bins)

    @property
    def unlisted_bins(self) -> tuple[int, ...]:
        """For each listed key, the bin in which it was counted before it was listed.

        The bins of listed keys are not counted.
        """
        return tuple(map(self.groups.place, self.values))

    @property
    def declared(self) -> DiscoveredKeys:
        """The keys as declared, before any were discovered."""
        return replace(self, values=(), found=False, since=(), ended=())

    def budgets(self, budgets: Units) -> list[int]:
        """What the discovery may cost in a window, of the budget of each class: whole units."""
        share = Fraction(str(float(self.share)))
        return [int(share * units) for units in budgets.tolist()]

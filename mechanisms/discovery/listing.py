"""Which keys are listed: found keys stay until their estimates have been small for long.

A listed key is public. It costs nothing to keep, takes none of the places of a user in a draw, and
is counted by the usual mechanism. Both ends of its time on the list are functions of what was
published, so that they cost nothing either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Listing:
    """The keys that are listed now."""

    window: int
    """A key leaves after so many consecutive base slots with an estimate below its error."""
    always: tuple[str, ...] = ()
    """Keys that never leave."""
    below: Mapping[str, int] = field(default_factory=dict)
    """Of each other key, how many base slots its estimate has been below its error."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All listed keys, in the order in which they came."""
        return (*self.always, *self.below)

    def with_found(self, keys: Iterable[str]) -> Listing:
        """The listing, with keys that were found."""
        fresh = dict.fromkeys((key for key in keys if key not in self.always), 0)
        return Listing(self.window, self.always, {**self.below, **fresh})

    def after(self, estimates: Mapping[str, tuple[float, float]], base_slots: int = 1) -> Listing:
        """The listing after a release, without the keys that leave.

        Args:
            estimates: of each listed key that was released, its estimate and its standard error.
            base_slots: how many base slots the release covers.
        """
        below = dict(self.below)
        for key in below.keys() & estimates.keys():
            estimate, error = estimates[key]
            below[key] = below[key] + base_slots if estimate < error else 0
        kept = {key: slots for key, slots in below.items() if slots < self.window}
        return Listing(self.window, self.always, kept)

"""What a window of base slots costs, if keys are discovered in slots of several base slots.

A user contributes to few keys of a discovery slot, which are drawn from all keys that the user has
there and that are not public yet. There are two kinds of draws:

- *by discovery slot*: `places` keys from all of the slot;
- *by base slot*: `places` keys from each base slot of it, so that each draw looks at one base slot.

Neighbouring inputs differ in what one user did in a window of w consecutive base slots. Let the
window cover `overlap` of the base slots of a discovery slot. `changed` bounds the number of keys
whose distinct users differ by this user, and `removed` bounds those keys that only the input with
these events has, and those that only the other one has, each by itself.

Proof for draws by discovery slot. A draw takes the keys of lowest rank, and ranks are a function of
a secret, of user and key. If all base slots are covered, all drawn keys go, at most `places`, and
none come. If some are covered, the keys that remain are a subset of all, so those of the drawn keys
that remain are drawn again, and places that become free are taken by others. So at most `places` go
and at most as many come: `changed` is 2 `places`, and `removed` is `places`.
Proof for draws by base slot. Base slots outside the window keep their draws. So from the union of
all draws at most `places` keys for each covered base slot go, and none come.
If events are replaced, the new ones bring as many keys as the old ones took along: `changed` is the
sum for both, and `removed` the larger of the two, which is the same for both. For draws by
discovery slot, both inputs have at most `places` keys, so at most as many go and as many come.

A window meets at most ceil((w - 1) / r) + 1 discovery slots of r base slots, the first and the last
in part. Its cost is the largest sum over all places where it may begin. Costs of discovery slots
compose, because the keys that are public in a slot are a function of what was published before.
The enumeration over all small patterns is in `tests/mechanisms/discovery/test_price.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.records import REPLACE


@dataclass(frozen=True)
class Draw:
    """How the keys of a user are drawn."""

    length: int
    """Base slots r of a discovery slot."""
    places: int
    """Keys of a user that are drawn at a time."""
    by_base_slot: bool = False
    """Whether they are drawn in each base slot by itself."""
    replaced: bool = False
    """Whether neighbouring inputs have other events of the user in place of the removed ones."""

    @cached_property
    def changed(self) -> Integers:
        """Keys that change, by the number of base slots that are covered: shape (r + 1,)."""
        return self.removed + self._added

    @cached_property
    def removed(self) -> Integers:
        """Keys that only one of the two inputs has, the larger number: shape (r + 1,)."""
        covered = np.arange(self.length + 1)
        return self.places * (covered if self.by_base_slot else np.minimum(covered, 1))

    @property
    def _added(self) -> Integers:
        if self.replaced:
            return self.removed
        added = np.zeros_like(self.removed)
        if not self.by_base_slot:
            added[1 : self.length] = self.places
        return added

    def in_window(self, amounts: Integers, window: int) -> int:
        """The largest sum that a window meets of amounts by overlap, such as `changed`."""
        first = np.minimum(np.arange(self.length, 0, -1), window)
        whole, last = np.divmod(window - first, self.length)
        return int((amounts[first] + whole * amounts[self.length] + amounts[last]).max())


def cheapest_draw(length: int, window: int, places: int, adjacency: str) -> Draw:
    """The draw that costs least in a window.

    A user has at least `places` places in a discovery slot: draws by base slot have as many in each
    of them as that takes.

    Args:
        length: base slots of a discovery slot.
        window: base slots of the requirement.
        places: keys of a user in a discovery slot, above 0.
        adjacency: what neighbouring inputs differ in.
    """
    replaced = adjacency == REPLACE
    draws = (
        Draw(length, places, False, replaced),
        Draw(length, -(-places // length), True, replaced),
    )
    return min(
        draws,
        key=lambda draw: [draw.in_window(some, window) for some in (draw.changed, draw.removed)],
    )

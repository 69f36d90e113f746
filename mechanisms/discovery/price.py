"""What a window of base slots costs if a discovery slot has several base slots.

In each discovery slot, a user contributes to a few keys. They are drawn from all keys that the user
has in this slot and that are not listed yet. There are two kinds of draws:

- *by discovery slot*: `places` keys from the whole discovery slot;
- *by base slot*: `places` keys from each base slot of the discovery slot.

Neighbouring inputs differ in what one user did in a window of w consecutive base slots. The window
covers some of the base slots of a discovery slot. For each number of covered base slots, `changed`
bounds the number of keys that count this user in only one of the two inputs. `removed` bounds the
number of keys that count the user in the first input only, and also the number of those that count
the user in the second input only.

Proof for draws by discovery slot. A draw takes the keys with the lowest ranks, and the rank is a
function of a secret, the user and the key. If all base slots are covered, all drawn keys lose the
user, at most `places`, and no key gains the user. If some are covered, the user keeps a subset of
the keys. The drawn keys in this subset are drawn again, and each place that becomes free may be
taken by another key. So at most `places` keys lose the user, and at most `places` keys gain the
user: `changed` is 2 `places`, and `removed` is `places`.
Proof for draws by base slot. The draws of base slots outside the window stay the same. So from the
union of all draws, at most `places` keys are lost for each covered base slot, and none are gained.
If events are replaced, either input may have drawn keys that the other does not have: at most
`places` with draws by discovery slot, and at most `places` for each covered base slot with draws by
base slot. So the same bound, `removed`, holds for keys that lose the user and for keys that gain
the user, and `changed` is twice this bound.

A window meets at most ceil((w - 1) / r) + 1 discovery slots of r base slots, and may cover the
first and the last of them in part. Its cost is the largest sum over all base slots in which it may
begin.
Costs of discovery slots compose, because the keys that are listed in a slot are a function of what
was published before. The enumeration of all small patterns is in
`tests/mechanisms/discovery/test_price.py`.
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
    """Whether keys are drawn in each base slot separately."""
    replaced: bool = False
    """Whether neighbouring inputs have other events of the user in place of the removed ones."""

    @cached_property
    def changed(self) -> Integers:
        """Keys that change, by the number of covered base slots: shape (r + 1,)."""
        return self.removed + self._added

    @cached_property
    def removed(self) -> Integers:
        """Keys that count the user only in one given input: shape (r + 1,)."""
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
        """The largest sum over a window of amounts by covered base slots, such as `changed`."""
        first = np.minimum(np.arange(self.length, 0, -1), window)
        whole, last = np.divmod(window - first, self.length)
        return int((amounts[first] + whole * amounts[self.length] + amounts[last]).max())


def cheapest_draw(length: int, window: int, places: int, adjacency: str) -> Draw:
    """The kind of draw that costs least in a window.

    With draws by base slot, the places of a discovery slot are divided evenly among its base slots,
    and rounded up. So a user may have more than `places` places in a discovery slot.

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

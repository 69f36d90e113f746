"""Discovery of keys that enough users share, one discovery slot after another.

Guarantee: that of `terms.py`, over any `window` consecutive base slots of a user.
Adjacency: inputs that differ in what one user did in these base slots.
Proof: the keys that are listed before a slot are a function of what was published before. Given
these keys, the unlisted keys of a user depend only on this user's events, and so does the draw
(`price.py`). What is published of the slot is a function of the noisy counts of unlisted keys, each
with independent noise (`truncated_noise.py`). The sample of keys and the rules of keys consider one
key at a time, and decide the same in both inputs. The filter checks the sums independently.
Source: our own. Listed keys take no places of a user, as in Swanberg, Desfontaines, Haney,
"DP-SIPS" (2023), arXiv 2301.01998.
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.key_draw import (
    Pairs,
    drawn,
    sampled_keys,
    weighted_counts,
)
from streamveil.mechanisms.discovery.terms import DiscoveryTerms
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, derived_key, digest

_PURPOSE = "discovery of keys"


class Discovery:
    """Finds unlisted keys, slot by slot. Each slot is discovered once, in order.

    Noise is bound to the slot and to all weighted counts of it, in the order of the keys' digests.
    So it is the same if a slot is computed again from the same events in any order, and
    independent for other counts.

    Args:
        terms: weights of the classes, and the noise.
        books: the filter, which checks each slot before anything is published.
        secret: keys by base slot, from which noise and draws are derived. A discovery slot has the
            key of its last base slot.
        context: public facts on which the counts depend, such as the query.
        sample: fraction of the keys that are counted, above 0 and at most 1; public.
        test_mode: whether all keys that are counted are found, without noise and whatever their
            number of users: NOT private.
    """

    def __init__(
        self,
        terms: DiscoveryTerms,
        books: DiscoveryFilter,
        secret: NoiseKeys,
        context: bytes = b"",
        *,
        sample: float = 1.0,
        test_mode: bool = False,
    ) -> None:
        self.terms = terms
        self._books = books
        length = terms.draws[0].length
        keys = secret.of_slots(lambda base_slot: base_slot // length)
        self._draw_keys = keys.derived("draw of keys")
        self._sample_key = keys.derived("sample of keys").first
        self._noise = NoiseSource(keys.derived(_PURPOSE))
        self._context = context
        self._sample = sample
        self._test_mode = test_mode

    def find(self, slot: int, pairs: Pairs) -> Integers:
        """Find the keys of the next discovery slot.

        Args:
            slot: number of the discovery slot, later than those before.
            pairs: the unlisted keys that users had in it.

        Returns:
            Places of the keys in the digests of `pairs`, in the order of these digests: int64,
            shape (found,).

        Raises:
            BudgetExceeded: if a window would exceed a budget; nothing is published.
        """
        counts = self._counts(slot, pairs)
        present = np.flatnonzero(counts)
        first, second = pairs.digests[present].T
        present = present[np.lexsort((second, first))]
        digests, counts = pairs.digests[present], counts[present]
        if self._test_mode:
            return present
        self._books.charge(slot, self.terms.epsilon, self.terms.delta)
        shape = digest(
            self._context,
            *(encoded(one) for one in (self.terms.weights, self.terms.sizes, self._sample)),
            b"%d %d" % (self.terms.noise.unit, self.terms.noise.bound),
            digests.astype("<u8").tobytes(),
            counts.astype("<i8").tobytes(),
        )
        words = self._noise.slot(slot, shape).words(_PURPOSE)
        noisy = counts + self.terms.noise.draw(len(counts), words)
        found: Integers = present[noisy > self.terms.noise.bound]
        return found

    def _counts(self, slot: int, pairs: Pairs) -> Integers:
        """Weighted counts of the keys of a slot."""
        sampled = sampled_keys(pairs.digests, self._sample, self._sample_key)
        if not sampled.all():
            pairs = pairs.of(sampled[pairs.keys])
        key = derived_key(self._draw_keys.at(slot), f"slot {slot}")
        return weighted_counts(drawn(pairs, self.terms.draws, key), self.terms.weights)

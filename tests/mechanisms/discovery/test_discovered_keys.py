"""Keys that are listed in the course of a stream."""

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys

KEYS = DiscoveredKeys(("a", "b", "c", "d"), found=True, since=(10, 10, 20))


@pytest.mark.parametrize(
    ("slot", "listed", "since"),
    [
        (None, "a", ()),
        (9, "a", ()),
        (10, "abc", (10, 10)),
        (19, "abc", (10, 10)),
        (20, "abcd", (10, 10, 20)),
    ],
)
def test_a_slot_has_the_keys_that_were_listed_by_then(slot, listed, since):
    there = KEYS.at(slot)
    assert there.values == tuple(listed)
    assert there.since == since
    assert KEYS.number_at(slot) == len(listed)
    assert there.declared == DiscoveredKeys()


@pytest.mark.parametrize("since", [(20, 10), (1, 2, 3, 4, 5)])
def test_slots_that_do_not_fit_are_refused(since):
    with pytest.raises(ConfigurationError, match="base slots of keys must ascend"):
        DiscoveredKeys(("a", "b", "c", "d"), found=True, since=since)

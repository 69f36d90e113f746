"""Keys that are listed in the course of a stream."""

from dataclasses import replace

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys

KEYS = DiscoveredKeys(("a", "b", "c", "d"), found=True, since=(10, 10, 20))


def test_keys_as_declared_are_none():
    assert replace(KEYS, ended=(("e", 0, 10),)).declared == DiscoveredKeys()


@pytest.mark.parametrize("since", [(20, 10), (1, 2, 3, 4, 5)])
def test_slots_that_do_not_fit_are_refused(since):
    with pytest.raises(ConfigurationError, match="base slots of keys must ascend"):
        DiscoveredKeys(("a", "b", "c", "d"), found=True, since=since)

"""A stream released in pieces, each from the state that the one before left, is one stream."""

import pytest

from streamveil.mechanisms import ConfigurationError, Registry, Requirement
from streamveil.mechanisms.registry import SCHEDULES

KEY = bytes(range(32))
USERS = [f"u{i}" for i in range(24)]
REGISTRY = Registry.of(
    {u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate(USERS)}, default=(Requirement(3, 1.0), 20)
)
BUSY = (0, 1, 3, 4, 5, 63, 64, 66, 70)
ROWS = [(u, "ab"[i * s % 2], s) for s in BUSY for i, u in enumerate([*USERS, "x", "y"]) if i % 3]


def part(kit, first, last, resume=None, **options):
    """The transform over some slots."""
    options = {"noise_key": KEY, "mechanism": "pba", **options}
    registry = options.pop("registry", REGISTRY)
    return kit.histograms(registry, first_slot=first, last_slot=last, resume=resume, **options)


def within(kit, first, last):
    return [kit.batch([row for row in ROWS if first <= row[2] <= last])]


# Cut inside blocks of slots, at their border, and where nothing happens.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["adaptive", *SCHEDULES])
def test_pieces_of_a_stream_release_what_one_run_does(run_on, kit, runner, name):
    whole = run_on(runner, part(kit, 0, 75, mechanism=name), within(kit, 0, 75))
    releases, ledger, state = [], [], None
    for first, last in ((0, 0), (1, 3), (4, 63), (64, 69), (70, 72), (73, 75)):
        transform = part(kit, first, last, state, mechanism=name)
        ran = run_on(runner, transform, within(kit, first, last))
        next_slot, state = max(ran.state)
        assert next_slot == last + 1
        releases += ran.releases
        ledger += ran.ledger
    kit.assert_same_releases(releases, whole.releases)
    assert [e.spent_in_window.tolist() for e in ledger] == [
        e.spent_in_window.tolist() for e in whole.ledger
    ]
    assert max(whole.state) == (76, state)


def test_a_state_is_for_the_slot_and_the_options_that_it_was_written_with(here, kit):
    _, state = max(here(part(kit, 0, 3), within(kit, 0, 3)).state)
    for first in (0, 3, 5, None):
        with pytest.raises(ConfigurationError, match=f"starts at slot {first}, .*with slot 4"):
            part(kit, first, 9, state)
    for options, words in (
        ({"mechanism": "pbd"}, "the mechanism changed"),
        ({"max_contributions": 2}, "the contributions of a user in a slot and the sensitivity"),
        ({"domain": "ba"}, "the bins changed"),
    ):
        with pytest.raises(ConfigurationError, match=f"another configuration: {words}"):
            part(kit, 4, 9, state, **options)
    with pytest.raises(ConfigurationError, match=r"wrong checksum.* another noise key"):
        part(kit, 4, 9, state, noise_key=bytes(32))
    # Two users who exchange their requirements: the classes are the same, and so are their sizes.
    exchanged = {
        u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate([USERS[1], USERS[0], *USERS[2:]])
    }
    other = Registry.of(exchanged, default=(Requirement(3, 1.0), 20))
    assert (other.class_of == REGISTRY.class_of).all()
    with pytest.raises(ConfigurationError, match="another configuration: the table of users chan"):
        part(kit, 4, 9, state, registry=other)
    assert repr(state) not in repr(part(kit, 4, 9, state))

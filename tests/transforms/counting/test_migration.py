"""Requirements begin to change in a stream where users count in a few slots only."""

from dataclasses import replace

import pytest

from streamveil.engine.messages import Kind
from streamveil.mechanisms import ConfigurationError, Registry
from streamveil.mechanisms.presence import Limit
from tests.transforms.limited_streams import CHANGES, CUT, LAST, LONGEST, USERS, Limited, summaries

KEY = bytes(range(32))
ASKED = [20.0, 30.0, 60.0]
TABLE = Registry.of({user: (24, ASKED[i % 3]) for i, user in enumerate(USERS)})
LATER = [change for change in CHANGES if change[1] >= CUT]
# The same, known from the start; and known in the second pass alone.
ALWAYS = Limited(KEY, "adaptive", TABLE, Limit(1, 2), LATER)
MIGRATED = replace(ALWAYS, since=CUT)


def driver_of(stream):
    made = stream.transform(CUT, None, None)
    return made.ledgers(made.layout(bounded=True), True).make()


def kinds(messages, kind):
    return sorted(message for message in messages if message.kind is kind)


@pytest.mark.parametrize("cut", [CUT, 7, 1])
def test_those_count_who_would_if_all_had_been_known_from_the_start(cut):
    always, since = replace(ALWAYS, since=0), replace(MIGRATED, since=cut)
    ((_, known), (_, before)) = (one.released(0, cut - 1) for one in (always, since))
    ours, theirs = since.counted(cut, LAST, before), always.counted(cut, LAST, known)
    assert kinds(ours, Kind.COUNTS) == kinds(theirs, Kind.COUNTS)
    assert kinds(ours, Kind.KEPT) == kinds(theirs, Kind.KEPT)


def test_it_goes_on_and_draws_other_noise():
    before = MIGRATED.saved()
    releases, state = MIGRATED.released(CUT, LAST, before)
    some, halfway = MIGRATED.released(CUT, CUT + 3, before)
    rest, after = MIGRATED.released(CUT + 4, LAST, halfway)
    assert summaries([*some, *rest]) == summaries(releases)
    assert after == state
    fixed, _ = replace(MIGRATED, changes=()).read(before)
    assert driver_of(MIGRATED).decode(before).stream.history != fixed.stream.history


# Nobody is taken to have paid less than those of the classes before.
def test_the_door_remembers_the_dearest_that_anybody_may_have_paid():
    migrated = driver_of(MIGRATED).decode(MIGRATED.saved()).stream.filter
    assert (migrated.rows[:, 1:] >= migrated.rows[:, :-1]).all()
    assert migrated.rows.any()
    assert (migrated.in_window <= migrated.requirements.budgets).all()


@pytest.mark.parametrize(
    ("table", "longest"),
    [(LONGEST, None), (TABLE, 30)],
    ids=["windows differ", "longer windows to come"],
)
def test_where_calendars_would_change_it_is_refused(table, longest):
    stream = replace(MIGRATED, registry=table)
    made, state = stream.transform(CUT, LAST, None), stream.saved()
    with pytest.raises(ConfigurationError, match="every user's window is the longest") as refused:
        replace(made, resume=state, longest_window=longest)
    assert "\n" not in str(refused.value)

"""A bounded input here and now gives what a pipeline gives, to the last byte."""

import dataclasses
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.messages import REJECTED, STATE
from streamveil.engine.run.local import release_local
from streamveil.engine.run.release import release_plan
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.records import CHANGE_COLUMNS, InputLost
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.transforms import CollectHistograms, Columns
from tests.transforms.queries.test_bounds_choice import CARS, SPEED, VISITS, answers
from tests.transforms.queries.test_bounds_choice import batch as speeds
from tests.transforms.queries.test_bounds_choice import rows_of as speed_rows
from tests.transforms.stand_ins import WithChanges

KEY = bytes(range(50, 82))
USERS = [f"u{i}" for i in range(30)]
STRANGERS = [f"x{i}" for i in range(4)]
REGISTRY = Registry.of({user: (1 + i % 4, 0.5 + i % 2) for i, user in enumerate(USERS)})
LONG = Registry.of(dict.fromkeys(USERS, (24, 1800.0)), default=(Requirement(24, 1800.0), 20))
LAST = 40


def change_batch(rows):
    """One batch of (user, slot, four figures)."""
    names = ("user", "slot", *CHANGE_COLUMNS[-4:])
    figures = [[row[0], row[1], *row[2]] for row in rows]
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in figures])


CHANGES = [
    *((f"u{i}", 3, (4, 0.3, 4, 0.4)) for i in range(0, 12, 2)),
    *((f"x{i}", 5 + i % 2, (2, 1.0, 3, 1.0)) for i in range(4)),
    ("u7", 9, (None,) * 4),
]


def rows_of(seed=0):
    random = np.random.default_rng(seed)
    rows = [
        (user, "abz"[int(random.integers(3))], slot)
        for slot in range(LAST + 1)
        for user in [*USERS, *STRANGERS]
        if random.random() < (0.6 if slot < 25 else 0.05)
    ]
    return [rows[i] for i in random.permutation(len(rows))]


@dataclasses.dataclass(frozen=True)
class Case:
    """A plan, and whether changes come with the events."""

    registry: Registry = REGISTRY
    options: dict = dataclasses.field(default_factory=dict)
    changes: bool = False


RANGE = {"first_slot": 0, "last_slot": LAST}
CASES = {
    "adaptive": Case(options={"mechanism": "adaptive"}),
    "by the clock of the events": Case(options={"first_slot": None, "last_slot": None}),
    "shards": Case(options={"shards": 3, "max_contributions": 2, "keep": "distinct"}),
    "dynamic": Case(options={"mechanism": "dpbd"}, changes=True),
    "adaptive and changes": Case(options={"mechanism": "adaptive"}, changes=True),
    "going to change": Case(options={"mechanism": "adaptive", "changing": True}),
    "revised": Case(options={"mechanism": "adaptive", "revise": 3}),
    "limit": Case(LONG, {"limit": Limit(2, 2)}),
    "limit that is chosen": Case(LONG, {"limit": Auto()}),
    "limit and changes": Case(
        LONG, {"limit": Limit(2, 2), "changing": True, "longest_window": 24}, changes=True
    ),
    "pba": Case(options={"mechanism": "pba"}),
}


def assert_equal(mine, theirs):
    """Down to the fields of what they hold."""
    if dataclasses.is_dataclass(mine):
        assert type(mine) is type(theirs)
        for field in dataclasses.fields(mine):
            assert_equal(getattr(mine, field.name), getattr(theirs, field.name))
    elif isinstance(mine, list):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_equal(mine, theirs)


def assert_same_counters(mine, theirs):
    assert mine.counters == {name: number for name, number in theirs.counters.items() if number}


def letters(batches):
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


# Those that another one has all of are for CI.
FOR_CI = {"adaptive", "by the clock of the events", "dynamic", "limit", "going to change"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in FOR_CI)) for name in CASES],
)
def test_it_gives_what_a_pipeline_gives(run, here, kit, name):
    case = CASES[name]
    options = {"noise_key": KEY, "max_rejected": 0.9, **RANGE, **case.options}
    rows = rows_of()
    batches = [kit.batch(rows[i::3]) for i in range(3)]
    changes = [change_batch(CHANGES[i::2]) for i in range(2)] if case.changes else None
    transform = kit.histograms(case.registry, **options)
    given = WithChanges(transform, *changes) if case.changes else transform
    theirs = run(given, batches)
    mine = here(given, batches)
    assert_equal(mine.releases, theirs.releases)
    assert_equal(mine.ledger, theirs.ledger)
    assert_equal(mine.revisions, theirs.revisions)
    assert mine.done == [len(theirs.releases)]
    assert mine.state == theirs.state
    assert letters(mine.rejected) == letters(theirs.rejected)
    assert_same_counters(mine, theirs)
    assert mine.releases


def test_a_run_goes_on_from_a_state(run, here, kit):
    rows = rows_of()
    first = kit.histograms(REGISTRY, noise_key=KEY, first_slot=0, last_slot=20)
    early = [kit.batch([row for row in rows if row[2] <= 20 and row[0] in USERS])]
    late = [kit.batch([row for row in rows if row[2] > 20 and row[0] in USERS])]
    ((_, state),) = here(first, early).state
    rest = kit.histograms(REGISTRY, noise_key=KEY, first_slot=21, last_slot=LAST, resume=state)
    theirs = run(rest, late)
    assert_equal(here(rest, late).releases, theirs.releases)


def test_nothing_is_released_of_a_lost_input(kit):
    transform = kit.histograms(REGISTRY, noise_key=KEY, max_rejected=0.5, **RANGE)
    outputs = release_plan(transform, [kit.batch([("nobody", "a", 1)] * 5)])
    assert next(outputs).tag == REJECTED
    with pytest.raises(InputLost, match="all 5 events were rejected"):
        next(outputs)


def test_changes_without_a_start_are_refused(here, kit):
    transform = kit.histograms(REGISTRY, noise_key=KEY, mechanism="dpbd")
    with pytest.raises(ConfigurationError, match="give --start"):
        here(WithChanges(transform, change_batch(CHANGES)), [kit.batch([("u1", "a", 0)])])


QUERIES = {
    "bounds that are chosen": (SPEED, VISITS, CARS),
    "known bounds": (VISITS, replace(SPEED, statistic=AutoBounds("mean", "speed", 0, 130))),
}


@pytest.mark.parametrize("queries", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("last", [5, pytest.param(6, marks=pytest.mark.slow), None])
def test_it_answers_what_a_pipeline_answers(run, here, queries, last):
    first = None if last is None else 0
    rows = speed_rows(7)
    batches = [speeds(rows[i::3]) for i in range(3)]
    given = {"first_slot": first, "last_slot": last}
    theirs = run(answers(*queries, **given), batches)
    mine = here(answers(*queries, **given), batches)
    assert_equal(mine.answers, theirs.answers)
    assert_equal(mine.ledger, theirs.ledger)
    assert mine.state == theirs.state
    assert (mine.done, mine.booked) == (theirs.done, theirs.booked)
    assert letters(mine.rejected) == letters(theirs.rejected)
    assert mine.answers


@pytest.mark.slow
def test_a_query_set_under_a_limit_that_is_chosen_answers_what_a_pipeline_answers(run, here):
    rows = speed_rows(48)
    batches = [speeds(rows[i::3]) for i in range(3)]
    users = sorted({row[0] for row in rows})
    limited = {"registry": Registry.of(dict.fromkeys(users, (24, 4000.0))), "limit": Auto()}
    given = {"first_slot": 0, "last_slot": 47, **limited}
    theirs, mine = (
        run(answers(*QUERIES["known bounds"], **given), batches),
        here(answers(*QUERIES["known bounds"], **given), batches),
    )
    assert_equal(mine.answers, theirs.answers)
    assert_equal(mine.ledger, theirs.ledger)
    assert mine.state == theirs.state
    assert any(name.startswith("users limited to") for name in mine.counters)


@pytest.mark.many
@pytest.mark.parametrize("limit", [None, Limit(1), Auto()], ids=["none", "given", "chosen"])
def test_a_query_set_goes_on_from_a_state_within_a_slot(run, here, limit):
    rows = speed_rows(60)
    users = sorted({row[0] for row in rows})
    asked = {"limit": limit, "registry": Registry.of(dict.fromkeys(users, (24, 4000.0)))}
    known = replace(CARS, statistic=AutoBounds("sum", "speed", 0, 130))
    queries = (SPEED, VISITS, CARS) if limit is None else (VISITS, known)
    early, late = (
        [speeds([r for r in rows if (r[2] <= 49) is sooner])] for sooner in (True, False)
    )
    first = answers(*queries, **asked, first_slot=0, last_slot=46, ends=False)
    begun, same = here(first, early), run(first, early)
    assert begun.state == same.state
    assert_equal(begun.answers, same.answers)
    ((_, state),) = begun.state
    rest = answers(*queries, **asked, first_slot=47, last_slot=59, resume=state)
    found = here(rest, late).answers
    assert_equal(found, run(rest, late).answers)
    assert {one.query for one in found} == {query.name for query in queries}


@pytest.mark.parametrize("mechanism", ["plpa+", "rotation"])
def test_it_collects_what_a_pipeline_collects(run, here, kit, mechanism):
    rows = [row for row in rows_of() if row[0] in USERS]
    batches = [kit.batch(rows[i::3]) for i in range(3)]

    def made():
        return CollectHistograms(
            REGISTRY,
            Categories(("a", "b")),
            Slots.of("1h"),
            Columns("user", ("value",), "time"),
            mechanism=mechanism,
            noise_key=KEY,
            max_rejected=1.0,
            revise=2 if mechanism == "rotation" else 0,
            **RANGE,
        )

    theirs = run(made(), batches)
    mine = here(made(), batches)
    assert_equal(mine.releases, theirs.releases)
    assert_equal(mine.ledger, theirs.ledger)
    assert_equal(mine.revisions, theirs.revisions)
    assert mine.state == theirs.state
    assert letters(mine.rejected) == letters(theirs.rejected)
    assert_same_counters(mine, theirs)
    *_, last = release_local(made(), batches)
    assert last.tag == STATE  # no run can resume before everything is released

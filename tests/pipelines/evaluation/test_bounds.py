"""Events dropped by contribution bounding: reported, compared with the noise; a better bound."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.io import write_table
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.pipelines.evaluation.bounds import bound_advice, expected_errors
from streamveil.pipelines.evaluation.comparison import compare, tasks
from streamveil.pipelines.evaluation.data import Data, Letters
from streamveil.pipelines.evaluation.sources import Bound
from streamveil.pipelines.evaluation.w_event import WEvent
from streamveil.pipelines.plans.inputs import Inputs
from streamveil.transforms import Columns

BINS = tuple("12345")
SHARES = np.array([0.06, 0.11, 0.26, 0.35, 0.22])
USERS, SLOTS = 300, 6


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A file of ratings: a user comes in some slots, with 20 to 700 of them at once."""
    random = np.random.default_rng(7)
    users, times, values = [], [], []
    for user in range(USERS):
        for slot in np.flatnonzero(random.random(SLOTS) < 0.3).tolist():
            number = int(min(700, 20 * random.pareto(1.2) + 20))
            users += [f"u{user}"] * number
            times += [slot * 86_400_000_000] * number
            values += random.choice(BINS, number, p=SHARES).tolist()
    schema = pa.schema(
        [("user", pa.string()), ("value", pa.string()), ("time", pa.timestamp("us", "UTC"))]
    )
    batch = pa.RecordBatch.from_pydict({"user": users, "value": values, "time": times}, schema)
    path = str(tmp_path_factory.mktemp("ratings") / "ratings.parquet")
    write_table(path, schema, [batch])
    return path


def counted(path, folder, most):
    inputs = Inputs(
        Columns("user", ("value",), "time"),
        Slots.of("1d"),
        Categories(BINS),
        max_contributions=most,
        keep="uniform",
        adjacency="add_remove",
        first_slot=0,
        last_slot=SLOTS - 1,
    )
    registry = Registry.of({f"u{user}": (2, 1.0) for user in range(USERS)})
    return Data("ratings", path, None, inputs, registry).count(folder, Letters(keep=False))


def compared(source, epsilon):
    return compare(WEvent(), tasks(WEvent(), [(source, [(epsilon, 2)])], ["pbd"], 1))


def figures(source, epsilon):
    (found,) = compared(source, epsilon).runs
    return found.figures


def test_what_a_bound_leaves_out_is_no_success(ratings, tmp_path):
    source = counted(ratings, tmp_path, 1)
    visits = int(np.load(source.path).sum())
    events = int(np.load(source.events_path).sum())
    assert source.bound.beyond == events - visits > 0.9 * events
    found = figures(source, 1000.0)
    # Without noise worth the name all the error is of bounding, and no interval holds the truth.
    assert found["bounding"] == pytest.approx(found["amre"], rel=0.01)
    assert found["coverage"] == 0
    assert found["relative_error"] > 0.9


def test_what_a_bound_can_be_expected_to_leave_out(ratings, tmp_path):
    source = counted(ratings, tmp_path, 8)
    found = figures(source, 1000.0)
    assert found["bounding"] == pytest.approx(source.bound.errors[8], rel=0.01)
    # The next power of two than the busiest user has events leaves nothing out.
    assert 256 <= max(source.bound.errors) < 700


def test_the_advised_bound_errs_less_about_as_stated(ratings, tmp_path):
    (tmp_path / "one").mkdir()
    source = counted(ratings, tmp_path / "one", 1)
    one = compared(source, 4.0)
    lines = bound_advice([source], one)
    assert lines[0].startswith("ratings: ")
    assert lines[0].endswith("beyond the users' bound and do not count (--max_contributions=1)")
    expected = expected_errors(source.bound, one.runs[0].figures["noise"])
    best = min(expected, key=expected.get)
    assert f"--max_contributions={best} is likely to err less" in lines[1]
    again = figures(counted(ratings, tmp_path, best), 4.0)["amre"]
    assert again < one.runs[0].figures["amre"] / 2
    assert again == pytest.approx(expected[best], rel=0.5)


def test_a_bound_that_does_is_left_alone():
    bound = Bound(2, 100, 10, {1: 50.0, 2: 3.0, 4: 1.0})
    assert expected_errors(bound, 10.0) == {1: 52.5, 2: 13.0, 4: 41.0, 8: 160.0}

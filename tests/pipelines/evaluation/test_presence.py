"""Limits on presence side by side: measured on events of users, and the best advised."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from streamveil.io import write_table
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.pipelines.evaluation.comparison import compare, tasks
from streamveil.pipelines.evaluation.data import Data, Letters
from streamveil.pipelines.evaluation.presence import Candidates, Limited, _advice_text, limit_advice
from streamveil.pipelines.evaluation.w_event import WEvent
from streamveil.pipelines.plans.inputs import Inputs
from streamveil.transforms import Columns

USERS, SLOTS, WINDOW = 2_000, 60, 40


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Users who are there in 2 % of the slots; half of them are not in the table."""
    random = np.random.default_rng(7)
    users, slots = np.nonzero(random.random((USERS, SLOTS)) < 0.02)
    folder = tmp_path_factory.mktemp("visits")
    batch = pa.RecordBatch.from_pydict(
        {
            "user": [f"u{user}" for user in users.tolist()],
            "value": np.array(["a", "b"])[random.integers(0, 2, len(users))].tolist(),
            "time": pa.array(slots * 86_400_000_000, pa.timestamp("us", "UTC")),
        }
    )
    path = str(folder / "visits.parquet")
    write_table(path, batch.schema, [batch])
    inputs = Inputs(
        Columns("user", ("value",), "time"),
        Slots.of("1d"),
        Categories(("a", "b")),
        max_contributions=1,
        keep="uniform",
        adjacency="add_remove",
        first_slot=0,
        last_slot=SLOTS - 1,
    )
    asked = {f"u{user}": (WINDOW, 1.0) for user in range(0, USERS, 2)}
    registry = Registry.of(asked, default=(Requirement(WINDOW, 1.0), USERS // 2))
    data = Data("visits", path, None, inputs, registry)
    return data.count(folder, Letters(keep=False))


def compared(source):
    return compare(WEvent(), tasks(WEvent(), [(source, [(1.0, WINDOW)])], ["adaptive"], 2))


def test_it_errs_without_a_limit_what_the_mechanism_does(source):
    """The noise is other, so about as much."""
    limited = Limited(source, 1.0, WINDOW)
    seeds = [run.seed for run in compared(source).runs]
    errors = [limited.error("adaptive", None, seed) for seed in seeds]
    usual = [run.figures["amre"] for run in compared(source).runs]
    assert np.mean(errors) == pytest.approx(np.mean(usual), rel=0.5)
    assert limited.error("adaptive", None, seeds[0]) == errors[0]


def test_requirements_are_scaled_as_in_the_comparison(source):
    made = Limited(source, 0.5, 2 * WINDOW)
    assert made.asked == (Requirement(2 * WINDOW, 0.5),)
    assert pickle.loads(pickle.dumps(source)).original is None


# Before sums had no bias and priors were wide, the error without a limit was 167, and 57.6 with a
# limit of 3; now it is 26 without one, and 41 with it.
@pytest.mark.slow
def test_what_a_limit_is_worth_is_reported(source):
    (line,) = limit_advice(Candidates.of("1,2,3"), [source], compared(source))
    assert line.startswith("visits, epsilon 1, w 40, adaptive: AMRE ")
    assert line.endswith("; none is worth it, so leave --max_slots out")
    advice = line.partition("--max_slots: ")[2]
    assert [part.split()[0] for part in advice.partition(";")[0].split(", ")] == [
        *("1:", "2:", "3:"),
        "auto:",
    ]
    assert Candidates.of("auto").among([Requirement(WINDOW, 1.0)], "add_remove") == [1, 2, 3]


def test_windows_too_short_for_any_are_reported(source):
    comparison = compare(WEvent(), tasks(WEvent(), [(source, [(1.0, 8)])], ["adaptive"], 1))
    (line,) = limit_advice(Candidates.of("auto"), [source], comparison)
    assert line.endswith("no participation limit (--max_slots) pays over these windows")


def test_limits_that_are_all_too_large_are_refused_with_one_that_would_do(source):
    comparison = compare(WEvent(), tasks(WEvent(), [(source, [(1.0, WINDOW)])], ["adaptive"], 1))
    (line,) = limit_advice(Candidates.of("15,20"), [source], comparison)
    assert "pays up to --max_slots=3, so none of 15, 20 does: compare smaller ones" in line


@pytest.mark.parametrize("wrong", ["", "0", "two", "1.5", "2,", "auto,2"])
def test_what_is_no_list_of_limits_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=f"--max_slots={wrong} are no limits to compare"):
        Candidates.of(wrong)


def test_limits_that_no_window_has_room_for_are_named():
    text = _advice_text({"2": 10.0, "auto": 20.0}, 30.0, ["50", "60"])
    assert "2: 10, auto: 20 (over these windows not worth it: 50, 60); release with" in text

"""Events become counts by class, in a file, as the release job would count them."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamveil.io import write_table
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Slots
from streamveil.pipelines.evaluation import data as module
from streamveil.pipelines.evaluation.data import Data, Letters, spread
from streamveil.pipelines.options.evaluate_options import preset
from streamveil.pipelines.plans.inputs import Inputs
from streamveil.transforms import Columns

DAY = dt.timedelta(days=1)
FIRST = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def events(path, rows):
    schema = pa.schema(
        [("user", pa.string()), ("value", pa.string()), ("time", pa.timestamp("us", "UTC"))]
    )
    users, values, days = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_pydict(
        {"user": users, "value": values, "time": [FIRST + day * DAY for day in days]},
        schema=schema,
    )
    write_table(str(path), schema, [batch])
    return str(path)


def data(files, registry=None, **changes):
    inputs = {
        **{"columns": Columns("user", ("value",), "time"), "slots": Slots.of("1d")},
        **{"domain": Categories(("A", "B")), "max_contributions": 1, "keep": "uniform"},
        "adjacency": "add_remove",
        **{"first_slot": None, "last_slot": None, **changes},
    }
    return Data("mine", files, None, Inputs(**inputs), registry)


def counts(counted):
    slots = counted.slots_of(counted.epsilon, counted.window, 0)
    return np.stack([one for one, _ in slots]).tolist()


def every_event(counted):
    return np.stack([one.events for one in counted.slots()]).tolist()


def test_counts_by_class_of_the_table(tmp_path):
    path = events(
        tmp_path / "e.csv",
        # Ann twice in a slot, Dan is unknown, C is outside; day 1 is quiet.
        [
            *(("ann", "A", 0), ("bob", "A", 0), ("ann", "A", 0), ("cho", "B", 2)),
            *(("dan", "A", 2), ("bob", "C", 2), ("", "A", 0)),
        ],
    )
    registry = Registry.of({"ann": (3, 1.0), "bob": (3, 1.0), "cho": (2, 1.0), "eve": (2, 1.0)})
    letters = Letters(keep=True)
    found = data(path, registry).count(tmp_path, letters)
    assert [one.window for one in found.requirements] == [2, 3]
    assert found.sizes.tolist() == [2, 2]
    assert counts(found) == [[[0, 0], [2, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]]
    assert letters.reasons == {"no requirement": 1, "outside the domain": 1, "null user": 1}
    assert sum(batch.num_rows for batch in letters.batches) == 3
    assert np.load(found.path).dtype == np.uint8
    # Every event in a bin: Ann's second one, Dan's, and the one without a user.
    assert every_event(found) == [[4, 0], [0, 0], [1, 1]]
    assert (found.bound.most, found.bound.events, found.bound.beyond) == (1, 4, 1)
    # Of Ann's two events in one of 6 cells, one is left out.
    assert found.bound.errors == {1: 1 / 6}


def test_given_range_and_adjacency(tmp_path):
    path = events(tmp_path / "e.csv", [("ann", "A", 1), ("ann", "A", 1), ("ann", "A", 9)])
    first = Slots.of("1d").index(int(FIRST.timestamp() * 1e6))
    letters = Letters(keep=False)
    found = data(
        path,
        Registry.of({"ann": (3, 1.0)}),
        **{"first_slot": first, "last_slot": first + 3},
        **{"max_contributions": 2, "adjacency": "replace"},
    ).count(tmp_path, letters)
    assert counts(found) == [[[0, 0]], [[2, 0]], [[0, 0]], [[0, 0]]]
    assert found.sensitivity == 4
    assert letters.reasons == {"outside the released slots": 1}
    assert not letters.batches


def test_users_without_a_table_are_spread(tmp_path):
    users = [f"u{i}" for i in range(500)]
    path = events(tmp_path / "e.parquet", [(user, "A", 0) for user in users] * 2)
    found = data(path).count(tmp_path, Letters(keep=False))
    assert len(found.requirements) == 9
    assert found.sizes.sum() == 500
    assert found.sizes.min() > 25
    assert counts(found)[0] == [[size, 0] for size in found.sizes]
    public = found.population(0.6, 120)
    assert {one.window for one in public.requirements} == {40, 80, 120}
    assert {round(one.epsilon, 9) for one in public.requirements} == {0.6, 0.8, 1.0}


def test_spreading_is_the_same_everywhere():
    registry = spread(pa.array(["ann", "bob", "cho"]))
    again = spread(pa.array(["cho", "x", "ann"]))
    kinds = [registry.classes[k] for k in registry.class_of]
    others = [again.classes[k] for k in again.class_of]
    assert (kinds[0], kinds[2]) == (others[2], others[0])


def test_whole_numbers_as_users(tmp_path):
    table = pa.table({"user": [7, 8, None], "value": ["A"] * 3, "time": [FIRST] * 3})
    write_table(str(tmp_path / "e.parquet"), table.schema, table.to_batches())
    found = data(str(tmp_path / "e.parquet")).count(tmp_path, Letters(keep=False))
    assert found.sizes.sum() == 2


def test_nothing_to_count(tmp_path):
    path = events(tmp_path / "e.csv", [("ann", "C", 0)])
    with pytest.raises(ConfigurationError, match=r"no event was accepted; rejected: outside the"):
        data(path).count(tmp_path, Letters(keep=False))
    path = events(tmp_path / "f.csv", [("", "A", 0)])
    with pytest.raises(ConfigurationError, match="no event names a user in column 'user'"):
        data(path).count(tmp_path, Letters(keep=False))


def test_a_range_too_long_for_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    path = events(tmp_path / "e.csv", [("ann", "A", 0), ("bob", "B", 9999)])
    with pytest.raises(ConfigurationError, match=r"10,000 slots.*--start and --end"):
        data(path).count(tmp_path, Letters(keep=False))
    assert not Path(tmp_path / "counts.npy").exists()


@pytest.mark.parametrize(
    ("files", "domain"),
    [
        ("in/dataset_TSMC2014_NYC.txt", "grid:-74.3,40.5,-73.6,41.0,10,10"),
        ("dataset_TSMC2014_tky.txt", "grid:139.4,35.5,140.0,35.9,10,10"),
        ("check-ins.txt", None),
        ("NYC-and-TKY.txt", None),
    ],
)
def test_the_city_is_read_off_the_name(files, domain):
    assert preset("foursquare", files).options.get("domain") == domain

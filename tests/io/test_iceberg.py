"""Tables of Iceberg by the recipe of the page: one snapshot, whatever became of the table."""

import datetime as dt
import re
import secrets
from pathlib import Path

import pyarrow as pa
import pytest

import streamveil as sv

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "iceberg.md"
START = dt.datetime(2024, 5, 1, tzinfo=dt.timezone.utc)
USERS, DAYS = 40, 5


def visits(day):
    """A visit of every user on that day."""
    times = [START + dt.timedelta(days=day, minutes=user) for user in range(USERS)]
    return pa.table(
        {
            "user": [f"u{user}" for user in range(USERS)],
            "place": ["cafe" if (user + day) % 3 else "park" for user in range(USERS)],
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "note": ["x"] * USERS,
        }
    )


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of some days, in the catalogue that the page names."""
    catalog = pytest.importorskip("pyiceberg.catalog")
    pytest.importorskip("sqlalchemy")
    (tmp_path / "warehouse").mkdir()
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"file://{tmp_path}/warehouse",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__WAREHOUSE__{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_ENV_CONFIG", type(catalog._ENV_CONFIG)())  # read once before
    loaded = catalog.load_catalog("warehouse")
    loaded.create_namespace("transport")
    made = loaded.create_table("transport.visits", schema=visits(0).schema)
    for day in range(DAYS):
        made.append(visits(day))
    Path("requirements.csv").write_text(
        "user,window,epsilon\n" + "\n".join(f"u{user},7,1.0" for user in range(USERS))
    )
    key = tmp_path / "noise.key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    return made


def released(events):
    return sv.release(
        events,
        user="user",
        value="place",
        time="time",
        slot="1d",
        start="2024-05-01",
        end="2024-05-06",
        domain=["cafe", "park"],
        requirements="requirements.csv",
        noise_key="file:noise.key",
    )


def test_the_recipe_releases_one_snapshot_and_again_the_same(table):
    from pyiceberg.types import StringType

    (recipe,) = re.findall(r"^```python iceberg\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    expected = released(pa.concat_tables([visits(day) for day in range(DAYS)]))
    table.append(visits(DAYS))  # of a day that is not released
    made = {}
    exec(recipe, made)
    assert made["releases"].summary["counted"] == USERS * DAYS
    assert made["releases"].to_arrow().equals(expected.to_arrow())
    assert Path("releases.csv").is_file()

    # The table changes, and the snapshot does not.
    table.refresh()
    table.delete("place == 'park'")
    with table.update_schema() as update:
        update.rename_column("place", "stop")
        update.add_column("extra", StringType())
    with table.update_schema() as update:
        update.delete_column("note")
    again = recipe.replace("table.current_snapshot().snapshot_id", repr(made["snapshot"]))
    assert again != recipe
    repeated = {}
    exec(again, repeated)
    assert repeated["releases"].to_arrow().equals(expected.to_arrow())
    now = table.scan(selected_fields=("user", "stop", "time")).to_arrow_batch_reader()
    left = released(now.read_all().rename_columns(["user", "place", "time"]))
    assert not left.to_arrow().equals(expected.to_arrow())


def test_rows_that_cannot_be_counted_are_dead_letters_of_that_row(table):
    bad = visits(1).slice(0, 3).set_column(1, "place", pa.array([None, "pier", "cafe"]))
    table.append(bad)
    reader = table.scan(selected_fields=("user", "place", "time")).to_arrow_batch_reader()
    summary = released(reader).summary
    assert summary["read"] == USERS * DAYS + 3
    assert summary["rejected"] == {"null value": 1, "outside the domain": 1}

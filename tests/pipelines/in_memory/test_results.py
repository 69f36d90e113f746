"""What results know, and how they show themselves."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.csv
import pytest

import streamveil as sv
from streamveil.io import RESULT_SCHEMA


@pytest.fixture
def result(job, asked):
    return sv.release(job.path("events.csv"), **asked)


@pytest.fixture
def releases(result):
    return result["count"]


def test_releases_are_a_tidy_table(releases):
    frame = releases.to_pandas()
    assert list(frame) == RESULT_SCHEMA.names
    assert len(frame) == 9 * 3
    assert frame["key"].tolist()[:3] == ["A", "B", "C"]
    assert frame["start"].iloc[0].isoformat() == "2024-01-01T00:00:00+00:00"
    assert frame.equals(releases.to_arrow().to_pandas())


def test_releases_are_a_sequence(releases):
    assert len(releases) == 9
    assert [release.slot for release in releases] == releases.to_arrow("rows")["slot"].to_pylist()
    assert releases[0].values.tolist() == releases.to_arrow()["value"].to_pylist()[:3]
    assert releases[0].counts.tolist() == [round(one) for one in releases[0].values]


def test_another_layout_is_refused(releases):
    with pytest.raises(sv.ConfigurationError, match="layout 'wide' is unknown: choose tidy or"):
        releases.to_arrow("wide")


def test_they_show_themselves(result):
    text = repr(result)
    assert text.startswith("count: count of 3 keys in 9 slots by adaptive, 2024-01-01T00:00:00Z to")
    assert "320 events read" in text
    assert "--" not in text
    html = result._repr_html_()
    assert html.count("<tr>") == 11
    assert "and 17 rows more" in html
    assert "contribution bound" in html


def test_a_label_is_no_html(job, asked):
    shown = sv.release(
        job.path("events.csv"), **asked, run=sv.RunOptions(other="<b>")
    )._repr_html_()
    assert "<td>&lt;b&gt;</td>" in shown
    assert "<b>" not in shown


def test_they_are_drawn(releases):
    axes = releases.plot()
    assert [line.get_label() for line in axes.get_lines()] == ["A", "B", "C"]
    again = releases.plot(keys=["B"], ax=axes)
    assert again is axes
    assert len(axes.get_lines()) == 4
    with pytest.raises(sv.ConfigurationError, match="there is no key 'X': choose of A, B, C"):
        releases.plot(keys=["X"])


@pytest.mark.parametrize("more", [[], [sv.distinct("users")]])
def test_title_and_unit_of_a_query_are_drawn(job, asked, more):
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    visits = sv.count("visits", by="value", keys=["A", "B"], title="Visits", unit="visits a day")
    found = sv.release(job.path("events.csv"), visits, *more, **columns)
    axes = found["visits"].plot()
    assert (axes.get_title(), axes.get_ylabel()) == ("Visits", "released count (visits a day)")
    tried = sv.release(
        job.path("events.csv"), visits, *more, **columns, run=sv.RunOptions(test_mode=True)
    )
    title = tried["visits"].plot().get_title()
    assert title.startswith("Visits\n")
    assert "NOT PRIVATE" in title.upper()


@pytest.mark.parametrize(
    ("module", "use", "remedy"),
    [
        ("pandas", "to_pandas", "pip install pandas"),
        ("matplotlib.pyplot", "plot", "pip install '.\\[demo\\]'"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch, releases, module, use, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=remedy):
        getattr(releases, use)()


def test_statistics_of_records():
    records = pa.table({"amount": [1.0, 5.0, 90.0] * 40})
    found = sv.per_record(
        records, statistic="count", budget="inverse:100", value="amount", value_max=100,
        epsilon_max=4,
    )  # fmt: skip
    assert found.to_pandas()["statistic"].tolist() == ["count"]
    assert repr(found).startswith("released: one window of all times")
    assert found.plot().get_ylabel() == "released count"


@pytest.mark.parametrize(("windows", "slot", "points"), [(4, "1d", 4), (1, None, 1)])
def test_statistics_of_keys_are_drawn(windows, slot, points):
    days = [f"2024-01-0{1 + i % windows}T12:00:00Z" for i in range(120)]
    records = pa.table({"shop": list("ab") * 60, "amount": [1.0, 5.0, 90.0] * 40, "time": days})
    cut = {"time": "time", "slot": slot, "start": "2024-01-01", "end": "2024-01-05"}
    found = sv.per_record(
        records, statistic="sum", budget="inverse:100", value="amount", value_max=100, key="shop",
        keys="a,b", epsilon_max=4, **(cut if slot else {}),
    )  # fmt: skip
    axes = found.plot()
    lines = [container.get_label() for container in axes.containers]
    assert sorted(lines) == ["a", "b"]
    assert len(axes.containers[0].lines[0].get_xdata()) == points
    assert len(found.plot(["b"]).containers) == 1
    with pytest.raises(sv.ConfigurationError, match="there is no key 'X': choose of a, b"):
        found.plot(["X"])


def test_a_comparison():
    found = sv.evaluate(streams=["sin"], mechanisms=["pba", "pbd"], users=90, slots=8, seeds=1)
    assert found.to_arrow()["mechanism"].to_pylist() == ["pba", "pbd"]
    assert "Choose" in found.summary
    assert "wrote" not in found.summary
    axes = found.plot()
    assert [container.get_label() for container in axes.containers] == ["pba", "pbd"]


@pytest.mark.slow
def test_a_comparison_on_a_table(job):
    table = pyarrow.csv.read_csv(job.path("events.csv"))
    found = sv.evaluate(
        table, user="user", value="value", time="time", slot="1d", domain=["A", "B", "C"],
        mechanisms="pba", epsilons=[1.0], windows=3, seeds=1,
    )  # fmt: skip
    assert found.to_arrow()["stream"].to_pylist() == ["data"]


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(sv.ConfigurationError, match="streams is missing: name some"):
        sv.evaluate()
    with pytest.raises(sv.ConfigurationError, match=r"option streem=sin: did you mean streams\?"):
        sv.evaluate(streem="sin")


def test_a_call_imports_no_beam():
    """Beam's import takes as long as all the rest of a small call."""
    program = """
import sys
import pyarrow as pa
import streamveil as sv

times = ["2024-01-01", "2024-01-02"]
rows = {"user": ["ann", "bob"], "place": ["A", "B"], "delay": [1.0, 2.0], "time": times}
table, users = pa.table(rows), {"ann": (2, 1.0), "bob": (3, 2.0)}
columns = {"user": "user", "time": "time", "requirements": users}
counted = {"value": "place", "slot": "1d", "domain": ["A", "B"]}
calls = {
    "release": lambda: sv.release(table, **columns, **counted),
    "collect": lambda: sv.collect(table, **columns, **counted),
    "a set": lambda: sv.release(
        table, sv.count("visits"), sv.count("days", every="2d"), **columns, slot="1d"
    ),
    "per_record": lambda: sv.per_record(
        table, statistic="sum", budget="sqrt:1", value="delay", value_max=9, epsilon_max=1
    ),
}
for name, call in calls.items():
    call()
    assert "apache_beam" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", program], check=True)

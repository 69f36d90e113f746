"""Rows, CSV and Markdown of given runs."""

import math

import pytest

from streamveil.pipelines.evaluation.comparison_table import figure
from streamveil.pipelines.evaluation.w_event import WEvent
from tests.pipelines.evaluation.runs import compared, run

RUNS = [
    *(run("pba", seed, amre) for seed, amre in enumerate((1000.0, 1002.0, 1004.0))),
    *(
        run("pbd", seed, amre, coverage=math.nan)
        for seed, amre in enumerate((2000.0, 2001.0, 2002.0))
    ),
    run("ba", 0, 5.0, coverage=math.nan),
    run("ba", 1, 5.0, coverage=0.8),
    run("ba", 2, 5.0, coverage=0.6),
]


def test_means_and_standard_errors():
    pba, pbd, ba = compared(RUNS).rows
    sizes = [pba.facts[size] for size in ("seeds", "users", "slots", "bins")]
    assert (pba.mechanism, sizes) == ("pba", [3, 9000, 500, 2])
    assert pba.means["amre"] == 1002
    assert pba.errors["amre"] == pytest.approx(2 / math.sqrt(3))
    assert math.isnan(pbd.means["coverage"])
    assert ba.means["coverage"] == pytest.approx(0.7)
    assert ba.errors["coverage"] == pytest.approx(0.1)
    assert [row.facts["advice"] for row in (pba, pbd, ba)] == [
        "choose",
        "",
        "less error, comparator",
    ]


# The mean of three times 0.117 is rounded, and each seems to be 1.4e-17 away from it.
def test_equal_figures_have_no_error():
    (row,) = compared([run("pba", seed, 0.117) for seed in range(3)]).rows
    assert row.errors["amre"] == 0
    assert "| 0.117 ± 0 |" in compared([run("pba", seed, 0.117) for seed in range(3)]).markdown


def test_ties():
    runs = [run(n, s, 10.0 + s * (n == "pba")) for n in ("pba", "pbd") for s in (0, 1)]
    assert [row.facts["advice"] for row in compared(runs).rows] == ["tie", "tie"]


def test_all_figures():
    table = compared(RUNS).to_arrow()
    first, second, _ = table.to_pylist()
    assert first["amre"] == 1002
    assert first["amre_stderr"] == pytest.approx(2 / math.sqrt(3))
    assert second["coverage"] is None
    assert second["coverage_stderr"] is None
    assert {m.name for m in WEvent.measures} <= set(table.column_names)


def test_markdown():
    lines = compared(RUNS).markdown.splitlines()
    assert len(lines) == 2 + 3
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:5] == ["stream", "epsilon", "w", "mechanism", "AMRE"]
    assert cells[2][:5] == ["sin", "0.6", "12", "pba", "1,002 ± 1.2"]
    assert cells[3][cells[0].index("coverage")] == "-"


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (1478.3, 20.4, "1,478 ± 20"),
        (0.123456, 0.00456, "0.123 ± 0.0046"),
        (0.9, math.nan, "0.9"),
        (math.nan, math.nan, "-"),
    ],
)
def test_figures(mean, error, text):
    assert figure(mean, error) == text

"""Rows, CSV and Markdown of given runs."""

import math

import pytest

from streamveil.pipelines.evaluation.compare import Run
from streamveil.pipelines.evaluation.measures import MEASURES, Measured
from streamveil.pipelines.evaluation.tables import SCHEMA, batch_of, figure, markdown, rows_of


def run(mechanism, seed, amre, coverage=0.9, stream="sin"):
    measured = Measured(amre, 0.0, amre, amre / 1e4, 0.1, 0.01, 0.5, 1.0, coverage, 0.25)
    return Run(stream, 0.6, 12, mechanism, seed, 90, 5, 2, measured)


RUNS = [
    *(run("pba", seed, amre) for seed, amre in enumerate((1000.0, 1002.0, 1004.0))),
    *(run("pbd", seed, amre, math.nan) for seed, amre in enumerate((2000.0, 2001.0, 2002.0))),
    run("ba", 0, 5.0, math.nan),
    run("ba", 1, 5.0, 0.8),
    run("ba", 2, 5.0, 0.6),
]


def test_means_and_standard_errors():
    pba, pbd, ba = rows_of(RUNS)
    assert (pba.mechanism, pba.seeds, pba.users, pba.slots, pba.bins) == ("pba", 3, 90, 5, 2)
    assert pba.means["amre"] == 1002
    assert pba.errors["amre"] == pytest.approx(2 / math.sqrt(3))
    assert math.isnan(pbd.means["coverage"])
    assert ba.means["coverage"] == pytest.approx(0.7)
    assert ba.errors["coverage"] == pytest.approx(0.1)
    assert [row.advice for row in (pba, pbd, ba)] == ["choose", "", "less error, comparator"]


def test_ties():
    runs = [run(n, s, 10.0 + s * (n == "pba")) for n in ("pba", "pbd") for s in (0, 1)]
    assert [row.advice for row in rows_of(runs)] == ["tie", "tie"]


def test_batch():
    batch = batch_of(rows_of(RUNS), SCHEMA)
    assert batch.schema == SCHEMA
    first, second, _ = batch.to_pylist()
    assert first["amre"] == 1002
    assert first["amre_stderr"] == pytest.approx(2 / math.sqrt(3))
    assert second["coverage"] is None
    assert second["coverage_stderr"] is None
    assert {m.name for m in MEASURES} <= set(SCHEMA.names)


def test_markdown():
    lines = markdown(rows_of(RUNS)).splitlines()
    assert len(lines) == 2 + 3
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:5] == ["stream", "E", "w", "mechanism", "AMRE"]
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

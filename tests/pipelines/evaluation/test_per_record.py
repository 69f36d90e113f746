"""Per-record comparisons: what is measured, and the command around it."""

import numpy as np
import pytest

from streamveil.io import read_table
from streamveil.mechanisms.per_record.budget_functions import Inverse
from streamveil.pipelines.evaluation.comparison import Comparison
from streamveil.pipelines.evaluation.comparison_table import Run, Task
from streamveil.pipelines.evaluation.per_record import Data, PerRecord, figures_of, trimmed_mean
from streamveil.pipelines.sample_data.records import PER_RECORD_DATA


def run(seed, *errors, mechanism="hat"):
    facts = {"data": "bank", "statistic": "count", "mechanism": mechanism, "records": 7}
    figures = {**figures_of(np.array(errors)), "seconds": 0.5}
    return Run({**facts, "runs": len(errors)}, seed, figures)


def test_a_trimmed_mean_hides_the_worst_runs_and_the_mean_does_not():
    one = run(0, 1.0, 2.0, 3.0, 4.0, 500.0)
    assert trimmed_mean(np.array([1.0, 2.0, 3.0, 4.0, 500.0])) == 3.0
    assert one.figures == {"trimmed": 3.0, "error": 102.0, "failed": 20.0, "seconds": 0.5}


def test_results_are_means_over_draws():
    made = [run(0, 1, 1, 1, 1, 1), run(1, 3, 3, 3, 3, 3)]
    (result,) = Comparison(PerRecord(), made, {}).rows
    assert (result.means["trimmed"], result.errors["trimmed"]) == (2.0, 1.0)
    assert (result.facts["seeds"], result.facts["runs"], result.case) == (2, 5, ("bank", "count"))


@pytest.mark.parametrize("kind", ["count", "sum", "max", "distinct"])
def test_errors_are_percent_of_the_truth(kind):
    values = np.arange(2000.0)
    bad = np.array([np.nan, -1.0, 1e9])  # they count neither in the truth nor in an estimate
    data = Data("line", lambda _: np.append(values, bad), Inverse(4e4, 1e6, 20.0), "", 5)
    for found in PerRecord().run(Task(data, (kind,), 0, ())):
        assert found.facts["records"] == 2000
        assert found.course.shape == (5,)
        if found.mechanism != "prdp":
            assert (found.course < 20).all()


@pytest.mark.parametrize(
    ("name", "mean", "largest"),
    [("normal-50k", 64_000, 1e6), ("zipf-3", 13_000, 230e3), ("zipf-5", 5_300, 250e3)],
)
def test_synthetic_data_are_as_the_paper_says(name, mean, largest):
    values = PER_RECORD_DATA[name].draw(np.random.default_rng(1), 20_000)
    assert len(values) == 20_000
    assert values.mean() == pytest.approx(mean, rel=0.03)
    assert values.min() >= 0
    assert values.max() <= largest
    assert (values == np.rint(values)).all()


def test_flights_are_a_year():
    values = PER_RECORD_DATA["flights-delay"].draw(np.random.default_rng(1), 1)
    assert (len(values), values.max()) == (144_946, 1301.0)


def test_the_page_names_what_was_run():
    runs = [run(0, 1, 2, 3, 4, 5), run(0, 9, 9, 9, 9, 1e12, mechanism="prdp")]
    abouts = {"bank": "a <bank>"}
    html = Comparison(PerRecord(), runs, abouts, command="streamveil evaluate --x='<y>'").page
    assert "a &lt;bank&gt;; inverse" not in html
    assert "a &lt;bank&gt;; 7 records" in html
    assert "--x=&#39;&lt;y&gt;&#39;" in html
    assert html.count("<svg") == 4
    assert "http" not in html.replace("http-equiv", "")


def test_the_command_compares(toolbox, tmp_path):
    table = tmp_path / "values.csv"
    table.write_text("\n".join(["balance", *map(str, range(1, 3000)), "none"]) + "\n")
    output = tmp_path / "out.csv"
    outcome = toolbox.run(
        *("evaluate", "--per_record=zipf-5,input", f"--input={table}", "--value_column=balance"),
        *("--budget=inverse:4e4", "--value_max=1e6", "--epsilon_max=20", "--records=2000"),
        *("--seeds=2", "--runs=5", "--statistics=count,max", "--name=mine", f"--output={output}"),
    )
    assert outcome.code == 0, outcome.err
    rows = read_table(str(output)).to_pylist()
    assert [(row["data"], row["statistic"], row["mechanism"]) for row in rows[:3]] == [
        ("zipf-5", "count", "hat"),
        ("zipf-5", "count", "prdp"),
        ("zipf-5", "max", "framework"),
    ]
    assert {(row["data"], row["records"]) for row in rows} == {("zipf-5", 2000), ("mine", 2999)}
    assert "| mine " in outcome.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--per_record=zipf",), ("zipf-3", "'zipf'")),
        (("--per_record=input",), ("--input is missing",)),
        (("--per_record=zipf-3", "--statistics=mean"), ("'mean'", "distinct")),
        (("--per_record=zipf-3", "--mechanisms=pba"), ("pba", "hat")),
        (("--per_record=zipf-3", "--runs=4"), ("--runs=4",)),
        (("--per_record=zipf-3", "--records=0"), ("--records=0",)),
        (("--per_record=zipf-3", "--budget=half:1"), ("--budget=half:1", "inverse")),
        (("--per_record=zipf-3", "--slots=7"), ("--slots", "--per_record=zipf-3")),
        (("--per_record=zipf-3", "--user_column=u"), ("--user_column",)),
        (("--per_record=zipf-3", "--output=x.html"), (".csv or .md",)),
        (("--streams=sin", "--runs=7"), ("--runs", "--per_record")),
    ],
)
def test_what_cannot_be_compared_is_refused(toolbox, flags, words):
    outcome = toolbox.run("evaluate", *flags)
    assert outcome.code == 2
    missing = [word for word in words if word not in outcome.message]
    assert not missing, outcome.message

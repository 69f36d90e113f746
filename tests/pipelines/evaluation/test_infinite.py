"""Comparisons under one budget forever: what is measured, and the command around it."""

import math
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from streamveil.io import read_table
from streamveil.pipelines.evaluation.comparison import Comparison, tasks
from streamveil.pipelines.evaluation.comparison_table import Run
from streamveil.pipelines.evaluation.infinite import Infinite
from streamveil.pipelines.evaluation.page import course_of
from streamveil.pipelines.evaluation.sources import Drawn, SlotCounts
from streamveil.pipelines.sample_data.streams import BINS, INFINITE_STREAMS, JUMP, infinite_stream

CHEAP = ("gated", "dpi:pool=20", "constant", "doubling", "horizon")


@dataclass(frozen=True)
class Table:
    """Counts as they are."""

    counts: tuple[tuple[int, ...], ...]
    name: str = "table"
    sensitivity: int = 1

    @property
    def shape(self):
        return np.shape(self.counts)

    def slots(self, seed):
        for counts in np.array(self.counts):
            yield SlotCounts(counts[None], counts)


def figures(source, *mechanisms, epsilon=1.0, seeds=1):
    (task,) = tasks(Infinite(), [(source, [(epsilon,)])], mechanisms, seeds)
    return [SimpleNamespace(**one.figures) for one in Infinite().run(task)]


# ---- streams ---------------------------------------------------------------------------------


def drawn(name, slots, **options):
    return np.stack(list(infinite_stream(name, slots, np.random.default_rng(1), **options)))


def test_even_counts_have_the_error_of_a_constant_that_the_reference_states():
    counts = drawn("even", 200)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert ((shares - 1 / BINS) ** 2).mean() == pytest.approx(0.38e-6, rel=0.03)


def test_shares_jump_when_they_should_and_not_between():
    counts = drawn("jumping", 2 * JUMP) / INFINITE_STREAMS["jumping"].events
    moved = np.abs(np.diff(counts, axis=0)).sum(axis=1)
    assert np.flatnonzero(moved > 0.5).tolist() == [JUMP - 1]


@pytest.mark.parametrize("name", ["drifting", "drifting-many"])
def test_shares_drift_without_end(name):
    shares = drawn(name, 200) / INFINITE_STREAMS[name].events
    near, far = (np.abs(shares[k:] - shares[:-k]).sum(axis=1).mean() for k in (1, 100))
    assert far > 3 * near


@pytest.mark.parametrize("name", INFINITE_STREAMS)
def test_events_and_bins_of_a_stream(name):
    counts = drawn(name, 3, events=5000, bins=7)
    assert counts.shape == (3, 7)
    assert counts.dtype == np.int64
    assert counts.sum(axis=1) == pytest.approx([5000] * 3, rel=0.05)


# ---- what is measured ------------------------------------------------------------------------


def test_a_constant_errs_as_one_can_tell_without_running_it():
    (found,) = figures(Table(((8, 0), (0, 2))), "constant")
    assert found.mse_millionths == pytest.approx(0.25e6)
    assert found.kl == pytest.approx(math.log(2))
    assert (found.age, found.spent) == (1.5, 0.0)


def test_a_share_of_zero_has_a_finite_divergence():
    counts = ((1000, 0),) * 2 + ((0, 1000),)
    (found,) = figures(Table(counts), "doubling:total=1000", epsilon=4000.0)
    # Two slots are released as they are, the third one gets what was right before: half an event.
    right, wrong = math.log(1001 / 1000.5), math.log(1001 / 0.5)
    assert found.kl == pytest.approx((2 * right + wrong) / 3)
    assert found.mse_millionths == pytest.approx(1e6 / 3)


def test_slots_without_events_have_no_error():
    full, empty = Table(((8, 0), (8, 0))), Table(((8, 0), (0, 0), (8, 0), (0, 0)))
    (one,), (other,) = (figures(source, "constant") for source in (full, empty))
    assert (one.mse_millionths, one.kl) == (other.mse_millionths, other.kl)
    (none,) = figures(Table(((0, 0),)), "constant")
    assert math.isnan(none.mse_millionths)
    assert math.isnan(none.kl)


def test_budgets_are_kept_and_a_horizon_is_where_the_stream_ends():
    found = dict(zip(CHEAP, figures(Drawn("even", 60), *CHEAP), strict=True))
    assert all(one.spent <= 1 for one in found.values())
    assert found["constant"].spent == 0
    assert found["horizon"].spent == pytest.approx(1, abs=1e-9)
    assert 0.5 < found["doubling"].spent < 1
    (given,) = figures(Drawn("even", 60), "horizon:slots=600")
    assert given.spent == pytest.approx(0.1, abs=1e-9)


def test_seeds_draw_streams_and_noise_anew_and_can_be_repeated():
    todo = tasks(Infinite(), [(Drawn("drifting", 20), [(1.0,)])], ["doubling"], 2)
    (first,), (second,), (again,) = (Infinite().run(task) for task in (*todo, todo[0]))
    assert (first.course == again.course).all()
    assert (first.course != second.course).any()


# ---- tables and page -------------------------------------------------------------------------


def a_run(mechanism, seed, error, stream="even", epsilon=2.0):
    facts = {"stream": stream, "epsilon": epsilon, "mechanism": mechanism, "slots": 5, "bins": 2}
    facts["infinite"] = "horizon" not in mechanism
    figures = {"mse_millionths": error, "kl": 0.1, "age": 3.0, "spent": 0.5, "seconds": 0.25}
    return Run(facts, seed, figures, np.full(5, error))


def compared(runs, abouts=(), command=""):
    return Comparison(Infinite(), runs, dict(abouts), command=command)


def runs(*errors):
    return [
        a_run(name, seed, error + seed * spread)
        for name, error, spread in errors
        for seed in range(3)
    ]


def test_what_errs_no_less_than_no_data_is_named():
    made = runs(("constant", 9, 0), ("gated", 8, 1), ("dpi", 5, 1), ("doubling", 10, 0))
    assert compared(made).advice == [
        "even, epsilon 2: no better than constant, which knows no data: gated, doubling"
    ]
    assert compared(runs(("gated", 8, 1))).advice == []


def test_what_ends_is_marked_in_the_table():
    text = compared(runs(("gated", 8, 1), ("horizon:slots=5", 9, 1))).markdown
    assert "| horizon:slots=5 (not infinite) |" in text
    assert text.count("not infinite") == 1
    assert "9 ± 0.58" in text


def test_a_course_is_a_mean_of_stretches_and_runs():
    courses = [np.array([1.0, 3.0, np.nan, np.nan, 5.0]), np.array([2.0, 2.0, np.nan, np.nan, 7.0])]
    assert course_of(courses, 2).tolist()[::2] == [2.0, 6.0]
    assert np.isnan(course_of(courses, 2)[1])


@pytest.mark.slow
def test_the_page_says_what_was_run():
    made = runs(("constant", 9, 0), ("gated", 8, 1), ("horizon", 5, 1))
    made += [replace(one, facts={**one.facts, "stream": "<b>"}) for one in made]
    html = compared(made, {"even": "counts", "<b>": "more"}, "streamveil evaluate --x='<y>'").page
    text = " ".join(
        re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", html, flags=re.S).split()
    )
    assert "<b>," not in html
    assert "--x=&#39;&lt;y&gt;&#39;" in html
    assert (
        "3 mechanisms on 2 streams, with an epsilon of 2 for a whole stream, 3 times each" in text
    )
    assert "even: ■ gated" in text
    assert text.count("horizon (not infinite)") >= 3
    assert html.count("<svg") == 2 * (4 + 2)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(r"https?:|<script|<link|<img", html)
    assert set(re.findall(r"var\(--(\w+)\)", html)) <= set(re.findall(r"--(\w+): ", html))


# ---- the command -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_compares(toolbox, tmp_path):
    events = tmp_path / "visits.csv"
    rows = [f"u{u},{'ABC'[(u + d) % 3]},2024-01-{d:02d}" for d in range(1, 9) for u in range(30)]
    events.write_text("\n".join(["user,value,time", *rows]) + "\n")
    output, page = tmp_path / "out.csv", tmp_path / "page.html"
    outcome = toolbox.run(
        *("evaluate", "--guarantee=infinite", "--epsilon=0.5,4", "--streams=even", "--slots=20"),
        *("--events=500", f"--mechanisms={','.join(CHEAP)}", "--seeds=2", "--processes=1"),
        *(f"--input={events}", "--user_column=user", "--value_column=value", "--time_column=time"),
        *("--slot=1d", "--domain=A,B,C", f"--output={output}", f"--page={page}"),
    )
    assert outcome.code == 0, outcome.err
    rows = read_table(str(output)).to_pylist()
    assert [row["mechanism"] for row in rows[:5]] == list(CHEAP)
    assert [(row["stream"], row["epsilon"], row["slots"], row["bins"]) for row in rows[::5]] == [
        *(("even", 0.5, 20, 100), ("even", 4.0, 20, 100)),
        *(("visits", 0.5, 8, 3), ("visits", 4.0, 8, 3)),
    ]
    assert [row["infinite"] for row in rows[:5]] == [True] * 4 + [False]
    # The events are spread evenly, and that is what `constant` says.
    assert [rows[i]["mechanism"] for i in (12, 17)] == ["constant"] * 2
    assert [rows[i]["mse_millionths"] for i in (12, 17)] == [0.0, 0.0]
    assert "| horizon (not infinite) |" in outcome.out
    assert "500 events a slot; 20 slots, 100 bins" in page.read_text()


INFINITE = ("--guarantee=infinite", "--epsilon=1")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--guarantee=infinite", "--streams=even"), ("--epsilon is missing",)),
        (("--guarantee=infinite", "--epsilon=x", "--streams=even"), ("--epsilon=x", "commas")),
        (("--guarantee=infinite", "--epsilon=1,-2", "--streams=even"), ("--epsilon=1,-2", "above")),
        (("--guarantee=forever",), ("--guarantee", "infinite")),
        (("--epsilon=1", "--streams=sin"), ("--epsilon=1", "--guarantee=infinite")),
        (("--guarantee=w-event", "--epsilon=1", "--streams=sin"), ("--guarantee=infinite",)),
        (("--events=9", "--streams=sin"), ("--events", "--guarantee=infinite")),
        (INFINITE, ("--streams is missing", "jumping", "flights")),
        ((*INFINITE, "--streams=sin"), ("'sin'", "drifting-many")),
        ((*INFINITE, "--streams=even", "--mechanisms=pba"), ("pba", "gated")),
        ((*INFINITE, "--streams=even", "--mechanisms=gated:p=1"), ("power of 1.0",)),
        ((*INFINITE, "--streams=even", "--windows=7"), ("--windows", "--epsilon")),
        ((*INFINITE, "--streams=even", "--users=7"), ("--users",)),
        ((*INFINITE, "--streams=even", "--events=0"), ("--events=0",)),
        ((*INFINITE, "--streams=flights", "--slots=9"), ("--slots", "synthetic")),
        ((*INFINITE, "--streams=even", "--slot=1d"), ("--slot", "--input")),
        ((*INFINITE, "--streams=even", "--seeds=0"), ("--seeds=0",)),
        ((*INFINITE, "--streams=even", "--page=x.csv"), (".html",)),
        ((*INFINITE, "--per_record=zipf-3"), ("--guarantee", "--per_record=zipf-3")),
    ],
)
def test_what_cannot_be_compared_is_refused(toolbox, flags, words):
    outcome = toolbox.run("evaluate", *flags)
    assert outcome.code == 2
    missing = [word for word in words if word not in outcome.message]
    assert not missing, outcome.message

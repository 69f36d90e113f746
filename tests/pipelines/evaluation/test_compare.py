"""Runs are those of the library's own simulation, in any number of processes."""

import multiprocessing

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, simulate
from streamveil.pipelines.evaluation.comparison import compare, tasks
from streamveil.pipelines.evaluation.comparison_table import noise_key
from streamveil.pipelines.evaluation.sources import Synthetic
from streamveil.pipelines.evaluation.w_event import RevisedWEvent, WEvent, divergence

NAMES = ("pba", "ba")


def laid(*, slots=12, seeds=2, streams=("sin",), asked=((0.6, 6),), names=NAMES):
    sources = [(Synthetic(one, 90, slots), list(asked)) for one in streams]
    return tasks(WEvent(), sources, names, seeds)


def figures(runs):
    """All that does not depend on the clock."""
    return [(run.facts, run.seed, {**run.figures, "seconds": 0.0}) for run in runs]


def test_a_task_is_a_simulation_of_each_mechanism():
    (task,) = laid(slots=40, seeds=1)
    public = task.source.population(*task.setting)
    counts = np.stack([one for one, _ in task.source.slots_of(*task.setting, 0)])
    truth = counts.sum(axis=1)
    for found in WEvent().run(task):
        figures_of = found.figures
        expected = simulate(
            found.mechanism, counts, public.requirements, public.sizes, noise_key(0)
        )
        assert figures_of["amre"] == pytest.approx(((expected.released - truth) ** 2).mean())
        assert figures_of["published"] == (expected.status == "published").mean()
        distances = [divergence(t, r) for t, r in zip(truth, expected.released, strict=True)]
        assert figures_of["ajsd"] == pytest.approx(np.mean(distances))
        covered = np.abs(expected.released - truth) <= 1.645 * expected.stderr
        known = np.isfinite(expected.stderr)
        assert figures_of["coverage"] == pytest.approx(covered[known].mean())
        present = known & (truth > 0)
        assert figures_of["coverage_above_0"] == pytest.approx(covered[present].mean())
        assert 0 < figures_of["window_use"] <= 1
        assert figures_of["seconds"] > 0
        assert [found.facts[size] for size in ("users", "slots", "bins")] == [90, 40, 2]
        assert found.seed == 0


def test_revisions_are_measured_of_mechanisms_that_can():
    source = Synthetic("sin", 90, 40)
    family = RevisedWEvent(7)
    (task,) = tasks(family, [(source, [(0.6, 6)])], ("pba", "adaptive"), 1)
    pba, adaptive = family.run(task)
    assert np.isnan(pba.figures["revised"])
    assert np.isnan(pba.figures["revised_coverage"])
    public = source.population(0.6, 6)
    counts = np.stack([one for one, _ in source.slots_of(0.6, 6, 0)])
    asked = public.requirements, public.sizes, noise_key(0)
    expected = simulate("adaptive", counts, *asked, revise=7)
    truth = counts.sum(axis=1)
    wanted = ((expected.revised - truth) ** 2).mean()
    assert adaptive.figures["revised"] == pytest.approx(wanted)
    covered = np.abs(expected.revised - truth) <= 1.645 * expected.revised_stderr
    assert adaptive.figures["revised_coverage"] == pytest.approx(covered.mean())
    found = compare(family, [task])
    assert "revised AMRE" in found.markdown
    assert found.to_arrow()["revised"].to_pylist()[0] is None


@pytest.mark.slow
def test_processes_change_nothing_and_progress_counts_runs():
    todo = laid(streams=("sin", "step-fixed"), asked=((0.6, 6), (0.3, 3)))
    seen = []
    alone = compare(WEvent(), todo, 1, seen.append).runs
    assert sum(seen) == len(alone) == 2 * 2 * 2 * 2
    together = compare(WEvent(), todo, 2).runs
    assert figures(together) == figures(alone)


def test_order_of_tasks_keeps_a_seed_together():
    todo = laid(streams=("sin", "log"), asked=((0.6, 6), (0.3, 3)))
    assert [(t.source.name, t.seed, t.setting[0]) for t in todo] == [
        (name, seed, epsilon)
        for name in ("sin", "log")
        for seed in (0, 1)
        for epsilon in (0.6, 0.3)
    ]


def test_seeds_differ_in_stream_and_noise():
    runs = compare(WEvent(), laid(streams=("sin", "sin-fixed"), names=("pba",))).runs
    errors = [one.figures["amre"] for one in runs]
    assert len(set(errors)) == len(errors)
    assert noise_key(0) != noise_key(1)
    assert len(noise_key(0)) == 32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ("pba", "what")}, ["'what' is unknown", "pba"]),
        ({"names": ("pba:gate=1",)}, ["pba has no option 'gate'"]),
        ({"asked": ((0.6, 1 << 21),)}, ["stream sin", "w=2097152", "window"]),
        ({"asked": ((1e-12, 6),)}, ["stream sin", "epsilon 1e-12", "leaves less than 2**-40"]),
        ({"asked": ((9999.0, 6),)}, ["stream sin", "epsilon 9999", "epsilon"]),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(change, words):
    with pytest.raises(ConfigurationError) as caught:
        laid(**change)
    assert not [word for word in words if word not in str(caught.value)], caught.value


def test_an_interrupt_does_not_wait_for_what_is_running(until):
    def interrupt(runs):
        raise KeyboardInterrupt

    before = multiprocessing.active_children()
    todo = [*laid(slots=3, seeds=1), *laid(slots=10**8, seeds=1, streams=("city",))]  # days
    with pytest.raises(KeyboardInterrupt):
        compare(WEvent(), todo, 2, interrupt)
    for child in multiprocessing.active_children():
        if child not in before:
            # Alive for a moment, too, while the pool's own thread reaps it.
            until(lambda child=child: not child.is_alive())


def test_an_error_in_a_process_comes_out_as_it_was():
    todo = laid(slots=3)
    broken = Synthetic("no such stream", 90, 3)
    object.__setattr__(todo[1], "source", broken)
    with pytest.raises(ConfigurationError, match="'no such stream' is unknown"):
        compare(WEvent(), todo, 2)

"""Local mechanisms in a comparison: values out of counts, and what users spend."""

import numpy as np
import pytest

from streamveil.engine.stream.local_server import Server
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.local.protocol import Tally
from streamveil.mechanisms.local.stream import LocalStream
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import local_mechanism
from streamveil.pipelines.evaluation.comparison import compare, tasks
from streamveil.pipelines.evaluation.comparison_table import noise_key
from streamveil.pipelines.evaluation.drivers import Local, is_local, local_users
from streamveil.pipelines.evaluation.sources import Synthetic
from streamveil.pipelines.evaluation.w_event import WEvent

NAMES = ("rotation", "rotation:robust=true", "plpa+", "lba", "pba")


def runs(seeds=1, names=NAMES):
    todo = tasks(WEvent(), [(Synthetic("sin", 300, 40), [(2.0, 12)])], names, seeds)
    return compare(WEvent(), todo).runs


@pytest.mark.slow
def test_figures():
    found = runs()
    assert [one.mechanism for one in found] == list(NAMES)
    for one in found:
        assert one.figures["amse"] == pytest.approx(one.figures["amre"] / 300**2)
        assert 0 <= one.figures["ajsd"] <= np.log(2)
        assert 0 < one.figures["window_use"] <= 1
        assert one.figures["seconds"] > 0
    use = {one.mechanism: one.figures["window_use"] for one in found}
    assert use["rotation"] == 1
    assert found[0].figures["published"] == 1


def test_seeds_repeat_and_differ():
    one, other = ([r.figures["amre"] for r in runs(2, ("rotation",))] for _ in range(2))
    assert one == other
    assert one[0] != one[1]


# With windows of a slot everybody answers, and with such a budget truthfully: what is estimated
# are the counts, of a slot with fewer events than users too.
def test_values_are_those_counted():
    public = Population((Requirement(1, 60.0), Requirement(1, 70.0)), np.array([5, 4]), 3)
    stream = Local("rotation:robust=true:filtered=false", public, noise_key(0))
    for slot, counts in enumerate([[[5, 0, 0], [1, 2, 1]], [[0, 1, 0], [0, 0, 0]]]):
        released = stream.release(slot, np.array(counts))
        assert released.counts.tolist() == np.sum(counts, axis=0).tolist()
        assert released.status == "published"
    assert stream.window_use == 1


def test_the_error_that_is_measured_is_the_one_that_is_published():
    """Estimates are rounded to whole counts, of which the published error says nothing."""
    public = Population((Requirement(1, 6.0),), np.array([20]), 3)
    made = local_mechanism("rotation", local_users(public))
    stream, server = (
        Local("rotation", public, noise_key(0)),
        LocalStream(made, NoiseSource(bytes(32))),
    )
    released = stream.release(0, np.array([[9, 5, 1]]))
    state, ask = server.begin(server.start(), 0)
    tally = Tally(np.array([[9, 5, 1, 5]]), np.array([ask.users.size]))
    state, answer = server.take(state, tally)
    published = Server(server).counted(state, answer)
    np.testing.assert_array_equal(released.stderr, published.stderr)


def test_users_of_many_events_are_refused():
    public = Population((Requirement(3, 1.0),), np.array([5]), 2, 2)
    with pytest.raises(ConfigurationError, match="one value a slot"):
        Local("rotation", public, noise_key(0))


def test_what_is_local():
    assert is_local("rotation:robust=true")
    assert is_local("plpd+")
    assert not is_local("plbu")  # the comparator, which needs counts only
    assert not is_local("adaptive")


def test_unknown_names_list_both_kinds():
    with pytest.raises(ConfigurationError, match=r"'rotatoin' is unknown: .*rotation.*adaptive"):
        runs(names=("rotatoin",))

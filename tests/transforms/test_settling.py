"""What is closed leaves when it is in a checkpoint, whatever a runner does before and after."""

from operator import attrgetter

import apache_beam as beam
import pytest
from apache_beam.transforms.window import GlobalWindow
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError, Registry
from streamveil.transforms import settling

KEY = "key"
REGISTRY = Registry.of({"ann": (2, 1.0), "bob": (2, 1.0)})
LATEST = GlobalWindow().max_timestamp()


class Cell(list):
    """A bag of state."""

    def read(self):
        return list(self)

    def add(self, item):
        self.append(item)


class Timer:
    """Remembers for when it was set."""

    time = None

    def set(self, time):
        self.time = time


class Runner:
    """A runner that commits as Flink's does: a commit is told to every bundle that has ended."""

    def __init__(self):
        settling._commits.clear()
        self.state, self.timer = Cell(), Timer()
        self.committed = self.barrier = ()
        self.callbacks = []
        self.left = []

    def register(self, callback):
        self.callbacks.append(callback)

    def _bundle(self, data):
        fn = settling._SettleFn()  # one for every bundle that waits for its commit
        for _, left in fn.process((KEY, data), self.state, self.timer, self):
            assert left in {item[settling._NAME :] for item in self.committed}
            self.left.append(left)

    def close(self, data):
        self._bundle(data)

    def pulse(self):
        self._bundle(settling.PULSE)

    def snapshot(self):
        self.barrier = tuple(self.state)

    def commit(self):
        self.committed = self.barrier
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def restart(self, *, forgetful):
        self.state[:] = self.committed
        self.barrier, self.callbacks = self.committed, []
        if forgetful:
            settling._commits.clear()


# A barrier is followed by its commit, with other things in between, before the next one comes.
STEPS = st.lists(
    st.sampled_from(["close", "pulse", "checkpoint", "restart", "forgetful restart"]), max_size=60
)


@given(STEPS)
@settings(max_examples=400)
def test_nothing_leaves_before_it_is_committed_and_nothing_is_lost(steps):
    runner, open_barrier, number, surely = Runner(), False, 0, set()
    for step in steps:
        if step == "close":
            number += 1
            runner.close(b"%d" % number)
        elif step == "pulse":
            runner.pulse()
        elif step == "checkpoint":
            (runner.commit if open_barrier else runner.snapshot)()
            open_barrier = not open_barrier
            surely |= {item[settling._NAME :] for item in runner.committed}
        else:
            runner.restart(forgetful=step != "restart")
            open_barrier = False
    for _ in range(settling.COMMITS + 1):
        runner.pulse()
        runner.snapshot()
        runner.commit()
    runner.pulse()
    assert surely <= set(runner.left)
    assert not runner.state


def test_one_commit_is_not_enough():
    """That of a checkpoint whose barrier had passed says nothing of what came after it."""
    runner = Runner()
    runner.snapshot()
    runner.close(b"slot")
    runner.commit()
    runner.pulse()
    assert runner.left == []
    runner.snapshot()
    runner.commit()
    runner.pulse()
    assert runner.left == [b"slot"]


def test_what_is_closed_again_after_a_restart_waits_anew():
    runner = Runner()
    runner.close(b"slot")
    runner.snapshot()
    runner.restart(forgetful=False)
    runner.close(b"slot, with another event")
    runner.snapshot()
    runner.commit()
    runner.pulse()
    assert runner.left == []


def test_all_leaves_when_the_input_ends():
    runner = Runner()
    runner.close(b"slot")
    assert runner.timer.time == LATEST
    assert list(settling._SettleFn()._let_go(KEY, runner.state)) == [(KEY, b"slot")]
    assert not runner.state


def test_all_is_let_go_at_the_end(kit, pipeline_on, runner, tmp_path):
    closed = [("s", b"1"), ("s", b"2"), ("t", b"3")]
    with pipeline_on(runner) as pipeline:
        held = pipeline | beam.Create(closed) | settling.Settle(["s", "t"], beam.Create([0, 1]))
        held | kit.collect(tmp_path / "held")
    assert sorted(kit.collected(tmp_path / "held")) == closed


def test_a_stream_releases_the_same_with_settling(run_on, kit):
    """BundleBased tells of no commits, so all slots are released when the stream ends."""
    rows = [("ann", "a", 0), ("bob", "b", 1), ("ann", "b", 2)]
    ran = []
    for settle in (None, beam.Create([0])):
        transform = kit.histograms(REGISTRY, first_slot=0, last_slot=3, settle=settle)
        line = kit.timeline(transform).events(*rows).advance(2).events(("bob", "a", 2)).advance(5)
        ran.append(run_on("bundle_based", line.transform, line, "--streaming"))
    assert ran[0].slots == [0, 1, 2, 3]
    kit.assert_same_releases(*(sorted(one.releases, key=attrgetter("slot")) for one in ran))


@pytest.mark.parametrize("every", [0, "0s", -1, "soon"])
def test_an_interval_that_is_none_is_refused(kit, every):
    with pytest.raises(ConfigurationError, match=r"settle|soon"):
        kit.histograms(REGISTRY, settle=every)

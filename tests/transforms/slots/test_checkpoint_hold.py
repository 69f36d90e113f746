"""What is closed leaves when it is in a checkpoint, whatever a runner does before and after."""

from operator import attrgetter
from random import Random

import apache_beam as beam
import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import KV

from streamveil.engine.messages import Kind, Message
from streamveil.mechanisms import ConfigurationError, Registry
from streamveil.transforms.slots import checkpoint_hold as settling

KEY = "key"
SLOT = Message(Kind.COUNTS, 5)
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


class TooEarlyError(AssertionError):
    """Something left that no checkpoint had."""


class Runner:
    """A runner that commits as Flink's does: a commit is announced to every bundle that has ended.

    Up to `concurrent` checkpoints are under way at a time. What is closed travels here through a
    channel; a barrier waits for it if `aligned`, or else overtakes it, and the checkpoint keeps it.
    Where commits are announced `late`, the end of a checkpoint is announced before the next one
    ends; or else at once.
    """

    def __init__(self, concurrent=1, aligned=True, late=False):
        settling._commits.clear()
        self.concurrent, self.aligned, self.late = concurrent, aligned, late
        self.state, self.timer, self.channel = Cell(), Timer(), []
        self.pending, self.unannounced = [], False
        self.committed = (), ()
        self.callbacks = []
        self.left = []

    def register(self, callback):
        self.callbacks.append(callback)

    @property
    def surely(self):
        """What the last checkpoint has."""
        state, channel = self.committed
        return {message for _, message in state} | set(channel)

    def _bundle(self, data):
        fn = settling._SettleFn()  # one for every bundle that waits for its commit
        for _, left in fn.process((KEY, data), self.state, self.timer, self):
            if left not in self.surely:
                raise TooEarlyError(left)
            self.left.append(left)

    def close(self, data):
        self.channel.append(data)

    def arrive(self):
        if self.channel:
            self._bundle(self.channel.pop(0))

    def pulse(self):
        self._bundle(Message(Kind.PULSE))

    def barrier(self):
        while self.aligned and self.channel:
            self.arrive()
        if len(self.pending) < self.concurrent:
            self.pending.append((tuple(self.state), tuple(self.channel)))

    def end(self):
        if self.pending:
            self.tell()
            self.committed = self.pending.pop(0)
            self.unannounced = True
            if not self.late:
                self.tell()

    def tell(self):
        if self.unannounced:
            self.unannounced = False
            callbacks, self.callbacks = self.callbacks, []
            for callback in callbacks:
                callback()

    def checkpoint(self):
        """One from its barrier to its commit."""
        self.barrier()
        while self.pending:
            self.end()
        self.tell()

    def restart(self, *, forgetful):
        state, channel = self.committed
        self.state[:], self.channel = state, list(channel)
        self.pending, self.unannounced, self.callbacks = [], False, []
        if forgetful:
            settling._commits.clear()

    def play(self, steps):
        """Do these steps; what a checkpoint ever had."""
        surely = set()
        for number, step in enumerate(steps):
            if step == "close":
                self.close(Message(Kind.COUNTS, number))
            elif step == "restart":
                self.restart(forgetful=False)
            elif step == "forgetful restart":
                self.restart(forgetful=True)
            else:
                getattr(self, step)()
            if step in ("end", "tell"):
                surely |= self.surely
        return surely


MOVES = ["close", "arrive", "pulse", "barrier", "end", "tell", "restart", "forgetful restart"]
ONE_BY_ONE = [
    {"concurrent": 1, "aligned": aligned, "late": late}
    for aligned in (True, False)
    for late in (True, False)
]


def walk(steps, *, weights=(4, 8, 8, 4, 4, 4, 1, 1)):
    """So many random steps, more arrivals than slots, the same in every run."""
    return Random(16).choices(MOVES, weights, k=steps)


@pytest.mark.parametrize("how", ONE_BY_ONE)
def test_nothing_leaves_before_it_is_committed_and_nothing_is_lost(how):
    runner = Runner(**how)
    surely = runner.play(walk(10_000))
    for _ in range(settling.COMMITS + 1):
        while runner.channel:
            runner.arrive()
        runner.pulse()
        runner.checkpoint()
    runner.pulse()
    assert len(surely) > 400
    assert surely <= set(runner.left)
    assert not runner.state


def test_what_is_committed_stays_what_it_is():
    """Also where a checkpoint keeps it on its way: it comes again as it was."""
    runner = Runner(aligned=False)
    runner.close(SLOT)
    runner.checkpoint()
    runner.arrive()
    runner.restart(forgetful=False)
    assert runner.channel == [SLOT]


# A slot closes behind two barriers, and before that a checkpoint ended that was not announced yet.
OVERTAKEN = ["barrier", "end", "barrier", "barrier", "close", "arrive"]
COMMITTED = ["tell", "pulse", "end"] * settling.COMMITS


@pytest.mark.parametrize("aligned", [True, False])
def test_of_concurrent_checkpoints_commits_say_too_little(aligned):
    """So they are refused: a slot leaves that a restart would release again, differently."""
    steps = [*OVERTAKEN, *COMMITTED]
    Runner(concurrent=1, aligned=aligned, late=True).play(steps)
    with pytest.raises(TooEarlyError):
        Runner(concurrent=2, aligned=aligned, late=True).play(steps)


@pytest.mark.parametrize(
    ("commits", "how"),
    [
        (2, {"concurrent": 2}),
        (2, {"late": True}),
        (settling.COMMITS, {"concurrent": 2, "late": True}),
        (settling.COMMITS, {"concurrent": 2, "late": True, "aligned": False}),
        (settling.COMMITS, {"concurrent": 3}),
    ],
)
def test_random_steps_find_what_leaves_too_early(monkeypatch, commits, how):
    """With fewer commits, or more checkpoints at a time."""
    monkeypatch.setattr(settling, "COMMITS", commits)
    with pytest.raises(TooEarlyError):
        Runner(**how).play(walk(10_000))


def test_two_commits_are_not_enough():
    """Those of checkpoints whose barriers had passed say nothing of what came after these."""
    runner = Runner(late=True)
    for step in ("barrier", "end", "barrier", "close", "arrive", "tell", "pulse", "end", "tell"):
        getattr(runner, step)(*[SLOT] * (step == "close"))
    runner.pulse()
    assert runner.left == []
    runner.checkpoint()
    runner.pulse()
    assert runner.left == [SLOT]


def test_what_is_closed_again_after_a_restart_waits_anew():
    runner = Runner()
    runner.close(SLOT)
    runner.barrier()
    runner.restart(forgetful=False)
    runner.close(SLOT._replace(payload=b"another event"))
    for _ in range(settling.COMMITS - 1):
        runner.checkpoint()
        runner.pulse()
    assert runner.left == []


def test_all_leaves_when_the_input_ends():
    runner = Runner()
    runner.close(SLOT)
    runner.arrive()
    assert runner.timer.time == LATEST
    assert list(settling._SettleFn()._let_go(KEY, runner.state)) == [(KEY, SLOT)]
    assert not runner.state


def test_all_is_let_go_at_the_end(kit, pipeline_on, runner, tmp_path):
    closed = [("s", SLOT), ("s", SLOT._replace(slot=6)), ("t", SLOT)]
    with pipeline_on(runner) as pipeline:
        held = pipeline | beam.Create(closed).with_output_types(KV[str, Message])
        held |= settling.Settle(["s", "t"], beam.Create([0, 1]))
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

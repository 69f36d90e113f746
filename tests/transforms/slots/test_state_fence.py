"""State that goes back in time is kept from happening, and noticed by every stage.

A runner of the tests' own plays what runners do and must not do: bundles that fail and are run
again, restarts from a checkpoint in the same process, and state that is older than what was
written, all of it or one cell, or that two bundles have at once.
"""

import itertools
import pickle
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from streamveil.engine.count.event_codes import BlockCounts
from streamveil.engine.messages import Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig
from streamveil.engine.stream_step import StateWentBack
from streamveil.io.jsonlines import json_text
from streamveil.io.releases import release_row
from streamveil.mechanisms import ConfigurationError, Registry
from streamveil.mechanisms.core.records import Release
from streamveil.transforms.checks import NO_SPLITS
from streamveil.transforms.in_time import InTime
from streamveil.transforms.slots import state_fence as fence
from tests.spending import spent

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from _drill import overspent

REGISTRY = Registry.of({"ann": (3, 1.0), "bob": (2, 1.0)})
LAST = 8
STEPS, PATIENCE = 40, 20
KEY = "stream"


def test_a_pipeline_over_an_input_without_end_forbids_prism_to_split_bundles(kit):
    """Whoever builds it; beside other experiments, and once."""
    options = PipelineOptions(["--experiments=another", "--streaming"])
    pipeline = beam.Pipeline(options=options)
    for label in ("one", "two"):
        transform = kit.histograms(REGISTRY, first_slot=0)
        line = kit.timeline(transform).advance(1)
        _ = pipeline | label >> line | f"{label} histograms" >> line.transform
    assert pipeline.options.view_as(DebugOptions).experiments == ["another", NO_SPLITS]


# ---- a runner that goes back --------------------------------------------------------------------


class Worker:
    """What a worker's cells have in common."""


class Cell:
    """State of a bundle: a value or a bag, until the bundle ends."""

    def __init__(self, kept, worker):
        self.kept = list(kept)
        self._underlying_bag_state = SimpleNamespace(_state_handler=worker)

    def clear(self):
        self.kept = []


class Value(Cell):
    def read(self):
        return pickle.loads(pickle.dumps(self.kept[0])) if self.kept else None

    def write(self, value):
        self.kept = [value]


class Bag(Cell):
    def read(self):
        return list(self.kept)

    def add(self, value):
        self.kept.append(value)


class Bundle:
    """A bundle of one key on a thread of its own; its state begins as it is given."""

    def __init__(self, fn, specs, state, worker, thread):
        self.fn, self.thread = fn, thread
        self.cells = {
            name: (Bag if isinstance(spec, BagStateSpec) else Value)(state.get(name, ()), worker)
            for name, spec in specs.items()
        }
        self.made = []
        self._do(self.fn.start_bundle)

    def _do(self, what, *arguments):
        return self.thread.submit(what, *arguments).result()

    def process(self, message):
        self.made += self._do(
            lambda: list(self.fn.process((KEY, message), MIN_TIMESTAMP, **self.cells))
        )

    def end(self):
        self._do(self.fn.finish_bundle)
        return {name: list(cell.kept) for name, cell in self.cells.items()}

    def fail(self):
        def torn_down():
            try:
                raise OSError("of a step behind this one, perhaps")
            except OSError:
                self.fn.teardown()

        self._do(torn_down)


class Runner:
    """Runs a stage over messages, in bundles, by random steps of which some may be faults.

    A runner that is not `patient` ends with the first error of the stage. Others restart from the
    last checkpoint, on a new worker of the same process.
    """

    SPECS = {
        "waiting": InTime.WAITING,
        "progress": InTime.PROGRESS,
        "taken": InTime.TAKEN,
        "state": InTime.STATE,
    }

    def __init__(self, stage, messages, seed, threads, faults=(), patient=True):
        self.draw, self.threads, self.faults, self.patient = Random(seed), threads, faults, patient
        self.stage, self.pending = pickle.dumps(stage), list(messages)
        self.draw.shuffle(self.pending)
        self.state, self.past, self.worker, self.fns = {}, [{}], Worker(), []
        self.checkpoint = self.state, list(self.pending)
        self.given = defaultdict(Counter)
        self.noticed = 0

    def play(self):
        """Until all messages were delivered, or the job failed; whether it did not."""
        lawful = (*5 * ["bundle"], "failing", "lost", "restart", "save", "save")
        for number in itertools.count():
            if not self.pending:
                return True
            step = self.draw.choice((*lawful, *self.faults)) if number < STEPS else "bundle"
            try:
                getattr(self, step)()
            except (StateWentBack, ConfigurationError):  # a part that is forgotten contradicts
                self.noticed += 1
                if not self.patient or self.noticed > PATIENCE:
                    return False  # what is wrong may be in the checkpoint by now
                self._restored()

    def _fn(self):
        """A DoFn that is free, or a new one, as workers keep them."""
        if self.fns and self.draw.random() < 0.7:
            return self.fns.pop()
        fn = pickle.loads(self.stage)
        fn.setup()
        return fn

    def _begin(self, state, thread=0):
        return Bundle(self._fn(), self.SPECS, state, self.worker, self.threads[thread])

    def _some(self):
        return self.pending[: self.draw.randint(1, 5)]

    def _feed(self, bundle, messages):
        try:
            for message in messages:
                bundle.process(message)
        except BaseException:
            bundle.fail()
            raise

    def _commit(self, bundle, messages):
        self.state = bundle.end()
        self.past.append(self.state)
        self.fns.append(bundle.fn)
        for message in messages:
            self.pending.remove(message)
        for output in bundle.made:
            if isinstance(getattr(output, "value", None), Release):
                self.given[output.value.slot][json_text(release_row(output.value))] += 1

    # ---- lawful

    def bundle(self):
        messages, bundle = self._some(), self._begin(self.state, self.draw.randrange(2))
        self._feed(bundle, messages)
        self._commit(bundle, messages)

    def failing(self):
        """It is torn down, in the midst or by a step behind it, or only its thread goes on."""
        bundle = self._begin(self.state)
        self._feed(bundle, self._some())
        case = self.draw.random()
        if case < 0.25:
            bundle.end()
        if case < 0.5:
            bundle.fail()
        else:
            again = self._begin(self.state)
            messages = self._some()
            self._feed(again, messages)
            self._commit(again, messages)

    def lost(self):
        """A bundle that ended is not committed, so the job restarts."""
        bundle = self._begin(self.state)
        self._feed(bundle, self._some())
        bundle.end()
        self._restored()

    def restart(self):
        """A bundle of the old worker never ends."""
        self._feed(self._begin(self.state, 1), self._some())
        self._restored()

    def _restored(self):
        self.worker, self.fns = Worker(), []
        self.state, pending = self.checkpoint
        self.pending = list(pending)
        self.past = [self.state]

    def save(self):
        self.checkpoint = self.state, list(self.pending)

    # ---- faults

    def stale(self):
        """All cells are those of some time before."""
        self.state = self.draw.choice(self.past)
        self.bundle()

    def torn(self):
        """One cell is."""
        name = self.draw.choice(list(self.SPECS))
        self.state = {**self.state, name: self.draw.choice(self.past).get(name, [])}
        self.bundle()

    def split(self):
        """Two bundles have the key at once, as on Prism, and the last one's state stays."""
        messages = self.pending[: self.draw.randint(2, 6)]
        half = len(messages) // 2
        begun, first = self.state, self._begin(self.state, 0)
        self._feed(first, messages[:half])
        late = self.draw.random() < 0.5
        if late:  # the second one's state is read before, and its messages come after
            self._commit(first, messages[:half])
        second = self._begin(begun, 1)
        self._feed(second, messages[half:])
        if not late:
            self._commit(first, messages[:half])
        self._commit(second, messages[half:])


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        yield one, two


@pytest.fixture
def stage(kit):
    """The release stage of a stream, and all that comes to it."""
    transform = kit.histograms(REGISTRY, shards=2)
    layout = transform.layout(bounded=False)
    draw = np.random.default_rng(5)
    messages = [Message(Kind.START, 0)]
    for slot in range(LAST + 1):
        for number in range(layout.parts):
            cells = np.flatnonzero(draw.integers(2, size=len(REGISTRY.classes) * 2))
            counts = BlockCounts(slot, cells, np.ones_like(cells)).to_bytes()
            messages.append(layout.message(Kind.COUNTS, slot, layout.key(number), counts))

    def make():
        config = ReleaseConfig(
            partial(one_driver, transform.ledgers(layout)),
            SlotClock(transform.slots),
            Publish(transform.slots, transform.mechanism),
        )
        return InTime(ReleaseInTime(config)), messages

    return make


def wrong(runner, undisturbed):
    """What no runner may bring about."""
    found = []
    if any(set(contents) - set(undisturbed[slot]) for slot, contents in runner.given.items()):
        found.append("otherwise")
    if any(len(contents) > 1 for contents in runner.given.values()):
        found.append("doubled")
    costs = spent(runner.given)
    if overspent(costs, 3, 1.0) or overspent(costs, 2, 1.0):
        found.append("overspent")
    return found


def played(stage, threads, seed, **how):
    undisturbed = Runner(*stage(), seed, threads)
    while undisturbed.pending:
        undisturbed.bundle()
    runner = Runner(*stage(), seed, threads, **how)
    done = runner.play()
    found = wrong(runner, undisturbed.given)
    if done and sorted(runner.given) != list(range(LAST + 1)):
        found.append("stalled")
    return runner, found


FAULTS = ("stale", "torn", "split")


@pytest.mark.many
@pytest.mark.parametrize("seed", range(12))
def test_lawful_ways_back_are_not_noticed_and_change_nothing(stage, threads, seed):
    runner, found = played(stage, threads, seed)
    assert (runner.noticed, found) == (0, [])


@pytest.mark.many
@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_state_that_goes_back_releases_nothing_twice_and_stalls_nothing_in_silence(
    stage, threads, fault, patient
):
    noticed = 0
    for seed in range(12):
        runner, found = played(stage, threads, seed, faults=(fault,), patient=patient)
        assert found == [], seed
        noticed += runner.noticed
    assert noticed > 5


def convicted(stage, threads, *faults):
    """What went wrong in some run, by name."""
    found = set()
    for seed in range(15):
        try:
            found |= set(played(stage, threads, seed, faults=faults)[1])
        except Exception as error:
            found.add(type(error).__name__)
    return found


def test_without_a_fence_the_same_runner_does_harm(stage, threads, monkeypatch):
    def take(self, bundle, key, number, worker):
        bundle.numbers[key] = number

    monkeypatch.setattr(fence._Stage, "take", take)
    assert "stalled" in convicted(stage, threads, "stale")
    assert "stalled" in convicted(stage, threads, "split")


def test_without_the_checks_of_the_other_cells_it_does_harm(stage, threads, monkeypatch):
    def state(self, driver, arrivals, written):
        return driver.start() if written is None else driver.decode(written)

    monkeypatch.setattr(ReleaseInTime, "_state", state)
    assert convicted(stage, threads, "torn") >= {"otherwise"}


def test_a_worker_that_is_not_known_to_be_new_may_not_go_back(stage, threads, monkeypatch):
    """So it is by its worker that a lawful restart is known."""
    monkeypatch.setattr(fence, "_worker_of", lambda state: None)
    assert played(stage, threads, 1)[0].noticed


class _TellWorkerFn(beam.DoFn):
    """Tells whether the cell of each key is known to be a worker's."""

    def process(self, element, cell=beam.DoFn.StateParam(InTime.PROGRESS)):
        yield element[0], id(fence._worker_of(cell)) if fence._worker_of(cell) else None


def test_beam_tells_workers_apart(kit, pipeline_on, tmp_path):
    """By what cells have that is not Beam's face; each run has workers of its own."""
    for number in (1, 2):
        with pipeline_on("fn_api") as pipeline:
            elements = pipeline | beam.Create([("a", 1), ("a", 2), ("b", 3)])
            elements | beam.ParDo(_TellWorkerFn()) | kit.collect(tmp_path / "workers")
        found = kit.collected(tmp_path / "workers")
        assert len(found) == 3 * number
        assert None not in dict(found).values()

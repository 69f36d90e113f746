"""Several processes give what one gives, in the same order, and say what goes wrong in them."""

import errno
import logging
import multiprocessing
import os
import signal
from collections import deque

import apache_beam as beam
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, S3Options
from apache_beam.runners.runner import PipelineRunner

from streamveil.pipelines.errors import WorkerDied
from streamveil.pipelines.in_memory import steps
from streamveil.pipelines.in_memory.parcels import Memory
from streamveil.pipelines.in_memory.processes import Processes
from streamveil.transforms.on_beam import metrics


class Counts(beam.DoFn):
    """Gives each number and who saw it; holds the sum back until the bundle ends."""

    def setup(self):
        self.sum = 0

    def process(self, number):
        metrics.count("seen", 1)
        self.sum += number
        logging.getLogger("streamveil.test").warning("seen %d", number)
        yield number % 3, number
        yield beam.pvalue.TaggedOutput("by", os.getpid())

    def finish_bundle(self):
        if self.sum:
            yield beam.pvalue.TaggedOutput("sums", self.sum)
        self.sum = 0


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as two:
        yield two


def kept_of(build, processes):
    pipeline = beam.Pipeline(runner=PipelineRunner())
    kept, takers = {}, steps.defaultdict(list)
    for name, collection in build(pipeline).items():
        takers[collection].append(steps._Keep(kept.setdefault(name, [])))
    return kept, steps._taken(steps._steps(pipeline, takers, processes))


def counting(pipeline):
    numbers = pipeline | beam.Create(range(1, 41), reshuffle=False) | "Spread" >> beam.Reshuffle()
    counted = numbers | beam.ParDo(Counts()).with_outputs("by", "sums", main="pairs")
    counted.pairs.element_type = tuple[int, int]
    groups = counted.pairs | beam.GroupByKey()
    most = groups | "Sizes" >> beam.Map(lambda group: len(group[1])) | beam.CombineGlobally(max)
    scaled = groups | beam.Map(
        lambda group, most: (group[0], list(group[1]), most), beam.pvalue.AsSingleton(most)
    )
    return {"groups": scaled, "by": counted.by, "sums": counted.sums}


@pytest.mark.slow
def test_two_processes_give_what_one_gives(processes, caplog):
    alone, counted = kept_of(counting, Processes(1))
    told = [record.getMessage() for record in caplog.records]
    caplog.clear()
    together, counted_together = kept_of(counting, processes)
    assert together["groups"] == alone["groups"]
    assert set(alone["by"]) == {os.getpid()}
    assert len(set(together["by"])) == 2
    assert os.getpid() not in together["by"]
    assert together["sums"] == list(range(1, 41))  # a bundle each
    assert counted_together == counted
    assert counted.counters == {"seen": 40}
    assert sorted(record.getMessage() for record in caplog.records) == sorted(told)


class Holds(beam.DoFn):
    """Holds elements back until the bundle ends."""

    def start_bundle(self):
        self.held = []

    def process(self, element):
        self.held.append(element)

    def finish_bundle(self):
        yield from self.held


def test_what_is_held_back_passes_those_after_it(processes):
    """A step after two ways gives what it holds when both have given what they hold."""

    def build(pipeline):
        numbers = pipeline | beam.Create([1, 2, 3], reshuffle=False) | beam.Reshuffle()
        ways = numbers | beam.Map(lambda n: 10 * n), numbers | "First" >> beam.ParDo(Holds())
        return {"both": ways | beam.Flatten() | "Last" >> beam.ParDo(Holds())}

    kept, _ = kept_of(build, processes)
    assert kept["both"] == [10, 1, 20, 2, 30, 3]


def filling(keys):
    """Large values by key: what each is of, its size, and who had the group."""

    def fill(number):
        return number % keys, bytes([number]) * 100_000

    def seen(group):
        return group[0], [(value[0], len(value)) for value in group[1]], os.getpid()

    def build(pipeline):
        numbers = pipeline | beam.Create(range(1, 11), reshuffle=False) | beam.Reshuffle()
        pairs = numbers | beam.Map(fill).with_output_types(tuple[int, bytes])
        return {"seen": pairs | beam.GroupByKey() | "See" >> beam.Map(seen)}

    return build


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("keys", [1, 2])
def test_large_values_go_from_process_to_process(keys, shared, monkeypatch):
    """The one between reads none of them; but for one group alone, which it takes itself."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    read, opened = Memory.read, []
    monkeypatch.setattr(
        Memory, "read", lambda self, place: opened.append(place) or read(self, place)
    )
    with Processes(2) as two:
        together, _ = kept_of(filling(keys), two)
    alone, _ = kept_of(filling(keys), Processes(1))
    assert [group[:2] for group in together["seen"]] == [group[:2] for group in alone["seen"]]
    assert len(opened) == (10 if keys == 1 else 0)
    assert (os.getpid() in {group[2] for group in together["seen"]}) == (keys == 1)
    in_memory = shared and hasattr(os, "memfd_create")
    assert all(isinstance(place, tuple) == in_memory for place in opened)


def memories():
    """How much shared memory this process has."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:streamveil" in os.readlink(link) for link in links if os.path.lexists(link))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no such memory")
def test_shared_memory_is_let_go_of():
    before = memories()
    with Processes(2) as two:
        kept_of(filling(2), two)
        assert memories() == before + 2
    assert memories() == before


@pytest.mark.parametrize("shared", ["memfd_create", "pwrite"])
def test_values_pass_as_they_are_where_no_memory_is_given(shared, monkeypatch):
    """A sandbox may refuse it, and a limit of file sizes what does not fit."""

    def refuses(*_):
        raise OSError(errno.EFBIG, "refused")

    monkeypatch.setattr(os, shared, refuses, raising=False)
    memory = Memory.of(2)
    try:
        assert memory.read(memory.write(b"large" * 10_000)) == b"large" * 10_000
    finally:
        memory.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no such memory")
def test_what_is_half_written_is_written_over(monkeypatch):
    memory, write, room = Memory.of(1), os.pwrite, [1]

    def half(part, data, at):
        if not room:
            raise OSError(errno.ENOSPC, "full")
        room.pop()
        return write(part, data[:100], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        places = [memory.write(b"first" * 10_000)]
    places.append(memory.write(b"second" * 10_000))
    assert [memory.read(place)[:6] for place in places] == [b"firstf", b"second"]
    assert places[1][1] == 0
    memory.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no such memory")
def test_a_process_that_takes_the_place_of_another_writes_behind_it():
    """What the other one wrote may still be on its way."""

    def written():
        return sum(os.fstat(part).st_size for part in two._memory._parts)

    with Processes(2) as two:
        kept_of(filling(2), two)
        once = written()
        with pytest.raises(KeyError):
            kept_of(fails_at_three(KeyError), two)
        kept_of(filling(2), two)
        assert once > 0
        assert written() == 2 * once


class UnsendableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fails_at_three(error):
    def fail(number):
        if number == 3:
            raise error(*"12")
        return number

    return lambda pipeline: {"none": pipeline | beam.Create([1, 2, 3, 4]) | beam.Map(fail)}


def test_an_error_comes_as_it_is_with_its_place(processes):
    with pytest.raises(KeyError, match="1") as raised:
        kept_of(fails_at_three(KeyError), processes)
    assert "in fail" in str(raised.value.__cause__)


@pytest.mark.slow
def test_an_error_that_cannot_be_sent_is_told(processes):
    with pytest.raises(RuntimeError, match="UnsendableError: 1 and 2"):
        kept_of(fails_at_three(UnsendableError), processes)


@pytest.mark.slow
def test_who_dies_is_told_and_the_others_end():
    def build(pipeline):
        kill = beam.Map(lambda number: os.kill(os.getpid(), signal.SIGKILL))
        return {"none": pipeline | beam.Create([1, 2, 3, 4]) | kill}

    before = multiprocessing.active_children()
    with Processes(2) as two, pytest.raises(WorkerDied, match=r"ended by signal 9.*fewer --proc"):
        kept_of(build, two)
    assert multiprocessing.active_children() == before


class Endpoint:
    """Work that says where its process would look for files of S3."""

    def begin(self):
        self.options = FileSystems._pipeline_options

    def do(self, number):
        return self.options.view_as(S3Options).s3_endpoint_url


def test_the_options_of_filesystems_get_to_them(processes):
    before = FileSystems._pipeline_options
    FileSystems.set_options(PipelineOptions(["--s3_endpoint_url=http://localhost:1"]))
    try:
        found = list(processes.results(Endpoint(), deque(range(3))))
    finally:
        FileSystems.set_options(before)
    assert found == ["http://localhost:1"] * 3

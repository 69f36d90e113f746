"""A pipeline's steps taken here give what a runner gives of them."""

from typing import ClassVar

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.userstate import BagStateSpec

from streamveil.engine import metrics
from streamveil.pipelines.in_memory.steps import run_steps


class Sorts(beam.DoFn):
    """Evens one way, odds another; what was there at the end."""

    def setup(self):
        self.seen = 0

    def process(self, number, most):
        self.seen += 1
        metrics.count("seen", 1)
        Metrics.counter("another", "seen").inc()
        if number > most:
            return None
        return [beam.pvalue.TaggedOutput("odd", number) if number % 2 else number]

    def finish_bundle(self):
        yield beam.pvalue.TaggedOutput("ended", self.seen)


class Remembers(beam.DoFn):
    BAG = BagStateSpec("bag", beam.coders.VarIntCoder())

    def process(self, element, bag=beam.DoFn.StateParam(BAG)):
        bag.add(element)


def taken(build):
    """What comes of collections by name, and what was counted."""
    pipeline = beam.Pipeline(runner=PipelineRunner())
    kept = {}
    for name, some in build(pipeline).items():
        kept[name] = []
        for number, one in enumerate([some] if isinstance(some, beam.PCollection) else some):
            _ = one | f"Keep {name} {number}" >> beam.ParDo(Keeps(kept[name]))
    summary = run_steps(pipeline)
    return kept, summary


class Keeps(beam.DoFn):
    """Appends to a list of this process."""

    lists: ClassVar = {}

    def __init__(self, into):
        self.lists[id(into)] = into
        self._into = id(into)

    def process(self, element):
        self.lists[self._into].append(element)


def numbers(pipeline, label="Numbers"):
    return pipeline | label >> beam.Create([1, 2, 3, 4, 5])


def test_outputs_go_where_they_are_taken():
    def build(pipeline):
        most = pipeline | "Most" >> beam.Create([4])
        sort = beam.ParDo(Sorts(), beam.pvalue.AsSingleton(most))
        sorted_ = numbers(pipeline) | sort.with_outputs("odd", "ended", main="even")
        sums = (sorted_.even, sorted_.odd) | beam.Flatten() | beam.CombineGlobally(sum)
        keyed = numbers(pipeline, "Again") | "Key" >> beam.Map(lambda n: (n % 2, n))
        return {
            "even": sorted_.even,
            "both": [sorted_.even, sorted_.odd],
            "ended": sorted_.ended,
            "sums": sums,
            "grouped": keyed | beam.GroupByKey(),
        }

    kept, summary = taken(build)
    assert kept["even"] == [2, 4]
    assert sorted(kept["both"]) == [1, 2, 3, 4]
    assert kept["ended"] == [5]
    assert kept["sums"] == [10]
    assert [(key, sorted(values)) for key, values in sorted(kept["grouped"])] == [
        (0, [2, 4]),
        (1, [1, 3, 5]),
    ]
    assert summary.counters == {"seen": 5}


def test_an_error_comes_as_it_is():
    def fail(number):
        raise KeyError(number)

    with pytest.raises(KeyError):
        taken(lambda pipeline: {"none": numbers(pipeline) | beam.Map(fail)})


def test_a_pipeline_for_a_runner_is_left_as_it_is():
    begun = []

    class Begins(beam.DoFn):
        def setup(self):
            begun.append(self)

        def process(self, element):
            yield element

    pipeline = beam.Pipeline(runner=PipelineRunner())
    keyed = numbers(pipeline) | beam.ParDo(Begins()) | beam.Map(lambda n: (0, n))
    keyed | "Remember" >> beam.ParDo(Remembers())
    assert run_steps(pipeline) is None
    assert begun == []


@pytest.mark.parametrize("asked", [beam.DoFn.TimestampParam, beam.DoFn.WindowParam])
def test_what_asks_for_times_or_windows_needs_a_runner(asked):
    """As the steps of Beam's sinks do, such as that of BigQuery."""

    def build(pipeline):
        return {"none": numbers(pipeline) | "Look" >> beam.Map(lambda n, at=asked: (n, at))}

    kept, summary = taken(build)
    assert (kept, summary) == ({"none": []}, None)

"""A step that fails, on a runner that drops what it was given and goes on: nothing comes of it.

Prism does so until the job is torn down. Here FnApiRunner does it to every element of every step of
a job, those of Beam's own transforms as well, one in each run: a file is then written as it would
have been, or not at all.
"""

import os
from collections import Counter
from functools import partial, update_wrapper

import apache_beam as beam
import pytest
from apache_beam.pipeline import PipelineVisitor

from streamveil.pipelines.commands import per_record, release
from streamveil.pipelines.jobs import graphs
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.execution import Execution

EVENTS = (
    "u1,A,2024-01-01T08:00:00Z,1",
    "u2,B,2024-01-01T09:30:00Z,1",
    "u9,B,2024-01-02T00:00:00Z,1",
    "u3,?,2024-01-02T10:00:00Z,1",
)
MORE = ("u3,C,2024-01-03T08:00:00Z,1", "u1,C,2024-01-03T09:00:00Z,1", "too,many,2024-01-01,fields")
RANGE = {"start": "2024-01-01", "end": "2024-01-04", "max_rejected": "1"}
REVISED = {"revise": 1, "revisions": "out/revisions.jsonl"}
CHANGES = (
    "user,slot,time,window_backward,epsilon_backward,window_forward,epsilon_forward",
    *(f"u{user},{19722 + user},,1,4000,1,4000" for user in range(1, 4)),
)
JOBS = {
    "release": {**RANGE},
    "release an unknown range": {"max_rejected": "1"},
    "release tidy, in shards": {**RANGE, "shards": 2, "layout": "tidy"},
    "release with changes": {**RANGE, "requirement_changes": "changes.csv", "mechanism": "dpbd"},
    "collect": {**RANGE},
    **{f"{name} with revisions": {**RANGE, **REVISED} for name in ("release", "collect")},
    "per-record": {
        **dict.fromkeys(("user_column", "requirements", "domain", "ledger", "layout")),
        **dict(RANGE, max_rejected=None),
        **{"value_column": None, "key_column": "value", "keys": "A,B,C"},
        **{
            "budget": "sqrt:10",
            "budget_column": "amount",
            "epsilon_max": 8,
            "value_max": 10,
            "statistic": "count",
        },
    },
}
ON_RUNNER = Execution(("--runner=FnApiRunner",))
OF = {
    "release": (partial(release.job_of, "release"), graphs.build),
    "collect": (partial(release.job_of, "collect"), graphs.build),
    "per-record": (per_record.job_of, graphs.build_per_record),
}


class GoesOn:
    """A runner on which elements that a step fails on are gone, and all else goes on."""

    def __init__(self):
        self.begin(None)

    def begin(self, dropped):
        """Forget the last run; the next drops that element, a step and a number, if not None."""
        self.dropped, self.taken, self.errors = dropped, Counter(), []

    @property
    def elements(self):
        """All that were taken: steps, and numbers of what each was given."""
        return [(step, number) for step, taken in self.taken.items() for number in range(taken)]

    def take(self, step, process):
        """What a step gives for its next element, if `process` does it."""
        element = step, self.taken[step]
        self.taken[step] += 1
        if element == self.dropped:
            return []
        try:
            return list(process() or ())
        except Exception as error:
            self.errors.append(error)
            return []

    def run(self, pipeline, dropped=None):
        """Take a job through its steps, and drop that element."""
        self.begin(dropped)
        pipeline.run().wait_until_finish()
        assert dropped is None or dropped in self.elements


GOES_ON = GoesOn()
"""The only one: workers, threads of this process, take copies of steps, which find it here."""


class Process:
    """What a step does with an element, as `GOES_ON` takes it."""

    def __init__(self, step, process):
        update_wrapper(self, process)  # Beam looks at the signature
        self.step = step

    def __call__(self, *args, **kwargs):
        return GOES_ON.take(self.step, partial(self.__wrapped__, *args, **kwargs))


class Wrapping(PipelineVisitor):
    """Lets `GOES_ON` take what the steps of a pipeline are given."""

    def visit_transform(self, applied):
        if isinstance(applied.transform, beam.ParDo):
            fn = applied.transform.fn
            fn.process = Process(applied.full_label, fn.process)


@pytest.fixture
def compose(toolbox, tmp_path):
    """What makes the pipeline of a job of that name, which writes into a folder."""
    (tmp_path / "out").mkdir()

    def compose(name):
        command = name.split()[0]
        job = toolbox.Job(tmp_path, command)
        job.requirements(dict.fromkeys(("u1", "u2", "u3"), (1, 4000.0)))
        flags = {"output": "out/out.jsonl", "ledger": "out/ledger.jsonl", **JOBS[name]}
        for place in ("output", "ledger", "revisions", "requirement_changes"):
            flags |= {place: job.path(flags[place])} if flags.get(place) else {}
        job.write("changes.csv", "\n".join(CHANGES) + "\n")
        for number, lines in enumerate((EVENTS, MORE)):
            job.write(f"events-{number}.csv", "\n".join(("user,value,time,amount", *lines)) + "\n")
        flags |= {"input": job.path("events-*.csv"), "noise_key": job.key()}
        given = COMMANDS[command].request(job.arguments(**flags)[1:]).read()
        of, build = OF[command]
        pipeline = beam.Pipeline(options=ON_RUNNER.options)
        build(of(given, ON_RUNNER), pipeline)
        pipeline.visit(Wrapping())
        return pipeline

    return compose


def written(folder):
    """The files there, none of them half written, which are taken away."""
    found = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    for name in found:
        os.unlink(folder / "out" / name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_whatever_is_lost_nothing_is_written_that_is_not_whole(compose, tmp_path, name):
    pipeline = compose(name)
    GOES_ON.run(pipeline)
    whole, elements = written(tmp_path), GOES_ON.elements
    assert not GOES_ON.errors
    wanted = {"out.jsonl"} | ({"ledger.jsonl"} if name != "per-record" else set())
    assert set(whole) == wanted | ({"revisions.jsonl"} if "revise" in JOBS[name] else set())
    refused = 0
    for dropped in elements:
        GOES_ON.run(pipeline, dropped)
        found = written(tmp_path)
        assert found.items() <= whole.items(), dropped
        refused += not found
    assert refused > len(elements) / 3

"""A step that fails, on a runner that drops what it was given and goes on: nothing comes of it.

Prism does so until the job is torn down. Here it is done to every element of every step of a run,
one in each run: a file is then written as it would have been, or not at all.
"""

import os

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineRunner
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.pipelines import collect, per_record, release
from streamveil.pipelines.in_memory import steps
from streamveil.pipelines.launch import parse_flags

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
        **dict.fromkeys(("user_column", "requirements", "domain", "ledger")),
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
OF = {
    "release": release.ReleaseJob.of,
    "collect": collect.job_of,
    "per-record": per_record.job_of,
}


class GoesOn:
    """A runner on which elements that a step fails on are gone, and all else goes on."""

    def __init__(self):
        self.dropped, self.taken, self.errors = None, [], []

    def take(self, step, element):
        self.taken.append(step.label)
        if len(self.taken) - 1 == self.dropped:
            return
        try:
            outputs = list(step._fn.process(element, *step._args, **step._kwargs) or ())
        except Exception as error:
            self.errors.append(error)
        else:
            step._give_all(outputs)

    def run(self, build, dropped=None):
        """Take a job through its steps, and drop the element with that number of all."""
        self.dropped, self.taken, self.errors = dropped, [], []
        pipeline = beam.Pipeline(runner=PipelineRunner())
        build(pipeline)
        assert steps.run_steps(pipeline) is not None


@pytest.fixture
def goes_on(monkeypatch):
    made = GoesOn()
    give, begin = steps._Step.give, steps._Do.__init__

    def unwrapped(step, element, tag=None):  # steps that gather a bundle wrap what they give
        give(step, element.value if isinstance(element, WindowedValue) else element, tag)

    def named(step, applied, takers, processes):
        step.label = applied.full_label
        begin(step, applied, takers, processes)

    monkeypatch.setattr(steps._Do, "__init__", named)
    monkeypatch.setattr(steps._Step, "give", unwrapped)
    monkeypatch.setattr(steps._Do, "take", lambda step, element: made.take(step, element))
    return made


@pytest.fixture
def build(toolbox, tmp_path):
    """What builds a job of that name, which writes into a folder."""
    (tmp_path / "out").mkdir()

    def build(name):
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
        argv = job.arguments(**flags)[1:]
        return OF[command](parse_flags(command, argv)).build

    return build


def written(folder):
    """The files there, none of them half written, which are taken away."""
    found = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    for name in found:
        os.unlink(folder / "out" / name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_whatever_is_lost_nothing_is_written_that_is_not_whole(goes_on, build, tmp_path, name):
    goes_on.run(build(name))
    whole, steps_of = written(tmp_path), goes_on.taken
    assert not goes_on.errors
    wanted = {"out.jsonl"} | ({"ledger.jsonl"} if name != "per-record" else set())
    assert set(whole) == wanted | ({"revisions.jsonl"} if "revise" in JOBS[name] else set())
    refused = 0
    for dropped, step in enumerate(steps_of):
        goes_on.run(build(name), dropped)
        found = written(tmp_path)
        assert found.items() <= whole.items(), step
        refused += not found
    assert refused > len(steps_of) / 3

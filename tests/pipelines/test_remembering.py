"""States and timers of DoFns are remembered by class, and are those that Beam finds."""

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain

from streamveil.pipelines.remembering import remembered_specs

STATE = userstate.BagStateSpec("bag", BytesCoder())
OTHER = userstate.BagStateSpec("other", BytesCoder())
TIMER = userstate.TimerSpec("timer", TimeDomain.WATERMARK)


class Plain(beam.DoFn):
    def process(self, element):
        yield element


class Stateful(beam.DoFn):
    def process(self, element, bag=beam.DoFn.StateParam(STATE), at=beam.DoFn.TimerParam(TIMER)):
        yield element

    @userstate.on_timer(TIMER)
    def fire(self, other=beam.DoFn.StateParam(OTHER)):
        yield other


class Own(beam.DoFn):
    """Its method is an attribute of each instance."""

    def __init__(self, method):
        self.process = method


def specs_of(dofns):
    return [userstate.get_dofn_specs(dofn) for dofn in dofns]


def test_they_are_what_beam_finds():
    dofns = [Plain(), Stateful(), Own(Plain().process), Own(Stateful().process)]
    found = specs_of(dofns)
    assert [len(states) for states, _ in found] == [0, 2, 0, 1]
    with remembered_specs():
        for _ in range(2):
            again = specs_of(dofns)
            assert again == found
            for states, timers in again:  # what a caller does to them is its own affair
                states.clear()
                timers.clear()
    assert specs_of(dofns) == found


def test_each_class_is_looked_at_once(monkeypatch):
    looked = []
    find = userstate.get_dofn_specs
    monkeypatch.setattr(
        "streamveil.pipelines.remembering._find", lambda dofn: looked.append(dofn) or find(dofn)
    )

    class New(Plain):
        pass

    with remembered_specs():
        specs_of([New(), New()])
        assert len(looked) == 1
        assert not userstate.is_stateful_dofn(New())
        assert len(looked) == 1


def test_beam_is_left_as_it_was_after_an_error():
    before = userstate.get_dofn_specs

    def fail():
        with remembered_specs():
            assert userstate.get_dofn_specs is not before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert userstate.get_dofn_specs is before

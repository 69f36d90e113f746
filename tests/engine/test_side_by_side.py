"""Parts side by side give what they give one after another."""

import threading
import weakref
from itertools import chain

import pytest

from streamveil.engine import metrics
from streamveil.engine.side_by_side import side_by_side


def work(part):
    metrics.count("parts", 1)
    metrics.observe("largest", part)
    yield part
    yield -part


@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("number", [0, 1, 2, 20])
def test_results_are_in_order_and_all_is_counted(number, threads):
    with metrics.counting() as counts:
        found = list(side_by_side(work, range(number), threads))
    assert found == [each for part in range(number) for each in (part, -part)]
    assert counts.counters.get("parts", 0) == number
    assert counts.largest.get("largest", -1) == number - 1


def test_parts_are_worked_on_at_the_same_time():
    both = threading.Barrier(2, timeout=20)

    def meet(part):
        both.wait()
        return [part]

    assert list(side_by_side(meet, range(4), threads=2)) == [0, 1, 2, 3]


class Block:
    """A part that can be seen to be let go."""


def test_few_parts_are_held_at_a_time():
    held = []

    def parts():
        for _ in range(20):
            part = Block()
            held.append(weakref.ref(part))
            yield part
            del part

    for _ in side_by_side(lambda part: [0], parts(), threads=2):
        assert sum(one() is not None for one in held) <= 3  # with the one that is being made
    assert len(held) == 20


def test_the_first_fault_is_reported_after_all_results_before_it():
    def parts():
        yield from range(3)
        raise OSError("the disk failed")

    def fails(part):
        if part == 2:
            raise ValueError("a part is wrong")
        return [part]

    found = side_by_side(fails, parts(), threads=2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="a part is wrong"):
        next(found)
    one = side_by_side(fails, chain([2], (1 / 0 for _ in range(1))), threads=2)
    with pytest.raises(ValueError, match="a part is wrong"):
        next(one)
    read = side_by_side(work, parts(), threads=2)
    assert [next(read) for _ in range(6)] == [0, 0, 1, -1, 2, -2]
    with pytest.raises(OSError, match="the disk failed"):
        next(read)


def test_it_can_be_left_midway():
    found = side_by_side(work, range(20), threads=2)
    assert next(found) == 0
    found.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("ThreadPool")]

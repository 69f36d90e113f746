"""The clock that closes slots: which times are not believed."""

import pytest

from streamveil.engine.slot_clock import MOST_AHEAD
from streamveil.mechanisms import ConfigurationError
from streamveil.pipelines.state_runs import clocks
from streamveil.pipelines.state_runs.clocks import Clock

NOW = 1_700_000_000_000_000


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock and whose steady one the test sets."""
    times = {"machine": NOW, "steady": 5}
    monkeypatch.setattr(clocks, "_machine", lambda: times["machine"])
    monkeypatch.setattr(clocks, "_steady", lambda: times["steady"])
    return times


@pytest.mark.parametrize(("step", "words"), [(1, "forward by 1.5 days"), (-1, "back by 1.5 days")])
def test_a_clock_that_was_set_while_the_stream_ran_is_not_obeyed(machine, step, words):
    clock = Clock()
    machine["machine"] += MOST_AHEAD
    machine["steady"] += MOST_AHEAD  # a day went by
    assert clock() == NOW + MOST_AHEAD
    machine["machine"] += MOST_AHEAD // 2  # a person moved it a little
    assert clock() == NOW + MOST_AHEAD * 3 // 2
    machine["machine"] = NOW + MOST_AHEAD + step * MOST_AHEAD * 3 // 2
    with pytest.raises(ConfigurationError, match=words):
        clock()


def test_a_file_may_be_behind_the_machine_but_not_far_ahead(machine, tmp_path):
    path = tmp_path / "clock"
    clock = Clock(str(path))
    for text in ("1999-01-01T00:00:00Z", "2023-11-15T22:13:00Z"):
        path.write_text(text)
        clock()
    path.write_text("2023-11-15T22:14:00Z")
    with pytest.raises(ConfigurationError, match=r"1\.0 days ahead of the clock of this machine"):
        clock()


def test_a_clock_that_went_back_behind_released_slots_is_reported(machine):
    clock = Clock()
    clock.check(NOW, NOW + MOST_AHEAD)
    with pytest.raises(ConfigurationError, match="the clock went back, or it was far ahead then"):
        clock.check(NOW, NOW + MOST_AHEAD + 1)


def test_a_stream_that_is_to_begin_later_is_reported_as_that(machine):
    Clock().check(NOW, NOW + MOST_AHEAD, begun=False)
    with pytest.raises(ConfigurationError, match="but the stream begins at 2023-11-15"):
        Clock().check(NOW, NOW + MOST_AHEAD + 1, begun=False)


def test_a_machine_far_behind_its_newest_file_releases_nothing(machine, tmp_path):
    Clock().check_files(NOW, NOW + MOST_AHEAD, "a.csv")
    with pytest.raises(ConfigurationError, match=r"a\.csv was written at 2023-11-15"):
        Clock().check_files(NOW, NOW + MOST_AHEAD + 1, "a.csv")
    Clock(str(tmp_path)).check_files(NOW, NOW + 9 * MOST_AHEAD, "a.csv")  # old data, replayed


def test_a_look_waits_for_the_next_slot_to_close_but_never_longer_than_requested(machine):
    clock = Clock()
    assert clock.wait_for(NOW + 1_900_000, most=10_000_000) == 1_900_000
    assert clock.wait_for(NOW + 60_000_000, most=10_000_000) == 10_000_000
    assert clock.wait_for(NOW + 1_900_000, most=100) == 100


def test_a_clock_that_stands_still_keeps_no_machine_busy(machine):
    clock = Clock()
    for soon in (1, 0, -5_000_000):  # it is read a little early, the slot closed meanwhile
        assert clock.wait_for(NOW + soon, most=10_000_000) == 10_000


def test_what_a_file_says_next_is_not_guessed(machine, tmp_path):
    path = tmp_path / "clock"
    path.write_text("2023-11-14T22:13:19Z")
    assert Clock(str(path)).wait_for(NOW, most=10_000_000) == 10_000_000


def test_a_file_that_is_empty_for_a_moment_says_what_it_said(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "_SECONDS_BETWEEN_READS", 0.001)
    path = tmp_path / "clock"
    path.write_text("")
    clock = Clock(str(path))
    with pytest.raises(ConfigurationError, match="gives no time: it is empty"):
        clock()
    path.write_text("2023-11-14T00:00:00Z")
    before = clock()
    assert clock.silence is None
    for text in ("", "\n"):
        path.write_text(text)
        assert clock() == before
    assert "is empty: no slot is closed until it gives a time" in clock.silence
    path.write_text("2023-11-14T00:00:01Z")
    assert clock() == before + 1_000_000
    assert clock.silence is None
    path.write_text("soon")
    with pytest.raises(ConfigurationError, match="gives no time"):
        clock()


def test_a_file_that_is_being_written_at_the_start_is_read_again(machine, tmp_path, monkeypatch):
    path = tmp_path / "clock"
    path.write_text("")
    monkeypatch.setattr(clocks.time, "sleep", lambda _: path.write_text("2023-11-14T00:00:00Z"))
    assert Clock(str(path))() == 1_699_920_000_000_000

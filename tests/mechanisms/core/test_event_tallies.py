"""Tallies of events: what they say of single questions goes through the pipeline with the rest."""

from streamveil.mechanisms.core.event_tallies import EventTally, Lost

ONE = EventTally(3, read_by={"a": 2, "b": 0}, unread_by={"b": {"null": Lost(3, "f", 4, "x")}})
OTHER = EventTally(2, read_by={"a": 0, "b": 0}, unread_by={"b": {"null": Lost(2, "f", 1, "y")}})


def test_what_questions_can_read_is_added_up_and_goes_through_bytes():
    total = EventTally.total([ONE, OTHER])
    assert total.read_by == {"a": 2, "b": 0}
    assert total.unread_by == {"b": {"null": Lost(5, "f", 1, "y")}}
    assert EventTally.of_bytes(total.to_bytes()) == total
    assert total.blind == ("b",)


def test_a_question_is_blind_where_it_asks_about_events_and_reads_none():
    assert EventTally(3, read_by={"a": 0}).blind == ()
    assert EventTally.total([OTHER, EventTally(1, read_by={"b": 1})]).blind == ()

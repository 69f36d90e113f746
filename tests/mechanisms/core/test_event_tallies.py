"""Tallies of events: what they say of single queries goes through the pipeline with the rest."""

import pytest

from streamveil.mechanisms.core.event_tallies import EventTally, Lost

ONE = EventTally(3, read_by={"a": 2, "b": 0}, unread_by={"b": {"null": Lost(3, "f", 4, "x")}})
OTHER = EventTally(2, read_by={"a": 0, "b": 0}, unread_by={"b": {"null": Lost(2, "f", 1, "y")}})


def test_what_queries_can_read_is_added_up_and_goes_through_bytes():
    total = EventTally.total([ONE, OTHER])
    assert total.read_by == {"a": 2, "b": 0}
    assert total.unread_by == {"b": {"null": Lost(5, "f", 1, "y")}}
    assert EventTally.of_bytes(total.to_bytes()) == total
    assert total.blind == ("b",)


def test_a_query_is_blind_where_it_asks_about_events_and_reads_none():
    assert EventTally(3, read_by={"a": 0}).blind == ()
    assert EventTally.total([OTHER, EventTally(1, read_by={"b": 1})]).blind == ()


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("events.csv", "events.csv line 2"),
        ("gs://b/day.jsonl.GZ", "gs://b/day.jsonl.GZ line 2"),
        ("parted.txt", "parted.txt line 2"),
        ("events.PARQUET", "events.PARQUET row 2"),
        ("events.avro", "events.avro row 2"),
        ("data", "data row 2"),
        ("", "the input row 2"),
    ],
)
def test_places_are_lines_of_text_and_rows_of_anything_else(source, place):
    assert Lost(1, source, 2).place == place
    assert Lost(1, source).place == (source or "the input")

"""What a run over questions says of each: only what it knows."""

from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.statistics import DistinctUsers
from streamveil.pipelines.questions_summary import QuestionsSummary
from streamveil.pipelines.summary import Summary

CARS = Question("cars", where=(Condition("kind", ("car",)),), max_contributions=2)
ALL = Question("all", slots=24)
PORTFOLIO = Portfolio(Slots.of("1h"), (CARS, ALL))


def summary(**counters):
    named = {name.replace("_of_", " of question "): n for name, n in counters.items()}
    return QuestionsSummary(Summary({"events_read": 100, **named}), PORTFOLIO)


def test_a_question_without_events_is_warned_of():
    told = summary(slots_published_of_cars=24, slots_published_of_all=1, events_counted_of_all=90)
    (warning,) = told.warnings()
    assert warning.startswith("question cars: there are no events that meet its conditions (where)")
    assert "question: all: 1 slot of 1d (1 published); 90 events counted" in told.text()


def test_a_runner_without_counters_says_nothing_that_might_be_wrong():
    assert QuestionsSummary(Summary(), PORTFOLIO).warnings() == []
    assert summary(events_counted_of_all=3).warnings() == []


# Whatever number of questions takes an event: it is one of those that were read.
def test_an_event_is_counted_once():
    told = summary(
        events_counted=70, events_unasked=30, events_counted_of_all=70, events_counted_of_cars=60
    )
    figures = told.figures()
    assert (figures["read"], figures["counted"], figures["unasked"]) == (100, 70, 30)
    assert "100 events read, 0 of them rejected, 30 that no question asks about" in told.text()


def test_most_events_beyond_the_bound_are_warned_of():
    counters = {"slots_published_of_all": 1, "events_counted_of_all": 30}
    told = summary(**counters, events_bounded_away_of_all=70)
    assert "70% of its events were beyond max_contributions" in told.text()
    assert told.figures()["questions"]["all"]["beyond_bound"] == 70


def test_some_events_beyond_the_bound_are_warned_of():
    told = summary(slots_published_of_all=1, events_counted_of_all=93, events_bounded_away_of_all=7)
    assert "7% of its events were beyond max_contributions (1), and its figures" in told.text()
    told = summary(slots_published_of_all=1, events_counted_of_all=97, events_bounded_away_of_all=3)
    assert [one.partition(":")[0] for one in told.warnings()] == []


# A larger bound would count no user more, and add noise.
def test_distinct_users_have_no_use_for_a_larger_bound():
    users = Question("users", statistic=DistinctUsers())
    counters = {f"{name} of question users": 50 for name in ("events_counted", "slots_published")}
    counters |= {"events_read": 500, "events_bounded_away of question users": 450}
    told = QuestionsSummary(Summary(counters), Portfolio(Slots.of("1h"), (users,)))
    assert told.warnings() == []
    assert "450 beyond the users' contribution bound" in told.text()


# Of a stream: an event that is late for its hour may count for its day.
def test_what_is_late_is_told_by_question():
    told = summary(slots_published_of_cars=24, slots_published_of_all=1, events_late_of_cars=7)
    figures = told.figures()["questions"]
    assert figures["cars"]["late"] == 7
    assert "late" not in figures["all"]
    assert "beyond the users' contribution bound, 7 late" in told.text()
    assert [one.partition(":")[0] for one in told.warnings()] == ["question all"]

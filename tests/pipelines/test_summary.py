"""What a run says of its events and queries: only what it knows."""

from dataclasses import replace
from types import SimpleNamespace

from streamveil.engine import metrics
from streamveil.engine.encode.passes import Pass
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers
from streamveil.pipelines.reports.summary import Summary
from streamveil.pipelines.state_runs import pass_log

CARS = Query("cars", where=(Condition("kind", ("car",)),), max_contributions=2)
ALL = Query("all", slots=24)
QUERY_SET = QuerySet(Slots.of("1h"), (CARS, ALL))


def summary(**counters):
    named = {name.replace("_of_", " of query "): n for name, n in counters.items()}
    return Summary({"events_read": 100, **named}, query_set=QUERY_SET)


def test_summary():
    counters = {
        metrics.EVENTS_READ: 1_234_567,
        metrics.EVENTS_COUNTED: 1_233_557,
        metrics.EVENTS_LATE: 3,
        metrics.EVENTS_BOUNDED_AWAY: 1000,
        metrics.REJECTED_PREFIX + "null user": 2,
        metrics.REJECTED_PREFIX + "ambiguous time": 5,
        metrics.SLOTS_PREFIX + "published": 3,
        metrics.SLOTS_PREFIX + "nullified": 1,
    }
    lines = Summary(counters, 0.98765).text(dead_letters="no.csv").splitlines()
    assert lines == [
        "events:   1,234,567 events read: 1,233,557 counted, 7 rejected, 3 late, 1,000 beyond the "
        "users' contribution bound",
        "rejected: ambiguous time 5, null user 2",
        "slots:    3 published, 1 nullified",
        "budget:   at most 98.8% of any user's budget was spent",
    ]
    assert "--rejected=FILE" in Summary(counters).text()


def test_summary_of_changes():
    counters = {
        metrics.CHANGES_READ: 1200,
        metrics.CHANGES_ACCEPTED: 1190,
        metrics.CHANGES_LATE: 3,
        metrics.CHANGES_REJECTED_PREFIX + "no slot": 10,
    }
    lines = Summary(counters).text().splitlines()
    assert lines[1:] == ["changes:  1,200 read, 1,190 accepted, 3 of them late"]


# A runner that loses the counters of timers must not be quoted with 0 slots.
def test_summary_of_nothing():
    lines = Summary().text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["events"]


def test_the_summary_warns_where_a_limit_on_presence_leaves_out_a_third():
    counters = {metrics.EVENTS_COUNTED: 60, metrics.EVENTS_BEYOND_LIMIT: 40}
    (warning,) = Summary(counters).warnings()
    assert "40% of the events that --max_contributions kept were dropped by --max_slots" in warning
    fewer = Summary({**counters, metrics.EVENTS_BEYOND_LIMIT: 30})
    assert fewer.warnings() == []
    assert replace(fewer, kept_shares_needed={None: 0.6}).warnings() == []
    (warning,) = replace(fewer, kept_shares_needed={None: 0.7}).warnings()
    assert "where less than 70% is kept, the limit may increase errors" in warning


def test_a_query_set_says_that_of_its_queries_alone():
    """Of one query the events of all are its own."""
    beyond = {"events_counted_of_cars": 60, "events_beyond_limit_of_cars": 40}
    made = summary(slots_published_of_cars=24, events_counted=60, events_beyond_limit=40, **beyond)
    (warning,) = made.warnings()
    assert warning.startswith("query cars: 40% of the events that --max_contributions kept were")


def test_a_query_without_events_is_warned_of():
    made = summary(slots_published_of_cars=24, slots_published_of_all=1, events_counted_of_all=90)
    (warning,) = made.warnings()
    assert warning.startswith("query cars: there are no events that meet its conditions (where)")
    assert "query: all: 1 slot of 1d (1 published); 90 events counted" in made.text()


def test_title_and_unit_are_reported_beside_the_name():
    titled = QuerySet(Slots.of("1h"), (CARS, replace(ALL, title="All trips", unit="trips")))
    counters = {"slots_published of query all": 1, "events_counted of query all": 90}
    made = Summary({"events_read": 100, **counters}, query_set=titled)
    assert "query: all (All trips): 1 slot of 1d (1 published); 90 events counted" in made.text()
    by_name = made.figures()["queries"]
    assert (by_name["all"]["title"], by_name["all"]["unit"]) == ("All trips", "trips")
    assert {"title", "unit"}.isdisjoint(by_name["cars"])


def test_a_runner_without_counters_says_nothing_that_might_be_wrong():
    assert Summary(query_set=QUERY_SET).warnings() == []
    assert summary(events_counted_of_all=3).warnings() == []


# Whatever number of queries takes an event: it is one of those that were read.
def test_an_event_is_counted_once():
    made = summary(
        events_counted=70, events_unasked=30, events_counted_of_all=70, events_counted_of_cars=60
    )
    figures = made.figures()
    assert (figures["read"], figures["counted"], figures["unasked"]) == (100, 70, 30)
    assert (
        "100 events read: 70 counted, 0 rejected, 0 late, 30 that no query asks about"
        in made.text()
    )


def test_most_events_beyond_the_bound_are_warned_of():
    counters = {"slots_published_of_all": 1, "events_counted_of_all": 30}
    made = summary(**counters, events_bounded_away_of_all=70)
    assert (
        "70% of the accepted events were dropped by the bound of max_contributions" in made.text()
    )
    assert made.figures()["queries"]["all"]["beyond_bound"] == 70


def test_some_events_beyond_the_bound_are_warned_of():
    made = summary(slots_published_of_all=1, events_counted_of_all=93, events_bounded_away_of_all=7)
    assert "7% of the accepted events were dropped by the bound of max_contributions" in made.text()
    made = summary(slots_published_of_all=1, events_counted_of_all=97, events_bounded_away_of_all=3)
    assert [one.partition(":")[0] for one in made.warnings()] == []


# A larger bound would count no user more, and add noise.
def test_distinct_users_have_no_use_for_a_larger_bound():
    users = Query("users", statistic=DistinctUsers())
    counters = {f"{name} of query users": 50 for name in ("events_counted", "slots_published")}
    counters |= {"events_read": 500, "events_bounded_away of query users": 450}
    made = Summary(counters, query_set=QuerySet(Slots.of("1h"), (users,)))
    assert made.warnings() == []
    assert "450 beyond the users' contribution bound" in made.text()


# Of a stream: an event that is late for its hour may count for its day.
def test_what_is_late_is_reported_by_query():
    made = summary(slots_published_of_cars=24, slots_published_of_all=1, events_late_of_cars=7)
    figures = made.figures()["queries"]
    assert figures["cars"]["late"] == 7
    assert "late" not in figures["all"]
    assert "beyond the users' contribution bound, 7 late" in made.text()
    assert [one.partition(":")[0] for one in made.warnings()] == ["query all"]


# What becomes of each event stands once in a line, and adds up to what was read.
def test_a_query_set_of_one_drops_what_its_query_drops():
    counters = {"events_read": 100, "events_counted": 60, "events_unasked": 5}
    counters |= {"rejected: null user": 2}
    counters |= {"events_bounded_away": 33, "events_bounded_away of query all": 33}
    figures = Summary(counters, query_set=QuerySet(Slots.of("1h"), (ALL,))).figures()
    assert (figures["dropped"], figures["beyond_bound"]) == (38, 33)
    assert (
        figures["read"]
        == figures["kept"] + sum(figures["rejected"].values()) + figures["late"] + 38
    )


def test_rejected_events_are_warned_of_from_a_twentieth_on():
    rejected = {f"{metrics.REJECTED_PREFIX}null user": 3}
    outside = f"{metrics.REJECTED_PREFIX}outside the domain"
    made = Summary({metrics.EVENTS_READ: 100, **rejected, outside: 2})
    assert made.text().count("warning:") == 1
    assert (
        "warning:  5% of the events were rejected (most often: null user), so no result contains "
        "them: the dead letters (--rejected) say why"
    ) in made.text()
    assert "warning:" not in Summary({metrics.EVENTS_READ: 101, **rejected, outside: 2}).text()
    assert "warning:" not in Summary(rejected).text()  # a runner that lost what was read


def test_what_a_query_cannot_read_is_warned_of_once():
    unread = {"events_unread of query all: null value": 19, "rejected: null value (query all)": 19}
    counters = {"slots_published of query all": 1, "events_counted of query all": 81, **unread}
    made = Summary({"events_read": 100, **counters}, query_set=QuerySet(Slots.of("1h"), (ALL,)))
    assert made.text().count("warning:") == 1
    assert "warning:  query all: 19% of its events could not be counted" in made.text()


def test_passes_repeat_a_warning_only_if_its_percentage_changes_much(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(pass_log, "tell", lambda text, *level: lines.append(text))
    slots = Slots.of("1h")
    plan = SimpleNamespace(slots=slots, max_rejected=0.5, test_mode=False, plan_kind=None)
    outputs = SimpleNamespace(released=lambda number, summary: "")
    log = pass_log.PassLog()

    def warned(beyond, rejected=0):
        lines.clear()
        counters = {"events_counted": 100 - beyond, "events_bounded_away": beyond}
        counters |= {"events_read": 100 + rejected, "rejected: null user": rejected}
        log.tell(Pass(0, 0, 0), Summary(counters), plan, outputs, ["out"])
        return [line.split()[1] for line in lines if line.startswith("warning:")]

    assert warned(30) == ["30%"]
    assert warned(33) == []
    assert warned(41) == ["41%"]
    assert warned(32, rejected=25) == ["20%"]
    assert warned(0) == []
    assert warned(29) == ["29%"]

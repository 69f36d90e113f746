"""`--page` of a single count: what it shows of every kind of promise and of every kind of file."""

import re
from pathlib import Path

import pytest

USERS = {f"u{u}": (2 + u % 2, 8.0) for u in range(40)}
DAYS = 8
RANGE = {"start": "2024-01-01", "end": f"2024-01-0{DAYS + 1}"}


@pytest.fixture
def counted(job):
    """A job over eight days, whose page is wanted."""
    job.requirements(USERS)
    job.lines(
        *(
            f"u{u},{'ABC'[(u + d) % 3]},2024-01-{d + 1:02}T08:00:00Z"
            for d in range(DAYS)
            for u in range(40)
        )
    )
    job.flags |= {**RANGE, "page": job.path("page.html"), "ledger": job.path("ledger.parquet")}
    return job


def words(job):
    html = Path(job.path("page.html")).read_text(encoding="utf-8")
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return re.sub(r" ([.,:])", r"\1", " ".join(text.split()))


REVISED = {"mechanism": "adaptive", "revise": 2}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("layout", ["tidy", "rows"])
def test_of_every_kind_of_file(counted, layout, ending):
    names = ("output", "ledger", "revisions")
    files = {name: counted.path(f"{name}.{ending}") for name in names}
    done = counted.done(**files, **REVISED, layout=layout, slot_zone="Europe/Berlin")
    assert f"wrote {counted.path('page.html')}" in done.out
    text = words(counted)
    assert "Events, by value" in text
    assert "each of 40 users has a privacy budget ε over any w days in a row" in text
    assert "one for every day, 1 Jan 2024 to 8 Jan 2024, each of 3 bins, by adaptive" in text
    assert "revised 2 days later" in text
    assert re.search(r"2 days 8 20 \d+\.\d% \d+\.\d%", text)
    assert "320 events read: 320 kept" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"guarantee": "infinite", "epsilon": 40, "requirements": None, "mechanism": None},
            (
                "a privacy budget ε over the whole stream",
                "by gated",
                "the whole stream 40 not known",
            ),
        ),
        (
            {
                **{"guarantee": "user", "epsilon": 40, "requirements": None, "max_slots": 2},
                "mechanism": None,
            },
            (
                "a privacy budget ε over the whole stream",
                "by adaptive",
                "the whole stream 40 not known",
            ),
        ),
        ({"mechanism": "dpbd"}, ("by dpbd", "each group of users with the same history")),
        ({"ledger": None}, ("The run kept no ledger",)),
        ({"test_mode": "true"}, ("This page is not private.", "by no noise")),
    ],
    ids=["forever", "user", "changing", "no ledger", "test mode"],
)
def test_of_every_promise(counted, flags, said):
    counted.done(**flags)
    text = words(counted)
    assert [one for one in said if one not in text] == [], text


@pytest.mark.slow
def test_of_devices(toolbox, counted):
    counted.command = "collect"
    counted.done(mechanism=None, max_contributions=None)
    assert "by rotation" in words(counted)


@pytest.mark.slow
def test_a_window_has_spent_no_more_than_the_ledger_says_under_a_limit(counted):
    """Slots of a window add up to more than anybody can have spent in it."""
    counted.done(
        requirements=None,
        **{"default_requirement": "12,8,40", "max_slots": 1, "mechanism": "uniform"},
    )
    text = words(counted)
    found = re.search(r"12 days 8 40 (\S+)% (\S+)%", text)
    assert found, text
    assert float(found[1]) <= 100


@pytest.mark.slow
def test_every_pass_makes_it_anew(counted):
    flags = {**REVISED, "state": counted.path("state"), "revisions": counted.path("later.csv")}
    counted.done(**flags, output=counted.path("out.csv"), slots_per_pass=5, layout=None)
    text = words(counted)
    assert "1 Jan 2024 to 8 Jan 2024" in text
    assert "revised 2 days later" in text


def test_what_has_no_page_is_refused(counted):
    counted.refused("is a stream: write to files", output=f"folder:{counted.path('out')}")
    place = "pubsub:projects/a-project/topics/later"
    pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")
    counted.refused(f"--revisions={place} is not a file", **REVISED, revisions=place)
    counted.refused("ends in .html", page=counted.path("page.pdf"))

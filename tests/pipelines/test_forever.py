"""`streamveil release --guarantee=infinite`: one budget for all that a user ever contributes."""

import datetime as dt
import math

import numpy as np
import pytest

from streamveil.io import read_ledger, read_releases
from streamveil.mechanisms.core.records import Lifetime
from streamveil.pipelines.options.command_table import COMMANDS

pytestmark = pytest.mark.slow  # whole runs, pass after pass

UTC = dt.timezone.utc
USERS = 400


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=UTC)


def visits(days):
    """Everybody comes every day, twice; the habits of most change on day 5."""
    return [
        (f"u{u}", "A" if u % 4 == 0 or (n < 5) == (u % 8 < 6) else "B", day(n, hour))
        for n in days
        for u in range(USERS)
        for hour in (3, 15)
    ]


@pytest.fixture
def forever(job):
    """A job whose flags ask for one budget forever."""
    job.events(visits(range(1, 9)))
    job.flags = {
        **job.flags,
        "requirements": None,
        "guarantee": "infinite",
        "epsilon": "8",
        "noise_key": job.key(),
        "start": "2024-01-01",
        "end": "2024-01-09",
    }
    return job


@pytest.mark.parametrize("extension", ["parquet", "avro", "csv", "jsonl"])
def test_a_release_is_a_distribution_with_an_age_and_what_is_left(forever, extension):
    output, ledger = (forever.path(f"{name}.{extension}") for name in ("out", "ledger"))
    outcome = forever.done(output=output, ledger=ledger)
    assert "of any user's budget was spent" in outcome.out
    releases, entries = read_releases(output), read_ledger(ledger)
    assert [release.slot for release in releases] == [entry.slot for entry in entries]
    assert len(releases) == 8
    left = 8.0
    for release, entry in zip(releases, entries, strict=True):
        assert entry.classes == (Lifetime(8.0),)
        left -= float(entry.spent[0])
        assert release.mechanism == "gated"
        assert release.shares.sum() == pytest.approx(1.0)
        assert release.diagnostics["budget_left"] == pytest.approx(left, abs=1e-9)
        if release.published_slot is not None:
            assert release.diagnostics["age"] == release.slot - release.published_slot
    assert 0 < left < 8.0
    # Once a day of each user counts: the total is measured, and the shares follow the change.
    assert abs(releases[-1].counts.sum() - USERS) < 60
    assert releases[3].shares[0] > 0.6 > 0.5 > releases[-1].shares[0]
    assert releases[-1].shares[2] < 0.1


@pytest.mark.parametrize("mechanism", ["dpi:pool=50", "constant", "doubling", "horizon:slots=8"])
def test_other_mechanisms_keep_the_budget_too(forever, mechanism):
    forever.done(mechanism=mechanism, ledger=forever.path("ledger.jsonl"))
    entries = read_ledger(forever.path("ledger.jsonl"))
    assert math.fsum(float(entry.spent[0]) for entry in entries) <= 8.0
    shares = np.array([release.shares for release in read_releases(forever.path("out.jsonl"))])
    assert shares.shape == (8, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"epsilon": None}, ["--epsilon is missing"]),
        ({"guarantee": None}, ["--epsilon=8", "--guarantee=infinite"]),
        ({"epsilon": "none"}, ["--epsilon=none"]),
        ({"epsilon": "0"}, ["--epsilon=0"]),
        ({"epsilon": "1,2"}, ["--epsilon=1,2", "one"]),
        ({"requirements": "users.csv"}, ["--requirements=users.csv", "leave it out"]),
        ({"default_requirement": "7,1,9"}, ["--default_requirement=7,1,9", "leave it out"]),
        ({"requirement_changes": "c.csv"}, ["--requirement_changes=c.csv", "leave it out"]),
        ({"longest_window": 9}, ["--longest_window=9", "leave it out"]),
        ({"mechanism": "pba"}, ["'pba' is for requirements", "gated"]),
        ({"restart_budget": "1"}, ["--restart_budget", "--resume"]),
        ({"restart_budget": "true"}, ["--restart_budget=true is not a whole number"]),
        ({"domain": None}, ["--domain is missing"]),
    ],
)
def test_what_does_not_fit_is_refused(forever, flags, words):
    forever.refused(*words, **flags)


@pytest.fixture
def passes(forever):
    """The same in passes over a state; gives what runs a pass up to the end of a day."""
    flags = {"state": forever.path("state"), "clock_file": forever.path("clock")}
    forever.flags = {**forever.flags, **flags}

    def up_to(n, **more):
        forever.write("clock", day(n + 1).isoformat())
        return forever.done(**more)

    return up_to


def test_passes_share_one_budget_and_a_restart_is_reported(forever, passes):
    passes(4)
    passes(6, resume="true")
    outcome = passes(8, resume="true", restart_budget="1")
    assert "restart 1 of gated before slot" in outcome.log
    assert "users lose up to 2 times" in outcome.log
    releases = [
        release
        for number in (1, 2, 3)
        for release in read_releases(forever.path(f"out-{number:08d}.jsonl"))
    ]
    assert [release.diagnostics["restarts"] for release in releases] == [0.0] * 6 + [1.0] * 2
    left = [release.diagnostics["budget_left"] for release in releases]
    assert left[:6] == sorted(left[:6], reverse=True)
    assert left[6] > left[5]
    # Without a restart, passes are one run.
    plain = {"state": None, "clock_file": None, "output": forever.path("once.jsonl")}
    forever.done(**{**plain, "end": "2024-01-07"})
    once = read_releases(forever.path("once.jsonl"))
    for mine, theirs in zip(releases[:6], once, strict=True):
        np.testing.assert_array_equal(mine.shares, theirs.shares)
        assert mine.diagnostics == theirs.diagnostics


def test_a_command_that_is_started_again_restarts_once(forever, passes):
    """A unit of systemd with Restart= gives it at every start."""
    again = {"resume": "true", "restart_budget": "1"}
    passes(2)
    outcome = passes(2, **again)  # no slot has closed, so nothing is granted yet
    assert "restart 1" not in outcome.log
    assert "granted before" not in outcome.out
    assert "restart 1 of gated before slot" in passes(4, **again).log
    outcome = passes(8, **again)
    assert "restart" not in outcome.log
    assert "--restart_budget=1: this was granted before" in outcome.out
    (*_, last) = read_releases(forever.path("out-00000003.jsonl"))
    assert last.diagnostics["restarts"] == 1.0


def test_a_restart_without_a_number_is_the_first():
    release = COMMANDS["release"]
    for flags, number in ([], None), (["--restart_budget"], 1), (["--restart_budget=2"], 2):
        assert release.take(release.request(flags).texts).restart_budget == number


@pytest.mark.parametrize("number", ["2", "0", "-1"])
def test_a_restart_that_is_not_the_next_one_is_refused(forever, passes, number):
    passes(4)
    forever.write("clock", day(9).isoformat())
    forever.refused("restart_budget", resume="true", restart_budget=number)


def test_a_stream_that_released_nothing_has_nothing_to_restart(forever, passes):
    passes(0)
    given = {"resume": "true", "restart_budget": "1"}
    forever.refused("--restart_budget=1", "nothing is released", **given)


def test_windows_have_nothing_to_restart(forever, passes):
    windows = {"guarantee": None, "epsilon": None, "default_requirement": "3,1,400"}
    passes(4, **windows)
    forever.write("clock", day(7).isoformat())
    refused = {**windows, "resume": "true", "restart_budget": "1"}
    forever.refused("--restart_budget", "renew by themselves", **refused)

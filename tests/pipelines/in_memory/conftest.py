"""The same job as a command on files and as a call on the same files, or on tables in memory."""

import datetime as dt

import pytest

UTC = dt.timezone.utc


@pytest.fixture
def events():
    """Rows of 40 users over 9 days, some outside the table of requirements or the domain."""
    return [
        (f"u{u}", "ABCX"[(u * u + d) % 4 if (u + d) % 5 else 0], dt.datetime(2024, 1, d, u % 24, 7))
        for d in range(1, 10)
        for u in range(40)
        for _ in range(1 + (u + d) % 2)
        if (u + d) % 3 and d != 6
    ]


@pytest.fixture
def job(toolbox, tmp_path, events):
    """`streamveil release` of them to Parquet, with a key; X is outside the domain."""
    made = toolbox.Job(tmp_path)
    made.events([(user, value, time.replace(tzinfo=UTC)) for user, value, time in events])
    made.requirements({f"u{u}": (1 + u % 3, 0.5 + u % 2) for u in range(36)})
    made.flags |= {
        "output": made.path("out.jsonl"),
        "ledger": made.path("ledger.jsonl"),
        "rejected": made.path("rejected.parquet"),
        "summary": made.path("summary.json"),
        "noise_key": made.key(),
    }
    return made


@pytest.fixture
def asked(job):
    """The arguments of a call that asks for the same."""
    return {
        "user": "user",
        "value": "value",
        "time": "time",
        "slot": "1d",
        "domain": ["A", "B", "C"],
        "requirements": job.path("users.csv"),
        "noise_key": job.flags["noise_key"],
    }

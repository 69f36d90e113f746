"""`streamveil per-record`: what it releases and writes, and what it refuses."""

import datetime as dt
import math

import pytest

from streamveil.io import read_per_record
from streamveil.pipelines.main import main

DAYS = 3
# What a bank would hold: branch, balance and day.
ACCOUNTS = [
    (("north", "south")[i % 2], 1 + 37 * i % 5000, f"2024-05-0{1 + i % DAYS}T08:00:00Z")
    for i in range(1500)
]
# None of these may leave a trace, whatever is wrong with it.
BAD = (
    "north,oops,2024-05-01T08:00:00Z",
    "north,,2024-05-01T08:00:00Z",
    "north,nan,2024-05-01T08:00:00Z",
    "north,-5,2024-05-01T08:00:00Z",
    "north,2000000,2024-05-01T08:00:00Z",
    "north,12,yesterday",
    "north,12,",
    "north,12,2023-05-01T08:00:00Z",
    "west,12,2024-05-01T08:00:00Z",
    ",12,2024-05-01T08:00:00Z",
    "north,12",
    "north,12,2024-05-01T08:00:00Z,more",
)


def day(n):
    return dt.datetime(2024, 5, n, tzinfo=dt.timezone.utc)


@pytest.fixture
def bank(toolbox, tmp_path):
    job = toolbox.Job(tmp_path, "per-record")
    job.flags = {
        "input": write(job, ACCOUNTS),
        "output": job.path("out.jsonl"),
        "statistic": "sum",
        "value_column": "balance",
        "budget": "inverse:4e4",
        "value_max": "1e6",
        "epsilon_max": "20",
        "noise_key": job.key(),
    }
    return job


def write(job, rows, *bad, name="accounts.csv"):
    lines = ["branch,balance,opened", *(",".join(map(str, row)) for row in rows), *bad]
    return job.write(name, "\n".join(lines) + "\n")


def by_day(job):
    return {
        "time_column": "opened",
        "slot": "1d",
        "start": "2024-05-01",
        "end": "2024-05-04",
        "key_column": "branch",
        "keys": "south,north,east",
    }


def true_value(statistic, balances):
    if statistic.endswith("count"):
        return len(balances)
    if statistic == "distinct":
        return len(set(balances))
    return sum(balances) if statistic.endswith("sum") else max(balances, default=0)


@pytest.mark.parametrize("statistic", ["max", "distinct"])
def test_a_statistic_of_all_times_is_near_the_truth(bank, statistic):
    outcome = bank.done(statistic=statistic)
    (row,) = bank.json_rows("out.jsonl")
    assert list(row) == [
        *("key", "start", "end", "statistic", "mechanism", "estimate", "stderr"),
        *("epsilon_tau", "dropped_bound"),
    ]
    assert row["key"] is row["start"] is row["end"] is None
    assert row["statistic"] == statistic
    truth = true_value(statistic, [balance for _, balance, _ in ACCOUNTS])
    assert row["estimate"] == pytest.approx(truth, rel=0.1)
    assert "one window of all times" in outcome.out
    assert "1500" not in outcome.out


@pytest.mark.parametrize("statistic", ["running-sum", "sum"])
def test_every_window_and_key_has_a_row(bank, statistic):
    bank.done(statistic=statistic, **by_day(bank), output=bank.path("out.csv"))
    rows = read_per_record(bank.path("out.csv"))
    assert len(rows) == DAYS * 3
    for row in rows:
        end = row.end // 1_000_000
        first = 0 if statistic.startswith("running") else row.start // 1_000_000
        balances = [
            balance
            for branch, balance, opened in ACCOUNTS
            if branch == row.key
            and first <= dt.datetime.fromisoformat(opened[:-1] + "+00:00").timestamp() < end
        ]
        assert row.estimate == pytest.approx(true_value(statistic, balances), rel=0.2, abs=20_000)
        assert not math.isnan(row.stderr)


def test_windows_slide(bank):
    bank.done(**by_day(bank), statistic="count", window=2)
    rows = bank.rows()
    assert [(row["start"], row["end"]) for row in rows] == [
        *[(day(1), day(3))] * 3,
        *[(day(2), day(4))] * 3,
    ]
    assert [row["key"] for row in rows[:3]] == ["east", "north", "south"]
    assert [row["estimate"] for row in rows] == pytest.approx([0, 500, 500] * 2, abs=60)


def test_budgets_by_category(bank):
    table = bank.write("budgets.csv", "category,epsilon\nnorth,5\nsouth,0.5\n")
    flags = {"budget": f"table:{table}", "budget_column": "branch", "epsilon_max": None}
    bank.done(statistic="count", **flags, value_max=None, value_column=None, epsilon_min=1)
    assert bank.rows()[0]["estimate"] == pytest.approx(750, abs=30)


@pytest.mark.slow
def test_bad_records_leave_no_trace(bank):
    outcomes = []
    for bad in ((), BAD):
        bank.flags["input"] = write(bank, ACCOUNTS, *bad)
        for statistic in ("sum", "max"):
            name = f"{statistic}-{len(bad)}.jsonl"
            outcome = bank.done(**by_day(bank), statistic=statistic, output=bank.path(name))
            assert outcome.log == ""
            outcomes.append((outcome.out.replace(name, ""), bank.json_rows(name)))
    assert outcomes[:2] == outcomes[2:]


def test_formats_give_the_same_with_one_key(bank):
    releases = []
    for kind in ("parquet", "csv"):
        bank.done(output=bank.path(f"out.{kind}"))
        releases.append(read_per_record(bank.path(f"out.{kind}")))
    assert releases == [releases[0]] * 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"statistic": "mean"}, ("--statistic=mean", "running-sum")),
        ({"statistic": None}, ("--statistic is missing",)),
        ({"budget": "cubic:4"}, ("--budget=cubic:4", "inverse:SCALE")),
        ({"budget": "inverse:x"}, ("--budget=inverse:x", "SCALE")),
        ({"budget": "inverse:1:2"}, ("--budget=inverse:1:2",)),
        ({"budget": "inverse:0"}, ("--budget=inverse:0", "above 0")),
        ({"budget": "inverse:1e-9"}, ("epsilon_min",)),
        ({"budget": "table:none.csv"}, ("--budget_column is missing",)),
        ({"budget": "table:none.csv", "budget_column": "branch"}, ("table:none.csv",)),
        ({"value_max": None}, ("--value_max is missing",)),
        ({"epsilon_max": None}, ("--epsilon_max is missing",)),
        ({"epsilon_max": "0"}, ("--epsilon_max=0",)),
        ({"epsilon_min": "1"}, ("--epsilon_min=1", "table:FILE")),
        ({"value_column": None, "budget_column": "balance"}, ("--value_column is missing",)),
        ({"value_column": "money"}, ("money", "balance")),
        ({"mechanism": "tree"}, ("tree", "hat")),
        ({"beta": "2"}, ("beta",)),
        ({"max_records_per_user": "0"}, ("max_records_per_user",)),
        ({"key_column": "branch"}, ("--keys is missing",)),
        ({"keys": "north"}, ("--key_column is missing",)),
        ({"key_column": "branch", "keys": "edges:0,1"}, ("--keys=edges:0,1",)),
        ({"key_column": "branch", "keys": "a,a"}, ("--keys=a,a",)),
        ({"window": "2"}, ("--slot is missing",)),
        ({"statistic": "running-sum"}, ("--slot is missing",)),
        ({"start": "2024-05-01"}, ("--start=2024-05-01", "--slot")),
        ({"slot": "1d"}, ("--time_column is missing",)),
        ({"slot": "1d", "time_column": "opened"}, ("--start and --end are missing",)),
        ({"rejected": "x.jsonl"}, ("--rejected=x.jsonl", "dropped silently")),
        ({"summary": "x.json"}, ("--summary=x.json", "dropped silently")),
        ({"max_rejected": 0.1}, ("--max_rejected=0.1", "dropped silently")),
        ({"other": "x"}, ("--other=x", "no bins")),
        ({"ledger": "x.csv"}, ("--ledger=x.csv", "secret")),
        ({"requirements": "x.csv"}, ("--requirements=x.csv", "--budget")),
        ({"domain": "A"}, ("--domain=A", "--keys")),
        ({"state": "folder"}, ("--state=folder",)),
        ({"output": "out.txt"}, ("out.txt",)),
        ({"input": "kafka:h:1/t", "slot": None}, ("--slot is missing",)),
    ],
)
def test_what_cannot_be_done_is_refused(bank, flags, words):
    bank.refused(*words, **flags)


@pytest.mark.parametrize("statistic", ["distinct", "running-count"])
def test_some_statistics_have_no_sliding_windows(bank, statistic):
    bank.refused("--window=2", **by_day(bank), statistic=statistic, window=2)


def test_help_says_what_is_not_reported(bank, capsys):
    assert main(["per-record", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "There is no --rejected option" in text
    assert "There is no --ledger option" in text

"""The same key on the same bounded input gives the same bytes, whatever runs the pipeline."""

import contextlib
import csv
import datetime as dt
import hashlib
import io
import json
import random
import re
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import pytest

from streamveil.pipelines.main import main

pytestmark = pytest.mark.slow  # whole runs, on each runner

RUNNERS = ["fn_api", "bundle_based", "prism", "flink", "spark"]
SERVERS = {"prism", "flink", "spark"}
CLUSTERS = {"flink", "spark"}
GOLDEN = Path(__file__).parents[1] / "golden"
DAYS, START, END = 8, "2024-01-01", "2024-01-09"
COMMON = ("--time_column=time", "--slot=1d", f"--start={START}", f"--end={END}")
BINS = (*COMMON, "--user_column=user", "--value_column=place", "--domain=cafe,park,pier")
USERS = (*BINS, "--requirements=users.csv")
AMOUNTS = (
    *COMMON,
    "--value_column=amount",
    "--value_max=100",
    "--budget=sqrt:10",
    "--epsilon_max=8",
    "--key_column=place",
    "--keys=cafe,park",
)
JOBS = {
    "fixed": ("release", *USERS, "--ledger=ledger.csv", "--output=out.parquet"),
    "unknown range": ("release", *USERS[:2], *USERS[4:], "--output=out.avro"),
    "strangers": ("release", *USERS, "--default_requirement=2,1,9", "--shards=3", "--output=o.csv"),
    "dynamic": (
        "release",
        *USERS,
        "--requirement_changes=changes.csv",
        "--mechanism=dpbd",
        "--ledger=ledger.jsonl",
        "--output=out.jsonl",
    ),
    "infinite": ("release", *BINS, "--guarantee=infinite", "--epsilon=2", "--output=out.csv"),
    "local": ("collect", *USERS, "--ledger=ledger.parquet", "--output=out.csv"),
    "count": ("per-record", *AMOUNTS, "--statistic=count", "--output=out.parquet"),
    "sum": ("per-record", *AMOUNTS, "--statistic=sum", "--window=3", "--output=out.csv"),
    "running": ("per-record", *AMOUNTS, "--statistic=running-sum", "--output=out.jsonl"),
}
# The others have no steps that these have not, and clusters take seconds for each.
ON_CLUSTERS = {"unknown range", "strangers", "dynamic", "infinite", "local", "running"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Three files of events, some of them bad, the users, and changes of what they ask for."""
    folder = tmp_path_factory.mktemp("inputs")
    draw = random.Random(8)
    start = dt.datetime.fromisoformat(f"{START}T00:00:00+00:00")
    for part in range(3):
        lines = ["user,place,time,amount"]
        for _ in range(200):
            at = start + dt.timedelta(minutes=draw.randrange(DAYS * 24 * 60))
            place = draw.choices(["cafe", "park", "pier", "moon"], [6, 3, 3, 1])[0]
            user, amount = f"u{draw.randrange(45)}", draw.randrange(1, 100)
            lines.append(f"{user},{place},{at.isoformat()},{amount}")
        lines.insert(50, "u1,cafe,yesterday,7")
        (folder / f"events-{part}.csv").write_text("\n".join(lines) + "\n")
    users = [f"u{u},{1 + u % 4},{2 + u % 3}" for u in range(40)]
    (folder / "users.csv").write_text("\n".join(["user,window,epsilon", *users]) + "\n")
    changes = [f"u{u},{19723 + u % DAYS},{1 + u % 4},1.5,{1 + u % 4},1.5" for u in range(0, 40, 3)]
    names = "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward"
    (folder / "changes.csv").write_text("\n".join([names, *changes]) + "\n")
    for name, key in (("key", "5e"), ("another", "5f")):
        (folder / name).write_text(key * 32)
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def written(inputs, tmp_path_factory):
    """Run a job with some flags; gives the bytes of the files that it writes, by name."""

    def written(job, flags, key="key"):
        out = tmp_path_factory.mktemp("outputs")
        command, *given = JOBS[job]
        moved = []
        for flag in given:
            name, _, value = flag.partition("=")
            if name in ("--output", "--ledger"):
                flag = f"{name}={out / value}"
            elif (inputs / value).is_file():
                flag = f"{name}={inputs / value}"
            moved.append(flag)
        events = f"--input={inputs}/events-*.csv"
        with contextlib.redirect_stdout(io.StringIO()):
            done = main([command, events, f"--noise_key=file:{inputs / key}", *moved, *flags])
        assert done == 0
        made = [path for path in out.iterdir() if not path.name.endswith("card.json")]
        return {path.name: path.read_bytes() for path in made}  # of releases, and not of versions

    return written


@pytest.fixture(scope="module")
def expected(written, flags_of):
    """What is written without a runner, which is the fastest."""
    return {job: written(job, flags_of("no_runner")) for job in JOBS}


@pytest.mark.parametrize(
    ("where", "job"),
    [
        pytest.param(where, job, marks=[getattr(pytest.mark, where)] if where in SERVERS else [])
        for where in RUNNERS
        for job in JOBS
        if where not in CLUSTERS or job in ON_CLUSTERS
    ],
)
def test_every_runner_writes_the_same_bytes(written, expected, flags_of, where, job):
    assert all(expected[job].values())
    assert len(expected[job]) == sum("output" in f or "ledger" in f for f in JOBS[job])
    assert written(job, flags_of(where)) == expected[job]


@pytest.mark.parametrize("job", ["dynamic", "local", "sum"])
def test_another_key_writes_others(written, expected, flags_of, job):
    others = written(job, flags_of("no_runner"), "another")
    for name, data in expected[job].items():
        assert name.startswith("ledger") or others[name] != data


def test_the_releases_are_those_on_record(expected):
    """Noise, order and figures as they were: whoever moves code must not move these."""
    found = {
        job: {name: digest(name, data) for name, data in files.items()}
        for job, files in expected.items()
    }
    recorded = json.loads((GOLDEN / "releases_0.1.0.json").read_text())
    assert found == recorded, "if a release is meant to be another: put these into the file"


def digest(name, data):
    """A digest of the rows of a file, whatever the versions of formats; floats by nine digits."""
    return hashlib.sha256(json.dumps(rounded(rows(name, data))).encode()).hexdigest()


def rows(name, data):
    kind = name.rpartition(".")[2]
    if kind == "parquet":
        return pq.read_table(io.BytesIO(data)).to_pylist()
    if kind == "avro":
        return list(fastavro.reader(io.BytesIO(data)))
    lines = data.decode().splitlines()
    return list(csv.reader(lines)) if kind == "csv" else [json.loads(line) for line in lines]


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if value is None:
        return None
    # A cell may be a list of floats.
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda each: f"{float(each[0]):.9g}", str(value))

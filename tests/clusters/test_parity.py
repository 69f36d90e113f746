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

import apache_beam as beam
import fastavro
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import WriteReleases, read_requirements
from streamveil.pipelines.main import main
from streamveil.transforms.release_plan import PrivateHistograms

pytestmark = pytest.mark.slow  # whole runs, on each runner

RUNNERS = ["fn_api", "bundle_based", "prism", "flink", "spark"]
SERVERS = {"prism", "flink", "spark"}
CLUSTERS = {"flink", "spark"}
RECORD = Path(__file__).parents[1] / "golden" / "releases_0.1.0.json"
KEYS = ("key", "another")
DAYS, START, END = 8, "2024-01-01", "2024-01-09"
FIRST, HALF = 19_723, "2024-01-05"
COMMON = ("--time_column=time", "--slot=1d", f"--start={START}", f"--end={END}")
BINS = (*COMMON, "--user_column=user", "--value_column=place", "--domain=cafe,park,pier")
BINS = (*BINS, "--layout=rows")  # which have all that a release says; one job has the others
USERS = (*BINS, "--requirements=users.csv")
ASKED = (
    *("--user_column=user", "--time_column=time", f"--origin={START}"),
    *(f"--start={START}", f"--end={END}"),
)
ASKED_BY_FEW = (*ASKED, "--default_requirement=3,300,45")
DISCOVERING = (*ASKED_BY_FEW, "--queries=discovered.yaml", "--delta=1e-3")
ASKED = (*ASKED, "--requirements=users.csv")
ANSWERED = ("--ledger=ledger.csv", "--output=answers")
QUERIES = """
slot: 1d
queries:
  - {name: visits, by: place, keys: [cafe, park], other: elsewhere, weight: 2}
  - {name: spent, by: place, keys: [cafe, park], statistic: sum, of: amount,
     bounds: [0, 100], every: 2d, where: {place: [cafe, park]}}
  - {name: usual, statistic: quantiles, of: amount, edges: [0, 25, 50, 75, 100],
     quantiles: [0.5], every: 2d, share: 0.4, mechanism: uniform}
  - {name: people, statistic: distinct, every: 4d, share: 0.2, max_contributions: 2}
"""
LEVELS = """
slot: 1d
queries:
  - {name: visits, by: place, keys: [cafe, park, pier], rollups: [2d, 4d],
     levels: [{food: [cafe], out: [park, pier]}, all]}
  - {name: usual, by: place, keys: [cafe, park, pier], statistic: mean, of: amount,
     bounds: [0, 100], levels: [all]}
"""
TOTAL = """
slot: 1d
queries:
  - {name: sizes, by: amount, keys: {edges: [0, 20, 40, 60, 80, 100]}, rollups: [2d],
     levels: [all]}
"""
BOUNDS = """
slot: 1d
queries:
  - {name: spread, statistic: variance, of: amount, bounds: auto}
  - {name: best, by: place, keys: [cafe, park, pier], statistic: top, k: 2}
"""
DISCOVERED = """
slot: 1d
queries:
  - {name: visits, by: place, keys: {discover: {windows: 2, max_keys: 2}}, rollups: [2d, 4d]}
  - {name: spent, by: place, keys: {discover: {allow: [cafe], deny: [moon]}}, statistic: sum,
     of: amount, bounds: [0, 100], every: 2d, where: {place: [cafe, park, moon]}}
  - {name: people, statistic: distinct, every: 4d, share: 0.2, max_contributions: 2}
"""
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
    "queries": ("release", *ASKED, "--queries=queries.yaml", *ANSWERED),
    "levels": ("release", *ASKED, "--queries=levels.yaml", *ANSWERED),
    "total": (
        "release",
        *ASKED,
        "--queries=total.yaml",
        "--revise=2",
        "--revisions=revised.csv",
        *ANSWERED,
    ),
    "private bounds": ("release", *ASKED_BY_FEW, "--queries=bounds.yaml", *ANSWERED),
    "discovered keys": ("release", *DISCOVERING, *ANSWERED),
    "limit": (
        "release",
        *BINS,
        "--requirements=rare.csv",
        "--max_slots=1",
        "--ledger=ledger.csv",
        "--output=out.csv",
    ),
    "limits of users": (
        "release",
        *BINS,
        "--requirements=limits.csv",
        "--max_slots=1,3",
        "--ledger=ledger.csv",
        "--output=out.csv",
    ),
    "limit and changes": (
        "release",
        *BINS,
        "--requirements=rare.csv",
        "--requirement_changes=rare_changes.csv",
        "--max_slots=1",
        "--output=out.csv",
    ),
    "changes": (
        "release",
        *USERS,
        "--requirement_changes=changes.csv",
        "--ledger=ledger.csv",
        "--output=out.csv",
    ),
    "lifetime": (
        "release",
        *BINS,
        "--guarantee=user",
        "--epsilon=6",
        "--max_slots=3",
        "--ledger=ledger.csv",
        "--output=out.csv",
    ),
    "revised": (
        "release",
        *USERS,
        "--revise=2",
        "--revisions=revised.csv",
        "--mechanism=adaptive:cycle=2",
        "--output=out.csv",
    ),
    "calendar": (
        "release",
        *USERS,
        "--slot_zone=Europe/Berlin",
        "--adjacency=replace",
        "--mechanism=ba",
        "--output=out.csv",
    ),
    "contributions": (
        "release",
        *USERS,
        "--max_contributions=2",
        "--keep=distinct",
        "--other=elsewhere",
        "--mechanism=pba",
        "--layout=tidy",
        "--output=out.csv",
    ),
    "memoised": ("collect", *USERS, "--mechanism=plpa+", "--output=out.csv"),
    "passes": (
        "release",
        *USERS,
        "--mechanism=pbd",
        "--state=state",
        "--ledger=ledger.csv",
        "--output=out.csv",
    ),
    "queries in passes": (
        "release",
        *ASKED,
        "--queries=queries.yaml",
        "--state=state",
        *ANSWERED,
    ),
    "total in passes": (
        "release",
        *ASKED,
        "--queries=total.yaml",
        "--state=state",
        *ANSWERED,
    ),
    "rows": ("rows",),
}
# A state is kept on this machine, without a runner.
HERE = {"passes", "queries in passes", "total in passes"}
# The others have no steps that these have not, and clusters take seconds for each.
ON_CLUSTERS = {
    *("unknown range", "strangers", "dynamic", "infinite", "local", "running"),
    *("queries", "discovered keys", "limit and changes", "lifetime"),
}


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
    rare = [f"u{u},{60 + u % 4},{2 + u % 3}" for u in range(40)]
    (folder / "rare.csv").write_text("\n".join(["user,window,epsilon", *rare]) + "\n")
    limits = [f"{line},{1 + u % 2}" for u, line in enumerate(rare)]
    (folder / "limits.csv").write_text("\n".join(["user,window,epsilon,max_slots", *limits]) + "\n")
    names = "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward"
    for name, shortest in (("changes.csv", 1), ("rare_changes.csv", 60)):
        windows = [(u, shortest + u % 4) for u in range(0, 40, 3)]
        lines = [f"u{u},{FIRST + u % DAYS},{w},1.5,{w},1.5" for u, w in windows]
        (folder / name).write_text("\n".join([names, *lines]) + "\n")
    files = {"queries.yaml": QUERIES, "levels.yaml": LEVELS, "bounds.yaml": BOUNDS}
    files |= {"total.yaml": TOTAL, "discovered.yaml": DISCOVERED}
    for name, text in files.items():
        (folder / name).write_text(text)
    for name, key in zip(KEYS, ("5e", "5f"), strict=True):
        (folder / name).write_text(key * 32)
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def written(inputs, tmp_path_factory):
    """Run a job with some flags; gives the bytes of the files that it writes, by name."""

    def written(job, flags, key=KEYS[0]):
        out = tmp_path_factory.mktemp("outputs")
        command, *given = JOBS[job]
        moved = []
        for flag in given:
            name, _, value = flag.partition("=")
            if name in ("--output", "--ledger", "--revisions", "--state"):
                flag = f"{name}={out / value}"
            elif (inputs / value).is_file():
                flag = f"{name}={inputs / value}"
            moved.append(flag)
        if command == "rows":
            write_rows(inputs, out / "out.csv", flags or ["--runner=FnApiRunner"], key)
            return {"out.csv": (out / "out.csv").read_bytes()}
        events = f"--input={inputs}/events-*.csv"
        whole = [command, events, f"--noise_key=file:{inputs / key}", *moved, *flags]
        first = [[*whole, f"--end={HALF}"]] if job in HERE else []
        for argv in (*first, [*whole, "--resume"] if first else whole):
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(argv) == 0
        # Of releases, and not of versions or places.
        made = [path for path in out.rglob("[!.]*.*") if not path.name.endswith("card.json")]
        kept = [path for path in made if out / "state" not in path.parents]
        return {str(path.relative_to(out)): path.read_bytes() for path in kept}

    return written


def write_rows(inputs, path, flags, key):
    """Release rows of a Beam pipeline, some of which are dead letters."""
    rows = []
    for part in sorted(inputs.glob("events-*.csv")):
        with open(part) as file:
            rows += csv.DictReader(file)
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        outputs = (
            pipeline
            | beam.Create(rows)
            | PrivateHistograms(
                registry=read_requirements(str(inputs / "users.csv")),
                domain=["cafe", "park", "pier"],
                slots="1d",
                columns={"user": "user", "value": "place", "time": "time"},
                first_slot=FIRST,
                last_slot=FIRST + DAYS - 1,
                noise_key=bytes.fromhex((inputs / key).read_text()),
            )
        )
        _ = outputs.results | WriteReleases(str(path), layout="rows")


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
        if job not in HERE and (where not in CLUSTERS or job in ON_CLUSTERS)
    ],
)
def test_every_runner_writes_the_same_bytes(written, expected, flags_of, where, job):
    assert all(expected[job].values())
    assert written(job, flags_of(where)) == expected[job]


@pytest.mark.parametrize("key", KEYS)
def test_the_releases_are_those_on_record(written, expected, flags_of, key):
    """Noise, order and figures as they were: whoever moves code must not move these."""
    here = flags_of("no_runner")
    made = expected if key == KEYS[0] else {job: written(job, here, key) for job in JOBS}
    found = {
        job: {name: digest(name, data) for name, data in files.items()}
        for job, files in made.items()
    }
    recorded = json.loads(RECORD.read_text())
    assert found == recorded[key], "if a release is meant to be another: put these into the file"


def test_another_key_is_other_noise():
    recorded = json.loads(RECORD.read_text())
    for job, files in recorded[KEYS[0]].items():
        for name, known in files.items():
            assert name.startswith("ledger") or recorded[KEYS[1]][job][name] != known


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

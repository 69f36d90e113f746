"""Files on object stores: all commands read and write them, whatever the service does meanwhile.

Servers that speak the real protocols run beside the tests; a proxy between fails as networks and
services do. An output is whole or absent, and a run that failed can be run again.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import read_domain, read_table, write_table
from streamveil.pipelines.main import main
from tests.clusters.fault_proxy import Fault
from tests.clusters.stores import CAFES, GCS, HDFS, S3, Azure, release_of, running

KINDS = {"s3": S3, "gcs": GCS, "azure": Azure, "hdfs": HDFS}
ALL = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in KINDS]
OUTPUTS = {
    "output": "releases.csv",
    "ledger": "ledger.csv",
    "rejected": "rejected.jsonl",
    "card": "releases.card.json",
}
USERS, DAYS = 40, 5
EVENTS = "user,place,time\n" + "".join(
    f"u{i % USERS},{'cafe' if i % 3 else 'park'},2024-05-0{1 + i // USERS}T10:00:00Z\n"
    for i in range(USERS * DAYS)
)
REQUIREMENTS = "user,window,epsilon\n" + "".join(f"u{i},3,1\n" for i in range(USERS))
QUESTIONS = """
base_slot: 1d
questions:
  - name: places
    value: place
    domain: [cafe, park]
"""


@pytest.fixture(scope="module")
def stores(request, tmp_path_factory):
    """The stores of this module, each started when a test first needs it."""
    with ExitStack() as stack:
        found = {}

        def store(name):
            if name not in found:
                home = Path(request.config.getoption(f"--{name}_home")).resolve()
                work = tmp_path_factory.mktemp(name)
                found[name] = stack.enter_context(running(KINDS[name], home, work))
                found[name].put(f"{found[name].root}/in/events.csv", EVENTS)
                found[name].put(f"{found[name].root}/in/requirements.csv", REQUIREMENTS)
                found[name].put(f"{found[name].root}/in/places.txt", "cafe\npark\n")
                found[name].put(f"{found[name].root}/in/questions.yaml", QUESTIONS)
                found[name].put(f"{found[name].root}/in/key", "k" * 40)
            return found[name]

        yield store


@pytest.fixture
def store(stores, request, monkeypatch, tmp_path):
    """A store whose clients wait for less than a second in all before they give up."""
    found = stores(request.param)
    found.proxy.reset()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    _hurry(monkeypatch)
    yield found
    found.proxy.reset()


def _hurry(monkeypatch):
    """Let clients try as often as they do, but not wait for so long."""
    from apache_beam.io.gcp import gcsio
    from apache_beam.utils import retry
    from google.api_core.retry import Retry
    from google.cloud.storage.retry import _should_retry

    monkeypatch.setattr(retry.Clock, "sleep", lambda self, seconds: time.sleep(0.01))
    quick = Retry(predicate=_should_retry, initial=0.01, maximum=0.05, timeout=0.5)
    monkeypatch.setattr(gcsio.gcsio_retry, "get_retry", lambda options: quick)
    monkeypatch.setattr(gcsio, "DEFAULT_RETRY", quick)


def release_flags(store, folder, **changed):
    given = {
        "input": f"{store.root}/in/events.csv",
        "requirements": f"{store.root}/in/requirements.csv",
        **CAFES,
        **{option: f"{folder}/{name}" for option, name in OUTPUTS.items()},
        **changed,
    }
    return [*release_of(given), *store.flags]


def outputs_of(store, folder):
    """What there is of each output; None where it is absent."""
    return {name: store.get(f"{folder}/{name}") for name in OUTPUTS.values()}


@pytest.fixture
def expected(store):
    """What a run writes that nothing disturbs."""
    if not hasattr(store, "expected"):
        folder = store.folder()
        assert main(release_flags(store, folder)) == 0
        store.expected = outputs_of(store, folder)
        assert None not in store.expected.values()
        assert store.expected["rejected.jsonl"] == b""
    return store.expected


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_every_command_reads_and_writes_there(store, capsys):
    folder = store.folder()
    given = {
        "domain": f"{store.root}/in/places.txt",
        "noise_key": f"file:{store.root}/in/key",
        "summary": f"{folder}/summary.json",
    }
    assert main([*release_flags(store, folder, **given), "--dry_run"]) == 0
    assert store.names(folder) == []
    assert main(release_flags(store, folder, **given)) == 0
    assert f"wrote {folder}/releases.csv" in capsys.readouterr().out
    names = ["ledger.csv", "rejected.jsonl", "releases.card.json", "releases.csv", "summary.json"]
    assert [name.rpartition("/")[2] for name in store.names(folder)] == names

    card = [f"--card={folder}/releases.card.json", *store.flags]
    assert main(["card", *card]) == 0
    check = [f"--releases={folder}/releases.csv", f"--ledger={folder}/ledger.csv"]
    assert main(["card", "--check", *card, *check]) == 0
    store.put(f"{folder}/ledger.csv2", store.get(f"{folder}/ledger.csv") + b"\n")
    changed = [f"--ledger={folder}/ledger.csv2", f"--releases={folder}/releases.csv"]
    assert main(["card", "--check", *card, *changed]) == 1

    plan = [f"--questions={store.root}/in/questions.yaml", "--rate=40", *store.flags]
    assert main(["plan", *plan, f"--requirements={store.root}/in/requirements.csv"]) == 0
    events = [f"--input={store.root}/in/events.csv", "--user_column=user", "--value_column=place"]
    events += ["--time_column=time", "--slot=1d", f"--domain={store.root}/in/places.txt"]
    some = ["--mechanisms=pba", "--seeds=1", "--processes=1", f"--output={folder}/table.csv"]
    assert main(["evaluate", *events, "--default_requirement=3,1,40", *some, *store.flags]) == 0
    assert b"pba" in store.get(f"{folder}/table.csv")
    assert main(release_flags(store, folder, **given)) == 2
    assert "exists already and is never overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("store", ALL, indirect=True)
@pytest.mark.parametrize("kind", ["parquet", "avro", "jsonl"])
def test_every_format_comes_back_as_from_a_local_file(store, kind, tmp_path):
    folder = store.folder()
    names = {"output": f"releases.{kind}", "ledger": f"ledger.{kind}"}
    for place in (folder, str(tmp_path)):
        there = {option: f"{place}/{name}" for option, name in names.items()}
        there |= {"rejected": f"{place}/rejected.jsonl", "card": f"{place}/card.json"}
        assert main(release_flags(store, place, **there)) == 0
    for name in names.values():
        assert read_table(f"{folder}/{name}").equals(read_table(str(tmp_path / name)))


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_questions_a_folder_and_a_glob(store, capsys):
    folder = store.folder()
    day = [line for line in EVENTS.splitlines() if "05-01" in line or "user" in line]
    store.put(f"{folder}/in/a.csv", "\n".join(day) + "\n")
    store.put(f"{folder}/in/b.csv", "\n".join(day) + "\n")
    flags = [
        f"--input={folder}/in/*.csv",
        f"--requirements={store.root}/in/requirements.csv",
        *("--user_column=user", "--time_column=time", "--start=2024-05-01", "--end=2024-05-02"),
        *("--max_contributions=2", *store.flags),
    ]
    asked = f"--questions={store.root}/in/questions.yaml"
    flags_of_questions = [flag for flag in flags if "max_contributions" not in flag]
    assert main(["release", *flags_of_questions, asked, f"--output={folder}/answers"]) == 0
    assert any("places" in name for name in store.names(f"{folder}/answers"))

    more = ["--value_column=place", "--slot=1d", "--domain=cafe,park", f"--card={folder}/c.json"]
    for _ in range(2):  # what is there already, and the same, stays
        assert main(["release", *flags, *more, f"--output=folder:{folder}/days"]) == 0
    assert [name.rpartition("/")[2] for name in store.names(f"{folder}/days")] == [
        "release-20240501T000000.000000Z.json"
    ]
    assert f"{2 * USERS} events read" in capsys.readouterr().out


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_several_processes_write_the_same(store, expected):
    folder = store.folder()
    lines = EVENTS.splitlines()
    for name, some in (("a", lines[1:90]), ("b", lines[90:])):
        store.put(f"{folder}/in/{name}.csv", "\n".join([lines[0], *some]) + "\n")
    flags = release_flags(store, folder, input=f"{folder}/in/*.csv")
    assert main([*flags, "--processes=2"]) == 0
    found = outputs_of(store, folder)
    assert found["releases.csv"] == expected["releases.csv"]
    assert found["ledger.csv"] == expected["ledger.csv"]


NUMBERS = pa.schema([("number", pa.int64())])


def numbers(batches):
    """Batches of 4 MB each, which do not compress."""
    draw = np.random.default_rng(1)
    for _ in range(batches):
        yield pa.record_batch([draw.integers(0, 1 << 62, 1 << 19)], schema=NUMBERS)


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_file_of_several_parts_is_whole(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    folder = store.folder()
    for _ in range(2):  # one that is there is replaced
        write_table(f"{folder}/large.parquet", NUMBERS, numbers(5))
    assert [name.rpartition("/")[2] for name in store.names(folder)] == ["large.parquet"]
    assert read_table(f"{folder}/large.parquet").equals(pa.Table.from_batches(numbers(5)))


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_file_whose_writing_fails_leaves_nothing(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    folder = store.folder()

    def failing():
        yield from numbers(3)
        raise KeyError("the source failed")

    with pytest.raises(KeyError):
        write_table(f"{folder}/large.parquet", NUMBERS, failing())
    assert store.names(folder) == []


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_what_is_not_there_is_named(store, capsys):
    folder = store.folder()
    for option in ("input", "requirements"):
        assert main(release_flags(store, folder, **{option: f"{folder}/none.csv"})) == 2
        said = capsys.readouterr().err
        assert f"{folder}/none.csv" in said
        assert said.count("\n") == 1
    elsewhere = f"{store.root}2/in/events.csv"
    assert main(release_flags(store, folder, input=elsewhere)) == 2
    said = capsys.readouterr().err
    assert f"no file matches '{elsewhere}'" in said
    assert said.count("\n") == 1
    assert store.names(folder) == []


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_state_folder_there_is_refused(store, capsys):
    folder = store.folder()
    flags = [flag for flag in release_flags(store, folder) if "--rejected" not in flag]
    assert main([*flags, f"--state={folder}/state"]) == 2
    said = capsys.readouterr().err
    assert f"{folder}/state" in said
    assert "local folder" in said


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_functions_of_python_reach_it_before_any_pipeline(store, monkeypatch):
    import streamveil as sv

    FileSystems.set_options(PipelineOptions(store.flags))
    for _ in range(2):  # the first run must not take the options away
        found = sv.release(
            f"{store.root}/in/events.csv",
            user="user",
            value="place",
            time="time",
            slot="1d",
            domain=f"{store.root}/in/places.txt",
            requirements=f"{store.root}/in/requirements.csv",
        )
    assert len(found.releases) == DAYS
    if store.name == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.proxy.url)
        monkeypatch.setattr(FileSystems, "_pipeline_options", None)
        assert read_domain(f"{store.root}/in/places.txt").labels == ("cafe", "park")


@dataclass
class Case:
    """A fault, and what must come of it."""

    name: str
    s3: list = field(default_factory=list)
    gcs: list = field(default_factory=list)
    says: str | None = None
    """What the message has; None where the run ends well in spite of it."""
    either: bool = False
    """Whether it may also end well: the client may try again or not."""

    def faults(self, store):
        return [Fault(**one) for one in getattr(self, store.name)]


EVENT_FILE = {"s3": r"/bucket/in/events.csv$", "gcs": r"/download/.*in(/|%2F)events.csv"}
LOOK = {"s3": r"/in/events.csv$", "gcs": r"/storage/v1/b/bucket/o.*(events.csv|in%2F)"}
PART = {"s3": r"\.releases\.csv\..*partNumber=", "gcs": r"/upload/.*upload_id="}
BEGIN = {"s3": r"\.releases\.csv\..*[?]uploads", "gcs": r"/upload/.*uploadType=resumable$"}
RENAME = {"s3": r"/releases\.csv$", "gcs": r"/batch/"}
DELETE = {"s3": r"[?]delete", "gcs": r"/batch/"}
END = {"s3": r"\.releases\.csv\..*[?]uploadId=", "gcs": r"/upload/.*upload_id="}
WRITES = {"s3": "PUT", "gcs": "PUT"}


def both(place, method, **fault):
    """The same fault for both stores."""
    methods = method if isinstance(method, dict) else {"s3": method, "gcs": method}
    return {
        name: [{"path": place[name], "method": methods[name], **fault}] for name in ("s3", "gcs")
    }


def xml(code, message):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


def refused(code, message):
    """What a service says with a status, in the words of S3 and of Google."""
    return xml(code, message).encode()


POST_PUT = {"s3": "PUT", "gcs": "POST"}
CREDENTIALS = "give credentials that are valid and may do this"
LATER = "look whether the service and the way to it are up"
CASES = [
    Case("reset once while looking", **both(LOOK, "HEAD|GET", how="reset", times=1)),
    Case("reset for ever while looking", **both(LOOK, "HEAD|GET", how="reset"), says=LATER),
    Case("reset once in mid-read", **both(EVENT_FILE, "GET", how="reset_in_read", times=1)),
    Case("reset for ever in mid-read", **both(EVENT_FILE, "GET", how="reset_in_read"), says=LATER),
    Case("truncated once", **both(EVENT_FILE, "GET", how="truncate", times=1)),
    Case("truncated for ever", **both(EVENT_FILE, "GET", how="truncate"), says=LATER),
    Case("shortened once", **both(EVENT_FILE, "GET", how="shorten", times=1), says="", either=True),
    Case("shortened for ever", **both(EVENT_FILE, "GET", how="shorten"), says="", either=True),
    Case("reset once in mid-write", **both(PART, WRITES, how="reset_in_write", times=1)),
    Case("reset for ever in mid-write", **both(PART, WRITES, how="reset_in_write"), says=LATER),
    Case("reset as a write begins", **both(BEGIN, "POST", how="reset"), says=LATER),
    Case(
        "answer lost of a write",
        **both(PART, WRITES, how="lose_answer", times=1),
        says="",
        either=True,
    ),
    Case(
        "answer lost as a write ends",
        **both(END, POST_PUT | {"s3": "POST", "gcs": "PUT"}, how="lose_answer", times=1),
        says="",
        either=True,
    ),
    Case(
        "answer lost of a rename",
        **both(RENAME, POST_PUT, how="lose_answer", times=1),
        says="",
        either=True,
    ),
    Case("503 twice", **both(EVENT_FILE, "GET", how="503", times=2)),
    Case("503 for ever", **both(EVENT_FILE, "GET", how="503"), says=LATER),
    Case("503 in a write", **both(PART, WRITES, how="503", times=1)),
    Case("429 once", **both(EVENT_FILE, "GET", how="429", times=1)),
    Case("429 for ever in a write", **both(BEGIN, "POST", how="429"), says=LATER),
    Case("500 once while looking", **both(LOOK, "HEAD|GET", how="500", times=1)),
    Case("502 once while looking", **both(LOOK, "HEAD|GET", how="502", times=1)),
    Case(
        "reading is forbidden",
        **both(EVENT_FILE, "GET", how="403", body=refused("AccessDenied", "Access Denied")),
        says=CREDENTIALS,
    ),
    Case("looking is forbidden", **both(LOOK, "HEAD|GET", how="403"), says=CREDENTIALS),
    Case(
        "writing is forbidden",
        **both(BEGIN, "POST", how="403", body=refused("AccessDenied", "Access Denied")),
        says=CREDENTIALS,
    ),
    Case("renaming is forbidden", **both(RENAME, POST_PUT, how="403"), says=CREDENTIALS),
    Case(
        "deleting is forbidden",
        s3=[{"path": DELETE["s3"], "method": "POST", "how": "403"}],
        gcs=[{"path": DELETE["gcs"], "method": "POST", "how": "403", "after": 1}],
        says=CREDENTIALS,
    ),
    Case(
        "credentials expire before the run",
        s3=[{"path": "/in/", "how": "400", "body": refused("ExpiredToken", "The token expired")}],
        gcs=[
            {"path": "/token", "how": "400", "body": b'{"error": "invalid_grant"}'},
            {"path": "/storage/", "how": "401"},
        ],
        says="",
    ),
    Case(
        "credentials expire in mid-run",
        s3=[
            {
                "path": PART["s3"],
                "how": "400",
                "body": refused("ExpiredToken", "The provided token has expired."),
            }
        ],
        gcs=[{"path": PART["gcs"], "how": "401"}],
        says=CREDENTIALS,
    ),
    Case(
        "the bucket is gone when it writes",
        **both(BEGIN, "POST", how="404", body=refused("NoSuchBucket", "The bucket does not exist")),
        says="",
    ),
    Case(
        "slow in everything",
        s3=[{"how": "slow", "seconds": 0.02}],
        gcs=[{"how": "slow", "seconds": 0.02}],
    ),
]
FAULTY = ALL[:2]


def check_failed(store, said, folder, expected, says):
    """That a failed run named service, place and remedy, and left nothing half-written."""
    lines = [line for line in said.splitlines() if line.startswith("streamveil release: failed:")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    assert store.root in lines[0]
    assert store.service in lines[0]
    assert says in lines[0]
    for name, content in outputs_of(store, folder).items():
        if name != "releases.card.json":
            assert content in (None, expected[name]), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("store", FAULTY, indirect=True)
def test_a_fault_of_the_service(store, expected, case, capfd):
    folder = store.folder()
    store.proxy.faults = case.faults(store)
    code = main(release_flags(store, folder))
    said = capfd.readouterr().err
    assert store.proxy.struck(), "the fault never struck"
    if code == 0 and (case.says is None or case.either):
        assert outputs_of(store, folder) == expected
        return
    assert case.says is not None, said
    assert code == 1, said
    check_failed(store, said, folder, expected, case.says)
    store.proxy.reset()
    again = store.folder()  # with the same noise key, so nothing is spent twice
    assert main(release_flags(store, again)) == 0
    assert outputs_of(store, again) == expected


@pytest.mark.parametrize("store", FAULTY, indirect=True)
def test_connections_are_refused(store, expected, capfd):
    folder = store.folder()
    store.proxy.stop()
    assert main(release_flags(store, folder)) == 1
    check_failed(store, capfd.readouterr().err, folder, expected, LATER)


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("s3", "gcs")]
)
def test_the_server_is_killed_as_it_is_written_to(kind, request, monkeypatch, tmp_path, capfd):
    home = Path(request.config.getoption(f"--{kind}_home")).resolve()
    with running(KINDS[kind], home, tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        _hurry(monkeypatch)
        store.put(f"{store.root}/in/events.csv", EVENTS)
        store.put(f"{store.root}/in/requirements.csv", REQUIREMENTS)
        store.proxy.faults = [Fault(how="reset", path=PART[kind], call=store.kill)]
        folder = store.folder()
        assert main(release_flags(store, folder)) == 1
        said = capfd.readouterr().err
        line = said.splitlines()[-1]
        assert f"{folder}/releases.csv could not be written: {store.service} says" in line
        assert "Whether these were is not known" in line
        assert "Traceback" not in said


@pytest.mark.parametrize("store", FAULTY, indirect=True)
def test_the_run_is_killed_as_it_writes(store, expected):
    folder = store.folder()
    store.proxy.faults = [Fault(how="slow", path=PART[store.name], seconds=60.0)]
    run = store.launch(*release_flags(store, folder))
    end = time.monotonic() + 120.0
    while not store.proxy.struck():
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < end, "it never wrote"
        time.sleep(0.05)
    run.kill()
    run.wait()
    assert not {name.rpartition("/")[2] for name in store.names(folder)} & set(OUTPUTS.values())
    store.proxy.reset()
    assert main(release_flags(store, folder)) == 0
    assert outputs_of(store, folder) == expected

"""The noise key from Secret Manager, whatever goes wrong with the service and on the way to it.

Google's own client asks a server that speaks the protocol, by TLS, through a proxy that fails. What
passes is waited for, and gives the same key. What lasts ends the run: nothing is written, and a
line says what to do.
"""

import json
import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.secretmanager", reason="the extra gcp is not installed")

from streamveil.io import secret_manager as module
from streamveil.io.secret_manager import secret_of
from tests.clusters.fault_proxy import FOREVER, Fault, FaultProxy
from tests.clusters.free_ports import free_ports
from tests.clusters.tcp_proxy import Cut
from tests.pipelines.secret_manager_server import VERSION

pytestmark = pytest.mark.slow  # each waits for a connection, or for it to fail

KEY = f"secret:{VERSION}"
IN_REQUEST, IN_ANSWER = 2500, 20_000  # bytes after which it has begun, and is not over

WAY = "look whether the service and the way to it are up, and run it again"
LATE = "look whether the service, the server that gives access tokens and the way to both are up"
QUOTA = "wait until its quota lets it, or have that raised, and run it again"
TOKENS = "look whether the server that gives access tokens and the way to it are up"
CREDENTIALS = "give credentials that are valid, in GOOGLE_APPLICATION_CREDENTIALS, by gcloud auth"


@pytest.fixture
def service(secret_manager):
    """A server with a secret that takes many packets."""
    secret_manager.content *= 500
    return secret_manager


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.4)


@pytest.fixture
def one_answer(monkeypatch):
    """Seconds for an answer."""
    monkeypatch.setattr(module, "ONE_ANSWER", 0.5)


def test_key_of_secret_manager(noisy, secret_manager):
    noisy.done(output=noisy.path("a.jsonl"), noise_key=noisy.key(secret_manager.content.decode()))
    noisy.done(output=noisy.path("b.jsonl"), noise_key=KEY)
    a, b = (Path(noisy.path(f"{name}.jsonl")).read_bytes() for name in "ab")
    assert a == b
    assert set(secret_manager.asked) == {VERSION}


# ---- the way there ------------------------------------------------------------------------------

CUTS = {
    "reset before": {"how": "reset"},
    "reset in mid-handshake": {"how": "reset", "after": 500},
    "reset in mid-request": {"how": "reset", "after": IN_REQUEST, "upward": True},
    "reset in mid-answer": {"how": "reset", "after": IN_ANSWER},
    "closed before": {"how": "close"},
    "closed in mid-request": {"how": "close", "after": IN_REQUEST, "upward": True},
    "closed in mid-answer": {"how": "close", "after": IN_ANSWER},
    "stalled before": {"how": "stall"},
    "stalled in mid-request": {"how": "stall", "after": IN_REQUEST, "upward": True},
    "stalled in mid-answer": {"how": "stall", "after": IN_ANSWER},
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_breaks_is_made_anew(service, one_answer, cut):
    service.proxy.reset(Cut(**CUTS[cut], times=2))
    assert secret_of(VERSION) == service.content
    assert service.proxy.struck == 2
    assert len(service.asked) == (3 if "mid-answer" in cut else 1)


@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_breaks_for_good_ends_the_run(job, service, one_answer, impatient, cut):
    service.proxy.reset(Cut(**CUTS[cut]))
    remedy = LATE if cut.startswith("stalled") else WAY
    says = f"{KEY} could not be read: Secret Manager says: "
    job.refused(says, remedy, code=1, noise_key=KEY)
    assert service.proxy.struck


def test_a_slow_connection_is_waited_for(service):
    service.proxy.reset(Cut("slow", after=1000, seconds=0.1))
    assert secret_of(VERSION) == service.content
    assert service.proxy.struck > 1
    assert len(service.asked) == 1


def test_a_slow_answer_is_waited_for(service):
    service.seconds = 0.5
    assert secret_of(VERSION) == service.content
    assert len(service.asked) == 1


def test_an_answer_that_does_not_come_ends_the_run(job, service, one_answer, impatient):
    service.seconds = 1.0
    job.refused("DEADLINE_EXCEEDED: Deadline Exceeded", LATE, code=1, noise_key=KEY)


def test_a_service_that_is_away_for_a_moment(service):
    service.proxy.stop()
    threading.Timer(0.3, service.proxy.start).start()
    assert secret_of(VERSION) == service.content


def test_a_service_that_is_away(job, service, impatient):
    service.proxy.stop()
    job.refused(KEY, "Connection refused", WAY, code=1, noise_key=KEY)


def test_a_server_that_is_killed_in_mid_answer(job, service, impatient):
    service.proxy.reset(Cut("reset", after=IN_ANSWER, call=service.stop))
    job.refused(KEY, "Secret Manager says: UNAVAILABLE", WAY, code=1, noise_key=KEY)
    service.start()
    service.proxy.reset()
    assert secret_of(VERSION) == service.content


def test_a_server_that_is_killed_in_mid_answer_and_comes_back(service):
    def kill():
        service.stop()
        threading.Timer(0.3, service.start).start()

    service.proxy.reset(Cut("reset", after=IN_ANSWER, times=1, call=kill))
    assert secret_of(VERSION) == service.content
    assert service.proxy.struck == 1


# ---- what the service says ----------------------------------------------------------------------

PASSING = {
    **dict.fromkeys(("UNAVAILABLE", "INTERNAL", "DATA_LOSS"), WAY),
    "DEADLINE_EXCEEDED": LATE,
    **dict.fromkeys(("CANCELLED", "ABORTED", "UNKNOWN"), WAY),
    "RESOURCE_EXHAUSTED": QUOTA,
}


@pytest.mark.parametrize("code", PASSING)
def test_it_is_asked_again(secret_manager, code):
    secret_manager.fail(code, times=2)
    assert secret_of(VERSION) == secret_manager.content
    assert len(secret_manager.asked) == 3


@pytest.mark.parametrize("code", PASSING)
def test_what_lasts_ends_the_run(job, secret_manager, impatient, code):
    secret_manager.fail(code)
    says = f"{KEY} could not be read: Secret Manager says: {code}: it broke: {PASSING[code]}"
    job.refused(says, code=1, noise_key=KEY)
    assert len(secret_manager.asked) > 1


REFUSALS = {
    "denied": ("PERMISSION_DENIED", "Permission denied", "roles/secretmanager.secretAccessor"),
    "expired": ("UNAUTHENTICATED", "The token expired", CREDENTIALS),
    "not there": ("NOT_FOUND", "Secret not found", "name a version that the secret has"),
    "disabled": ("FAILED_PRECONDITION", "It is in DISABLED state", "enable it again"),
    "destroyed": ("FAILED_PRECONDITION", "It is in DESTROYED state", "where else you keep it"),
    "no API": ("PERMISSION_DENIED", "The API has not been used in project 1", "enable the API"),
    "no name": ("INVALID_ARGUMENT", "Invalid resource", "names of the project and of the"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_a_person_has_to_change_is_refused_at_once(job, secret_manager, refusal):
    code, says, remedy = REFUSALS[refusal]
    secret_manager.fail(code, says)
    outcome = job.refused(f"{KEY} cannot be read ({code}: {says}): ", remedy, noise_key=KEY)
    assert "\n" not in outcome.message
    assert len(secret_manager.asked) == 1


# ---- what it gives ------------------------------------------------------------------------------


def change(service, **changed):
    """Let it give something else, once, and then what it should."""
    service.changed = changed
    access = service.access

    def once(request, context):
        answer = access(request, context)
        service.changed = {}
        return answer

    service.access = once
    service.stop()
    service.start()


WRONG = {
    "damaged": ({"data_crc32c": 7}, f"{KEY} came damaged from Secret Manager, by its checksum"),
    "another version": ({"name": VERSION.replace("3", "4")}, "versions/4': run it again"),
    "another secret": ({"name": VERSION.replace("noise", "n")}, "secrets/n/"),
    "no name": ({"name": ""}, "Secret Manager gave ''"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_answer_is_not_taken_for_the_key(job, secret_manager, impatient, wrong):
    secret_manager.changed, words = WRONG[wrong]
    job.refused(KEY, words, "run it again", code=1, noise_key=KEY)


@pytest.mark.parametrize("wrong", WRONG)
def test_after_a_wrong_answer_it_is_asked_again(secret_manager, wrong):
    change(secret_manager, **WRONG[wrong][0])
    assert secret_of(VERSION) == secret_manager.content
    assert len(secret_manager.asked) == 2


@pytest.mark.parametrize("part", [0, 1, 30])
def test_an_answer_that_is_cut_off_is_no_key(job, secret_manager, impatient, part):
    whole = secret_manager.types.AccessSecretVersionResponse.serialize(
        secret_manager.types.AccessSecretVersionResponse(
            name=VERSION, payload={"data": secret_manager.content}
        )
    )
    secret_manager.raw = whole[:-part] if part else b"\xff" + whole
    outcome = job.refused(KEY, "Secret Manager says: ", WAY, code=1, noise_key=KEY)
    assert secret_manager.content.decode()[:20] not in outcome.message + outcome.log


def test_a_project_may_be_named_by_its_number(secret_manager):
    secret_manager.changed = {"name": VERSION.replace("a-project", "1234567")}
    assert secret_of(VERSION) == secret_manager.content


def test_an_answer_without_a_checksum_is_taken(secret_manager):
    secret_manager.changed = {"data_crc32c": None}
    assert secret_of(VERSION) == secret_manager.content


@pytest.mark.parametrize("content", [b"", b"tooshort"])
def test_a_short_key(job, secret_manager, content):
    secret_manager.content = content
    outcome = job.refused(KEY, f"{len(content)} bytes", "32 or more", noise_key=KEY)
    assert "tooshort" not in outcome.message


# ---- the account --------------------------------------------------------------------------------


def no_account(monkeypatch, path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(path))


def no_file(monkeypatch, path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path / "nowhere.json"))


def no_key(monkeypatch, path):
    account = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    (path / "account.json").write_text(json.dumps(account | {"private_key": "none"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path / "account.json"))


@pytest.mark.parametrize("lacking", [no_account, no_file, no_key])
def test_no_credentials(job, secret_manager, monkeypatch, tmp_path_factory, lacking):
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    lacking(monkeypatch, tmp_path_factory.mktemp("account"))
    outcome = job.refused(KEY, CREDENTIALS, noise_key=KEY)
    assert "secretAccessor" not in outcome.message
    assert not secret_manager.asked


@pytest.fixture
def tokens(monkeypatch, tmp_path_factory):
    """A server of access tokens, of an account that does not sign them itself."""
    (port,) = free_ports(1)
    proxy = FaultProxy("127.0.0.1:1", port)
    folder = tmp_path_factory.mktemp("account")
    (folder / "subject").write_text("a token of somebody else's")
    account = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/"
        "providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{proxy.url}/token",
        "credential_source": {"file": str(folder / "subject")},
    }
    (folder / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    yield proxy
    proxy.stop()


def token_fault(how, times=FOREVER, said=""):
    body = json.dumps({"error": said, "error_description": "of the test"}) if said else ""
    return Fault(how, path="/token", times=times, body=body.encode())


@pytest.mark.parametrize("how", ["503", "429", "reset", "reset_in_write"])
def test_a_token_is_asked_for_again(secret_manager, tokens, how):
    tokens.faults = [token_fault(how, 2)]
    assert secret_of(VERSION) == secret_manager.content
    assert tokens.struck() == 2
    assert len(secret_manager.asked) == 1


def test_a_server_of_tokens_that_is_away_for_a_moment(secret_manager, tokens):
    tokens.stop()
    threading.Timer(0.3, tokens.start).start()
    assert secret_of(VERSION) == secret_manager.content


def test_a_token_that_does_not_come_is_not_blamed_on_the_service_alone(
    job, secret_manager, tokens, one_answer, impatient
):
    tokens.faults = [Fault("slow", path="/token", call=partial(time.sleep, 3.0))]
    job.refused(KEY, LATE, code=1, noise_key=KEY)
    assert not secret_manager.asked


@pytest.mark.parametrize("how", ["503", "reset", "away"])
def test_no_token_ends_the_run(job, secret_manager, tokens, impatient, how):
    tokens.faults = [token_fault(how)]
    if how == "away":
        tokens.stop()
    outcome = job.refused(KEY, "gets no access token", TOKENS, code=1, noise_key=KEY)
    assert "plugin" not in outcome.message
    assert "secretAccessor" not in outcome.message
    assert not secret_manager.asked


@pytest.mark.parametrize("said", ["invalid_grant", "invalid_client", "unauthorized_client"])
def test_an_account_that_is_refused_a_token(job, secret_manager, tokens, said):
    tokens.faults = [token_fault("400", said=said)]
    outcome = job.refused(KEY, "gets no access token", said, CREDENTIALS, noise_key=KEY)
    assert "plugin" not in outcome.message
    assert tokens.struck() == 1


# ---- the whole command --------------------------------------------------------------------------


def command(job, service, **flags):
    """The command in a process of its own, as it is given to Popen."""
    arguments, more = service.command(
        job.arguments(noise_key=KEY, **flags), Path(job.path("events.csv")).parent
    )
    return {"args": arguments, "env": {**os.environ, **more}, "text": True}


@pytest.mark.parametrize("moment", ["it waits for an answer", "an answer comes", "it tries again"])
def test_a_run_that_is_killed_is_run_again(noisy, service, until, moment):
    noisy.done(output=noisy.path("once.jsonl"), noise_key=KEY)
    service.asked.clear()
    before = set(noisy.files())
    if moment == "it waits for an answer":
        service.seconds = 30.0
    elif moment == "an answer comes":
        service.proxy.reset(Cut("stall", after=IN_ANSWER))
    else:
        service.fail("UNAVAILABLE")
    given = command(noisy, service, ledger=noisy.path("ledger.jsonl"))
    with subprocess.Popen(**given, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(service.asked) > (moment == "it tries again"))
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert set(noisy.files()) - before == {noisy.path("roots.pem")}
    service.seconds, service.wrong = 0.0, iter(())
    service.proxy.reset()
    with subprocess.Popen(**given) as process:
        pass
    assert process.returncode == 0
    once, again = (Path(noisy.path(name)).read_bytes() for name in ("once.jsonl", "out.jsonl"))
    assert once == again


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [("PERMISSION_DENIED", 2, "secretAccessor"), ("UNAUTHENTICATED", 2, CREDENTIALS)],
)
def test_a_refusal_is_one_line(noisy, secret_manager, code, exit_code, words):
    secret_manager.fail(code)
    before = set(noisy.files())
    done = subprocess.run(**command(noisy, secret_manager), capture_output=True)
    assert done.returncode == exit_code
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"streamveil release: {KEY} cannot be read (")
    assert words in line
    assert set(noisy.files()) - before == {noisy.path("roots.pem")}


@pytest.mark.parametrize("kind", ["passes", "stays"])
def test_a_worker_that_cannot_read_the_key_ends_the_run(job, secret_manager, impatient, kind):
    """The launch could: the service fails from then on."""
    access = secret_manager.access

    def once(request, context):
        answer = access(request, context)
        secret_manager.fail("UNAVAILABLE" if kind == "passes" else "PERMISSION_DENIED")
        return answer

    secret_manager.access = once
    secret_manager.stop()
    secret_manager.start()
    before = job.files()
    outcome = job("--runner=FnApiRunner", noise_key=KEY)
    assert outcome.code == (1 if kind == "passes" else 2), outcome
    assert KEY in outcome.message
    assert (WAY if kind == "passes" else "secretAccessor") in outcome.message
    assert job.files() == before


def test_an_error_of_ours_is_raised_at_once(secret_manager, monkeypatch):
    """Whatever else fails is no fault of the service, and is not tried again."""
    monkeypatch.setattr(module, "_within_project", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        secret_of(VERSION)
    assert len(secret_manager.asked) == 1

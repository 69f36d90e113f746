"""The page of a run that goes on: who is answered, what is shown, and what it says of the run."""

import contextlib
import datetime as dt
import http.client
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamveil.engine import metrics
from streamveil.mechanisms.core.records import STATUSES, ConfigurationError, Slots, format_time
from streamveil.pipelines.console.logs import heard_by, logging_as, tell
from streamveil.pipelines.monitoring import server
from streamveil.pipelines.monitoring.board import BINS_SHOWN, Board
from streamveil.pipelines.monitoring.budget import CLASSES_SHOWN
from streamveil.pipelines.monitoring.condition import condition_of, duration
from streamveil.pipelines.monitoring.server import serving
from streamveil.pipelines.monitoring.status import FAILED, RUNNING, Released, Status
from streamveil.pipelines.monitoring.warnings import WARNINGS_KEPT, Warnings
from streamveil.pipelines.options.parsers import page_address_of
from streamveil.pipelines.reports.history import SLOTS_SHOWN, History, of_releases
from streamveil.pipelines.reports.summary import Summary

UTC = dt.timezone.utc
SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
DAYS, HOURS = Slots.of("1d"), Slots.of("1h")
TEN_SECONDS = 10 * SECOND
BINS = ("A", '<img src=x onerror="alert(1)">', "</script>")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LOOPBACK = ("127.0.0.1", 0)


def board_of(status, bins=BINS, **given):
    histories = [
        History("counts", "Events.", "events", True, [of_releases(DAYS, bins)], "releases", "later")
    ]
    options = {
        "command": "release",
        "slots": DAYS,
        "histories": histories,
        "status": lambda: status,
        "of_events": lambda summary: summary,
        "warnings": Warnings(),
        "interval": TEN_SECONDS,
        "file_clock": True,
        **given,
    }
    return Board(**options)


def running(next_slot=7, clock=7 * HOUR, last_slot=None, **known):
    """A run over hours that looked just now, at `NOW`."""
    done = Released(HOURS, 0, 5, next_slot, last_slot)
    usual = {"since": NOW - HOUR, "looked": NOW, "condition": RUNNING, "released": done}
    return Status(**{**usual, "clock": clock, **known})


NOW = 400_000 * HOUR


@pytest.fixture(scope="module")
def served():
    """A page of a run that is well; gives what asks it."""
    with serving(LOOPBACK, board_of(running())) as place:
        yield Client(place)


class Client:
    def __init__(self, place):
        self.place = place
        host, _, port = place.rpartition(":")
        self.address = host, int(port)

    def ask(self, path, method="GET", headers=None):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()


# ---- who is answered ---------------------------------------------------------------------------


def test_a_page_its_figures_and_a_sign_of_life(served):
    status, headers, page = served.ask("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.startswith("<!doctype html>")
    assert "For operators only" in page
    assert not re.search(r"(src|href)=\"?(https?:)?//", page)
    assert "/* page." not in page
    status, headers, text = served.ask("/status.json?again=1")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert json.loads(text)["format"] == 1
    assert served.ask("/healthz")[0] == 503  # it has not looked since 2015


def test_a_browser_runs_and_loads_nothing_but_what_is_in_the_page(served):
    _, headers, page = served.ask("/")
    policy = dict(one.split(" ", 1) for one in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch("'sha256-[\\w+/=]{44}'", policy["script-src"])
    assert page.count("<script") == page.count("<style") == 1
    assert not re.search(r"<[^>]* (style|on\w+)=", page)
    script = page.partition("<script>")[2]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", script)


@pytest.mark.parametrize("path", ["/", "/status.json", "/healthz", "/none"])
def test_a_head_is_the_answer_without_its_body(served, path):
    status, headers, body = served.ask(path, "HEAD")
    assert body == ""
    assert (status, int(headers["Content-Length"]) > 0) == (served.ask(path)[0], True)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"])
def test_other_methods_are_refused(served, method):
    status, headers, body = served.ask("/", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert body == "only GET and HEAD are answered\n"


@pytest.mark.parametrize(
    "path", ["/index.html", "/state/noise.key", "/../pyproject.toml", "/a//", "/<b>", "/%2e%2e/x"]
)
def test_other_paths_are_refused_and_not_repeated(served, path):
    status, headers, body = served.ask(path)
    assert (status, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert body == "nothing is here: there are /, /status.json and /healthz\n"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
    ],
)
def test_a_name_that_a_stranger_made_lead_here_is_refused(served, host, status):
    assert served.ask("/status.json", headers={"Host": host})[0] == status


def test_clients_that_are_slow_dead_or_talk_nonsense_hold_up_nobody(served, capsys):
    silent = [socket.create_connection(served.address) for _ in range(5)]
    for sent in (
        b"\x16\x03\x01\r\n\r\n",
        b"GET",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n",
    ):
        with socket.create_connection(served.address) as client:
            client.sendall(sent)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert served.ask("/status.json")[0] == 200
    assert "Traceback" not in capsys.readouterr().err
    for client in silent:
        client.close()


def test_a_client_that_sends_a_byte_now_and_then_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(server, "_SECONDS_FOR_A_CLIENT", 0.5)
    with (
        serving(LOOPBACK, board_of(running())) as place,
        socket.create_connection(Client(place).address) as client,
    ):
        client.settimeout(0.1)
        for _ in range(300):
            try:
                client.sendall(b"G")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it is still waited for")


def test_the_end_waits_for_no_client():
    with serving(LOOPBACK, board_of(running())) as place:
        client = Client(place)
        silent = [socket.create_connection(client.address) for _ in range(3)]
        begun = time.monotonic()
    assert time.monotonic() - begun < 5  # a client has 10 seconds
    with pytest.raises(ConnectionError):
        client.ask("/")
    for each in silent:
        each.close()


def answering():
    """Threads that are answering a client."""
    return sum("process_request" in one.name for one in threading.enumerate())


# A probe must have its answer, however many forgot to hang up.
@pytest.mark.slow
def test_of_too_many_clients_those_who_came_first_make_room(served, until):
    silent = []
    for number in range(60):  # each is let in before the next comes: a full queue changes the order
        silent.append(socket.create_connection(served.address))
        if number < 16:
            until(lambda number=number: answering() > number)
        else:
            until(lambda number=number: hung_up(silent[number - 16]))
    assert served.ask("/healthz")[0] == 503
    until(lambda: answering() <= 16)
    gone = [each for each in silent if hung_up(each)]
    assert gone == silent[: len(gone)]
    assert 44 <= len(gone) <= 45
    for each in silent:
        each.close()
    until(lambda: answering() == 0)
    assert served.ask("/status.json")[0] == 200


# Threads that wait do not notice that they were hung up on: 400 polls left as many of them, and as
# many sockets, and a run without any to open its own files with.
@pytest.mark.slow
def test_figures_that_do_not_come_keep_so_many_threads_and_no_more(until):
    until(lambda: answering() == 0)  # those of another test
    slow, entered = threading.Event(), []

    def wait():
        entered.append(1)
        slow.wait()
        return running()

    board, waiting = board_of(running()), []
    board._status = wait
    with serving(LOOPBACK, board) as place:
        page = Client(place)
        for most in [*range(1, 65), *[64] * 6]:
            waiting.append(socket.create_connection(page.address))
            with contextlib.suppress(ConnectionError):
                waiting[-1].sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
            until(lambda most=most: len(entered) >= most)
        assert hung_up(waiting[-1])
        assert answering() == len(entered) == 64
        slow.set()
        until(lambda: answering() == 0)
        assert page.ask("/status.json")[0] == 200
    for each in waiting:
        each.close()


def hung_up(client):
    """Whether the server has ended a connection that waits for it."""
    client.settimeout(0.05)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_what_cannot_be_shown_is_reported_and_ends_nothing():
    def fail():
        raise OSError(5, "the disk is broken\n<b>")

    board = board_of(running())
    board._status = fail
    with serving(LOOPBACK, board) as place:
        client = Client(place)
        status, headers, body = client.ask("/status.json")
        assert (status, headers["Content-Type"]) == (500, "text/plain; charset=utf-8")
        assert body.startswith("this cannot be shown: ")
        assert body.count("\n") == 1
        assert client.ask("/")[0] == 200


# ---- where it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::]:8080", ("::", 8080)),
        (None, None),
    ],
)
def test_it_is_for_this_machine_alone_unless_more_is_said(text, address):
    assert page_address_of(SimpleNamespace(serve=text, follow="1s")) == address


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"serve": "http"}, "--serve=http is not a port: write for example 8080"),
        ({"serve": "65536"}, "is not a port"),
        ({"serve": "8080", "follow": None}, "--serve=8080 is for a run with --follow"),
    ],
)
def test_what_makes_no_sense_is_refused(given, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        page_address_of(SimpleNamespace(**{"follow": "1s", **given}))


def test_a_port_that_is_taken_is_reported_in_a_line_with_the_remedy():
    with socket.socket() as held:
        held.bind(LOOPBACK)
        held.listen()
        port = held.getsockname()[1]
        with (
            pytest.raises(ConfigurationError) as caught,
            serving(("127.0.0.1", port), board_of(running())),
        ):
            pass
    assert f"--serve: nothing can listen on 127.0.0.1:{port}: " in str(caught.value)
    assert "choose another port, 0 for any that is free" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_it_is_is_reported_and_who_may_read_it(capsys, host):
    with serving((host, 0), board_of(running())) as place:
        pass
    printed = capsys.readouterr().out
    assert printed.startswith(f"the page of this run, for operators, is at http://{place}/\n")
    assert not place.endswith(":0")
    assert ("no password" in printed) == (host == "0.0.0.0")


# ---- how the run is doing ----------------------------------------------------------------------


def well(**known):
    return condition_of(running(**known), NOW, TEN_SECONDS)


def test_a_run_that_is_well():
    assert well(condition="starting", released=None, since=NOW) == (
        "starting",
        "The run reads its state.",
    )
    name, words = well()
    assert name == "up to date"
    assert "that of 1970-01-01 07:00:00 UTC, closes 1970-01-01 08:00:00 UTC" in words
    assert well(clock=10 * HOUR).name == "releasing"
    assert well(passing=NOW - SECOND, clock=8 * HOUR) == (
        "releasing",
        "A pass is under way, over 1 closed slot.",
    )
    assert well(next_slot=9, last_slot=8).name == "over"


def test_a_slot_that_waits_is_reported_with_what_for_and_since_when():
    name, words = well(clock=10 * HOUR, waits_for="its marker is not there")
    assert name == "waiting"
    assert words.startswith("3 closed slots are not released, the oldest, that of 1970-01-01 07:00")
    assert words.endswith("for 2 hours: its marker is not there.")


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (
            {"looked": NOW - 5 * MINUTE},
            "has not looked for slots to release for 5 minutes, and should every 10s",
        ),
        ({"passing": NOW - HOUR}, "A pass has been under way for 60 minutes: see the log"),
        (
            {"passing": NOW - 2 * HOUR, "longest": 3 * SECOND},
            "under way for 2 hours, and the longest before it took 3 seconds: see the log",
        ),
        ({"condition": "starting", "released": None}, "The run has been starting for 60 minutes"),
    ],
)
def test_a_run_that_stalls_says_so_and_what_to_do(known, words):
    name, condition = well(**known)
    assert name == "stalled"
    assert words in condition
    assert "start the same command with --resume" in condition


def test_a_pass_may_take_as_long_as_those_before_it_did():
    known = {"passing": NOW - 10 * MINUTE}
    assert well(**known).name == "releasing"  # the first one reads all there is
    assert well(**known, longest=SECOND).name == "stalled"
    assert well(**known, longest=5 * MINUTE).name == "releasing"


def test_a_run_that_failed_says_why():
    assert well(condition=FAILED, error="the disk is full") == (
        "failed",
        "The run is over: the disk is full.",
    )


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (0, "0 seconds"),
        (SECOND, "1 second"),
        (119 * SECOND, "119 seconds"),
        (2 * MINUTE, "2 minutes"),
        (49 * HOUR, "2 days"),
    ],
)
def test_durations_in_words(length, words):
    assert duration(length) == words


@pytest.mark.parametrize(("since", "code"), [(SECOND, 200), (HOUR, 503)])
def test_the_sign_of_life_is_none_when_the_run_stalls(since, code):
    now = time.time_ns() // 1000
    status = running(since=now - 2 * HOUR, looked=now - since)
    with serving(LOOPBACK, board_of(status)) as place:
        status, _, body = Client(place).ask("/healthz")
    assert status == code
    assert body.startswith("stalled: " if code == 503 else "up to date: ")


def test_where_slots_close_by_the_machine_lag_grows_while_nobody_looks():
    now = time.time_ns() // 1000
    next_slot = HOURS.index(now) - 3
    status = running(next_slot=next_slot, clock=HOURS.start(next_slot), looked=now, since=now)
    lags = [
        board_of(status, file_clock=by_file).record()["raw"]["lag"] for by_file in (True, False)
    ]
    assert [lag["backlog_slots"] for lag in lags] == [0, 3]
    assert lags[0]["seconds"] == 0
    assert 2 * 3600 <= lags[1]["seconds"] < 3 * 3600


# ---- what is shown -----------------------------------------------------------------------------


def release_row(slot, counts, stderr=1.0, status=STATUSES[0]):
    return {
        "slot": slot,
        "start": format_time(DAYS.start(slot)),
        "end": format_time(DAYS.end(slot)),
        "counts": counts,
        "status": status,
        "published_slot": slot,
        "epsilon": 1.0,
        "stderr": [stderr] * len(counts),
        "mechanism": "adaptive",
        "alarm": False,
        "diagnostics": {},
    }


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def passes(tmp_path):
    """Writes the results of a pass; gives its files by kind."""

    def write(number, **kinds):
        return {
            kind: lines(tmp_path / f"{kind}-{number:08d}.jsonl", rows)
            for kind, rows in kinds.items()
        }

    return write


def ledger_row(slot, window, epsilon, users, spent):
    return {
        "slot": slot,
        "window": window,
        "epsilon": epsilon,
        "users": users,
        "spent": spent / 2,
        "spent_in_window": spent,
    }


def test_the_golden_answer(passes):
    counted = {
        metrics.EVENTS_READ: 9,
        metrics.EVENTS_COUNTED: 4,
        metrics.EVENTS_LATE: 1,
        metrics.EVENTS_BOUNDED_AWAY: 2,
        metrics.REJECTED_PREFIX + "<script>": 2,
    }
    status = running(
        totals=Summary(counted, 0.5), delay=3 * SECOND, passed=NOW, passes=2, longest=SECOND
    )
    board = board_of(status)
    board.begun({"releases": [], "ledger": []})
    none = board.record()["public"]
    assert (none["budget"], none["has_ledger"]) == (None, True)
    assert none["sections"][0]["series"][0]["slots"] == []
    board.wrote(
        passes(
            1,
            releases=[release_row(0, [5, 1, 9], None, "unmeasured"), release_row(1, [2, -1, 8])],
            ledger=[
                ledger_row(0, 7, 2.0, 3, 0.1),
                ledger_row(1, 7, 2.0, 3, 1.0),
                ledger_row(1, None, 1.0, 0, 0.25),
            ],
        )
    )
    revision = release_row(0, [4, 0, 8], 2.0) | {
        "revised_slot": 1,
        "revised_at": format_time(2 * 24 * HOUR),
    }
    board.wrote(passes(2, later=[revision]))
    record = board.record()
    assert list(record) == ["format", "time", "public", "raw"]
    public, raw = record["public"], record["raw"]
    (section,) = public.pop("sections")
    (series,) = section.pop("series")
    older, newer = series.pop("slots")
    assert section == {"name": "counts", "about": "Events.", "unit": "events", "figures": ["count"]}
    assert series == {"length": "1d", "span": "day", "bins": 3, "shown": list(BINS), "first": 2}
    assert older == {
        "slot": 0,
        "start": "1970-01-01T00:00:00Z",
        "end": "1970-01-02T00:00:00Z",
        "status": "unmeasured",
        "values": [[[5.0, None, None]], [[1.0, None, None]], [[9.0, None, None]]],
        "revised": [[[4.0, 0.71, 7.29]], [[0.0, 0.0, 3.29]], [[8.0, 4.71, 11.29]]],
        "revised_at": "1970-01-03T00:00:00Z",
        "notes": None,
        "ranks": None,
    }
    assert newer["values"][1] == [[-1.0, 0.0, 0.645]]
    assert (newer["revised"], newer["revised_at"]) == (None, None)
    assert public == {
        "command": "release",
        "edition": f"{NOW - HOUR}-1",
        "has_ledger": True,
        "budget": {
            "until": "1970-01-03T00:00:00Z",
            "length": "1d",
            "classes": 2,
            "shown": [
                {"window": 7, "epsilon": 2.0, "users": 3, "spent": 1.0, "share": 0.5},
                {"window": None, "epsilon": 1.0, "users": 0, "spent": 0.25, "share": 0.25},
            ],
        },
    }
    assert raw["condition"] == "stalled"  # it has not looked since 2015
    assert raw["events"]["rejected"] == {"<script>": 2}
    assert [raw["events"][name] for name in ("read", "counted", "late", "beyond_bound")] == [
        9,
        4,
        1,
        2,
    ]
    assert raw["warnings"] == []
    assert list(raw["lag"]) == [
        *("released_until", "next_closes", "clock", "clock_file", "seconds", "event_seconds"),
        *("backlog_slots", "waits_for", "looked_at", "released_at", "release_delay_seconds"),
        *("pass_since", "longest_pass_seconds", "passes"),
    ]
    assert raw["lag"]["released_at"] == format_time(NOW)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_counts_from_0_whatever_bins_are_called(passes, tmp_path):
    bins = ["rare", "two  spaces ", "x" * 300]
    status = running(released=Released(DAYS, 0, 0, 2, None), clock=DAYS.start(2))
    board = board_of(status, bins=bins)
    board.begun({})
    for slot in range(2):
        board.wrote(passes(slot, releases=[release_row(slot, [10, 990 + slot, 15])]))
    with serving(LOOPBACK, board) as place:
        html = shown_by_browser(f"http://{place}/", tmp_path / "browser")
    assert '<strong id="state">Stalled' in html  # by the time of the test
    chart = html[html.index('<svg class="chart"') : html.index("</figure>")]
    assert "count of two  spaces " in chart
    assert ">0</text>" in chart
    assert ">events per day</text>" in chart
    assert re.search(r'<path class="fresh" d="M\d', chart)  # steps, as on every page
    # Labels may break anywhere, a time may not: `21:50:1` above `5` was no time.
    assert '<th scope="row" class="when">1970-' in html


def test_times_of_slots_break_as_words_do():
    rules = (Path(server.__file__).parent / "page.css").read_text()
    assert re.search(r"tbody th \{[^}]*overflow-wrap: anywhere", rules)
    assert re.search(r"tbody th\.when \{[^}]*overflow-wrap: inherit", rules)


def shown_by_browser(url, folder):
    """The elements of a page when its script has run."""
    given = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-quic"]
    browser = [BROWSER, *given, *quiet, f"--user-data-dir={folder}", "--virtual-time-budget=4000"]
    found = subprocess.run([*browser, "--dump-dom", url], capture_output=True, timeout=120)
    return found.stdout.decode()


def test_a_slot_that_is_long_over_the_page_has_room_for_goes_and_large_domains_are_cut(passes):
    bins = [f"b{j}" for j in range(100)]
    board = board_of(running(), bins)
    for number in range(3):
        first = number * 30
        rows = [release_row(slot, list(range(100))) for slot in range(first, first + 30)]
        board.wrote(passes(number, releases=rows))
        if number:  # some when they come, some together
            (series,) = board.record()["public"]["sections"][0]["series"]
    assert [slot["slot"] for slot in series["slots"]] == list(range(90 - SLOTS_SHOWN, 90))
    assert series["bins"] == 100
    assert series["shown"] == bins[-BINS_SHOWN:]
    assert series["first"] == BINS_SHOWN - 1
    assert len(json.dumps(series)) < 100_000


def test_classes_nearest_to_their_limits_are_shown_and_those_alike_are_one(passes):
    rows = [ledger_row(3, window, 1.0, 10, window / 100) for window in range(1, 41)]
    rows += [ledger_row(3, 40, 1.0, 5, 0.45)]  # differs in a limit alone
    board = board_of(running())
    board.wrote(passes(1, ledger=rows))
    budget = board.record()["public"]["budget"]
    assert (budget["classes"], len(budget["shown"])) == (40, CLASSES_SHOWN)
    assert budget["shown"][0] == {
        "window": 40,
        "epsilon": 1.0,
        "users": 15,
        "spent": 0.45,
        "share": 0.45,
    }


def test_where_requirements_change_the_budget_is_that_of_the_past(passes):
    row = {
        **{"slot": 3, "window_backward": 7, "epsilon_backward": 2.0, "users": 4, "spent": 0.5},
        **{"window_forward": 9, "epsilon_forward": 1.0, "spent_backward": 1.5, "infeasible": False},
    }
    board = board_of(running())
    board.wrote(passes(1, ledger=[row]))
    (entry,) = board.record()["public"]["budget"]["shown"]
    assert entry == {"window": 7, "epsilon": 2.0, "users": 4, "spent": 1.5, "share": 0.75}


def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_shown(passes, tmp_path):
    board = board_of(running())
    board.wrote({"releases": str(tmp_path / "gone-00000001.jsonl")})
    wrong = passes(2, releases=[{"slot": 1, "colour": "red"}])
    board.wrote(wrong)
    board.wrote(passes(3, releases=[release_row(2, [1, 2, 3])]))
    record = board.record()
    assert [slot["slot"] for slot in record["public"]["sections"][0]["series"][0]["slots"]] == [2]
    words = [warning["words"] for warning in record["raw"]["warnings"]]
    assert len(words) == 2
    assert words[0].startswith(f"{wrong['releases']} cannot be shown: ")


def test_warnings_are_kept_and_counted_however_the_log_is_written(capsys):
    for log_format in (None, "json"):
        heard = Warnings()
        with logging_as(log_format), heard_by(heard):
            tell("all is well")
            for number in range(WARNINGS_KEPT):
                tell(f"warning: number {number}", 30)
            tell("warning: <b>again</b>", 30)
            tell("warning: number 19", 30)
        found = [(one["words"], one["times"]) for one in heard.records()]
        assert found[:2] == [("number 19", 2), ("<b>again</b>", 1)]
        assert len(found) == WARNINGS_KEPT
        assert found[-1] == ("number 1", 1)
    capsys.readouterr()


# ---- whole runs --------------------------------------------------------------------------------


def day(n):
    return dt.datetime(2024, 1, n, tzinfo=UTC)


@pytest.fixture
def flags(job):
    """Flags of a stream over days whose clock is a file."""
    (job.folder / "in").mkdir()
    return {
        **job.kept(),
        "input": job.path("in/*.csv"),
        "clock_file": job.path("clock"),
        "follow": "100ms",
        "serve": "0",
    }


def feed(job, n):
    """The events of a day, then a clock that says it is over."""
    job.events([("u1", "A", day(n)), ("u2", "B", day(n)), ("u2", "?", day(n))], f"in/{n}.csv")
    job.write("clock.new", day(n + 1).isoformat())
    (job.folder / "clock.new").replace(job.folder / "clock")


class Child:
    """A command in a process of its own, of which the place of the page is known."""

    def __init__(self, job, flags):
        command = [sys.executable, "-m", "streamveil", *job.arguments(**flags)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.printed = ""
        place = None
        while place is None:
            line = self.process.stdout.readline()
            assert line, self.printed
            self.printed += line
            place = re.search(r"operators, is at (http://127\.0\.0\.1:\d+)/", line)
        self.url = place[1]

    def figures(self):
        with urllib.request.urlopen(f"{self.url}/status.json", timeout=600) as answer:
            return json.load(answer)

    def days(self):
        """Days that are shown as released."""
        slots = self.figures()["public"]["sections"][0]["series"][0]["slots"]
        return [int(slot["start"][8:10]) for slot in slots]

    def end(self, number):
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=600)
        return self.process.returncode, self.printed + out


@pytest.mark.slow
def test_a_run_shows_what_it_releases_and_after_a_kill_what_it_had_released(job, flags, until):
    feed(job, 1)
    child = Child(job, flags)
    try:
        until(lambda: child.days() == [1])
        held = socket.create_connection(("127.0.0.1", int(child.url.rpartition(":")[2])))
        feed(job, 2)
        until(lambda: child.days() == [1, 2])
        held.close()
        until(lambda: child.figures()["raw"]["condition"] == "up to date")
        figures = child.figures()
        assert figures["raw"]["events"]["rejected"] == {"outside the domain": 2}
        assert figures["raw"]["lag"]["released_until"] == "2024-01-03T00:00:00Z"
        assert figures["public"]["has_ledger"]
        assert {row["window"] for row in figures["public"]["budget"]["shown"]} == {1, 2, 3}
        rows = [row for n in (1, 2) for row in job.rows(f"out-{n:08d}.jsonl")]
        shown = figures["public"]["sections"][0]["series"][0]["slots"]
        assert [[cell[0][0] for cell in one["values"]] for one in shown] == [
            r["counts"] for r in rows
        ]
        child.end(signal.SIGKILL)
        child = Child(job, {**flags, "resume": True})
        until(lambda: child.days() == [1, 2])
        assert child.figures()["raw"]["lag"]["released_at"] is not None
        feed(job, 3)
        until(lambda: child.days() == [1, 2, 3])
        code, out = child.end(signal.SIGTERM)
        assert code == 0, out
        assert out.splitlines()[-1].startswith("stopped by a signal: ")
        with pytest.raises(urllib.error.URLError):
            child.figures()
    finally:
        child.process.kill()
        child.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "extension"), [("rows", "csv"), ("tidy", "avro")])
def test_files_of_all_kinds_are_shown(job, flags, monkeypatch, layout, extension):
    """The last thing that a run shows is what its files hold, and revisions of it."""
    seen = last_seen(monkeypatch)
    for n in (1, 2, 3):
        feed(job, n)
    given = {name: job.path(f"{name}.{extension}") for name in ("output", "ledger", "revisions")}
    more = {"end": "2024-01-04", "revise": 1, "layout": layout, "slots_per_pass": 2}
    job.done(**{**flags, **given, **more})
    (section,) = seen[-1]["public"]["sections"]
    slots = section["series"][0]["slots"]
    assert [slot["start"][:10] for slot in slots] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert all(len(slot["values"]) == 3 and slot["values"][0][0][1] is not None for slot in slots)
    for kind, values in (("output", "values"), ("revisions", "revised")):
        rows = [row for n in (1, 2) for row in job.rows(f"{kind}-{n:08d}.{extension}")]
        counts = [n for row in rows for n in row.get("counts", [row.get("value")])]
        shown = [cell[0][0] for slot in slots for cell in slot[values]]
        assert shown == pytest.approx(counts, abs=1e-5)  # the page rounds
    (warning,) = seen[-1]["raw"]["warnings"]
    assert "33% of the events were rejected (most often: outside the domain)" in warning["words"]
    assert seen[-1]["raw"]["condition"] == "over"
    assert {row["window"] for row in seen[-1]["public"]["budget"]["shown"]} == {1, 2, 3}


def last_seen(monkeypatch):
    """What the board of a run in this process says after each look."""
    from streamveil.pipelines.monitoring.monitor import Monitor

    boards, seen, made, looked = [], [], Board.__init__, Monitor.looked

    def make(self, *given, **named):
        made(self, *given, **named)
        boards.append(self)

    def look(self, *given):
        looked(self, *given)
        seen.append(json.loads(json.dumps(boards[-1].record(), allow_nan=False)))

    monkeypatch.setattr(Board, "__init__", make)
    monkeypatch.setattr(Monitor, "looked", look)
    return seen


QUERIES = """\
slot: 1d
queries:
  - {name: visits, by: value, keys: [A, B, C], rollups: 2d}
  - {name: people, every: 2d, statistic: distinct, title: Visitors, unit: people}
"""


@pytest.mark.slow
def test_each_query_has_a_section(job, flags, monkeypatch):
    seen = last_seen(monkeypatch)
    job.write("queries.yaml", QUERIES)
    for n in range(1, 5):
        feed(job, n)
    given = dict.fromkeys(("value_column", "slot", "domain"))
    more = {"queries": job.path("queries.yaml"), "output": job.path("answers")}
    more |= {"revise": 1, "revisions": job.path("revised.csv")}
    job.done(**{**flags, **given, **more, "end": "2024-01-05", "slots_per_pass": 1})
    visits, people = seen[-1]["public"]["sections"]
    assert (visits["name"], visits["unit"]) == ("visits", "events")
    assert (people["name"], people["unit"]) == ("Visitors", "people")
    assert [series["length"] for series in visits["series"]] == ["1d", "2d"]
    assert [len(series["slots"]) for series in visits["series"]] == [4, 2]
    assert visits["series"][0]["shown"] == ["A", "B", "C"]
    assert (people["figures"], len(people["series"][0]["slots"])) == (["users"], 2)
    revised = [row for n in range(1, 5) for row in job.rows(f"revised-{n:08d}.csv")]
    for name, section in (("visits", visits), ("people", people)):
        slots = section["series"][0]["slots"]
        shown = [cell[0][0] for slot in slots for cell in slot["revised"]]
        values = [row["value"] for row in revised if row["query"] == name]
        assert shown == pytest.approx(values, abs=1e-5)
        assert all(slot["revised_at"] for slot in slots)
    assert all(slot["revised"] is None for slot in visits["series"][1]["slots"])  # of rollups
    assert all(cell[0][0] is not None for s in people["series"][0]["slots"] for cell in s["values"])
    assert set(seen[-1]["raw"]["events"]["queries"]) == {"visits", "people"}
    budget = seen[-1]["public"]["budget"]
    assert budget["until"] == "2024-01-05T00:00:00Z"
    assert {row["users"] for row in budget["shown"]} == {1}
    warned = [warning["words"] for warning in seen[-1]["raw"]["warnings"]]
    # One event of a user is what distinct users are made of, so nothing is lost by the others.
    assert not any(words.startswith("query people") for words in warned)
    assert not any("cannot be shown" in words for words in warned)


def test_without_follow_it_is_refused(job, flags):
    feed(job, 1)
    job.refused(
        "--serve=8080 is for a run with --follow", **{**flags, "serve": "8080", "follow": None}
    )
    job.refused(
        "--serve=8080 is for a run with --follow",
        **{**flags, "serve": "8080", "follow": None, "state": None, "clock_file": None},
    )

"""The server of the local setting: real devices answer, and whatever else comes is rejected.

A test stream cannot react to assignments, but they follow from the key and the reports: so the
test runs server and devices in plain Python first, and then feeds the pipeline what it wants.
"""

import copy
import dataclasses
import json
from collections import Counter

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.direct.direct_userstate import BagRuntimeState, DirectUserStateContext
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine import metrics
from streamveil.engine.messages import Kind, Message
from streamveil.engine.stream.release_slots import Publish
from streamveil.engine.stream.report_rounds import Answer, ReportRounds, ask_parts, tally_of
from streamveil.engine.stream_step import StateWentBack
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.local.client.device import Device
from streamveil.mechanisms.local.messages import (
    Report,
    decode_assignment,
    decode_report,
    encode_report,
    largest_report,
)
from streamveil.mechanisms.local.protocol import LocalRelease
from streamveil.mechanisms.local.tokens import TOKEN_BYTES
from streamveil.transforms import CollectReports
from streamveil.transforms.local.collect_reports import _AssignFn
from tests.transforms.stand_ins import Given, Hosted

KEY = bytes(range(60, 92))
N = 40
TABLE = {f"u{i}": (2 + i % 3, 2.0 + i % 2) for i in range(N)}
REGISTRY = Registry.of(TABLE)
HOUR = 3_600_000_000
MINUTE = 60_000_000
FIRST, SECOND = 10, 30  # minutes after the end of a slot
SLOTS = 5


def asking(registry=REGISTRY, domain="abc", **options):
    options = {
        "mechanism": "plpa+",
        "noise_key": KEY,
        "first_deadline": f"{FIRST}m",
        "second_deadline": f"{SECOND}m",
        **options,
    }
    return CollectReports(registry, Categories(tuple(domain)), Slots.of("1h"), **options)


@dataclasses.dataclass
class Played:
    """A slot of a run without Beam."""

    rounds: list
    """Messages of the devices in each round."""
    assignments: list
    """(user, message) of all rounds."""
    release: LocalRelease


def play(transform, silent=lambda slot, round, user: False):
    """Run the server against one `Device` for each user, some of whom may be silent."""
    setting, random = transform.setting, np.random.default_rng(3)
    server, assign = setting.make(), _AssignFn(setting)
    assign.setup()
    one_event = "turns" in setting.mechanism
    devices = {
        user: Device(
            *(i.to_bytes(32, "big"), Requirement(*TABLE[user]), 4, setting.name),
            one_event=one_event,
        )
        for i, user in enumerate(TABLE)
    }
    state, slots = server.start(), []
    for slot in range(SLOTS):
        values = dict(zip(TABLE, random.choice(4, N, p=[0.6, 0.2, 0.1, 0.1]).tolist(), strict=True))
        state, answer = server.stream.begin(state, slot)
        played = Played([], [], None)
        while not isinstance(answer, LocalRelease):
            asked = [one for part in ask_parts(answer) for one in assign.process(part)]
            reports = [
                devices[user].report(message, slot, values[user])
                for user, message in asked
                if not silent(slot, answer.round, user)
            ]
            played.assignments += asked
            played.rounds.append(reports)
            answers = [report_of(setting, report) for report in reports]
            tally, rejected = tally_of(answer, server.stream.users, answers)
            assert rejected == []
            state, answer = server.stream.take(state, tally)
        played.release = server.counted(state, answer)
        slots.append(played)
    return slots


def report_of(setting, data):
    report = decode_report(data)
    user = setting.tokens().user_of(report.slot, report.round, report.token)
    return Answer(report.slot, report.round, user, report.answer).to_bytes()


class Line(beam.PTransform):
    """Reports as they come and heartbeats, with one watermark: time is (slot, minutes)."""

    def __init__(self, transform):
        super().__init__()
        self._transform = transform
        self._stream = Stream(output_tags={"reports", "ticks"})
        self._at = Timestamp(-1)
        for tag in ("reports", "ticks"):
            self._stream.advance_watermark_to(self._at, tag=tag)

    def begin(self, *slots):
        self._stream.add_elements(
            [TimestampedValue(slot, Timestamp(micros=slot * HOUR)) for slot in slots], tag="ticks"
        )
        return self

    def reports(self, *messages):
        self._stream.add_elements([TimestampedValue(m, self._at) for m in messages], tag="reports")
        return self

    def until(self, slot, minutes=0):
        self._at = Timestamp(micros=slot * HOUR + minutes * MINUTE)
        for tag in ("reports", "ticks"):
            self._stream.advance_watermark_to(self._at, tag=tag)
        return self

    def expand(self, pipeline):
        for tag in ("reports", "ticks"):
            self._stream.advance_watermark_to_infinity(tag=tag)
        made = pipeline | self._stream
        self._transform.heartbeat = Given(made["ticks"])
        return made["reports"]


def line_of(transform, slots, extra=None):
    """Everybody answers in time; `extra` are other messages by (slot, round)."""
    line = Line(transform).until(0).begin(0)
    for slot, played in enumerate(slots):
        line.until(slot, 50)
        for round, reports in enumerate(played.rounds, start=1):
            line.reports(*reports[::2]).until(slot + 1, [0, FIRST + 1][round - 1])
            if round == 1 and slot + 1 < len(slots):
                line.begin(slot + 1)
            line.reports(*reports[1::2], *(extra or {}).get((slot, round), []))
            line.until(slot + 1, [FIRST, SECOND][round - 1])
    return line


@pytest.fixture
def live(run_on, monkeypatch):
    """Run a line; the counters beside what it gives, for the runner loses those of timers."""

    def live(transform, line):
        counted = Counter()
        monkeypatch.setattr(metrics, "count", lambda name, n: counted.update({name: n}))
        return run_on("bundle_based", transform, line, "--streaming"), counted

    return live


def assert_released(ran, slots):
    assert ran.slots == list(range(len(slots)))
    for release, played in zip(ran.releases, slots, strict=True):
        np.testing.assert_array_equal(release.counts, played.release.counts)
        np.testing.assert_array_equal(release.stderr, played.release.stderr)
        assert release.status == played.release.status
        assert release.diagnostics == played.release.diagnostics


@pytest.fixture(scope="module")
def slots():
    return play(asking())


@pytest.mark.many
@pytest.mark.parametrize("mechanism", ["plpa+", "rotation:oracle=oue", "rotation:turns=2"])
def test_devices_in_the_loop_give_the_releases_of_plain_python(live, mechanism):
    slots = play(asking(mechanism=mechanism))
    transform = asking(first_slot=0, mechanism=mechanism)
    rounds = {len(played.rounds) for played in slots}
    assert rounds == ({1, 2} if mechanism == "plpa+" else {1})
    ran, counted = live(transform, line_of(transform, slots))
    assert_released(ran, slots)
    assert ran.dead_letters == []
    assert sorted(ran.assignments) == sorted(one for played in slots for one in played.assignments)
    asked = sum(len(played.assignments) for played in slots)
    assert counted[metrics.REPORTS_READ] == counted[metrics.REPORTS_ACCEPTED] == asked
    assert [entry.slot for entry in ran.ledger] == ran.slots
    assert all(
        (entry.spent_in_window <= [r.epsilon for r in entry.classes]).all() for entry in ran.ledger
    )


def test_who_does_not_answer_is_missing_and_no_more(live):
    def silent(slot, round, user):
        return slot == 2 or (7 * slot + int(user[1:])) % 3 == 0

    slots, transform = play(asking(), silent), asking()
    ran, _ = live(transform, line_of(transform, slots))
    assert_released(ran, slots)
    assert ran.releases[2].status != "published"


def altered(message, **fields):
    return encode_report(dataclasses.replace(decode_report(message), **fields))


def test_what_does_not_answer_an_ask_is_rejected_and_counted(live, slots):
    transform = asking()
    tokens = transform.setting.tokens()
    good, other = slots[1].rounds[0][:2]
    idle = next(u for u in range(N) if f"u{u}" not in {user for user, _ in slots[1].assignments})
    extra = {
        (1, 1): [
            b"",
            b"\x01nonsense",
            good + b"\0",
            altered(good, token=decode_report(other).token[:-1] + b"x"),
            altered(good, token=b"short"),
            altered(good, slot=2),  # the token is of another slot
            altered(good, token=tokens.token(1, 1, idle)),
            altered(good, token=tokens.token(3, 1, 0), slot=3),
            altered(good, answer=9),
            altered(good, answer=b"\0"),
            good,
            altered(other, answer=3),  # of several the smallest counts
            *slots[0].rounds[0][:3],
        ],
        (2, 1): slots[1].rounds[0][:1],
    }
    ran, counted = live(transform, line_of(transform, slots, extra))
    reasons = Counter(letter["reason"] for letter in ran.dead_letters)
    assert reasons == {
        "malformed": 5,
        "forged": 3,
        "unsolicited": 2,
        "duplicate": 2,
        "late": 4,
    }
    for reason, number in reasons.items():
        assert counted[metrics.REPORTS_REJECTED_PREFIX + reason] == number
    for letter in ran.dead_letters:
        assert isinstance(json.loads(letter["record"]), dict)
    assert_released(ran, slots)


def test_a_round_closes_at_its_deadline_and_not_before(live, slots):
    transform = asking()
    one, rest = slots[0].rounds[0][:1], slots[0].rounds[0][1:]
    line = Line(transform).begin(0).until(1, 9.99).reports(*rest).until(1, FIRST).reports(*one)
    ran, counted = live(transform, line)
    assert ran.slots == [0]
    assert [letter["reason"] for letter in ran.dead_letters] == ["late"]
    assert counted[metrics.REPORTS_ACCEPTED] == len(rest)


def test_quiet_slots_are_asked_and_released_one_after_the_other(live):
    transform = asking(first_slot=0, last_slot=3)
    ran, _ = live(transform, Line(transform).begin(0).until(2).begin(9).until(9))
    assert ran.slots == [0, 1, 2, 3]
    assert {release.status for release in ran.releases} == {"skipped"}
    asked = Counter(decode_assignment(message).slot for _, message in ran.assignments)
    assert set(asked) == {0, 1, 2, 3}


def test_the_order_of_one_users_different_reports_does_not_matter(slots):
    transform = asking()
    server = transform.setting.make()
    _, ask = server.stream.begin(server.start(), 0)
    user = int(ask.users[0])
    answers = [Answer(0, 1, user, symbol).to_bytes() for symbol in (2, 0, 1)]
    one, rejected = tally_of(ask, server.stream.users, answers)
    two, _ = tally_of(ask, server.stream.users, answers[::-1])
    np.testing.assert_array_equal(one.supports, two.supports)
    assert one.reports.sum() == 1
    assert sum(letters.num_rows for letters in rejected) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first_deadline": "soon"}, "first_deadline"),
        ({"second_deadline": "10m"}, "later second one"),
        ({"second_deadline": "61m"}, "slot is released before"),
        (
            {"registry": Registry.of({"u": (1, 1.0)}, default=(Requirement(1, 1.0), 5))},
            "which users it",
        ),
        ({"mechanism": "pba"}, "'pba' is for requirements"),
    ],
)
def test_what_cannot_work_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        asking(**options)


def test_windows_are_refused():
    with (
        pytest.raises(ValueError, match="the reports are in windows"),
        beam.Pipeline(runner="FnApiRunner") as pipeline,
    ):
        pipeline | beam.Create([b""]) | beam.WindowInto(FixedWindows(9)) | asking()


# ---- what the server keeps ---------------------------------------------------------------------


@pytest.fixture
def state_sizes(monkeypatch):
    """Bytes of reports that BundleBasedDirectRunner holds after each bundle, as it commits."""
    sizes = []
    commit = DirectUserStateContext.commit

    def noted(self):
        for cell in self.cached_states.values():
            if isinstance(cell, BagRuntimeState):
                sizes.append(sum(len(message.payload) for message in cell.read()))
        commit(self)

    monkeypatch.setattr(DirectUserStateContext, "commit", noted)
    return sizes


@pytest.mark.slow
def test_a_huge_report_never_enters_the_state(live, slots, state_sizes):
    """Of 50 MB, for a query with 4 answers: not even its token is looked at."""
    transform = asking()
    good = slots[1].rounds[0][0]
    most = largest_report(4)
    extra = {
        (1, 1): [
            altered(good, answer=bytes(50_000_000)),
            bytes(50_000_000),
            altered(good, token=bytes(1_000_000)),
            altered(good, answer=bytes(2)),  # as long as a report may be, but none
        ]
    }
    ran, counted = live(transform, line_of(transform, slots, extra))
    assert counted[metrics.REPORTS_REJECTED_PREFIX + "malformed"] == 4
    assert max(state_sizes) <= 2 * N * most
    letters = [letter for letter in ran.dead_letters if letter["reason"] == "malformed"]
    assert [f"{most} at most" in letter["detail"] for letter in letters].count(True) == 3
    assert all(len(letter["detail"]) + len(letter["record"]) < 500 for letter in letters)
    assert_released(ran, slots)


def test_a_report_that_comes_again_and_again_does_not_make_the_state_grow(live, slots, state_sizes):
    transform = asking()
    good, other = slots[1].rounds[0][:2]
    extra = {(1, 1): [good, altered(other, answer=3)] * 300}
    ran, counted = live(transform, line_of(transform, slots, extra))
    assert counted[metrics.REPORTS_REJECTED_PREFIX + "duplicate"] == 600
    assert max(state_sizes) <= (2 * N + 1) * largest_report(4)
    assert_released(ran, slots)


def test_the_longest_report_is_one_that_a_device_can_make():
    for symbols in (2, 8, 9, 1000):
        longest = max(
            len(encode_report(Report(bytes(TOKEN_BYTES), 2**40, 2, answer)))
            for answer in (symbols - 1, bytes(-(-symbols // 8)))
        )
        assert longest <= largest_report(symbols) <= longest + 20


def begun(slot, first=False):
    return Message(Kind.START if first else Kind.OPEN, slot)


def rounds_of(transform):
    publish = Publish(transform.slots, transform.mechanism)
    return Hosted(ReportRounds(transform.setting, publish, 600, 1200), "s")


def test_a_start_that_comes_again_asks_nobody_again(slots):
    """It did set the server back to the first slot, which then never came."""
    rounds = rounds_of(asking())

    def tell(slot, first=False):
        return [one.tag for one in rounds.take(begun(slot, first))]

    assert tell(0, first=True) == []
    assert tell(0) == ["asks"]
    assert tell(0, first=True) == tell(0) == []
    assert rounds.progress.value[1][1] == 1  # behind its number, the slot that comes next
    with pytest.raises(ConfigurationError, match="slot 7, and it started with slot 0"):
        tell(7, first=True)


@pytest.mark.parametrize("cell", ["state", "waiting", "progress"])
def test_state_of_a_time_before_is_refused(slots, cell):
    """One cell of it, as it was before the slot was released."""
    rounds = rounds_of(asking())

    def asked():
        return rounds.fn.step._server.decode(rounds.state.value).asked

    def reports(slot):
        for user in asked().users.tolist():
            answer = Answer(slot, asked().round, user, 0).to_bytes()
            rounds.take(Message(Kind.REPORT, slot, payload=answer))

    for message in (begun(0, True), begun(0), begun(1)):
        rounds.take(message)
    reports(0)
    before = copy.deepcopy(getattr(rounds, cell))
    while asked().slot == 0:
        rounds.fire()
    reports(1)
    setattr(rounds, cell, before)
    with pytest.raises(StateWentBack, match="the runner loses updates of state"):
        rounds.fire()

"""Rows and dictionaries as events: read as record batches are, and refused in words."""

import datetime as dt
import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.encode.dead_letters import FAULT_COLUMN
from streamveil.engine.encode.event_mapper import EventMapper
from streamveil.mechanisms import Categories, ConfigurationError, Edges, Registry, Slots
from streamveil.mechanisms.per_record.budget_functions import Inverse
from streamveil.transforms import (
    CollectHistograms,
    CollectPerRecordSum,
    CollectReports,
    Columns,
    ColumnsBudget,
    PerRecordCount,
    PerRecordSum,
    ValueBudget,
    row_batches,
)
from streamveil.transforms.release_plan import PrivateHistograms
from streamveil.transforms.row_batches import _batch, _BatchRowsFn, _cells

HOUR = 3_600_000_000
NAMES = ("user", "value", "time")
USERS = ("ann", "bob", "7")
REGISTRY = Registry.of(dict.fromkeys(USERS, (1, 4000.0)))
ROWS = [("ann", "a", 0), ("bob", "a", 0), ("7", "b", 1), ("ann", "b", 1)]


def at(slot):
    return Timestamp(micros=slot * HOUR + 1000)


class Visit(NamedTuple):
    """As typed sources give it."""

    user: Optional[str]  # noqa: UP045
    value: str
    time: Timestamp
    note: bytes = b""


@dataclass
class Stay:
    user: str
    value: str
    time: int


def iso(slot):
    return at(slot).to_rfc3339()


def transform(**options):
    options = {"noise_key": bytes(32), "mechanism": "pba", "max_rejected": 1.0, **options}
    given = {"columns": Columns("user", "value", "time"), "first_slot": 0, "last_slot": 1}
    return PrivateHistograms(REGISTRY, ["a", "b"], "1h", **{**given, **options})


SOURCES = {
    "rows": [beam.Row(user=u, value=v, time=at(s)) for u, v, s in ROWS],
    "dictionaries": [
        {"user": int(u) if u == "7" else u, "value": v, "time": time, "more": [1]}
        for (u, v, s), time in zip(
            ROWS,
            [iso(0), at(0), dt.datetime(1970, 1, 1, 1), "1970-01-01T02:00:00+01:00"],
            strict=True,
        )
    ],
    "anything": [
        Visit("ann", "a", at(0)),
        {"user": "bob", "value": "a", "time": iso(0)},
        pa.RecordBatch.from_pydict(
            {"user": ["7", "ann"], "value": ["b", "b"], "time": [iso(1), iso(1)]}
        ),
    ],
}


@pytest.mark.parametrize("source", SOURCES)
def test_rows_are_counted_as_record_batches_are(run, kit, source):
    made = beam.Create(SOURCES[source])
    if source == "anything":
        made = made.with_output_types(Any)
    ran = run(transform(), made)
    (first, second) = sorted(ran.releases, key=lambda release: release.slot)
    assert [first.counts.tolist(), second.counts.tolist()] == [[2, 0], [0, 2]]
    assert not ran.rejected


def test_a_dataclass_has_a_schema_as_well(run):
    rows = [Stay(u, v, s * 3600 + 1) for u, v, s in ROWS]
    columns = Columns("user", "value", "time", time_unit="s")
    ran = run(transform(columns=columns), beam.Create(rows).with_output_types(Stay))
    assert sum(release.counts.sum() for release in ran.releases) == len(ROWS)


def test_what_cannot_be_read_is_a_dead_letter(run):
    """With a reason that says which cell, what it holds and what it should; no others are lost."""
    bad = [
        ({"user": b"a"}, "user is b'a', of type bytes, not text, a number, a boolean or a time"),
        ({"user": ["ann"]}, "user is ['ann'], of type list, not"),
        ({"user": math.nan}, "user is nan, of type float, not"),
        ({"value": b"a"}, "value is b'a', of type bytes, not"),
        ({"time": {}}, "time is {}, of type dict, not"),
        ("ann", "user is missing: the element is no row with such a field, but of type str"),
    ]
    good = {"user": "ann", "value": "a", "time": iso(0)}
    rows = [good, *({**good, **row} if isinstance(row, dict) else row for row, _ in bad)]
    rows.append({"value": "a", "time": iso(0)})
    ran = run(transform(), beam.Create(rows).with_output_types(Any))
    *letters, missing = ran.dead_letters
    assert missing["reason"] == "null user"
    assert [letter["reason"] for letter in letters] == ["wrong type"] * len(bad)
    for letter, (_, words) in zip(letters, bad, strict=True):
        assert letter["detail"].startswith(words)
    assert ran.counters["rejected: wrong type"] == len(bad)
    assert sum(release.counts.sum() for release in ran.releases) == 1


def test_why_a_cell_is_missing_never_takes_its_place():
    columns = {"user": pa.string()}
    found = _batch(columns, [_cells("ann", columns)]).to_pylist()
    assert [row["user"] for row in found] == [None]
    assert "the element is no row" in found[0][FAULT_COLUMN]


class Change(NamedTuple):
    """Of a requirement."""

    user: str
    slot: int
    window_backward: int
    epsilon_backward: float
    window_forward: int
    epsilon_forward: float


CHANGE = Change("eve", 1, 1, 4000.0, 1, 4000.0)


@pytest.mark.parametrize("changes", [[CHANGE], [CHANGE._asdict(), {"user": "ann", "slot": 0}]])
def test_changes_of_requirements_may_be_rows(run, changes):
    """A dictionary that lacks the figures does not say that a user leaves."""
    rows = [{"user": u, "value": "a", "time": iso(s)} for u in ("ann", "eve") for s in (0, 1)]
    made = transform(mechanism="dpbd", longest_window=1)
    ran = run(WithChanges(made, changes), beam.Create(rows))
    assert [release.counts.tolist() for release in ran.releases] == [[1, 0], [2, 0]]
    reasons = Counter((letter["reason"], letter["detail"]) for letter in ran.dead_letters)
    missing = ("wrong type", "window_backward is missing: a key that is needed")
    assert reasons.pop(missing, 0) == len(changes) - 1
    assert [reason for reason, _ in reasons] == ["no requirement"]


class WithChanges(beam.PTransform):
    """The transform over events, with changes that are all known."""

    def __init__(self, made, changes):
        super().__init__()
        self.made, self.changes = made, changes

    def expand(self, events):
        return (events, events.pipeline | "Changes" >> beam.Create(self.changes)) | self.made


# What is refused before anything runs ----------------------------------------------------------


class Floats(NamedTuple):
    user: float
    value: str
    time: Timestamp


class Lists(NamedTuple):
    user: str
    value: list[str]
    time: Timestamp


class Unknown(NamedTuple):
    user: str
    place: str
    time: Timestamp


class Clock(NamedTuple):
    user: str
    value: str
    time: bool


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (str, ["events are elements of type str", "with_output_types"]),
        (tuple[str, str], ["elements of type Tuple"]),
        (Unknown, ["events have no field 'value'", "there are: user, place, time"]),
        (Floats, ["'user' holds double", "text or whole numbers"]),
        (Lists, ["field 'value' of the events is of type", "str", "text, a number or a time"]),
        (Clock, ["'time' holds bool", "ISO 8601"]),
    ],
)
def test_elements_of_other_types_are_refused(kind, words):
    events = beam.Pipeline(runner=FnApiRunner()) | beam.Create([]).with_output_types(kind)
    for made in (transform(), local()):
        refused(lambda made=made: events | type(made).__name__ >> made, words)


def test_rows_in_windows_are_refused():
    rows = beam.Pipeline(runner=FnApiRunner()) | beam.Create([Visit("ann", "a", at(0))])
    with pytest.raises(ValueError, match="windows"):
        rows | beam.WindowInto(FixedWindows(60)) | transform()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"registry": "users.csv"}, ["registry is 'users.csv'", "read_requirements"]),
        ({"domain": "cafe"}, ["domain is 'cafe'"]),
        ({"slots": 3600}, ["slots is 3600"]),
        ({"columns": ("user", "value", "time")}, ["columns is (", "Columns(user, value, time)"]),
        ({"columns": {"user": "u", "value": "v"}}, ["columns is {"]),
        ({"columns": {"user": "u", "value": "v", "time": "t", "zone": "UTC"}}, ["'zone'"]),
        ({"mechanism": None}, ["mechanism is None"]),
        ({"first_slot": "2024-05-01"}, ["first_slot is '2024-05-01'", "number of a slot"]),
        ({"may_be_empty": "False"}, ["may_be_empty is 'False'"]),
        ({"heartbeat": 60}, ["heartbeat is 60", "PTransform"]),
        ({"resume": (5, b"state")}, ["resume is of type tuple", "read_state"]),
        ({"noise_key": 32}, ["noise_key is of type int", "32 secret bytes"]),
        ({"noise_key": "5e" * 32}, ["noise_key is of type str"]),
    ],
)
def test_arguments_of_other_types_are_refused(given, words):
    for made in (histograms, local):
        refused(lambda made=made: made(**given), words)
        assert "5e5e" not in str(refused(lambda made=made: made(**given), words))


def histograms(**given):
    plain = {"registry": REGISTRY, "domain": ["a", "b"], "slots": "1h"}
    columns = {"user": "user", "value": "value", "time": "time"}
    return PrivateHistograms(**{**plain, "columns": columns, **given})


def local(**given):
    plain = {"registry": REGISTRY, "domain": ["a", "b"], "slots": "1h"}
    columns = {"user": "user", "value": "value", "time": "time"}
    return CollectHistograms(**{**plain, "columns": columns, **given})


def test_arguments_of_the_server_of_reports_are_taken_or_refused():
    def server(slots):
        table = dict.fromkeys(USERS, (1, 4000.0))
        return CollectReports(table, ["a", "b"], slots, "10m", "20m", noise_key=bytes(32))

    assert server("1h").domain == Categories(("a", "b"))
    refused(lambda: server(3600), ["slots is 3600"])


def test_plain_arguments_are_taken():
    table = dict.fromkeys(USERS, (1, 4000.0))
    for make in (histograms, local):
        made = make(registry=table, first_slot=np.int64(3))
        assert made.registry.fingerprint == REGISTRY.fingerprint
        assert made.domain == Categories(("a", "b"))
        assert made.slots == Slots.of("1h")
        assert made.columns == Columns("user", ("value",), "time")
        assert made.first_slot == 3


# Statistics of records -------------------------------------------------------------------------

BUDGET = ValueBudget("amount", Inverse(1000.0, 10.0, 1000.0))


class Purchase(NamedTuple):
    shop: str
    amount: float


PURCHASES = [("x", 1.0), ("x", 2.0), ("y", 3.5), ("z", 4.0)]


@pytest.mark.parametrize("kind", [Purchase, dict])
def test_records_may_be_rows(tmp_path, kit, kind):
    """What cannot be read counts nowhere and is reported nowhere."""
    rows = [Purchase(*row) for row in PURCHASES]
    if kind is dict:
        rows = [row._asdict() for row in rows] + [{"shop": "x", "amount": [9]}, {"shop": "x"}]
    made = PerRecordSum(BUDGET, "amount", key="shop", keys=["x", "y"], noise_key=bytes(32))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        source = beam.Create(rows)
        pipeline | source | made | kit.collect(tmp_path / "rows")
    found = {row.key: row.estimate for row in kit.collected(tmp_path / "rows")}
    assert found == {"x": pytest.approx(3, abs=1), "y": pytest.approx(3.5, abs=1)}


def test_a_budget_of_columns_gets_the_types_of_its_grid(tmp_path, kit):
    """Dictionaries declare none: its function would fail on text, in silence."""
    budget = ColumnsBudget("amount", _flat, 500.0, 500.0, grid={"amount": [1, 2]})
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([{"amount": 1.5}, {"amount": 2}, {"amount": "3"}])
        rows | PerRecordCount(budget, noise_key=bytes(32)) | kit.collect(tmp_path / "rows")
    (row,) = kit.collected(tmp_path / "rows")
    assert row.estimate == pytest.approx(2, abs=0.5)


def _flat(amounts):
    assert pa.types.is_floating(amounts.type) or pa.types.is_integer(amounts.type)
    return np.where(amounts.is_valid().to_numpy(zero_copy_only=False), 500.0, np.nan)


def test_devices_may_be_rows(tmp_path, kit):
    made = CollectPerRecordSum(BUDGET, "amount", device="shop", noise_key=bytes(32))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([Purchase(*row) for row in PURCHASES])
        rows | made | kit.collect(tmp_path / "rows")
    (row,) = kit.collected(tmp_path / "rows")
    assert row.estimate == pytest.approx(10.5, abs=3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 1.0}, ["budget is 1.0, of type float", "ValueBudget"]),
        ({"budget": ValueBudget}, ["budget is", "ValueBudget(column, function)"]),
        ({"value": ("amount",)}, ["value is ('amount',)", "name of a column"]),
        ({"keys": "x"}, ["keys is 'x'", "['x']"]),
        ({"key": 5}, ["key is 5"]),
        ({"time": 5}, ["time is 5"]),
        ({"value_max": "10"}, ["value_max is '10'", "a number"]),
        ({"mechanism": PerRecordSum}, ["mechanism is"]),
        ({"slots": 5, "time": "time"}, ["slots is 5"]),
    ],
)
def test_arguments_of_statistics_are_refused(given, words):
    plain = {"budget": BUDGET, "value": "amount", "key": "shop", "keys": ["x"]}
    refused(lambda: PerRecordSum(**{**plain, **given}), words)


def test_fields_of_records_are_refused_by_type():
    class Raw(NamedTuple):
        shop: str
        amount: bytes

    records = beam.Pipeline(runner=FnApiRunner()) | beam.Create([]).with_output_types(Raw)
    refused(lambda: records | PerRecordSum(BUDGET, "amount"), ["'amount' holds binary"])
    refused(
        lambda: records | "Lacks" >> PerRecordCount(ValueBudget("x", BUDGET.function)),
        ["the records have no field 'x'"],
    )


# One record changes nothing about another ------------------------------------------------------

CELLS = {
    "user": [*USERS, 7, 7.0, Decimal("7.00"), np.int64(7), "x", "", 2**70, -0.0, 1e300],
    "value": ["a", "1", 1, 1.0, 0.5, "0.5", Decimal("1E+0"), np.float64(0.5), 2**53 + 1],
    "time": [at(0), at(5), iso(1), dt.date(1970, 1, 2), dt.datetime(1970, 1, 1, 5), "noon", 5],
}
ODD = [None, True, math.nan, math.inf, b"a", [], {}, object(), "\ud800", "é", 10**5000, 1j]
KINDS = {
    "user": [None, pa.string(), pa.int64()],
    "value": [None, pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.int8()],
    "time": [None, pa.string(), pa.timestamp("us", "UTC")],
}


@pytest.mark.parametrize("domain", [Categories(("a", "1", "0.5")), Edges((0.0, 1.0, 2.0))])
@pytest.mark.parametrize("seed", range(30))
def test_one_record_changes_nothing_about_another(seed, domain):
    """Whatever is declared and whatever cells hold."""
    draw = Random(seed)
    columns = {name: draw.choice(kinds) for name, kinds in KINDS.items()}
    if isinstance(domain, Categories) and columns["value"] in (pa.float64(), pa.float32()):
        columns["value"] = None
    mapper = EventMapper(
        Columns("user", "value", "time", time_unit="s"), Slots.of("1h"), domain, REGISTRY, bytes(32)
    )

    def record():
        def cell(name):
            return draw.choice(ODD if draw.random() < 0.1 else CELLS[name])

        return tuple(cell(name) for name in NAMES)

    def read(records):
        events, rejected = mapper.map(_batch(columns, records))
        found = zip(
            events.members.tolist(), events.slots.tolist(), events.bins.tolist(), strict=True
        )
        return Counter(found), Counter(map(str, rejected.to_pylist()))

    records = [record() for _ in range(draw.randrange(1, 12))]
    one_by_one = [read([each]) for each in records]
    together = read(records)
    for at_once, parts in zip(together, zip(*one_by_one, strict=True), strict=True):
        assert at_once == sum(parts, Counter())


def test_declared_and_undeclared_cells_are_read_alike():
    cells = [("ann", "a", at(0)), ("7", "1", at(1)), ("bob", "0.5", at(2))]
    kinds = {"user": pa.string(), "value": pa.string(), "time": pa.timestamp("us", "UTC")}
    mapper = EventMapper(
        Columns("user", "value", "time"),
        Slots.of("1h"),
        Categories(("a", "1", "0.5")),
        REGISTRY,
        bytes(32),
    )
    declared, _ = mapper.map(_batch(kinds, cells))
    undeclared, _ = mapper.map(_batch(dict.fromkeys(NAMES), cells))
    for name in ("members", "slots", "bins"):
        np.testing.assert_array_equal(getattr(declared, name), getattr(undeclared, name))


# Bundles and time ------------------------------------------------------------------------------


def bundle(columns, *elements):
    """What the step gives for elements with times: before the bundle ends, then at its end."""
    step = _BatchRowsFn(columns)
    step.start_bundle()
    before = [out for element, time in elements for out in step.process(element, time)]
    return before, list(step.finish_bundle())


def test_a_batch_holds_the_watermark_at_its_earliest_row():
    (_, (batch,)) = bundle({"x": None}, ({"x": 2}, at(3)), ({"x": 1}, at(1)), ({"x": 3}, at(2)))
    assert batch.timestamp == at(1)
    assert batch.value.to_pydict() == {"x": ["2", "1", "3"]}


def test_nothing_outlives_a_bundle():
    step = _BatchRowsFn({"x": None})
    for value in (1, 2):
        step.start_bundle()
        assert not list(step.process({"x": value}, at(value)))
        (out,) = step.finish_bundle()
        assert (out.value.to_pydict(), out.timestamp) == ({"x": [str(value)]}, at(value))
    step.start_bundle()
    assert not list(step.finish_bundle())


@pytest.mark.parametrize("limit", ["BATCH_ROWS", "BATCH_CHARACTERS"])
def test_batches_are_bounded(monkeypatch, limit):
    monkeypatch.setattr(row_batches, limit, 4)
    before, after = bundle({"x": None}, *(({"x": "a"}, at(i)) for i in range(10)))
    assert [out.value.num_rows for out in before] == [4, 4]
    assert [out.timestamp for out in before] == [at(0), at(4)]
    assert [out.value.num_rows for out in after] == [2]


def test_record_batches_pass_by_as_they_are():
    batch = pa.RecordBatch.from_pydict({"y": [1]})
    before, after = bundle({"x": None}, ({"x": 1}, at(0)), (batch, at(1)))
    assert before == [batch]
    assert len(after) == 1


def refused(make, words):
    """One line, that says all these words."""
    with pytest.raises(ConfigurationError) as error:
        make()
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    return text

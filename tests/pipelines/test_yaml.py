"""The transforms of Beam YAML: rows in, rows out, the options of the commands."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.yaml.yaml_provider import load_providers

from streamveil.io import RESULT_SCHEMA, read_table
from streamveil.mechanisms.core.records import TEST, ConfigurationError
from streamveil.pipelines import yaml

USERS = {f"u{w}": (w, 4000.0) for w in (1, 2, 3)}
ROWS = [
    ("u1", "A", "2024-01-01T08:00:00Z"),
    ("u2", "A", "2024-01-01T09:00:00Z"),
    ("u3", "B", "2024-01-02T09:00:00Z"),
]
BAD = [
    (None, "A", "2024-01-01T08:00:00Z"),
    ("u1", "Z", "2024-01-01T08:00:00Z"),
    ("u1", "A", "noon"),
    ("stranger", "A", "2024-01-01T08:00:00Z"),
]
REASONS = {"null user", "outside the domain", "unparsable time", "no requirement"}


class Event(NamedTuple):
    """A row as typed sources give it."""

    user: str | None
    value: str
    time: str


class Visit(NamedTuple):
    """A row with other types: a number, a time, and one that the schema leaves open."""

    user: int
    value: Any
    time: Timestamp


@pytest.fixture
def config(job):
    """What the job of the command line says, but for the places."""
    job.requirements(USERS)
    given = {
        **job.flags,
        "start": "2024-01-01",
        "end": "2024-01-03",
        "noise_key": job.key(),
    }
    places = ("input", "output", "layout")
    return {name: value for name, value in given.items() if name not in places}


@pytest.fixture
def run(tmp_path):
    """Apply a transform to rows; gives the rows of each output, as dictionaries, by slot."""

    def ran(transform, rows, kind=Event):
        made = beam.Create([kind(*row) for row in rows])
        return ran_on("FnApiRunner", transform, made.with_output_types(kind))

    def ran_on(runner, transform, source, **options):
        with beam.Pipeline(runner=runner, options=PipelineOptions(**options)) as pipeline:
            outputs = pipeline | source | transform
            for name, output in outputs.items():
                output | f"Note{name}" >> beam.Map(_note, str(tmp_path / f"{name}.rows"))
        return {name: _read(tmp_path / f"{name}.rows") for name in outputs}

    ran.on = ran_on
    return ran


def _note(row, path):
    with open(path, "a", encoding="utf-8") as file:
        print(json.dumps(row._asdict()), file=file)


def _read(path):
    """The rows by slot; the file is gone after that."""
    lines = path.read_text(encoding="utf-8").splitlines()
    path.unlink()
    return sorted(map(json.loads, lines), key=lambda row: row.get("slot", 0))


def test_releases_are_those_of_the_command(job, config, run):
    """With the same key, number by number, and with the same names."""
    job.lines(*(",".join(row) for row in ROWS))
    job.done(**config, ledger=job.path("ledger.jsonl"))
    found = run(yaml.private_queries(**config, ledger="spent", details="wide"), ROWS)
    assert found["wide"] == job.json_rows("out.jsonl")
    assert list(found["results"][0]) == RESULT_SCHEMA.names
    values = [value for release in found["wide"] for value in release["counts"]]
    assert [round(row["value"]) for row in found["results"]] == values
    assert found["spent"] == job.json_rows("ledger.jsonl")


def test_releases_of_the_local_setting_are_those_of_the_command(job, config, run):
    job.command = "collect"
    job.lines(*(",".join(row) for row in ROWS))
    job.done(**config)
    found = run(yaml.collect_histograms(**config, details="wide"), ROWS)
    assert found["wide"] == job.json_rows("out.jsonl")


ASKED = {
    "slot": "1d",
    "queries": [
        {"name": "places", "by": "value", "keys": ["A", "B", "C"], "mechanism": "ba"},
        {"name": "users", "every": "2d", "statistic": "distinct", "mechanism": "ba"},
    ],
}


@pytest.fixture
def asked(config):
    """The configuration of a query set."""
    of_one = ("value_column", "slot", "domain")
    return {name: value for name, value in config.items() if name not in of_one}


def test_answers_are_those_of_the_command(job, asked, run):
    job.lines(*(",".join(row) for row in ROWS))
    job.flags = {"input": job.flags["input"], "output": job.path("answers"), **asked}
    queries = job.write("queries.yaml", json.dumps(ASKED))
    job.done(queries=queries, ledger=job.path("ledger.jsonl"))
    for given in (ASKED, queries):
        found = run(yaml.private_queries(**asked, queries=given, ledger="spent"), ROWS)
        assert set(found) == {"results", "spent"}
        assert {row["query"] for row in found["results"]} == {"places", "users"}
        places = [row for row in found["results"] if row["query"] == "places"]
        written = read_table(job.path("answers/places.parquet")).to_pylist()
        for name in ("key", "value", "low", "status"):
            assert [row[name] for row in places] == [row[name] for row in written]
        spent = [row for row in found["spent"] if row["query"] == "places"]
        ledger = [row for row in job.json_rows("ledger.jsonl") if row["query"] == "places"]
        assert sorted(map(str, spent)) == sorted(map(str, ledger))


def test_keys_are_discovered_as_by_the_command(job, asked, run):
    queries = {"slot": "1d", "queries": [{"name": "places", "by": "value", "keys": "discover"}]}
    job.lines(*(",".join(row) for row in ROWS))
    job.flags = {"input": job.flags["input"], "output": job.path("answers"), **asked}
    job.done(queries=job.write("queries.yaml", json.dumps(queries)), delta=1e-3)
    # YAML reads a number without a point as text.
    found = run(yaml.private_queries(**asked, queries=queries, delta="1e-3"), ROWS)["results"]
    written = read_table(job.path("answers/places.parquet")).to_pylist()
    assert {row["key"] for row in written} == {"A", "unlisted"}
    for name in ("key", "value", "low", "status"):
        assert [row[name] for row in found] == [row[name] for row in written]
    with pytest.raises(ConfigurationError, match="give this probability as delta"):
        yaml.private_queries(**asked, queries=queries)


def test_slots_may_be_months(config, asked, run):
    whole = {"requirements": None, "budget": "4/1y", "start": "2024-01-01", "end": "2024-07-01"}
    places, users = ASKED["queries"]
    months = {"slot": "1mo", "queries": [places, {**users, "every": "3mo"}]}
    found = run(yaml.private_queries(**{**asked, **whole}, queries=months), ROWS)["results"]
    slots = {(row["query"], row["slot"]) for row in found}
    assert slots == {("places", slot) for slot in range(648, 654)} | {
        ("users", 216),
        ("users", 217),
    }
    count = run(yaml.private_queries(**{**config, **whole, "slot": "1mo"}), ROWS)["results"]
    assert {row["slot"] for row in count} == set(range(648, 654))


# An output that takes the place of another one would be lost without a word.
@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"ledger": "results"}, "two outputs are called 'results': give them different names"),
        ({"ledger": "a", "error_handling": {"output": "a"}}, "two outputs are called 'a'"),
        ({"error_handling": {"name": "bad"}}, "an output is called None: give it a name"),
    ],
)
def test_outputs_have_names_of_their_own(asked, named, words):
    made = yaml.private_queries(**asked, queries=ASKED, **named)
    rows = [Event(*row) for row in ROWS]
    with pytest.raises(ConfigurationError, match=words):
        beam.Pipeline() | beam.Create(rows).with_output_types(Event) | made


def test_wrong_queries_are_refused(asked):
    with pytest.raises(ConfigurationError, match=r"^value_column is missing"):
        yaml.private_queries(**asked)
    with pytest.raises(ConfigurationError, match=r"^slot=1d is not for queries"):
        yaml.private_queries(**asked, queries=ASKED, slot="1d")
    with pytest.raises(ConfigurationError, match="revisions=later needs the slots"):
        yaml.private_queries(**asked, queries=ASKED, revisions="later")
    with pytest.raises(ConfigurationError, match=r"no 'query' here; there are: .* queries"):
        yaml.private_queries(**asked, query=ASKED)
    wrong = {**ASKED, "queries": [{"name": "q", "every": "36h"}]}
    with pytest.raises(ConfigurationError, match="not a multiple of slot 1d"):
        yaml.private_queries(**asked, queries=wrong)


def test_test_mode_is_on_where_it_is_written_alone(config, asked, run):
    several = {**asked, "queries": ASKED}
    for given, value in ((config, True), (several, "true")):
        found = run(yaml.private_queries(**given, test_mode=value, ledger="spent"), ROWS)
        assert {row["status"] for row in found["results"]} == {TEST}
        assert {(row["spent"], row["epsilon"]) for row in found["spent"]} == {(0, 0)}
    for given, value in ((config, False), (several, "false"), (config, None)):
        found = run(yaml.private_queries(**given, test_mode=value), ROWS)
        assert TEST not in {row["status"] for row in found["results"]}
    with pytest.raises(ConfigurationError, match="neither true nor false"):
        yaml.private_queries(**config, test_mode="perhaps")


def test_one_budget_for_ever_gives_shares(config, run):
    del config["requirements"]
    made = yaml.private_queries(**config, guarantee="infinite", epsilon=1, details="wide")
    (first, _) = run(made, ROWS)["wide"]
    assert len(first["shares"]) == 3


def test_a_row_for_each_slot_and_bin_is_an_output_if_asked_for(config, tmp_path):
    """With times that are times, for sinks that know them."""
    path, made = str(tmp_path / "rows"), yaml.private_queries(**config, rows="tidy")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        outputs = pipeline | beam.Create([Event(*row) for row in ROWS]) | made
        assert set(outputs) == {"results", "tidy"}
        start = outputs["tidy"] | beam.Map(
            lambda row: (row.start.micros, row.key, round(row.value))
        )
        start | beam.Map(_append, path)
    found = sorted(Path(path).read_text().splitlines())
    day = Timestamp.from_rfc3339("2024-01-01").micros
    counts = [[2, 0, 0], [0, 1, 0]]
    expected = [
        repr((day + 86_400_000_000 * slot, name, counts[slot][bin]))
        for slot in range(2)
        for bin, name in enumerate("ABC")
    ]
    assert found == sorted(expected)


def _append(value, path):
    with open(path, "a", encoding="utf-8") as file:
        print(repr(value), file=file)


def test_dead_letters_are_an_output_if_asked_for(config, run):
    config["max_rejected"] = 1
    made = yaml.private_queries(**config, error_handling={"output": "bad"}, details="releases")
    found = run(made, [*ROWS, *BAD])
    assert {row["reason"] for row in found["bad"]} == REASONS
    assert [row["counts"] for row in found["releases"]] == [[2, 0, 0], [0, 1, 0]]
    assert set(run(yaml.private_queries(**config), [*ROWS, *BAD])) == {"results"}


def test_a_stream_of_rows_holds_the_watermark(config, run):
    """A slot is released when time has passed it; rows that come after that are late."""
    made = yaml.private_queries(**config, error_handling={"output": "bad"}, details="releases")
    first = made.transform.first_slot
    ticks = beam.Create([first, first + 1])
    made.transform = dataclasses.replace(made.transform, heartbeat=ticks)
    on_time, late, next_day = (
        TimestampedValue(Event(*row), Timestamp.from_rfc3339(row[2])) for row in ROWS
    )
    stream = Stream(beam.coders.registry.get_coder(Event)).add_elements([on_time])
    stream.advance_watermark_to(Timestamp.from_rfc3339("2024-01-02T00:00:01Z"))
    stream.add_elements([late]).add_elements([next_day]).advance_watermark_to_infinity()
    source = stream.with_output_types(Event)
    found = run.on("BundleBasedDirectRunner", made, source, streaming=True)
    assert [row["counts"] for row in found["releases"]] == [[1, 0, 0], [0, 1, 0]]
    assert [row["reason"] for row in found["bad"]] == ["late"]


def test_fields_may_be_numbers_and_times(config, job, run):
    """Users 1 and 2 by number; a field of any type is its text, whole numbers without a point."""
    job.requirements({"1": (1, 4000.0), "2": (1, 4000.0)})
    start = Timestamp.from_rfc3339("2024-01-01T08:00:00Z")
    rows = [(1, 7, start), (2, 7.0, start), (1, "8", start + 86400), (2, None, start + 86400)]
    made = yaml.private_queries(
        **{**config, "domain": [7, "8"]}, error_handling={"output": "bad"}, details="releases"
    )
    found = run(made, rows, Visit)
    assert [row["counts"] for row in found["releases"]] == [[2, 0], [0, 1]]
    assert [row["reason"] for row in found["bad"]] == ["null value"]


def test_statistics_of_records(job, run):
    """A record that is none of those that count leaves no trace, and no output tells of it."""
    made = yaml.per_record_statistic(
        statistic="sum", value_column="value", budget="inverse:1000", value_max=10, epsilon_max=1000
    )
    good = [("a", str(value), "") for value in (1, 2, 3, 4)]
    found = run(made, [*good, ("b", "many", ""), ("c", "-1", "")])
    assert set(found) == {"statistics"}
    (row,) = found["statistics"]
    assert row["statistic"] == "sum"
    assert row["key"] is None
    assert row["start"] is None
    assert row["estimate"] == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slott": "1d"}, ["'slott'", "there are:", "slot"]),
        ({"slot": None}, ["slot is missing"]),
        ({"slot": "a day"}, ["a day"]),
        ({"max_contributions": "many"}, ["max_contributions=many"]),
        ({"noise_key": "5e" * 32}, ["noise_key is not the key"]),
        ({"input": "events.csv"}, ["'input'"]),
        ({"requirement_changes": "changes.csv"}, ["'requirement_changes'"]),
    ],
)
def test_a_wrong_configuration_is_refused(config, changes, words):
    with pytest.raises(ConfigurationError) as refused:
        yaml.private_queries(**{**config, **changes})
    for word in words:
        assert word in str(refused.value)
    assert "5e5e" not in str(refused.value)


def test_rows_without_the_fields_are_refused(config):
    pipeline = beam.Pipeline(runner="FnApiRunner")
    made = yaml.private_queries(**{**config, "value_column": "place"})
    with pytest.raises(ConfigurationError, match="no field 'place'; there are: user, value, time"):
        pipeline | "Rows" >> beam.Create([Event(*ROWS[0])]).with_output_types(Event) | made
    with pytest.raises(ConfigurationError, match="of type str: give rows"):
        pipeline | "Texts" >> beam.Create(["u1"]) | "Made" >> made


def test_rows_in_windows_are_refused(config):
    rows = beam.Pipeline(runner="FnApiRunner") | beam.Create([Event(*ROWS[0])]).with_output_types(
        Event
    )
    with pytest.raises(ValueError, match="windows"):
        rows | beam.WindowInto(FixedWindows(60)) | yaml.private_queries(**config)


def test_the_listing_documents_every_option():
    path = Path(yaml.__file__).with_name("yaml_providers.yaml")
    (provider,) = load_providers(str(path))
    assert set(provider.provided_transforms()) == {
        "PrivateQueries",
        "CollectHistograms",
        "PerRecordStatistic",
    }
    for kind in provider.provided_transforms():
        assert provider.description(kind)
        fields = {field.name: field for field in provider.config_schema(kind).fields}
        assert {"slot", "noise_key"} <= set(fields)
        assert ("queries" in fields) == (kind == "PrivateQueries")
        assert not {"input", "output", "rejected", "state", "resume"} & set(fields)
        assert all(field.description for field in fields.values()), fields

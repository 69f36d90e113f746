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

from streamveil.io import read_table
from streamveil.mechanisms.core.records import ConfigurationError
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
    return {name: value for name, value in given.items() if name not in ("input", "output")}


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
    found = run(yaml.private_histograms(**config, ledger="spent"), ROWS)
    assert found["releases"] == job.json_rows("out.jsonl")
    assert found["spent"] == job.json_rows("ledger.jsonl")


def test_releases_of_the_local_setting_are_those_of_the_command(job, config, run):
    job.command = "collect"
    job.lines(*(",".join(row) for row in ROWS))
    job.done(**config)
    found = run(yaml.collect_histograms(**config), ROWS)
    assert found["releases"] == job.json_rows("out.jsonl")


ASKED = {
    "base_slot": "1d",
    "questions": [
        {"name": "places", "value": "value", "domain": ["A", "B", "C"], "mechanism": "ba"},
        {"name": "users", "slot": "2d", "statistic": "distinct", "mechanism": "ba"},
    ],
}


@pytest.fixture
def asked(config):
    """The configuration of a portfolio."""
    of_one = ("value_column", "slot", "domain")
    return {name: value for name, value in config.items() if name not in of_one}


def test_answers_are_those_of_the_command(job, asked, run):
    job.lines(*(",".join(row) for row in ROWS))
    job.flags = {"input": job.flags["input"], "output": job.path("answers"), **asked}
    questions = job.write("questions.yaml", json.dumps(ASKED))
    job.done(questions=questions, ledger=job.path("ledger.jsonl"))
    for given in (ASKED, questions):
        found = run(yaml.private_answers(**asked, questions=given, ledger="spent"), ROWS)
        assert set(found) == {"answers", "spent"}
        assert {row["question"] for row in found["answers"]} == {"places", "users"}
        places = [row for row in found["answers"] if row["question"] == "places"]
        written = read_table(job.path("answers/places.parquet")).to_pylist()
        for name in ("bin", "value", "low", "status"):
            assert [row[name] for row in places] == [row[name] for row in written]
        spent = [row for row in found["spent"] if row["question"] == "places"]
        ledger = [row for row in job.json_rows("ledger.jsonl") if row["question"] == "places"]
        assert sorted(map(str, spent)) == sorted(map(str, ledger))


# An output that takes the place of another one would be lost without a word.
@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"ledger": "answers"}, "two outputs are called 'answers': name them apart"),
        ({"ledger": "a", "error_handling": {"output": "a"}}, "two outputs are called 'a'"),
        ({"error_handling": {"name": "bad"}}, "an output is called None: give it a name"),
    ],
)
def test_outputs_have_names_of_their_own(asked, named, words):
    made = yaml.private_answers(**asked, questions=ASKED, **named)
    rows = [Event(*row) for row in ROWS]
    with pytest.raises(ConfigurationError, match=words):
        beam.Pipeline() | beam.Create(rows).with_output_types(Event) | made


def test_wrong_questions_are_refused(asked):
    with pytest.raises(ConfigurationError, match="questions are missing"):
        yaml.private_answers(**asked)
    with pytest.raises(ConfigurationError, match="there is no 'slot' here"):
        yaml.private_answers(**asked, questions=ASKED, slot="1d")
    with pytest.raises(ConfigurationError, match=r"no 'question' here; there are: .* questions"):
        yaml.private_answers(**asked, question=ASKED)
    wrong = {**ASKED, "questions": [{"name": "q", "slot": "36h"}]}
    with pytest.raises(ConfigurationError, match="not a multiple of base_slot 1d"):
        yaml.private_answers(**asked, questions=wrong)


def test_one_budget_for_ever_gives_shares(config, run):
    del config["requirements"]
    made = yaml.private_histograms(**config, guarantee="infinite", epsilon=1)
    (first, _) = run(made, ROWS)["releases"]
    assert len(first["shares"]) == 3


def test_a_row_for_each_slot_and_bin_is_an_output_if_asked_for(config, tmp_path):
    """With times that are times, for sinks that know them."""
    path, made = str(tmp_path / "rows"), yaml.private_histograms(**config, rows="tidy")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        outputs = pipeline | beam.Create([Event(*row) for row in ROWS]) | made
        assert set(outputs) == {"releases", "tidy"}
        start = outputs["tidy"] | beam.Map(
            lambda row: (row.start.micros, row.bin, round(row.count))
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
    made = yaml.private_histograms(**config, error_handling={"output": "bad"})
    found = run(made, [*ROWS, *BAD])
    assert {row["reason"] for row in found["bad"]} == REASONS
    assert [row["counts"] for row in found["releases"]] == [[2, 0, 0], [0, 1, 0]]
    assert set(run(yaml.private_histograms(**config), [*ROWS, *BAD])) == {"releases"}


def test_a_stream_of_rows_holds_the_watermark(config, run):
    """A slot is released when time has passed it; rows that come after that are late."""
    made = yaml.private_histograms(**config, error_handling={"output": "bad"})
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
    made = yaml.private_histograms(
        **{**config, "domain": [7, "8"]}, error_handling={"output": "bad"}
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
        ({"slot": None}, ["--slot is missing"]),
        ({"slot": "a day"}, ["a day"]),
        ({"max_contributions": "many"}, ["--max_contributions", "many"]),
        ({"noise_key": "5e" * 32}, ["--noise_key"]),
        ({"input": "events.csv"}, ["'input'"]),
        ({"requirement_changes": "changes.csv"}, ["'requirement_changes'"]),
    ],
)
def test_a_wrong_configuration_is_refused(config, changes, words):
    with pytest.raises(ConfigurationError) as refused:
        yaml.private_histograms(**{**config, **changes})
    for word in words:
        assert word in str(refused.value)
    assert "5e5e" not in str(refused.value)


def test_rows_without_the_fields_are_refused(config):
    pipeline = beam.Pipeline(runner="FnApiRunner")
    made = yaml.private_histograms(**{**config, "value_column": "place"})
    with pytest.raises(ConfigurationError, match="no field 'place'; there are: user, value, time"):
        pipeline | "Rows" >> beam.Create([Event(*ROWS[0])]).with_output_types(Event) | made
    with pytest.raises(ConfigurationError, match="of type str: give rows"):
        pipeline | "Texts" >> beam.Create(["u1"]) | "Made" >> made


def test_rows_in_windows_are_refused(config):
    rows = beam.Pipeline(runner="FnApiRunner") | beam.Create([Event(*ROWS[0])]).with_output_types(
        Event
    )
    with pytest.raises(ValueError, match="windows"):
        rows | beam.WindowInto(FixedWindows(60)) | yaml.private_histograms(**config)


def test_the_listing_documents_every_option():
    path = Path(yaml.__file__).with_name("yaml_providers.yaml")
    (provider,) = load_providers(str(path))
    assert set(provider.provided_transforms()) == {
        "PrivateHistograms",
        "PrivateAnswers",
        "CollectHistograms",
        "PerRecordStatistic",
    }
    for kind in provider.provided_transforms():
        assert provider.description(kind)
        fields = {field.name: field for field in provider.config_schema(kind).fields}
        asked = "questions" if kind == "PrivateAnswers" else "slot"
        assert {asked, "noise_key"} <= set(fields)
        assert not {"input", "output", "rejected", "state", "resume"} & set(fields)
        assert all(field.description for field in fields.values()), fields

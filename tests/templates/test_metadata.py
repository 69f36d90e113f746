"""The metadata of the Flex templates: what Dataflow reads, and true to the options."""

import json
import re
import shlex
from pathlib import Path

import pytest
from google.cloud.dataflow_v1beta3.types import TemplateMetadata
from google.protobuf import json_format

from streamveil.pipelines.flex import TEMPLATES, write_metadata
from streamveil.pipelines.main import main
from streamveil.pipelines.options.command_table import COMMANDS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "templates" / "Dockerfile").read_text()
EVERY = pytest.mark.parametrize("name", TEMPLATES)


def metadata(name):
    """What is written for Dataflow."""
    return TEMPLATES[name].metadata()


def parameters(name):
    return {parameter["name"]: parameter for parameter in metadata(name)["parameters"]}


def fits(parameter, text):
    """Whether Dataflow would take the value: it has to match all patterns, as a whole."""
    return all(re.fullmatch(regex, text) for regex in parameter["regexes"])


def test_a_file_is_written_for_each(tmp_path):
    write_metadata(tmp_path)
    made = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.rglob("*.json")}
    assert made == {name: metadata(name) for name in TEMPLATES}


@EVERY
def test_dataflow_knows_every_field(name):
    message = TemplateMetadata.pb(TemplateMetadata())
    json_format.Parse(json.dumps(metadata(name)), message)
    assert message.name == f"streamveil {name}"
    for parameter in message.parameters:
        assert parameter.name
        assert parameter.label
        assert parameter.help_text


def test_a_slot_is_never_released_at_least_once():
    streaming = [name for name in TEMPLATES if metadata(name)["streaming"]]
    assert "release-streaming" in streaming
    assert "release-batch" not in streaming
    for name in streaming:
        assert metadata(name)["supportsExactlyOnce"]
        assert not metadata(name)["supportsAtLeastOnce"]


def test_a_stream_names_its_noise_key():
    """An update of it launches again, and a launch without one makes another key."""
    assert not parameters("release-streaming")["noise_key"]["isOptional"]
    assert not parameters("user")["noise_key"]["isOptional"]


@EVERY
def test_parameters_are_options_of_the_command(name, capsys):
    assert main([TEMPLATES[name].command, "--help"]) == 0
    known = set(re.findall(r"^  --(\w+)", capsys.readouterr().out, re.MULTILINE))
    assert set(parameters(name)) <= known


@EVERY
def test_defaults_are_those_of_the_options_and_match(name):
    defaults = COMMANDS[TEMPLATES[name].command].defaults
    for parameter in parameters(name).values():
        default = defaults[parameter["name"]]
        default = "false" if default is False else default
        assert parameter.get("defaultValue") == (None if default is None else str(default))
        if default is not None:
            assert parameter["isOptional"]
            assert fits(parameter, str(default)), parameter


@EVERY
def test_patterns_mean_the_same_to_java_and_python(name):
    for parameter in parameters(name).values():
        for regex in parameter["regexes"]:
            assert regex.startswith("^(")
            assert regex.endswith(")$")
            assert not re.search(r"\(\?|\\[0-9A-Zbdgswuxz]|[*+?}]\+", regex), regex


SECRET = "secret:projects/p/secrets/noise/versions/3"
TOPIC, SUBSCRIPTION = "pubsub:projects/p/topics/t", "pubsub:projects/p/subscriptions/s"


@pytest.mark.parametrize(
    ("name", "parameter", "good", "bad"),
    [
        (
            "collect",
            "noise_key",
            [SECRET, f"{SECRET},{SECRET[:-1]}4@2024-05-01"],
            ["5e" * 32, "file:/key", "env:KEY", SECRET[:-1] + "latest", f"{SECRET},{'5e' * 32}"],
        ),
        ("release-batch", "input", ["gs://b/*.parquet"], ["events.csv", "/e.csv", SUBSCRIPTION]),
        (
            "release-streaming",
            "input",
            [SUBSCRIPTION, TOPIC, "kafka:h:9092/events?group.id=x", "watch:gs://b/*.csv"],
            ["gs://b/*.csv", "watch:*.csv", "pubsub:t", "kafka:h/events"],
        ),
        (
            "release-streaming",
            "output",
            [TOPIC, "bigquery:p.d.t", "kafka:h:9092/releases"],
            ["gs://b/r.parquet", SUBSCRIPTION, "bigquery:t"],
        ),
        ("infinite", "output", ["gs://b/r.parquet", "bigquery:p.d.t"], ["r.parquet"]),
        ("infinite", "epsilon", ["1", "0.5", "1e-3"], ["1,2", "-1", ""]),
        ("queries", "delta", ["1e-9", "0.000001"], ["", "-1e-9", "small"]),
        ("user", "max_slots", ["3"], ["3,4", "", "auto"]),
        ("per-record", "budget", ["inverse:2", "log:1:4", "table:gs://b/t.csv"], ["inverse", "2"]),
        ("release-batch", "default_requirement", ["7,1.0,5000", "7,1.0"], ["7", "7,1.0,", "7;1;5"]),
        ("release-batch", "slot", ["1d", "1w", "500ms"], ["1", "1y", "d"]),
        ("release-batch", "start", ["2024-05-01", "2024-05-01T06:00:00+02:00"], ["May", "2024"]),
        ("release-batch", "mechanism", ["adaptive", "pbd", "lbu"], ["", "Adaptive?"]),
        ("collect", "mechanism", ["plpa+", "rotation"], ["+"]),
        ("release-batch", "max_contributions", ["1", "12"], ["one", "-1", "1.5"]),
        (
            "release-batch",
            "max_slots",
            ["3", "3,4", "auto", "auto:0.05,3"],
            ["3,", "few", "3,4,5", "auto:", "auto:5"],
        ),
        ("release-batch", "adjacency", ["add_remove", "replace"], ["add", "add_remove|replace"]),
        ("per-record", "value_max", ["100", "0.5"], ["-1", "many"]),
    ],
)
def test_patterns_take_what_the_command_takes_there(name, parameter, good, bad):
    found = parameters(name)[parameter]
    assert [text for text in good if not fits(found, text)] == []
    assert [text for text in bad if fits(found, text)] == []


def test_only_query_sets_have_a_delta():
    assert [name for name in TEMPLATES if "delta" in parameters(name)] == ["queries"]


def test_images_are_of_the_pinned_beam():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases[-1] == f"apache/beam_python3.11_sdk:{pins['apache-beam']}"
    assert all(re.fullmatch(r"[^:]+:[0-9][^:]+", base) for base in bases), "a tag that moves"


def test_the_image_holds_the_library_and_nothing_that_lies_about():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    names = {name for line in copied for name in shlex.split(line)}
    assert names == {
        *("LICENSE", "README.md", "__init__.py", "__main__.py", "constraints.txt", "py.typed"),
        "pyproject.toml",
        *("engine", "io", "mechanisms", "pipelines", "transforms", "templates/launch.py"),
    }
    packages = re.findall(r'"streamveil\.(\w+)', (ROOT / "pyproject.toml").read_text())
    assert {name for name in packages if (ROOT / name).is_dir()} <= names


def documented():
    """The launches in the page: template and parameters."""
    page = (ROOT / "docs" / "how-to" / "flex-templates.md").read_text()
    for launch in page.split("flex-template run")[1:]:
        name = re.search(r"/templates/([a-z-]+)[.]json", launch)[1]
        given = re.search(r"--parameters='\^~\^([^']+)'", launch)[1]
        yield name, dict(each.split("=", 1) for each in given.split("~"))


def test_every_template_is_documented_by_a_launch_that_dataflow_takes():
    assert {name for name, _ in documented()} == set(TEMPLATES)
    for name, given in documented():
        known = parameters(name)
        assert set(given) <= set(known)
        assert {each for each in known if not known[each]["isOptional"]} <= set(given)
        assert [text for each, text in given.items() if not fits(known[each], text)] == []

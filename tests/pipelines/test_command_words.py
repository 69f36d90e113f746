"""What a new user writes first: options that are missing, help, and hyphens."""

import re
import shlex
import subprocess
import sys

import pytest

import streamveil
from streamveil.pipelines.main import main
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.help import reference


@pytest.mark.parametrize(
    ("command", "flags", "missing"),
    [
        (
            "release",
            [],
            "--input is missing, and so are --output, --user_column, --value_column, "
            "--time_column, --slot, --domain and --requirements (or --budget=1/7d)",
        ),
        (
            "release",
            ["--input=e.csv", "--queries=q.yaml", "--default_requirement=1,1,1"],
            "--output is missing, and so are --user_column and --time_column",
        ),
        (
            "release",
            ["--guarantee=user", "--input=e.csv", "--output=r.csv", "--slot=1d"],
            "--user_column is missing, and so are --value_column, --time_column, --domain, "
            "--epsilon and --max_slots",
        ),
        (
            "collect",
            ["--input=e.csv", "--output=r.csv", "--slot=1d", "--user_column=u", "--domain=a,b"],
            "--value_column is missing, and so are --time_column and --requirements",
        ),
        (
            "per-record",
            ["--statistic=sum", "--budget=inverse:3", "--output=r.csv"],
            "--input is missing, and so are --value_column, --value_max and --epsilon_max",
        ),
        (
            "plan",
            [],
            "--queries is missing, and so is --requirements (or --default_requirement=7,1,5000)",
        ),
        (
            "evaluate",
            ["--input=e.csv", "--slot=1d", "--domain=a,b"],
            "--user_column is missing, and so are --value_column and --time_column",
        ),
    ],
)
def test_all_that_is_missing_is_said_at_once(capsys, command, flags, missing):
    assert main([command, *flags]) == 2
    assert capsys.readouterr().err == (
        f"streamveil {command}: {missing}: see streamveil {command} --help\n"
    )


@pytest.mark.parametrize("help_of", [["help"], ["-h"], ["--help"]])
def test_help_is_found(capsys, help_of):
    assert main(help_of) == 0
    usage = capsys.readouterr().out
    assert "commands:" in usage
    for command in ("release", "audit", "per-record", "demo"):
        assert main([*help_of, command]) == 0
        assert f"usage: streamveil {command}" in capsys.readouterr().out
    assert main([*help_of, "relase"]) == 2
    assert "did you mean release?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["release", "collect", "per-record", "evaluate", "demo"])
def test_help_of_a_command(capsys, command):
    for flag in ("-h", "--help"):
        assert main([command, flag]) == 0
        assert f"usage: streamveil {command}" in capsys.readouterr().out


def test_short_help_fits_on_a_screen_and_its_examples_are_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["release", "-h"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 42
    assert max(map(len, out.splitlines())) <= 80
    release = COMMANDS["release"]
    listed = re.findall(r"^  --(\w+)", out, re.MULTILINE)
    assert listed == list(release.most_used)
    assert len(listed) == 15
    assert "streamveil release --help lists all" in out
    examples = out.partition("\nexamples:\n")[2].split("streamveil release ")[1:]
    assert len(examples) == 3
    for example in examples:
        request = release.request(shlex.split(example.replace("\\\n", " ")))
        release.take(request.texts)
        assert all(other.startswith("--runner") for other in request.others)


def test_the_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "streamveil", "--version"], capture_output=True, text=True
    )
    assert done.stdout.strip() == streamveil.__version__, done.stderr


def test_the_reference_page_has_every_option_of_every_command():
    page = reference(COMMANDS.values())
    for part in page.split("\n## streamveil ")[1:]:
        command = COMMANDS[part.split()[0]]
        named = re.findall(r"^\| `--(\w+)", part, re.MULTILINE)
        assert sorted(named) == sorted(command.options)
        assert all(line.count(" | ") == 1 for line in part.splitlines() if line[:3] == "| `")


@pytest.mark.parametrize(
    ("command", "flag", "refusal"),
    [
        ("release", "--user-column=who", "--input is missing, and so are --output, --value_column"),
        ("plan", "--default-requirement=1-2", "--queries is missing: see"),
        ("evaluate", "--per-record=no-such", "'no-such' is unknown"),
        ("card", "--card=a-b.json", "a-b.json"),
        ("release", "--no-such-option=a-b", "unknown option --no_such_option=a-b"),
    ],
)
def test_hyphens_in_the_name_of_an_option(capsys, command, flag, refusal):
    """They are underscores; those of its value stay."""
    assert main([command, flag]) == 2
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize("command", ["release", "collect", "per-record", "evaluate"])
def test_the_input_may_come_first_without_its_option(command, toolbox):
    """Files that are not there are named by the option."""
    if command == "release":
        named = ("--user_column=u", "--value_column=v", "--time_column=t", "--slot=1d")
        given = (*named, "--domain=a,b", "--budget=1/7d", "--output=o.csv")
        outcome = toolbox.run(command, "none.csv", *given)
        assert (outcome.code, "--input: no file matches 'none.csv'" in outcome.err) == (2, True)
    outcome = toolbox.run(command, "none.csv", "--input=e.csv")
    assert outcome.code == 2
    assert "none.csv and --input both say where the events are" in outcome.err

"""What a new user writes first: options that are missing, help, and hyphens."""

import pytest

from streamveil.pipelines.main import main


@pytest.mark.parametrize(
    ("command", "flags", "missing"),
    [
        (
            "release",
            [],
            "--input is missing, and so are --output, --user_column, --value_column, "
            "--time_column, --slot, --domain and --requirements (or --default_requirement)",
        ),
        (
            "release",
            ["--input=e.csv", "--questions=q.yaml", "--default_requirement=1,1,1"],
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
            "--questions is missing, and so is --requirements (or --default_requirement)",
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
        with pytest.raises(SystemExit) as ended:
            main([*help_of, command])
        assert ended.value.code == 0
        assert f"usage: streamveil {command}" in capsys.readouterr().out
    assert main([*help_of, "relase"]) == 2
    assert "did you mean release?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["release", "collect", "per-record", "evaluate", "demo"])
def test_help_of_a_command(capsys, command):
    for flag in ("-h", "--help"):
        with pytest.raises(SystemExit):
            main([command, flag])
        assert f"usage: streamveil {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "flag", "refusal"),
    [
        ("release", "--user-column=who", "--input is missing, and so are --output, --value_column"),
        ("plan", "--default-requirement=1-2", "--questions is missing: see"),
        ("evaluate", "--per-record=no-such", "'no-such' is unknown"),
        ("card", "--card=a-b.json", "a-b.json"),
        ("release", "--no-such-option=a-b", "unknown option --no_such_option=a-b"),
    ],
)
def test_hyphens_in_the_name_of_an_option(capsys, command, flag, refusal):
    """They are underscores; those of its value stay."""
    assert main([command, flag]) == 2
    assert refusal in capsys.readouterr().err

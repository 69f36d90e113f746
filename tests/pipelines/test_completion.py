"""Completion in a shell: what bash makes of a key, and that scripts know all options."""

import os
import pty
import re
import shutil
import subprocess

import pytest

from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.completion import SHELLS, script

BASH = shutil.which("bash")


def typed(folder, line):
    """The arguments that a real bash passes on when a line with tabs is typed."""
    (folder / "completion").write_text(script("bash"))
    lines = [
        f"source {folder / 'completion'}",
        "streamveil() { printf '<%s>' \"$@\"; }",
        f"streamveil {line}",
        "exit",
    ]
    main, other = pty.openpty()
    with subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=folder,
        env={**os.environ, "TERM": "dumb", "INPUTRC": os.devnull, "HISTFILE": os.devnull},
        start_new_session=True,
    ) as shell:
        os.close(other)
        os.write(main, "".join(f"{one}\n" for one in lines).encode())
        shown = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:  # the shell closed the terminal
                break
            shown += part
        assert shell.wait(timeout=600) == 0
    os.close(main)
    passed = [line for line in shown.decode().splitlines() if line.startswith("<")]
    return re.findall("<(.*?)>", passed[-1])


@pytest.mark.skipif(not BASH, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("rele\t--layo\ttid\t", ["release", "--layout=tidy"]),
        ("audit --guar\tinf\t--page=x", ["audit", "--guarantee=infinite", "--page=x"]),
        ("evaluate --format four\t", ["evaluate", "--format", "foursquare"]),
        ("release --input=even\t", ["release", "--input=events.csv"]),
        ("release even\t", ["release", "events.csv"]),
        ("release --test_m\t", ["release", "--test_mode"]),
        ("completion fi\t", ["completion", "fish"]),
    ],
)
def test_bash_completes(tmp_path, line, arguments):
    (tmp_path / "events.csv").write_text("")
    assert typed(tmp_path, line) == arguments


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_know_every_command_and_option(shell):
    text = script(shell)
    for name, command in COMMANDS.items():
        assert name in text
        for option in command.options.values():
            flag = f"-l {option.name} " if shell == "fish" else f"--{option.name}"
            assert flag in text
            assert " ".join(option.choices) in text


def test_the_command_prints_a_script_and_refuses_other_shells(toolbox):
    assert toolbox.run("completion", "zsh").out == script("zsh")
    outcome = toolbox.run("completion", "csh")
    assert outcome.code == 2
    assert "usage: streamveil completion {bash,zsh,fish}" in outcome.err

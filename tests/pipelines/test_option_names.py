"""Messages name options by `opt`, so that each front spells them in its own way."""

import ast
import io
import re
import tokenize
from pathlib import Path

from streamveil.mechanisms.core.wording import opt, spelled
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.pages.palette import variables
from streamveil.pipelines.pages.sheet import Sheet

ROOT = Path(__file__).parents[2]
FLAG = r"--([a-z][a-z0-9_]*)"
NAMES = {name for command in COMMANDS.values() for name in command.known}

# Declarations and texts of the command line, which only it shows.
OF_THE_COMMAND_LINE = {
    "main.py",
    *("options/audit_options.py", "options/declarations.py", "options/evaluate_options.py"),
    *("options/command.py", "options/help.py", "options/option.py"),
}
FILES = [
    path
    for folder in ("engine", "io", "mechanisms", "pipelines", "transforms")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not (
        folder == "pipelines"
        and path.relative_to(ROOT / "pipelines").as_posix() in OF_THE_COMMAND_LINE
    )
]


def flags_in_functions(path):
    """Options that texts in functions write as flags, but for docstrings."""
    source = path.read_text()
    if not re.search(FLAG, source):
        return
    bodies, docstrings = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            bodies.append((node.body[0].lineno, node.end_lineno))
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.update(range(first.lineno, first.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        inside = any(first <= line <= last for first, last in bodies)
        if token.type != tokenize.STRING or line in docstrings or not inside:
            continue
        for name in NAMES & set(re.findall(FLAG, token.string)):
            yield f"{path.relative_to(ROOT)}:{line}: --{name}"


def test_no_message_writes_an_option_as_a_flag():
    assert [found for path in FILES for found in flags_in_functions(path)] == []


def test_every_name_in_a_message_is_an_option():
    named = {
        (path.name, name)
        for path in FILES
        for name in re.findall(r"\{opt\.(\w+)\}", path.read_text())
        if path.name != "wording.py"
    }
    assert {(file, name) for file, name in named if name not in NAMES} == set()


def test_a_front_spells_names_in_its_own_way():
    assert f"{opt.user_column} {opt['slot']}" == "--user_column --slot"
    with spelled(str.upper):
        assert opt.slot == "SLOT"
    assert opt.slot == "--slot"


def test_variables_of_style_sheets_are_no_options(tmp_path):
    """Some have the names of options, and Python spells these in its own way."""

    def made(name):
        Sheet(10, 10).write(str(tmp_path / name))
        return variables(), (tmp_path / name).read_text()

    page, file = made("flags.svg")
    with spelled(str.upper):
        assert made("arguments.svg") == (page, file)
    assert "  --page: " in page
    assert "--page:" in file

"""Every command and every piece of code in the pages works as it is written."""

import base64
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest
import yaml

import streamveil
from streamveil.io import read_queries
from streamveil.mechanisms import Registry
from streamveil.mechanisms.core.budget_text import requirement_of_budget
from streamveil.mechanisms.queries.shares import plan_shares

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^):#]*)#([^)]+)\)")
HERE = re.compile(r"cat > (\S+) <<'END'\n(.*?)END\n", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page, mark=""):
    """Blocks that run here, or those with a mark: .ci/run runs `install` in fresh environments."""
    for language, given, text in BLOCK.findall(page.read_text()):
        if language in ("sh", "python") and given.strip() == mark:
            yield language, text


def run_in_order(blocks, folder):
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for language, text in blocks:
        shell = ["bash", "-e", "-c"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, text], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", filter(lambda page: any(blocks(page)), PAGES), ids=lambda p: p.name
)
def test_blocks_of_a_page_run_in_order(page, tmp_path):
    run_in_order(blocks(page), tmp_path)


@pytest.mark.parametrize(
    ("mark", "page"),
    [
        pytest.param("prism", "reference/runners.md", marks=pytest.mark.prism),
        pytest.param("flink", "reference/runners.md", marks=pytest.mark.flink),
        pytest.param("flink", "how-to/run-on-flink.md", marks=pytest.mark.flink),
        pytest.param("spark", "reference/runners.md", marks=pytest.mark.spark),
    ],
)
def test_blocks_for_a_runner_run(mark, page, request, tmp_path):
    for name in ("tests", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    if mark != "prism":
        (tmp_path / mark).symlink_to(request.config.getoption(f"--{mark}_home"))
    (tmp_path / "events.csv").write_text(
        "user,place,time\nann,cafe,2024-05-01T09:12:00Z\nbob,park,2024-05-02T17:20:00Z\n"
    )
    (tmp_path / "requirements.csv").write_text("user,window,epsilon\nann,7,1.0\nbob,7,2.0\n")
    on_runner = list(blocks(ROOT / "docs" / page, mark))
    assert len(on_runner) == 1
    try:
        run_in_order(on_runner, tmp_path)
    finally:
        if mark != "prism":
            script = ROOT / "tests" / "clusters" / f"{mark}.sh"
            subprocess.run([script, "stop", tmp_path / "work"], check=True)
    assert (tmp_path / "releases.csv").read_text().count("\n") == 1 + 7 * 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_links_between_pages_of_the_site_stay_on_it():
    """What `mkdocs build` refuses: a link to a file of the repository that is no page."""
    hook = (ROOT / ".ci" / "site_pages.py").read_text()
    others = {ROOT / source for source in re.findall(r'"[\w.]+\.md": "(\S+\.md)"', hook)}
    assert ROOT / "README.md" in others
    for page in {*ROOT.glob("docs/**/*.md"), *others}:
        for target in LINK.findall(page.read_text()):
            led = (page.parent / target).resolve()
            assert led in others or led.is_relative_to(ROOT / "docs"), f"{page.name}: {target}"


def anchors(page):
    for heading in HEADING.findall(page.read_text()):
        yield re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_are_headings(page):
    for target, anchor in ANCHOR.findall(page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_files_and_folders_that_the_page_of_the_architecture_names_exist():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    named = re.findall(r"`((?:mechanisms|engine|transforms|io|pipelines)/[\w./]*)`", page)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


def texts_of_the_code():
    """All constant parts of texts in the product, f-strings in pieces."""
    for folder in ("mechanisms", "engine", "transforms", "io", "pipelines"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            yield from texts_in(compile(path.read_text(), path, "exec").co_consts)


def texts_in(constants):
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            yield from texts_in(one)
        elif isinstance(one, CodeType):
            yield from texts_in(one.co_consts)


# What varies is written as an ellipsis; options are in the code by their name alone.
def test_messages_of_the_troubleshooting_page_are_those_of_the_code():
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    messages = re.findall(r"\*\*`([^`]+)`\*\*", page)
    assert len(messages) > 25
    code = "\n".join(texts_of_the_code())
    for message in messages:
        assert max(map(len, re.split("…", message))) > 12, message
    parts = {part.strip(" :,;=()") for text in messages for part in re.split(r"…|--\w+", text)}
    assert sorted(part for part in parts if part not in code) == []


def test_readme_has_the_two_commands():
    marked = [
        text
        for language, mark, text in BLOCK.findall((ROOT / "README.md").read_text())
        if language == "sh" and mark.strip() == "install"
    ]
    assert len(marked) == 2
    assert "streamveil demo" in marked[0]
    assert "pytest" in marked[1]


@pytest.mark.parametrize("name", ["first-steps.md", "dashboard.md"])
def test_tutorials_say_how_their_budget_is_divided(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tutorials" / name).read_text()
    for file, text in HERE.findall(page):
        (tmp_path / file).write_text(text)
    queries = read_queries("queries.yaml")
    (budget,) = set(re.findall(r"--queries=.*?--budget=(\S+)", page, re.DOTALL))
    users = Registry.of(default=(requirement_of_budget(budget, queries.base), None))
    shares, _ = plan_shares(queries, users.classes, users.sizes)
    printed = ", ".join(
        f"{query.name} {share:.1%}" for query, share in zip(queries, shares, strict=True)
    )
    assert f"`{printed}`" in page.replace("\n", " ")


# What the commands name is there, and measured so.
def test_every_claim_has_a_command_that_checks_it():
    assert "(docs/evidence/claims.md)" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "evidence" / "claims.md").read_text()
    numbers = page.split("## Numbers")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .* \| .*\d.* \| `(.+)` \|$", numbers, re.MULTILINE)
    assert len(rows) == numbers.count("\n| ") - 1
    measured = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    for command in rows:
        assert command == "streamveil demo" or f"\n    {command}\n" in measured, command
    guarantees = page.split("## Guarantees")[1].split("\n## ")[0]
    claims = re.findall(r"^- \*\*.*?(?=^- |\Z)", guarantees, re.MULTILINE | re.DOTALL)
    assert len(claims) >= 5
    for claim in claims:
        files = re.findall(r"`python [^`]*?((?:tests|benchmarks)/[\w/.]+)", claim)
        assert files, claim
        assert all((ROOT / file).exists() for file in files), claim


# As words are counted: prose and tables, without code.
def test_the_readme_is_short():
    before_the_map = (ROOT / "README.md").read_text().split("## Documentation")[0]
    assert len(BLOCK.sub("", before_the_map).split()) <= 700


def test_how_often_intervals_hold_the_truth_is_as_it_was_measured():
    page = (ROOT / "docs" / "evidence" / "query-coverage.md").read_text()
    found = re.findall(r"^\| ([a-z-]+) \| ([\d.]+) \|((?: [01]\.\d\d \|){8})$", page, re.MULTILINE)
    rows = [[name, float(epsilon), *re.findall(r"[\d.]+", held)] for name, epsilon, held in found]
    last = json.loads((ROOT / "benchmarks" / "results" / "coverage.json").read_text())[-1]
    measured = last["tables"][0]["rows"]
    assert rows == [[*row[:2], *(f"{held:.2f}" for held in row[2:])] for row in measured]
    assert len(rows) > 20


def test_the_page_on_versions_names_those_of_saved_states():
    page = (ROOT / "docs" / "reference" / "versioning.md").read_text()
    rows = re.findall(r"^\|.*\| `(streamveil\S+)` \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for name, version in rows:
        keeper = pkgutil.resolve_name(name)
        newest = max(keeper.SCHEMAS) if hasattr(keeper, "SCHEMAS") else keeper.VERSION
        assert newest == int(version), name


def test_one_version_is_named_everywhere():
    newest = re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.group(1) == streamveil.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == streamveil.__version__


def outputs(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield from cell["outputs"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_its_outputs(path):
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [one for one in outputs(notebook) if one.get("name") == "stderr"] == []
    pictures = [one["data"]["image/png"] for one in outputs(notebook) if "image/png" in str(one)]
    assert len(pictures) == 1
    assert len(base64.b64decode(pictures[0])) <= 150_000
    written = json.dumps([one for one in outputs(notebook) if "image/png" not in str(one)])
    assert len(written) <= 50_000
    assert not re.search(r"[\" ](/\w+){2}", written), "the path of a machine"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_without_warnings(path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600).execute()
    assert [one for one in outputs(notebook) if one.get("name") == "stderr"] == []

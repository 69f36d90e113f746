"""Every command and every piece of code in the pages works as it is written."""

import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import streamveil
from streamveil.io import read_questions, read_requirements
from streamveil.mechanisms.portfolio.shares import plan_shares

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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
    "mark",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("prism", "flink", "spark")],
)
def test_blocks_for_a_runner_run_on_the_files_of_the_first_steps(mark, request, tmp_path):
    for name in ("tests", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    if mark != "prism":
        (tmp_path / mark).symlink_to(request.config.getoption(f"--{mark}_home"))
    written = list(blocks(ROOT / "docs" / "first-steps.md"))
    files = [(language, text) for language, text in written if re.fullmatch(HERE, text)]
    on_runner = list(blocks(ROOT / "docs" / "runners.md", mark))
    assert len(files) == 2
    assert len(on_runner) == 1
    try:
        run_in_order([*files, *on_runner], tmp_path)
    finally:
        if mark != "prism":
            script = ROOT / "tests" / "clusters" / f"{mark}.sh"
            subprocess.run([script, "stop", tmp_path / "work"], check=True)
    assert (tmp_path / "releases.csv").read_text().count("\n") == 8


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


def test_files_that_the_page_of_the_architecture_names_exist():
    named = re.findall(r"`([\w.]+/[\w./]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_readme_has_the_two_commands():
    marked = [
        text
        for language, mark, text in BLOCK.findall((ROOT / "README.md").read_text())
        if language == "sh" and mark.strip() == "install"
    ]
    assert len(marked) == 2
    assert "streamveil demo" in marked[0]
    assert "pytest" in marked[1]


@pytest.mark.parametrize("name", ["README.md", "docs/first-steps.md"])
def test_pages_say_how_their_budget_is_divided(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / name).read_text()
    for file, text in HERE.findall(page):
        (tmp_path / file).write_text(text)
    for language, text in blocks(ROOT / name):
        if language == "python" and 'open("requirements.csv"' in text:
            exec(text, {})
    known = read_requirements("requirements.csv")
    asked = read_questions("questions.yaml")
    shares, _ = plan_shares(asked, known.classes, known.sizes)
    told = ", ".join(f"{one.name} {share:.1%}" for one, share in zip(asked, shares, strict=True))
    assert f"`{told}`" in page.replace("\n", " ")


# "Every claim on the README has its command": what the commands name is there, and measured so.
def test_commands_of_the_readme_are_those_of_what_was_measured():
    readme = (ROOT / "README.md").read_text()
    figures = readme.split("## Figures")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .* \| .*\d.* \| `(.+)` \|$", figures, re.MULTILINE)
    assert len(rows) == figures.count("\n| ") - 1
    measured = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    for command in rows:
        assert command == "streamveil demo" or f"\n    {command}\n" in measured, command
    guaranteed = readme.split("## What is guaranteed")[1].split("\n## ")[0]
    claims = re.findall(r"^- \*\*.*?(?=^- |\Z)", guaranteed, re.MULTILINE | re.DOTALL)
    for claim in claims:
        files = re.findall(r"`python [^`]*?((?:tests|benchmarks)/[\w/.]+)", claim)
        assert files, claim
        assert all((ROOT / file).exists() for file in files), claim


def test_how_often_intervals_hold_the_truth_is_as_it_was_measured():
    page = (ROOT / "docs" / "portfolios.md").read_text()
    found = re.findall(r"^\| ([a-z-]+) \| ([\d.]+) \|((?: [01]\.\d\d \|){8})$", page, re.MULTILINE)
    told = [[name, float(epsilon), *re.findall(r"[\d.]+", held)] for name, epsilon, held in found]
    last = json.loads((ROOT / "benchmarks" / "results" / "coverage.json").read_text())[-1]
    measured = last["tables"][0]["rows"]
    assert told == [[*row[:2], *(f"{held:.2f}" for held in row[2:])] for row in measured]
    assert len(told) > 20


def test_the_page_on_versions_names_those_of_saved_states():
    page = (ROOT / "docs" / "versioning.md").read_text()
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


@pytest.mark.parametrize(
    "notebook", ROOT.glob("docs/notebooks/*.ipynb"), ids=lambda path: path.name
)
def test_a_notebook_has_no_outputs(notebook):
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    assert [c["source"] for c in cells if c["outputs"] or c["execution_count"]] == []

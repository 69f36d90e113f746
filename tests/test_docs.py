"""Every command and every piece of code in the pages works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(page):
    """Blocks that run here: those marked `install` run in .ci/run, `kafka` in tests/clusters."""
    for language, mark, text in BLOCK.findall(page.read_text()):
        if language in ("sh", "python") and not mark.strip():
            yield language, text


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks(page))], ids=lambda page: page.name
)
def test_blocks_of_a_page_run_in_order(page, tmp_path):
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for language, text in blocks(page):
        shell = ["bash", "-e", "-c"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, text], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_readme_has_the_two_commands():
    marked = [
        text
        for language, mark, text in BLOCK.findall((ROOT / "README.md").read_text())
        if language == "sh" and mark.strip() == "install"
    ]
    assert len(marked) == 2
    assert "streamveil demo" in marked[0]
    assert "pytest" in marked[1]

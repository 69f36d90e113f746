"""Events of a real PostgreSQL server, by the recipes of docs/how-to/postgresql.md as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "postgresql.md"
URL = "postgresql://reader@db.example.com/rides"
BLOCK = re.compile(r"^```(python|sh) postgres\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRIPS = """
    CREATE TABLE trips (rider text, station text, begun timestamptz, ended timestamptz);
    INSERT INTO trips VALUES
        ('u1', 'cafe', '2024-05-01 09:00Z', '2024-05-01 09:10Z'),
        ('u2', 'park', '2024-05-01 09:30Z', '2024-05-01 09:31Z'),
        ('u3', 'park', '2024-05-02 12:00Z', '2024-05-02 12:25:00.5Z'),
        ('u3', 'depot', '2024-05-02 12:00Z', '2024-05-02 12:25Z');
"""


def recipe(language, url):
    """The recipe of a language, with another address."""
    (text,) = [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == language]
    assert URL in text
    return text.replace(URL, url)


def path_of(server):
    """Where a shell finds `streamveil` and `psql`."""
    scripts = Path(sys.executable).parent
    return os.pathsep.join([str(scripts), str(server.tools), os.environ["PATH"]])


@pytest.mark.parametrize("language", ["python", "sh"])
def test_recipes(postgres, language, tmp_path):
    postgres.ask(f"DROP TABLE IF EXISTS trips; {TRIPS}")
    environment = {**os.environ, "PATH": path_of(postgres), "STREAMVEIL_NOISE_KEY": "7" * 32}
    shell = [sys.executable, "-c"] if language == "python" else ["bash", "-c"]
    done = subprocess.run(
        [*shell, recipe(language, postgres.url())],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    name = "trips-releases.csv" if language == "python" else "seconds-of-trips.csv"
    assert (tmp_path / name).read_text().count("\n") == 1 + 2 * 3
    if language == "sh":
        assert "3 events read: 3 counted" in done.stdout + done.stderr

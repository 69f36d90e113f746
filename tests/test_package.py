"""The package itself: what `import streamveil as sv` has, and that it costs nothing."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import streamveil as sv

ROOT = Path(__file__).parent.parent
HEAVY = ("apache_beam", "pyarrow", "numpy", "pandas", "cryptography")


def test_the_version_has_one_source():
    assert sv.__version__ == version("streamveil")
    assert sv.__version__ not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", sv.__all__)
def test_every_name_can_be_had_and_is_listed(name):
    assert name in dir(sv)
    assert getattr(sv, name) is vars(sv)[name]


def test_no_name_hides_a_module():
    modules = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not modules & set(sv.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'streamveil' has no attribute 'relase'"):
        _ = sv.relase


def test_importing_it_imports_nothing_heavy():
    script = (
        f"import sys, streamveil; print(*[name for name in {HEAVY} if name in sys.modules]); "
        "print(*[name for name in sys.modules if name.startswith('streamveil.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == [], done.stderr


def test_the_root_has_no_other_module():
    """Whatever stands there is in the wheel."""
    assert [path.name for path in sorted(ROOT.glob("*.py"))] == ["__init__.py", "__main__.py"]

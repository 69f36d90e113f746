"""What a wheel holds: the packages of the repository, whole, and nothing else.

`python .ci/wheel_contents.py WHEEL` ends with 1 and names what is missing or too much. So a package
that pyproject.toml does not name is found, and a file of the root that setuptools would take for a
module.
"""

import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
HOUSES = ("engine", "io", "mechanisms", "pipelines", "transforms")


def wanted() -> set[str]:
    """Files under version control that belong in a wheel, by their names in it."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    inside = (
        name
        for name in listed
        if name in ("__init__.py", "__main__.py", "py.typed") or _housed(name)
    )
    return {f"streamveil/{name}" for name in inside}


def held(wheel: str) -> set[str]:
    """Files of a wheel, but for its metadata."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if not PurePosixPath(name).parts[0].endswith(".dist-info")}


def _housed(name: str) -> bool:
    return PurePosixPath(name).parts[0] in HOUSES


def main(wheel: str) -> int:
    """Compare, tell, and return the exit code."""
    found, expected = held(wheel), wanted()
    for name in sorted(expected - found):
        print(f"{wheel} lacks {name}: name its package in pyproject.toml")
    for name in sorted(found - expected):
        print(f"{wheel} has {name}, which is in no package")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

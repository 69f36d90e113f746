"""The loops of work, each in an environment of its own: `nox -f .ci/noxfile.py --list`.

Not in the root of the repository, which is the folder of the package: a wheel would have it.
"""

from pathlib import Path

import nox

ROOT = Path(__file__).parent.parent

nox.options.sessions = ["lint", "quick"]
nox.options.reuse_existing_virtualenvs = True


def _installed(session: nox.Session, extra: str) -> None:
    session.chdir(ROOT)
    session.install("-c", "constraints.txt", "-e", f".[{extra}]")


def _pytest(session: nox.Session, *marks: str) -> None:
    _installed(session, "test")
    session.run("python", "-m", "pytest", *marks, *session.posargs)


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def quick(session: nox.Session) -> None:
    """The mathematics and the readers, in under a minute."""
    _pytest(session, "-m", "quick")


@nox.session
def lowest(session: nox.Session) -> None:
    """The quick tests on the lowest versions that pyproject.toml declares."""
    session.chdir(ROOT)
    session.install("-c", "constraints.txt", "uv")
    session.run("uv", "pip", "install", "--resolution", "lowest-direct", "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "quick", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but the slow ones, or those that are named: -- tests/io."""
    _pytest(session)


@nox.session
def slow(session: nox.Session) -> None:
    """Whole runs, audits and samples."""
    _pytest(session, "-m", "slow or property", "--hypothesis-profile=thorough")


@nox.session
def lint(session: nox.Session) -> None:
    """The hooks of pre-commit on all files: ruff, mypy, the import layers."""
    _installed(session, "lint")
    session.run("pre-commit", "run", "--all-files", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documentation, to site/; -- serve shows it and follows changes."""
    _installed(session, "docs")
    session.run("mkdocs", *(session.posargs or ["build"]), env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist, checked and tried, to dist/."""
    session.chdir(ROOT)
    session.install("-c", "constraints.txt", "build", "twine")
    session.run(".ci/package", "dist", external=True)

"""The public names, and the module that defines each. The sources are parsed; nothing is imported.

A name is public if it is in the `__all__` of streamveil or of one of `PACKAGES`, or if it is in
`TYPES`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent

PACKAGES = (".", "mechanisms", "transforms", "io")
"""Folders whose `__init__.py` offers names. That of the root comes first."""

TYPES = {
    "pipelines/in_memory/results.py": ("Results", "Counts", "Estimates", "Statistics"),
    "pipelines/evaluation/comparison.py": ("Comparison",),
    "mechanisms/queries/definitions.py": ("QueryDefinition",),
    "mechanisms/queries/builders.py": (
        *("ColumnNames", "Keys", "ListedKeys", "Bounds", "Numbers", "Where"),
        *("Duration", "Durations", "Levels", "Keep"),
    ),
    "pipelines/in_memory/functions.py": ("Table", "Path", "Time", "Queries"),
}
"""Types of arguments and results of streamveil's functions. You need not import them."""


def offered(package: str) -> Iterator[tuple[str, Path]]:
    """The names that a package offers, each with the module that defines it.

    Args:
        package: one of `PACKAGES`.
    """
    init = ROOT / package / "__init__.py"
    for node in _tree(init).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            for name in ast.literal_eval(node.value):
                if not name.startswith("_"):
                    yield name, home_of(init, name)


def home_of(module: Path, name: str) -> Path:
    """The module that defines a name which this module defines or imports from another.

    Raises:
        LookupError: if it does neither.
    """
    if name in _imported(module):
        path = ROOT.joinpath(*_imported(module)[name])
        return home_of(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"), name)
    if documented(module, name) is None:
        raise LookupError(f"{module} neither defines nor imports {name}")
    return module


@cache
def _imported(module: Path) -> dict[str, list[str]]:
    """The names that a module imports from other modules of streamveil, each with their folders."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom):
            package, *folders = (node.module or "").split(".")
            if package == "streamveil":
                found = {alias.name: folders for alias in node.names} | found
    return found


def documented(module: Path, name: str) -> ast.stmt | None:
    """The statement of a module that defines a name: a class, a function or a value."""
    for node in _tree(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _assigned(node):
            return node
    return None


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = (part for target in targets for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def docstring_of(module: Path, name: str) -> tuple[str, int]:
    """The docstring of a name, and the line where it begins; no text if it has none.

    That of a value is the text that follows it.
    """
    body = _tree(module).body
    node = documented(module, name)
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return ast.get_docstring(node) or "", node.body[0].lineno
    after = [*body, None][body.index(node) + 1] if node else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return str(after.value.value), after.lineno
    return "", node.lineno if node else 1


def package_docstring(package: str) -> str:
    """The docstring of a package."""
    return ast.get_docstring(_tree(ROOT / package / "__init__.py")) or ""


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))

"""Packages whose names are imported when they are first asked for: nobody loads what is not used.

So a device loads no mechanism, and the mathematics needs no Beam.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module

from streamveil.mechanisms.core.wording import install_line

# What the extra `beam` installs.
_OF_BEAM = ("apache_beam", "grpc", "pyarrow", "tqdm")


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Its names are those that its source imports `if TYPE_CHECKING`, where type checkers and editors
    look for them too.

    Args:
        package: its name.

    Returns:
        Both. The first raises ImportError where a name needs an extra that is not installed.
    """
    home_of = _homes(package)

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(home_of[name]), name)
        except ImportError as error:
            raise in_words(error, f"{package}.{name}") from None
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: list(sys.modules[package].__all__)


def _homes(package: str) -> dict[str, str]:
    """By name the module that it is imported from."""
    spec = sys.modules[package].__spec__
    assert spec is not None
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    return {
        imported.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for imported in node.names
    }


def in_words(error: ImportError, name: str) -> ImportError:
    """The error with which a name could not be imported, in words if it is that Beam is missing."""
    return ImportError(needs_beam(name), name=error.name) if lacks_beam(error) else error


def lacks_beam(error: Exception) -> bool:
    """Whether it is that a module is missing which comes with the extra `beam`."""
    missing = error.name if isinstance(error, ImportError) else None
    return (missing or "").partition(".")[0] in _OF_BEAM


def needs_beam(what: str) -> str:
    """What to tell of something that cannot be had without Beam."""
    return f"{what} needs Apache Beam, which is not installed here: {install_line('beam')}"

"""How a part of streamveil that is not installed gets installed."""

from __future__ import annotations


def install_line(extra: str) -> str:
    """The command that installs an extra, and where to run it.

    Example:
        >>> install_line("demo")
        "run python -m pip install '.[demo]' in a clone of streamveil"
    """
    return f"run python -m pip install '.[{extra}]' in a clone of streamveil"

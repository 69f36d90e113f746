"""The skeleton of every page: one HTML file that needs nothing else, in the style of all pages."""

from __future__ import annotations

import html
import unicodedata
from importlib.util import find_spec
from pathlib import Path

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import install_line, opt
from streamveil.pipelines.pages.palette import variables

_STYLE = Path(__file__).parent / "style.css"


def stylesheet(own: Path) -> str:
    """The style of all pages and, after it, that of one."""
    return variables() + _STYLE.read_text("utf-8") + own.read_text("utf-8")


def visible(text: str) -> str:
    """Escape all characters that a browser does not show.

    These are control and format characters, which a discovered key may have. Some of them change
    the order in which the rest of a line is shown. Line ends and tabs stay.
    """
    hidden = {one for one in set(text) if unicodedata.category(one)[0] == "C"} - {"\n", "\t"}
    return text.translate({ord(one): one.encode("unicode_escape").decode() for one in hidden})


def document(title: str, style: str, body: str, script: str = "") -> str:
    """A page.

    Args:
        title: of the window.
        style: see :func:`stylesheet`.
        body: valid HTML. Characters that are not :func:`visible` are escaped.
        script: JavaScript, of pages that read their figures again and again.
    """
    icon = '<link rel="icon" href="data:,">\n' if script else ""  # or a browser asks the server
    run = f"<script>{script}</script>\n" if script else ""
    return visible(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"{icon}<style>{style}</style>\n</head>\n<body>\n{body}\n{run}</body>\n</html>\n"
    )


def check_pages(extra: str = "demo") -> None:
    """Refuse --page where pages cannot be made. Raises ConfigurationError.

    Args:
        extra: what installs all that the command needs.
    """
    if not find_spec("jinja2"):
        raise ConfigurationError(f"{opt.page} needs jinja2: {install_line(extra)}")

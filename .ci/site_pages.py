"""Pages that are not in docs/: those of the root, all options, and the public names of Python.

A hook of mkdocs. The navigation lists what is in the folders, so a new page appears by itself.
The reference of Python has a page for each package that offers names, and public names only.
"""

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_names import PACKAGES, TYPES, docstring_of, offered, package_docstring

from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.help import reference

ROOT = Path(__file__).parent.parent

# Pages of the repository that are pages of the site too, by where the site has them.
FROM_REPOSITORY = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "reporting.md": "SECURITY.md",
    "benchmarks.md": "benchmarks/RESULTS.md",
}
TO_SITE = {source: page for page, source in FROM_REPOSITORY.items()}

_LINK = re.compile(r"(\]\()([^):#]+)((?:#[^)]*)?\))")
_PAGE_IN_HTML = re.compile(r'href="([^":#]+\.md)((?:#[^"]*)?)"')
_ROLE = re.compile(r":[a-z]+:`[~.]?([^`]+)`")
_MARKED_FENCE = re.compile(r"^(```\w+) \w+$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of every folder into the navigation."""
    config.nav = [_expanded(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for page, source in FROM_REPOSITORY.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for package in PACKAGES:
        files.append(File.generated(config, _api_page(package), content=_api(package)))
    files.append(
        File.generated(config, "reference/options.md", content=reference(COMMANDS.values()))
    )
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links to pages of the site, and take the marks of the tests off blocks of code."""
    here = page.file.src_uri
    folder = PurePosixPath(FROM_REPOSITORY.get(here, f"docs/{here}")).parent

    def led(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        source = normpath(folder / target)
        found = TO_SITE.get(source) or source.removeprefix("docs/")
        return f"{before}{relpath(found, PurePosixPath(here).parent)}{after}"

    return _MARKED_FENCE.sub(r"\1", _LINK.sub(led, markdown))


def on_page_content(html: str, *, page: Page, files: Files, **_: Any) -> str:
    """Shorten the contents of a page of the API; lead links of a notebook to pages of the site.

    mkdocs does the latter for Markdown alone.
    """
    here = page.file
    if here.src_uri.startswith("api/"):
        for title in page.toc:
            for name in title.children:
                name.children = []
    if not here.src_uri.endswith(".ipynb"):
        return html

    def led(link: re.Match[str]) -> str:
        target, anchor = link.groups()
        found = files.get_file_from_path(normpath(PurePosixPath(here.src_uri).parent / target))
        if found is None:
            raise PluginError(f"{here.src_uri} has a link to {target}, which is no page")
        return f'href="{found.url_relative_to(here)}{anchor}"'

    return _PAGE_IN_HTML.sub(led, html)


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if isinstance(entry, list):
        lists = [_expanded(one) for one in entry]
        return [page for one in lists for page in (one if isinstance(one, list) else [one])]
    if entry == "api/":
        return [{_api_title(package): _api_page(package)} for package in PACKAGES]
    if entry.endswith("/"):
        folder = ROOT / "docs" / entry
        return sorted(f"{entry}{file.name}" for file in folder.glob("[!_]*.*"))
    return entry


def _api_title(package: str) -> str:
    return "streamveil" if package == "." else f"streamveil.{package}"


def _api_page(package: str) -> str:
    return f"api/{_api_title(package)}.md"


def _api(package: str) -> str:
    """The page of a package: a table of the names that it offers, then the reference of each.

    A name that streamveil offers too is on the page of streamveil alone.
    """
    title = _api_title(package)
    on_first_page = {name for name, _ in offered(PACKAGES[0])} if package != PACKAGES[0] else set()
    names = [(name, title, home) for name, home in offered(package)]
    parts = [f"# {title}", "", package_docstring(package), ""]
    parts += _table("name", names, on_first_page)
    if package == PACKAGES[0]:
        types = [
            (name, ".".join(("streamveil", *Path(module).with_suffix("").parts)), ROOT / module)
            for module, some in TYPES.items()
            for name in some
        ]
        parts += ["", "Types of arguments and results:", "", *_table("type", types)]
        names += types
    parts += [f"\n::: {path}.{name}" for name, path, _ in names if name not in on_first_page]
    return "\n".join(parts)


def _table(
    head: str, names: list[tuple[str, str, Path]], on_first_page: Collection[str] = ()
) -> list[str]:
    """A table of names: each leads to its reference, with the first line of its docstring."""
    rows = [f"| {head} | what it is |", "|---|---|"]
    for name, path, home in names:
        page, path = (
            (PurePosixPath(_api_page(PACKAGES[0])).name, "streamveil")
            if name in on_first_page
            else ("", path)
        )
        meaning = _ROLE.sub(r"`\1`", docstring_of(home, name)[0].partition("\n\n")[0])
        meaning = " ".join(meaning.split()).replace("|", "\\|")
        rows.append(f"| [`{name}`]({page}#{path}.{name}) | {meaning} |")
    return rows

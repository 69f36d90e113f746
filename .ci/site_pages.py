"""Pages of the site that are not in docs/: those of the root, and the API, a page for each package.

A hook of mkdocs. Nothing here lists a module or a decision: what is in the folders is shown.
"""

import ast
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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

HOUSES = ("mechanisms", "engine", "transforms", "io", "pipelines")

_LINK = re.compile(r"(\]\()([^):#]+)((?:#[^)]*)?\))")
_PAGE_IN_HTML = re.compile(r'href="([^":#]+\.md)((?:#[^"]*)?)"')
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
    for package in (Path(), *(one for house in HOUSES for one in _packages(house))):
        files.append(File.generated(config, _api_page(package), content=_api(package)))
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
    """Lead links of a notebook to pages of the site, which mkdocs does for Markdown alone."""
    here = page.file
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
    if entry == "reference/":
        return [{"streamveil": _api_page(Path())}, *map(_api_pages, HOUSES)]
    if entry.endswith("/"):
        folder = ROOT / "docs" / entry
        return sorted(f"{entry}{file.name}" for file in folder.glob("[!_]*.*"))
    return entry


def _api_pages(house: str) -> dict[str, Any]:
    titles = {one: ".".join(one.parts[1:]) or house for one in _packages(house)}
    return {house: [{title: _api_page(one)} for one, title in titles.items()]}


def _packages(house: str) -> list[Path]:
    """Folders of the packages in a top-level folder, relative to the root."""
    inits = (ROOT / house).rglob("__init__.py")
    return sorted(init.parent.relative_to(ROOT) for init in inits)


def _api_page(package: Path) -> str:
    return f"reference/{'/'.join(package.parts) or 'streamveil'}.md"


def _api(package: Path) -> str:
    """The page of a package: what it says of itself, the names it offers, then every module."""
    name = ".".join(("streamveil", *package.parts))
    modules = sorted(file.stem for file in (ROOT / package).glob("[!_]*.py"))
    entries = [f"# {name}\n\n::: {name}\n    options:\n      members: false\n"]
    if offered := [_linked(package, name) for name in _imported(package)]:
        entries.append("Import from here: " + ", ".join(offered) + ".\n")
    entries += [f"## {module}\n\n::: {name}.{module}\n" for module in modules]
    return "\n".join(entries)


def _linked(package: Path, name: str) -> str:
    """A link to where a name is documented that a package offers."""
    *folders, module = _home(package, name).parts
    page = relpath(_api_page(Path(*folders)), PurePosixPath(_api_page(package)).parent)
    return f"[`{name}`]({page}#{module})"


def _home(module: Path, name: str) -> Path:
    """The module that defines a name, relative to the root, however packages hand it on."""
    if not (ROOT / module / "__init__.py").exists():
        return module
    return _home(_imported(module)[name], name)


def _imported(package: Path) -> dict[str, Path]:
    """Names that a package imports to be imported from it, and the module of each."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    offered = _all(tree)
    return {
        alias.name: Path(*node.module.split(".")[1:])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("streamveil.")
        for alias in node.names
        if alias.name in offered
    }


def _all(tree: ast.Module) -> list[str]:
    """The `__all__` of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []

"""Check the prose of the documentation, or draw paragraphs of it for readers to rate.

    python .ci/prose.py                        # check; exit 1 if there is a finding
    python .ci/prose.py --count                # the number of findings on each page
    python .ci/prose.py --sample=60 --seed=1   # draw 60 random paragraphs, as JSON

It reads the pages (README.md and the other pages of the root, and docs/), the
docstrings of public names (.ci/public_names.py says which those are), and the texts of `--help`. A
finding is one line, `FILE:LINE: what is wrong, and the remedy`.

The rules:

- no word or phrase of `DIALECT`, for which the field has a standard term;
- at most 7 colons in 1,000 words. Code, tables, headings, URLs, times, the help (whose colons
  introduce choices) and a colon that introduces a list or a block of code do not count;
- no paragraph or list item above 110 words, except in records of decisions;
- no page above 2,500 words outside blocks of code, except records of decisions, evidence and the
  changelog;
- an example, which is a block of code, on each page of docs/how-to.

Dead links are checked by tests/test_docs.py.
"""

import argparse
import ast
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from public_names import PACKAGES, ROOT, TYPES, offered

MAX_COLONS = 7
"""In 1,000 words of a page, or of the docstrings of a module."""
FREE_COLONS = 2
"""Allowed in a text of any length, so that a short page may have some."""
MAX_PARAGRAPH = 110
"""Words in a paragraph or a list item."""
MAX_PAGE = 2500
"""Words on a page."""
MIN_SAMPLE = 8
"""Words of a paragraph that may be drawn."""

UNLIMITED = ("CHANGELOG.md", "docs/evidence/*", "docs/decisions/*")
"""Pages that may have any length, because they only grow."""
RECORDS = ("docs/decisions/*",)
"""Pages whose paragraphs may have any length, because they are not rewritten."""

# What to write in place of an expression. Case does not matter.
DIALECT = {
    r"somebody|whoever|nobody|everybody": "name who it is: you, a user, an attacker, the operator",
    r"public registry|registry of (?:users|requirements)|tables? of requirements": (
        "requirements table"
    ),
    r"what (?:counts|does not count)|counts? nowhere|beyond the bounds?|bounded away": (
        "kept, or dropped by contribution bounding"
    ),
    r"beyond (?:the|their) slots|slots in which (?:they|users?|a user) counts?": (
        "dropped by the participation limit"
    ),
    r"counts? as if": "values are clamped to [lower, upper]",
    r"pays? only when present|limits? (?:on|of) presence|presence limits?": "participation limit",
    r"a life|whole life|will ever do|budget for ?ever": "user-level privacy, lifetime budget",
    r"which of two things": "replace-one adjacency",
    r"(?:for )?whom the promise": "privacy unit",
    r"the local setting": "local differential privacy, the local model",
    r"(?:is|are|was|were|stays?) raw|raw (?:counts?|numbers?|figures?|releases?|results?)": (
        "not private, derived from unprotected events"
    ),
    r"keys that cannot be listed": "unknown categories",
    r"(?:a|one|the|private|by) looks?": "private test (change detector), private estimate",
    r"pays|paid (?:from|for|by|in)|pay for": "spends, privacy cost",
    r"budgets? adds? up": "privacy losses compose",
    r"the last door": "privacy filter",
    r"computed from releases is as private": "post-processing is free",
    r"convictions?|convicts?|acquittals?|acquits?|acquitted": (
        "violation detected, no violation detected"
    ),
    r"seen from": "minimum detectable violation",
    r"errs? by|(?:is|are|was|were) off by|% off|in the mean": "mean absolute error, on average",
    r"in parts of": "as a fraction of",
    r"intervals (?:hold|held)|interval holds": "coverage is 0.86 (nominal 0.90)",
    r"AMRE": "MSE per bin and slot",
    r"pulled towards?|what is usual": "shrunk towards the running average",
    r"for comparison only": "baseline",
    r"figures(?! \d)": "estimates, metrics or numbers",
    r"streams? (?:that never ends?|without an end)|endless": "unbounded",
    r"(?:gone|goes|go|went) on from|runs? that goe?s? on": "a resumed run, resumes from a state",
    r"what became of": "event accounting",
    r"witness(?:es)?": "high-water mark",
    r"settle[sd]?|settling": "wait for a checkpoint",
    r"drills?": "failure test",
    r"portfolios?|private answers?|questions of": "query set, queries, results",
    r"told(?! apart)": "requested, reported, published",
    r"what (?:is|was|are|were) (?:asked|found|true|left out|left|said|kept)": (
        "name the thing, such as the true count"
    ),
    r"(?:is|are|was|were|be) asked (?:for|of)": "requested",
    r"(?:a|the|of|for|after) jumps?": "level shifts",
    r"fusing|fused (?:counts?|estimates?|sums?|levels?)": "reconciliation",
    r"longer times": "rollups",
    r"strangers?": "unregistered users",
    r"thaw(?:s|ed|ing)?|interned": "migrated, deduplicated",
    r"beside": "next to, with, compared with",
    r"so many": "give the number or its name",
    r"in vain": "unnecessary",
}
ONLY_ON_PAGES = {r"epsilons?": "ε in prose, `epsilon` in code"}

_PHRASES = {re.compile(rf"(?:\b(?:{it}))(?!\w)", re.I): to for it, to in DIALECT.items()}
_PHRASES_OF_PAGES = {re.compile(rf"\b(?:{it})\b"): to for it, to in ONLY_ON_PAGES.items()}

_FENCE = re.compile(r"^\s*(?:> ?)?(```|~~~)")
_ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+")
_HEADING = re.compile(r"^#+ ")
_CODE = re.compile(r"``.+?``|`[^`]*`", re.S)
_TARGET = re.compile(r"\]\([^)]*\)|<[a-z]+:[^>]*>|\w+://\S+")
_ROLE = re.compile(r":[a-z]+:(?=`)")
_COLON = re.compile(r":(?=\s)")
_WORD = re.compile(r"\w[\w'.,-]*")
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Examples?|Notes?):$")
_LABEL = re.compile(r"^[\w*., ]+: ")

PARAGRAPH, CELL, HEADING, HELP = "paragraph", "cell", "heading", "help"


@dataclass(frozen=True)
class Passage:
    """A paragraph, a list item, a row of a table, a heading or a text of the help."""

    file: str
    line: int
    text: str
    kind: str = PARAGRAPH

    @property
    def prose(self) -> str:
        """The text without code, targets of links and roles; each piece of code is one word."""
        return _TARGET.sub("]", _CODE.sub("code", _ROLE.sub("", self.text)))

    @property
    def words(self) -> int:
        """Their number."""
        return len(_WORD.findall(self.prose))

    @property
    def colons(self) -> int:
        """The number of those before a space; one at the end introduces what follows."""
        return len(_COLON.findall(self.prose.strip()))


@dataclass(frozen=True)
class Finding:
    """A rule that a text breaks."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", action="store_true", help="print the findings of each file")
    parser.add_argument("--sample", type=int, metavar="N", help="draw N paragraphs as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, 0 by default")
    given = parser.parse_args(arguments)
    passages = [*of_repository()]
    if given.sample is not None:
        print(json.dumps(sample(passages, given.sample, given.seed), indent=2, ensure_ascii=False))
        return 0
    findings = [*findings_of(passages), *missing_examples()]
    if given.count:
        for file, number in Counter(one.file for one in findings).most_common():
            print(f"{number:6} {file}")
    else:
        print("\n".join(map(str, findings)))
    return int(bool(findings))


# What is read.


def pages() -> list[Path]:
    """The pages of the repository."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def of_repository() -> Iterator[Passage]:
    """All passages: of pages, docstrings and help."""
    for page in pages():
        yield from of_page(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    for module, names in sorted(public_names().items()):
        yield from of_docstrings(module.read_text(encoding="utf-8"), _relative(module), names)
    yield from of_help()


def of_page(text: str, file: str) -> Iterator[Passage]:
    """The passages of a page of Markdown."""
    kept: list[str] = []
    start, fence = 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = _FENCE.match(line)
        ends = bool(mark or fence or not line.strip() or _HEADING.match(line) or _ITEM.match(line))
        row = line.lstrip().startswith("|")
        if kept and (ends or row):
            yield Passage(file, start, "\n".join(kept))
            kept = []
        if mark:
            fence = "" if fence == mark[1] else fence or mark[1]
        elif fence or not line.strip() or line.lstrip().startswith(("<", "---")):
            continue
        elif row:
            yield Passage(file, number, line, CELL)
        elif _HEADING.match(line):
            yield Passage(file, number, line.lstrip("# "), HEADING)
        else:
            start = start if kept else number
            kept.append(_ITEM.sub("", line).strip().removeprefix("> "))


def public_names() -> dict[Path, set[str]]:
    """The public names by the module that defines them."""
    found: dict[Path, set[str]] = {}
    for package in PACKAGES:
        found.setdefault(ROOT / package / "__init__.py", set())
        for name, home in offered(package):
            found.setdefault(home, set()).add(name)
    for module, names in TYPES.items():
        found.setdefault(ROOT / module, set()).update(names)
    return found


def of_docstrings(source: str, file: str, names: Iterable[str]) -> Iterator[Passage]:
    """The passages of the docstrings of a package, and of public names and their methods."""
    tree = ast.parse(source)
    documented: list[ast.Module | ast.ClassDef | ast.FunctionDef] = []
    if PurePosixPath(file).name == "__init__.py":
        documented.append(tree)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in names:
            documented.append(node)
            if isinstance(node, ast.ClassDef):
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
                documented += [one for one in methods if not one.name.startswith("_")]
    for node in documented:
        if text := ast.get_docstring(node, clean=True):
            yield from of_docstring(text, file, node.body[0].lineno)


def of_docstring(text: str, file: str, line: int) -> Iterator[Passage]:
    """The passages of a Google docstring: paragraphs, and entries of its sections."""
    kept: list[str] = []
    start, entries, code = 0, False, False
    for number, row in enumerate([*text.splitlines(), ""], line):
        indent = len(row) - len(row.lstrip())
        words = row.strip()
        heading = _SECTION.match(row)
        if kept and (not words or heading or (entries and indent == 4) or _ITEM.match(row)):
            yield Passage(file, start, "\n".join(kept))
            kept = []
        code = bool(words) and (code or words.startswith(">>>"))
        if heading:
            entries = heading[1] in ("Args", "Attributes", "Raises")
            continue
        entries = entries and not (words and indent == 0)
        if code or not words:
            continue
        start = start if kept else number
        kept.append(_LABEL.sub("", words) if entries and indent == 4 else _ITEM.sub("", words))


def of_help() -> Iterator[Passage]:
    """The texts of `--help`, by the line of the source in which each begins.

    A text that begins with an inserted value is put at the start of the file of the options.
    """
    from streamveil.pipelines.options.command_table import COMMANDS

    sources = {
        _relative(path): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "pipelines").rglob("*.py"))
    }
    seen = set()
    for command in COMMANDS.values():
        meanings = [option.meaning(command.name) for option in command.options.values()]
        for text in (command.about, *meanings):
            if text not in seen:
                seen.add(text)
                file, line = _place(text, sources) or ("pipelines/options/declarations.py", 1)
                yield Passage(file, line, text, HELP)


def _place(text: str, sources: dict[str, str]) -> tuple[str, int] | None:
    for file, source in sources.items():
        at = source.find(f'"{text[:24]}')
        if at >= 0:
            return file, source.count("\n", 0, at) + 1
    return None


def _relative(path: Path) -> str:
    return str(path.resolve().relative_to(ROOT.resolve()))


# What is checked.


def findings_of(passages: Iterable[Passage]) -> Iterator[Finding]:
    """What passages break, file by file."""
    by_file: dict[str, list[Passage]] = {}
    for passage in passages:
        by_file.setdefault(passage.file, []).append(passage)
    for file, found in by_file.items():
        for passage in found:
            yield from _of_passage(passage)
        yield from _of_text(file, found)


def _of_passage(passage: Passage) -> Iterator[Finding]:
    file, line, prose = passage.file, passage.line, passage.prose
    page = file.endswith(".md")
    for phrase, remedy in {**_PHRASES, **(_PHRASES_OF_PAGES if page else {})}.items():
        for hit in phrase.finditer(prose):
            at = line + prose.count("\n", 0, hit.start())
            yield Finding(file, at, f"{' '.join(hit[0].split())!r}: write {remedy}")
    long = passage.kind in (PARAGRAPH, HELP) and passage.words > MAX_PARAGRAPH
    if long and not _matches(file, RECORDS):
        yield Finding(
            file, line, f"{passage.words} words in a paragraph, at most {MAX_PARAGRAPH}: split it"
        )


def _of_text(file: str, passages: list[Passage]) -> Iterator[Finding]:
    paragraphs = [one for one in passages if one.kind == PARAGRAPH]
    words, colons = sum(one.words for one in paragraphs), sum(one.colons for one in paragraphs)
    if colons > max(FREE_COLONS, MAX_COLONS * words / 1000):
        first = next(one.line for one in paragraphs if one.colons)
        yield Finding(
            file,
            first,
            f"{colons} colons in {words} words, at most {MAX_COLONS} in 1,000: write the "
            "conjunction, or two sentences",
        )
    size = sum(one.words for one in passages)
    if file.endswith(".md") and size > MAX_PAGE and not _matches(file, UNLIMITED):
        yield Finding(file, 1, f"{size} words, at most {MAX_PAGE}: split the page")


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(PurePosixPath(file).match(pattern) for pattern in patterns)


def missing_examples() -> Iterator[Finding]:
    """How-to pages without a block of code."""
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        if not re.search(r"^\s*```", page.read_text(encoding="utf-8"), re.M):
            yield Finding(str(page.relative_to(ROOT)), 1, "no example: show a command or code")


def sample(passages: Iterable[Passage], number: int, seed: int) -> list[dict[str, str]]:
    """Random paragraphs and list items, each with its source."""
    kinds = (PARAGRAPH, HELP)
    drawn_from = [one for one in passages if one.kind in kinds and one.words >= MIN_SAMPLE]
    drawn = random.Random(seed).sample(drawn_from, min(number, len(drawn_from)))
    return [{"source": f"{one.file}:{one.line}", "text": one.text} for one in drawn]


if __name__ == "__main__":
    sys.exit(main())

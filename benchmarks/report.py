"""Write RESULTS.md from the JSON results of the benchmarks, the last run of each.

python benchmarks/report.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _measure import HERE, shown

INTRODUCTION = """\
# What was measured

Written by `python benchmarks/report.py` from `benchmarks/results/*.json`: change the benchmarks,
not this page. Every benchmark is a script that needs nothing but
`python -m pip install -c constraints.txt -e ".[benchmark]"`; it runs each case in fresh processes
and takes the median of the repeats. CPU seconds are user plus system time of all threads of the
process; rates are per CPU second, so they are per core.
"""
NAMES = (
    *("end_to_end", "query_engines", "release_stage", "noise", "state_bytes", "soak", "ledgers"),
    *("utility", "changing", "adaptive", "factor", "total", "local", "local_presence"),
    *("per_record", "infinite", "for_ever", "presence", "discovery", "query_sets", "delays"),
    *("coverage", "real", "query_pass", "scaling", "readers", "messages", "following"),
    *("startup", "mutants"),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options.add_argument("--results", default=str(HERE / "results"), help="folder of the JSON")
    options.add_argument("--output", default=str(HERE / "RESULTS.md"))
    given = options.parse_args()
    Path(given.output).write_text(page(Path(given.results)))


def page(results: Path) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION]
    for name in NAMES:
        path = results / f"{name}.json"
        if path.exists():
            parts.append(section(name, json.loads(path.read_text())[-1]))
    return "\n".join(parts)


def section(name: str, run: dict[str, Any]) -> str:
    """One benchmark: how to repeat it, on what it ran, and its tables."""
    machine = run["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    flags = " ".join(f"--{option}{_flag(value)}" for option, value in run["options"].items())
    lines = [
        f"## {name.replace('_', ' ')}\n",
        f"    python benchmarks/{name}.py {flags}\n",
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; Python "
        f"{machine['python']}; {versions}.\n",
    ]
    for table in run["tables"]:
        lines.append(f"### {table['title']}\n")
        if table["note"]:
            lines.append(f"{table['note']}\n")
        lines.append(_row(table["columns"]))
        numbers = [all(not isinstance(row[i], str) for row in table["rows"]) for i in _of(table)]
        lines.append(_row("---:" if number else "---" for number in numbers))
        lines.extend(_row(shown(cell) for cell in row) for row in table["rows"])
        lines.append("")
    return "\n".join(lines)


def _of(table: dict[str, Any]) -> range:
    return range(len(table["columns"]))


def _flag(value: Any) -> str:
    if isinstance(value, list):
        return " " + " ".join(str(one) for one in value)
    return f"={value}"


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

"""CPU seconds until a command has helped, refused its options or released a little; and of imports.

python benchmarks/startup.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from _measure import data_folder, measure, parser, save, table

COMMANDS = ("release", "collect", "per-record", "evaluate", "demo")

# Exits with 0 where the command gave the code that is expected.
COMMAND = """
import json, sys
from streamveil.pipelines.main import program
expected = int(sys.argv.pop(1))
try:
    code = program()
except SystemExit as stop:
    code = stop.code
print(json.dumps({"beam": "apache_beam" in sys.modules, "modules": len(sys.modules)}))
sys.exit(code != expected)
"""
IMPORT = """
import json, sys
exec(sys.argv[1])
print(json.dumps({"beam": "apache_beam" in sys.modules, "modules": len(sys.modules)}))
"""
IMPORTS = (
    "pass",
    "import numpy",
    "import streamveil",
    "from streamveil.mechanisms.local.client.device import Device",
    "from streamveil.mechanisms import simulate",
    "import apache_beam",
    "from streamveil.io import ReadEvents",
    "from streamveil.transforms import PrivateQueries",
)


def main() -> None:
    options = parser(__doc__, repeats=5)
    given = options.parse_args()
    with data_folder(given.folder) as folder:
        run = ["release", *_release(folder)]
        wrong = {
            "no --input": ["release"],
            "--inptu": [*run, "--inptu=x"],
            "--mechanism=laplace": [*run, "--mechanism=laplace"],
            "--slot=1y": [*run, "--slot=1y"],
            "--time_format=%Q": [*run, "--time_format=%Q"],
            "--follow without --state": [*run, "--follow=1m"],
            "--input is not there": [*run, "--input=nowhere.csv"],
            "collect: --epsilon": ["collect", *run[1:], "--epsilon=1"],
            "per-record: --statistic=median": [
                *("per-record", "--input=in.csv", "--output=out.csv", "--statistic=median"),
                "--budget=inverse:1",
            ],
        }
        began = table(
            "Commands",
            ["what", "CPU s", "wall s", "modules", "Beam"],
            "Whole processes; modules: loaded at the end, Python's own included. The last two rows "
            "read four events: one says what a run would do, the other releases two slots.",
        )
        for name in COMMANDS:
            _add(began, f"{name} --help", COMMAND, ["0", name, "--help"], given.repeats)
        for what, flags in wrong.items():
            _add(began, what, COMMAND, ["2", *flags], given.repeats)
        _add(began, "release --dry_run", COMMAND, ["0", *run, "--dry_run"], given.repeats)
        written = [folder / "releases.csv"]
        _add(began, "release", COMMAND, ["0", *run], given.repeats, written)
    imports = table("Imports", ["what", "CPU s", "wall s", "modules", "Beam"])
    for statement in IMPORTS:
        _add(imports, statement, IMPORT, [statement], given.repeats)
    save(given.results, "startup", {"repeats": given.repeats}, [began, imports])


def _release(folder: Path) -> list[str]:
    """Options of a small job."""
    (folder / "events.csv").write_text(
        "user,place,time\n"
        "ann,cafe,2024-05-01T09:12:00Z\n"
        "bob,park,2024-05-01T09:30:00Z\n"
        "ann,park,2024-05-02T11:05:00Z\n"
        "bob,cafe,2024-05-02T17:20:00Z\n"
    )
    (folder / "requirements.csv").write_text("user,window,epsilon\nann,7,1.0\nbob,7,2.0\n")
    return [
        f"--input={folder / 'events.csv'}",
        f"--output={folder / 'releases.csv'}",
        f"--requirements={folder / 'requirements.csv'}",
        *("--user_column=user", "--value_column=place", "--time_column=time"),
        *("--slot=1d", "--start=2024-05-01", "--end=2024-05-03", "--domain=cafe,park"),
    ]


def _add(
    rows,
    what: str,
    script: str,
    arguments: Sequence[str],
    repeats: int,
    written: Sequence[Path] = (),
) -> None:
    found = measure([sys.executable, "-c", script, *arguments], repeats, written)
    answer = found.answers[0]
    beam = "yes" if answer["beam"] else "no"
    rows.add(what, found.cpu, found.wall, answer["modules"], beam)


if __name__ == "__main__":
    main()

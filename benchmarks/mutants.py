"""What convicts mutants of the mechanisms: filters, `streamveil audit`, two worlds, tests.

python benchmarks/mutants.py

The mutants, the scenes in which they are on trial and the tests that convict them are in
`tests/audits`. It needs what the tests need: the extra `test`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _measure import HERE, Table, data_folder, parser, save, table

sys.path.insert(0, str(HERE.parent))

# Scenes whose audits take minutes.
SLOW = {"weights", "moved", "gate", "sums", "drawn"}


def main() -> None:
    from tests.audits.mutants import MUTANTS
    from tests.audits.scenes import BINS, CONFIDENCE, RUNS

    options = parser(__doc__, repeats=3)
    options.add_argument("--mutants", nargs="*", default=list(MUTANTS), help="some of them")
    options.add_argument(
        "--slow_repeats", type=int, default=1, help="of slow scenes, and where nothing is wrong"
    )
    options.add_argument("--processes", type=int, default=2, help="at once (default %(default)s)")
    given = options.parse_args()
    scenes = sorted({MUTANTS[name].scene for name in given.mutants})

    def seeds(scene: str) -> int:
        return given.slow_repeats if scene in SLOW else given.repeats

    with data_folder(given.folder) as folder, ProcessPoolExecutor(given.processes) as pool:
        tried = [
            pool.submit(_tried, name, seeds(MUTANTS[name].scene), folder) for name in given.mutants
        ]
        right = [pool.submit(_innocent, scene, given.slow_repeats, folder) for scene in scenes]
        verdicts = dict(zip(given.mutants, (one.result() for one in tried), strict=True))
        innocent = dict(zip(scenes, (one.result() for one in right), strict=True))
    note = (
        f"Audits of different seeds: by `streamveil audit` of {RUNS} runs of each kind with {BINS} "
        f"bins at a confidence of {CONFIDENCE} where it audits such releases, else by two worlds "
        "of `tests/audits/scenes.py` at a confidence of 1 - 1e-6. Where a filter refuses, they are "
        "made without filters."
    )
    tables = [_totals(verdicts), _each(verdicts, note), _granted(innocent, note)]
    kept = {name: getattr(given, name) for name in ("repeats", "slow_repeats", "processes")}
    save(given.results, "mutants", kept, tables)


def _tried(name: str, seeds: int, folder: Path) -> dict[str, Any]:
    """The verdict on a mutant, and whether its door is shut."""
    from tests.audits.doors import convicts
    from tests.audits.verdicts import verdict

    found = _kept(folder / f"{name}.json", lambda: vars(verdict(name, seeds)))
    return {**found, "door": convicts(name)}


def _innocent(scene: str, seeds: int, folder: Path) -> dict[str, Any]:
    from tests.audits.verdicts import innocent

    return _kept(folder / f"{scene}.json", lambda: vars(innocent(scene, seeds)))


def _kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an earlier run left in the folder, or what is made now."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _each(verdicts: dict[str, Any], note: str) -> Table:
    from tests.audits.doors import DOORS
    from tests.audits.mutants import MUTANTS

    made = table(
        "Each mutant",
        (
            *("what it gets wrong", "in", "filter", "audits by charges", "by guesses"),
            *("proven, in claims", "test that convicts"),
        ),
        note,
    )
    for name, found in verdicts.items():
        mutant, charges = MUTANTS[name], found["charges"]
        made.add(
            *(mutant.wrong.rstrip("."), mutant.scene, "refuses" if found["refused"] else ""),
            None if charges is None else f"{charges} of {found['audits']}",
            f"{found['guesses']} of {found['audits']}",
            found["times"],
            str(DOORS[name]) if found["door"] else "none",
        )
    return made


def _totals(verdicts: dict[str, Any]) -> Table:
    from tests.audits.mutants import MUTANTS
    from tests.audits.scenes import COMMANDS

    made = table("How many mutants are convicted", ("by", "tried", "in all audits", "in some"))
    commanded = [one for name, one in verdicts.items() if MUTANTS[name].scene in COMMANDS]
    others = [one for name, one in verdicts.items() if MUTANTS[name].scene not in COMMANDS]
    rows = {
        "a filter, or the price stated before": [
            float(bool(v["refused"])) for v in verdicts.values()
        ],
        "`streamveil audit`": [_share(v) for v in commanded],
        "`streamveil audit`, of those that no filter refuses": [
            _share(v) for v in commanded if not v["refused"]
        ],
        "two worlds": [_share(v) for v in others],
        "a filter or an audit": [1.0 if v["refused"] else _share(v) for v in verdicts.values()],
        "a test": [float(v["door"]) for v in verdicts.values()],
    }
    for by, shares in rows.items():
        made.add(by, len(shares), shares.count(1.0), sum(0 < one < 1 for one in shares))
    return made


def _share(found: dict[str, Any]) -> float:
    """Of the audits of a mutant, those that convict it."""
    hits: int = max(found["charges"] or 0, found["guesses"])
    return hits / found["audits"]


def _granted(innocent: dict[str, Any], note: str) -> Table:
    from tests.audits.scenes import COMMANDS, SCENES

    made = table(
        "The same audits where nothing is wrong",
        ("in", "what", "convicted", "proven, in claims"),
        note,
    )
    for scene, found in innocent.items():
        what = (COMMANDS.get(scene) or SCENES[scene]).what
        made.add(scene, what, f"{found['guesses']} of {found['audits']}", found["times"])
    return made


if __name__ == "__main__":
    main()

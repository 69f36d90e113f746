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


def main() -> None:
    from tests.audits.mutants import MUTANTS
    from tests.audits.scenes import BINS, CONFIDENCE, RUNS

    options = parser(__doc__, repeats=3)
    options.add_argument("--mutants", nargs="*", default=list(MUTANTS), help="some of them")
    options.add_argument("--processes", type=int, default=2, help="at once (default %(default)s)")
    given = options.parse_args()
    scenes = sorted({MUTANTS[name].scene for name in given.mutants})
    with data_folder(given.folder) as folder, ProcessPoolExecutor(given.processes) as pool:
        tried = [pool.submit(_tried, name, given.repeats, folder) for name in given.mutants]
        right = [pool.submit(_innocent, scene, given.repeats, folder) for scene in scenes]
        verdicts = dict(zip(given.mutants, (one.result() for one in tried), strict=True))
        innocent = dict(zip(scenes, (one.result() for one in right), strict=True))
    note = (
        f"{given.repeats} audits each, of other seeds: by `streamveil audit` of {RUNS} runs of each "
        f"kind with {BINS} bins at a confidence of {CONFIDENCE} where it audits such releases, else "
        "by two worlds of `tests/audits/scenes.py` at a confidence of 1 - 1e-6. Where a filter "
        "refuses, they are made without filters."
    )
    tables = [_totals(verdicts, given.repeats), _each(verdicts, given.repeats, note)]
    tables.append(_granted(innocent, given.repeats, note))
    kept = {"repeats": given.repeats, "processes": given.processes}
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


def _each(verdicts: dict[str, Any], seeds: int, note: str) -> Table:
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
            None if charges is None else f"{charges} of {seeds}",
            f"{found['guesses']} of {seeds}",
            found["times"],
            str(DOORS[name]) if found["door"] else "none",
        )
    return made


def _totals(verdicts: dict[str, Any], seeds: int) -> Table:
    from tests.audits.mutants import MUTANTS
    from tests.audits.scenes import COMMANDS

    made = table("How many mutants are convicted", ("by", "tried", "in all audits", "in some"))
    commanded = [one for name, one in verdicts.items() if MUTANTS[name].scene in COMMANDS]
    others = [one for name, one in verdicts.items() if MUTANTS[name].scene not in COMMANDS]
    rows = {
        "a filter, or the price told before": [
            bool(v["refused"]) * seeds for v in verdicts.values()
        ],
        "`streamveil audit`": [max(v["charges"], v["guesses"]) for v in commanded],
        "`streamveil audit`, of those that no filter refuses": [
            max(v["charges"], v["guesses"]) for v in commanded if not v["refused"]
        ],
        "two worlds": [v["guesses"] for v in others],
        "a filter or an audit": [
            seeds if v["refused"] else max(v["charges"] or 0, v["guesses"])
            for v in verdicts.values()
        ],
        "a test": [v["door"] * seeds for v in verdicts.values()],
    }
    for by, hits in rows.items():
        all_of_them = sum(hit == seeds for hit in hits)
        made.add(by, len(hits), all_of_them, sum(0 < hit < seeds for hit in hits))
    return made


def _granted(innocent: dict[str, Any], seeds: int, note: str) -> Table:
    from tests.audits.scenes import COMMANDS, SCENES

    made = table(
        "The same audits where nothing is wrong",
        ("in", "what", "convicted", "proven, in claims"),
        note,
    )
    for scene, found in innocent.items():
        what = (COMMANDS.get(scene) or SCENES[scene]).what
        made.add(scene, what, f"{found['guesses']} of {seeds}", found["times"])
    return made


if __name__ == "__main__":
    main()

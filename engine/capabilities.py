"""The table of what works for which statistic, from which error messages take their reasons.

A cell is `YES`, or the reason why it does not work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamveil.mechanisms.queries import definitions
from streamveil.mechanisms.queries.definitions import NO_NUMBERS
from streamveil.mechanisms.queries.queries import NO_GROUPS_OF_TOP

YES = "yes"

STATISTICS = tuple(name for name in definitions.STATISTICS if name != "stddev")
"""Columns of the table; `stddev` is as `variance`."""


@dataclass(frozen=True)
class Capability:
    """A row of the table."""

    name: str
    """As in code, such as `limit`."""
    title: str
    """For people."""
    cells: Mapping[str, str]
    """By statistic: `YES` or a reason."""

    def markdown(self, notes: list[str]) -> str:
        """The row, with numbers for reasons, which are added to `notes`."""
        return f"| {self.title} | {' | '.join(self._cell(one, notes) for one in STATISTICS)} |"

    def _cell(self, statistic: str, notes: list[str]) -> str:
        cell = self.cells[statistic]
        if cell == YES:
            return cell
        alike = [f"`{one}`" for one in STATISTICS if self.cells[one] == cell]
        note = f"No {self.title} for {', '.join(alike)}, because {cell}."
        if note not in notes:
            notes.append(note)
        return f"no ({notes.index(note) + 1})"


def _all(cell: str = YES, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(STATISTICS, cell), **others}


AUTO_BOUNDS_OF_CHANGING = (
    "bounds: auto needs requirements that do not change, because choosing bounds spends a part of "
    "each user's budget at the start, and a later change may ask for a smaller budget than that; "
    "give bounds: [LOW, HIGH], or leave out the changes"
)
"""Why bounds cannot be chosen where requirements change."""

OF_SETS = {
    "infinite": "a lifetime budget that all slots share works only for a single count by key, as "
    "its mechanisms estimate nothing else: limit the slots of each user's lifetime "
    "(guarantee=user and max_slots; in Beam limit=Limit(None, in_life=M)), or give a budget over "
    "a window",
}
"""Why query sets cannot have what a single count has, by the name of the row or the guarantee."""

_LIST_THE_KEYS = "leave it out, or list the keys"
OF_DISCOVERED = {
    "changing": "discovering keys spends a part of each user's budget, and a later change may ask "
    f"for a smaller budget than that: {_LIST_THE_KEYS}",
    "state": "keys that are discovered from all of an input cannot be added to by a later run: "
    "release all slots in one run, release in passes (the command release with a state), or list "
    "the keys",
    "audit": "an audit compares releases of the same keys: list the keys",
    "delta": "discovering keys may fail to protect a user with a small probability: give this "
    "probability as delta, such as delta 1e-9",
}
"""Why a query set whose keys are discovered cannot have something, by the name of the row."""

OF_GROWING = {
    "test_mode": "test mode keeps no state, which the discovery of keys in a stream needs: test "
    "with a bounded input in streamveil.release, or list the keys",
    "lifetime": "with a lifetime budget, keys are discovered once, from all of a bounded input: "
    "release all slots in one run, give a budget over a window, or list the keys",
    "revise": "a revision smooths a slot with later ones, in which other keys are listed: leave "
    "revisions out, or list the keys",
    "rollups": "a rollup would add up slots in which a key is listed and slots in which it is "
    "not: leave rollups out, or list the keys",
    "slots": "keys are listed from the end of a discovery slot on, which is as long as the "
    "longest window, and must not be within a slot of the query: give a window of whole slots of "
    "the query, a slot of a fixed length, or list the keys",
    "limit": "for each key, the run estimates from all slots what a participation limit drops, and "
    "a key that is listed later has no earlier slots: leave the limit out, or list the keys",
    "keep": "keep: distinct draws among the numbers of keys, which change as keys are listed: "
    "leave it out, or list the keys",
    "shards": "all events of a slot are counted together, since the listed keys follow from the "
    "slots before: leave shards out, or list the keys",
    "serve": "the served page shows the keys that are known when it begins: leave it out, give "
    "--page, which shows all keys after every pass, or list the keys",
    "mechanism": "the mechanism cannot continue with more keys: choose adaptive, pba or pbd, or "
    "list the keys",
}
"""Why a feature is refused if keys are discovered in passes over a stream, by its name."""

OF_DISCOVERED_ON_BEAM = {
    "auto_bounds": "on Beam, the bounds are chosen at the same time as the keys, so the keys are "
    "not known yet: give bounds: [LOW, HIGH], release without a runner, or list the keys",
    "limit": "on Beam, a participation limit (max_slots) needs the keys when the pipeline is "
    "built: leave the limit out, release without a runner, or list the keys",
}
"""Why a feature is refused if the keys of a bounded input are discovered on Beam, by its name."""

TABLE = (
    Capability("changing", "requirements that change", _all()),
    Capability("limit", "participation limit that you give, for all users or for each", _all()),
    Capability("chosen_limit", "participation limit that the run chooses (`auto`)", _all()),
    Capability("lifetime", "lifetime budget (`guarantee=user`)", _all()),
    Capability("revise", "revisions", _all()),
    Capability("slot_zone", "calendar days in a time zone", _all()),
    Capability(
        "auto_bounds",
        "bounds chosen privately (`bounds: auto`)",
        _all(
            **{name: NO_NUMBERS for name in STATISTICS if name not in definitions.OF_NUMBERS},
        ),
    ),
    Capability("levels", "levels (groups of keys)", _all(top=NO_GROUPS_OF_TOP)),
    Capability(
        "discover",
        "keys found privately (`keys: discover`)",
        _all(),
    ),
    Capability("months", "calendar months and years", _all()),
    Capability("rollups", "rollups to longer slots", _all()),
    Capability("where", "conditions (`where`)", _all()),
    Capability("state", "saved state", _all()),
    Capability("unbounded", "unbounded input", _all()),
    Capability("processes", "several worker processes", _all()),
)
"""The rows, in the order of the docs."""


def markdown() -> str:
    """The table and its notes, as docs/reference/capabilities.md has it."""
    notes: list[str] = []
    rows = [one.markdown(notes) for one in TABLE]
    head = f"| | {' | '.join(STATISTICS)} |\n|---|{'---|' * len(STATISTICS)}"
    numbered = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return "\n".join([head, *rows, "", numbered])

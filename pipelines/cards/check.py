"""Is what a card promises what ledger and releases show? All that is wrong, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamveil import __version__
from streamveil.engine.guarantees import ANY, GUARANTEES, INFINITE, LOCAL_EVENTS, PER_RECORD, USER
from streamveil.io.places import SINKS
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.check_costs import cost_faults, noise_faults
from streamveil.pipelines.cards.check_input import Fault, Places, Read, check_form, read_files
from streamveil.pipelines.cards.check_ledger import ledger_faults
from streamveil.pipelines.cards.check_releases import released_faults
from streamveil.pipelines.cards.claims import (
    RELEASES,
    facts_of_span,
    is_endless,
    kinds_of,
    queries_of,
    slots_of,
)
from streamveil.pipelines.cards.exported import read_streams
from streamveil.pipelines.cards.files import EDITED
from streamveil.pipelines.cards.registry_form import deployment_of
from streamveil.pipelines.cards.released import as_released
from streamveil.pipelines.options.guarantees import CENTRAL

Record = Mapping[str, Any]


class Checked(NamedTuple):
    """What came of a check."""

    faults: Sequence[str]
    """What is wrong, a line each."""
    notices: Sequence[str]
    """What could not be checked."""
    card: Record
    """With the slots that were found, where it did not know them."""


def faults_of(card: Record, places: Places) -> Checked:
    """Check a card against the files that it is about; whatever is wrong is a line, no error."""
    faults: list[str] = []
    notices: list[str] = []
    try:
        check_form(card)
        faults += faults_within(card)
        read = read_streams(card, places, read_files(card, places, faults, notices), notices)
        card = as_released(card, read)
        faults += released_faults(card, read)
        faults += noise_faults(card, read)
        faults += _without_files(card)
        if card["promise"]["guarantee"] != PER_RECORD:
            faults += ledger_faults(card, read, notices)
            faults += cost_faults(card, read)
            tidy = _is_tidy(card, read)
            if tidy:
                notices.append(_TIDY)
            if _has_no_ledger(card):
                notices.append(_NO_COSTS if tidy else _NO_LEDGER)
    except Fault as error:
        faults.append(str(error))
    except ConfigurationError as error:
        faults.append(f"the card says what no run can be asked for: {error}")
    except EDITED as error:
        faults.append(
            f"the card was edited and is none any more ({type(error).__name__}: {error}): "
            "restore the one that the run wrote"
        )
    return Checked(list(dict.fromkeys(faults)), notices, card)


_NO_LEDGER = (
    "there is no ledger, for the input had no end: releases were compared with the card, and what "
    "they say of their cost, but nobody can recount what slots cost that published nothing"
)


_NO_COSTS = "there is no ledger, for the input had no end, so nothing was compared that says a cost"
_TIDY = (
    "the releases are tidy rows, which do not say what they cost: the slots, bins and times of the "
    "releases were compared with the card, but not their noise with their epsilon; release with "
    "--layout=rows to have that checked as well"
)


def _is_tidy(card: Record, read: Read) -> bool:
    """Whether releases of counts are in rows that have no epsilon."""
    if card["promise"]["guarantee"] == PER_RECORD or "queries" in card["data"]:
        return False
    return any("epsilon" not in table.column_names for _, table in read.of("releases"))


def _has_no_ledger(card: Record) -> bool:
    """Whether there is none, and could not be."""
    return is_endless(card) and not any("ledger" in run["files"] for run in card["runs"])


_ORIGINAL = "restore the card that the run wrote"


def faults_within(card: Record) -> Iterator[str]:
    """What parts of a card say of each other that cannot be; raises what an edited one may."""
    promise, stated, meant = card["promise"], card["deployment"], deployment_of(card)
    discovered = any("discovered" in one.domain for one in queries_of(card["data"]))
    if (promise["delta"] > 0) != discovered:
        yield (
            f"the card promises delta {promise['delta']}, which is above 0 if keys were "
            f"discovered, and 0 otherwise: {_ORIGINAL}"
        )
    own = [one["delta"] for one in promise.get("classes", ()) if "delta" in one]
    if own and max(own) != promise["delta"]:
        yield (
            f"the card promises delta {promise['delta']}, and the largest delta of its classes is "
            f"{max(own)}: {_ORIGINAL}"
        )
    kind = GUARANTEES[promise["guarantee"]]
    follows = {name: (promise[name], getattr(kind, name)) for name in ("unit", "setting")}
    for part, name in (
        ("privacy_loss", "privacy_parameters"),
        ("dp_variant", "variant_name"),
        ("deployment_model", "model_name"),
    ):
        follows[f"deployment.{part}.{name}"] = stated[part][name], meant[part][name]
    for name, (said, due) in follows.items():
        if said != due:
            yield (
                f"the card says {said!r} as {name}, and its own promise makes it {due!r}: "
                f"{_ORIGINAL}"
            )
    if stated != meant and {run["streamveil"] for run in card["runs"]} == {__version__}:
        yield f"the card's deployment is not in the words of its own promise: {_ORIGINAL}"
    yield from _kind(card)
    for number, run in enumerate(card["runs"], 1):
        yield from (f"run {number} of the card {what}" for what in _whereabouts(card, run))
    if "slot" in card["data"]:
        yield from _runs(card)


def _whereabouts(card: Record, run: Record) -> Iterator[str]:
    """Whether what a run wrote is where such a run writes it."""
    streams = run.get("streams", {})
    for kind, where in streams.items():
        by_itself = kind != "ledger" or where == "bigquery"
        if where not in SINKS or kind in run["files"] or not by_itself:
            yield f"says that {kind} went to {where}, where no run sends them alone: {_ORIGINAL}"
    for kind, file in run["files"].items():
        if ("sha256" in file) == bool(run.get("open")):
            has = "has a digest" if "sha256" in file else "has no digest"
            when = "launched" if run.get("open") else "over"
            yield f"was written when the run was {when}, and {has} of {kind}: {_ORIGINAL}"
    if run.get("open") and "passes" in run:
        yield f"was only launched, and tells of passes: {_ORIGINAL}"
    if is_endless(card) and (run["files"] or not streams):
        yield f"had an input without an end, and could write no files: {_ORIGINAL}"


def _runs(card: Record) -> Iterator[str]:
    """Whether runs follow each other, at the times of their slots."""
    slots, before = slots_of(card["data"]), None
    named = {query.name for query in queries_of(card["data"])}
    for number, run in enumerate(card["runs"], 1):
        strange = sorted(set(run.get("answered", ())) - named)
        if strange:
            yield f"run {number} of the card answers a query {strange[0]!r}, which it has not"
        if "first_slot" not in run:
            continue
        first, last = run["first_slot"], run.get("last_slot")
        meant = facts_of_span(slots, first, last)
        if any(run.get(name) != meant.get(name) for name in ("start", "end")) or (
            last is not None and last < first
        ):
            yield (
                f"run {number} of the card is of {run['start']} to {run.get('end')}, and its slots "
                f"{first} to {last} are of {meant['start']} to {meant.get('end')}: {_ORIGINAL}"
            )
        if "passes" not in run:
            continue
        for what, begins, ended in (
            ("slot", first, before and before["last_slot"]),
            ("pass", run["passes"][0], before and before["passes"][1]),
        ):
            if ended is not None and begins != ended + 1:
                yield (
                    f"run {number} of the card begins with {what} {begins}, and the one before it "
                    f"ended with {ended}: {_ORIGINAL}"
                )
        before = run


def _without_files(card: Record) -> Iterator[str]:
    """Which runs cannot be checked, since the card does not know what they wrote."""
    wanted = [query.kind for query in queries_of(card["data"])] or [RELEASES]
    by_record = card["promise"]["guarantee"] == PER_RECORD
    runs: Sequence[Record] = card["runs"]
    for number, run in enumerate(runs, 1):
        for kind in wanted:
            if kind not in run["files"]:
                yield (
                    f"the card does not say where the {kind} of run {number} are, so they cannot "
                    "be checked: restore the card that the run wrote"
                )
        if "ledger" not in kinds_of(run) and not by_record and not is_endless(card):
            yield (
                f"slots {run['first_slot']} to {run['last_slot']} were released without a ledger, "
                f"so nobody can tell what they cost: give {opt.ledger} to the next run"
            )


def _kind(card: Record) -> Iterator[str]:
    """Whether command, guarantee and classes are of one kind, as a run writes them."""
    promise, command = card["promise"], card["command"]
    guarantee = promise["guarantee"]
    meant = {"collect": [LOCAL_EVENTS], "per-record": [PER_RECORD]}.get(command, CENTRAL)
    if guarantee not in meant:
        yield f"the card promises {guarantee!r}, and streamveil {command} gives {', '.join(meant)}"
    if (promise["adjacency"] == ANY) != (guarantee == LOCAL_EVENTS):
        yield f"the card says adjacency {promise['adjacency']!r}, which {guarantee!r} cannot have"
    for one in promise.get("classes", ()):
        forever = guarantee in (INFINITE, USER)
        limits = one.get("limits") or [{}]
        in_life = {limit.get("in_life") is not None for limit in limits}
        if (one["window"] is None) != forever or in_life != {guarantee == USER}:
            yield (
                f"the card promises {guarantee!r}, and its class with epsilon {one['epsilon']:g} "
                "is of another kind: restore the card that the run wrote"
            )

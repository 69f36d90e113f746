"""Is what a card promises what ledger and releases show? All that is wrong, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamveil import __version__
from streamveil.io.places import SINKS
from streamveil.mechanisms.core.records import ConfigurationError, format_time
from streamveil.pipelines.cards.check_ledger import ledger_faults
from streamveil.pipelines.cards.check_noise import noise_faults
from streamveil.pipelines.cards.check_releases import released_faults
from streamveil.pipelines.cards.check_rows import row_faults
from streamveil.pipelines.cards.exported import read_streams
from streamveil.pipelines.cards.files import EDITED
from streamveil.pipelines.cards.promises import ANY, LOCAL, PER_RECORD, UNITS, setting_of
from streamveil.pipelines.cards.read import (
    Fault,
    Places,
    check_form,
    kinds_of,
    read_files,
    slots_of,
)
from streamveil.pipelines.cards.registry_form import deployment_of
from streamveil.pipelines.cards.released import as_released, is_endless
from streamveil.pipelines.cards.writing import ANSWERS
from streamveil.pipelines.guarantees import GUARANTEES as CENTRAL
from streamveil.pipelines.guarantees import INFINITE, USER

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
            if _has_no_ledger(card):
                notices.append(_NO_LEDGER)
                faults += row_faults(card, read)
    except Fault as error:
        faults.append(str(error))
    except ConfigurationError as error:
        faults.append(f"the card says what no run can be asked for: {error}")
    except EDITED as error:
        faults.append(
            f"the card was edited and is none any more ({type(error).__name__}: {error}): bring "
            "back the one that the run wrote"
        )
    return Checked(list(dict.fromkeys(faults)), notices, card)


_NO_LEDGER = (
    "there is no ledger, for the input had no end: releases were compared with the card, and what "
    "they say of their cost, but nobody can recount what slots cost that published nothing"
)


def _has_no_ledger(card: Record) -> bool:
    """Whether there is none, and could not be."""
    return is_endless(card) and not any("ledger" in run["files"] for run in card["runs"])


def faults_within(card: Record) -> Iterator[str]:
    """What parts of a card say of each other that cannot be; raises what an edited one may."""
    told, meant = card["deployment"], deployment_of(card)
    if card["promise"]["delta"] != 0:
        yield f"the card promises delta {card['promise']['delta']}, and streamveil gives 0: say 0"
    for part, name in (
        ("privacy_loss", "privacy_parameters"),
        ("dp_variant", "variant_name"),
        ("deployment_model", "model_name"),
    ):
        if told[part][name] != meant[part][name]:
            yield (
                f"the card says {told[part][name]} as deployment.{part}.{name}, and its own "
                f"promise makes it {meant[part][name]}: bring back the card that the run wrote"
            )
    if told != meant and {run["streamveil"] for run in card["runs"]} == {__version__}:
        yield (
            "the card's deployment is not in the words of its own promise: bring back the card "
            "that the run wrote"
        )
    yield from _kind(card)
    for number, run in enumerate(card["runs"], 1):
        yield from (f"run {number} of the card {what}" for what in _whereabouts(card, run))
    if "slot" in card["data"]:
        yield from _runs(card)


def _whereabouts(card: Record, run: Record) -> Iterator[str]:
    """Whether what a run wrote is where such a run writes it."""
    remedy = "bring back the card that the run wrote"
    streams = run.get("streams", {})
    for kind, where in streams.items():
        by_itself = kind != "ledger" or where == "bigquery"
        if where not in SINKS or kind in run["files"] or not by_itself:
            yield f"says that {kind} went to {where}, where no run sends them alone: {remedy}"
    for kind, file in run["files"].items():
        if ("sha256" in file) == bool(run.get("open")):
            has = "has a digest" if "sha256" in file else "has no digest"
            when = "launched" if run.get("open") else "over"
            yield f"was written when the run was {when}, and {has} of {kind}: {remedy}"
    if run.get("open") and "passes" in run:
        yield f"was only launched, and tells of passes: {remedy}"
    if is_endless(card) and (run["files"] or not streams):
        yield f"had an input without an end, and could write no files: {remedy}"


def _runs(card: Record) -> Iterator[str]:
    """Whether runs follow each other, at the times of their slots."""
    slots, before = slots_of(card["data"]), None
    for number, run in enumerate(card["runs"], 1):
        if "first_slot" not in run:
            continue
        first, last = run["first_slot"], run.get("last_slot")
        end = None if last is None else format_time(slots.end(last))
        times = format_time(slots.start(first)), end
        if times != (run["start"], run.get("end")) or (last is not None and last < first):
            yield (
                f"run {number} of the card is of {run['start']} to {run.get('end')}, and its slots "
                f"{first} to {last} are of {times[0]} to {times[1]}: bring back the card that the "
                "run wrote"
            )
        if "passes" not in run:
            continue
        if before is not None and first != before["last_slot"] + 1:
            yield (
                f"run {number} of the card begins with slot {first}, and the one before it ended "
                f"with {before['last_slot']}: bring back the card that the run wrote"
            )
        if before is not None and run["passes"][0] != before["passes"][1] + 1:
            yield (
                f"run {number} of the card begins with pass {run['passes'][0]}, and the one "
                f"before it ended with {before['passes'][1]}: bring back the card"
            )
        before = run


def _without_files(card: Record) -> Iterator[str]:
    """Which runs cannot be checked, since the card does not know what they wrote."""
    wanted = ["releases"]
    if "questions" in card["data"]:
        wanted = [f"{ANSWERS}{one['name']}" for one in card["data"]["questions"]]
    by_record = card["promise"]["guarantee"] == PER_RECORD
    runs: Sequence[Record] = card["runs"]
    for number, run in enumerate(runs, 1):
        for kind in wanted:
            if kind not in run["files"]:
                yield (
                    f"the card does not say where the {kind} of run {number} are, so they cannot "
                    "be checked: bring back the card that the run wrote"
                )
        if "ledger" not in kinds_of(run) and not by_record and not is_endless(card):
            yield (
                f"slots {run['first_slot']} to {run['last_slot']} were released without a ledger, "
                "so nobody can tell what they cost: give --ledger to the next run"
            )


def _kind(card: Record) -> Iterator[str]:
    """Whether command, guarantee and classes are of one kind, as a run writes them."""
    promise, command = card["promise"], card["command"]
    guarantee = promise["guarantee"]
    meant = {"collect": [LOCAL], "per-record": [PER_RECORD]}.get(command, CENTRAL)
    if guarantee not in meant:
        yield f"the card promises {guarantee!r}, and streamveil {command} gives {', '.join(meant)}"
    if (promise["adjacency"] == ANY) != (guarantee == LOCAL):
        yield f"the card says adjacency {promise['adjacency']!r}, which {guarantee!r} cannot have"
    for name, words in (("unit", UNITS[guarantee]), ("setting", setting_of(guarantee))):
        if promise[name] != words:
            yield (
                f"the card says {promise[name]!r} as {name}, and {guarantee!r} has {words!r}: "
                "bring back the card that the run wrote"
            )
    for one in promise.get("classes", ()):
        forever = guarantee in (INFINITE, USER)
        in_life = (one.get("limit") or {}).get("in_life") is not None
        if (one["window"] is None) != forever or in_life != (guarantee == USER):
            yield (
                f"the card promises {guarantee!r}, and its class with epsilon {one['epsilon']:g} "
                "is of another kind: bring back the card that the run wrote"
            )

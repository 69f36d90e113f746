"""A card in words, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streamveil.mechanisms.core.domains import list_text
from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.cards.registry_form import promised
from streamveil.pipelines.console.errors import in_one_line

Record = Mapping[str, Any]
_MOST_BINS = 8


def in_words(card: Record) -> str:
    """What was promised, to whom, about what; and what was released, under which keys."""
    deployment, promise = card["deployment"], card["promise"]
    loss, model = deployment["privacy_loss"], deployment["deployment_model"]
    versions = ", ".join(dict.fromkeys(run["streamveil"] or "unknown" for run in card["runs"]))
    lines = [
        f"card of streamveil {card['command']} ({versions}): {promise['guarantee']}",
        f"unit:       {promise['unit']}",
        f"neighbours: {loss['privacy_unit_details']}",
        f"promised:   with {_delta(promise)}, at most",
        *(f"            {line}" for line in promised(promise)),
        f"setting:    {promise['setting']}: {model['model_name_details']}",
        f"composes:   {model['release_type_details']}",
        f"public:     {deployment['dp_variant']['unprotected_quantities']}",
        *_about(card),
        f"noise key:  {_keys(card['noise_key'])}",
        *(f"run {n}:      {_run(run)}" for n, run in enumerate(card["runs"], 1)),
    ]
    return "\n".join(lines)


def _delta(promise: Record) -> str:
    """The delta of everybody, or that there is one for each class."""
    if any("delta" in one for one in promise.get("classes", ())):
        return "the delta of each class"
    return f"delta {promise['delta']:g}"


def _about(card: Record) -> Iterator[str]:
    data = card["data"]
    zone = f" by the calendar of {data['slot_zone']}" if data.get("slot_zone") else ""
    if "queries" in data:
        for one in data["queries"]:
            slots = f"{one['slots']}, in base slots"
            if isinstance(one["slots"], int):
                slots = number_of(one["slots"], "base slot")
            yield (
                f"query:   {one['name']}: {one['statistic']} of {_domain(one['domain'])}, by "
                f"{slots} of {data['slot']}{zone}, by {one['mechanism']}"
            )
        return
    yield f"mechanism:  {card['mechanism']}"
    if "domain" in data:
        yield f"bins:       {_domain(data['domain'])}"
    if data.get("slot"):
        yield f"slots:      {data['slot']}{zone}, of which slot number 0 begins at {data['origin']}"


def _domain(stated: Record) -> str:
    other = f", and {stated['other']} for all others" if "other" in stated else ""
    other += f", and {stated['null']} for null values" if "null" in stated else ""
    if "values" in stated:
        listed, more = stated["values"][:_MOST_BINS], len(stated["values"]) - _MOST_BINS
        return f"{in_one_line(list_text(listed))}{f' and {more:,} more' if more > 0 else ''}{other}"
    if "edges" in stated:
        edges = stated["edges"]
        return f"{number_of(len(edges) - 1, 'bin')} from {edges[0]:g} to {edges[-1]:g}{other}"
    grid = stated["grid"]
    return f"a grid of {grid['columns']} columns and {grid['rows']} rows{other}"


def _keys(keys: Record) -> str:
    listed = [
        one["fingerprint"]
        if one["from_slot"] is None
        else f"{one['fingerprint']} from slot {one['from_slot']} on"
        for one in keys["keys"]
    ]
    how = {"given": "given by the operator", "drawn": "drawn by the run"}[keys["source"]]
    return f"{how}; fingerprint {', '.join(listed)}"


def _run(run: Record) -> str:
    first, last = run.get("passes", (None, None))
    made = "" if first is None else f" in passes {first} to {last}"
    streams = [f"{kind} to {where}" for kind, where in run.get("streams", {}).items()]
    names = ", ".join([*(f"{kind} {f['name']}" for kind, f in run["files"].items()), *streams])
    launched = ", as launched" if run.get("open") else ""
    return f"{_times(run)}{made}{launched}: {names or 'no file is known'}"


def _times(run: Record) -> str:
    if "start" in run:
        return f"{run['start']} to {run['end']}" if "end" in run else f"from {run['start']} on"
    return f"up to {run['end']}" if "end" in run else "all times"


def checked(card: Record) -> str:
    """What a check that found nothing has compared."""
    runs = card["runs"]
    promise = card["promise"]
    if "classes" not in promise:
        return "fine: every window and key was released once, in the files that the run wrote"
    slots = sum(run["last_slot"] - run["first_slot"] + 1 for run in runs)
    base = "base " if "queries" in card["data"] else ""
    classes = len(promise["classes"])
    if not any("ledger" in run["files"] for run in runs):
        return (
            f"fine as far as it goes: each of {slots:,} {base}slots was released once, as the card "
            "says; what they cost was not recounted, for no file of the run is a ledger"
        )
    return (
        f"fine: over {slots:,} {base}slots no window of "
        f"{'the one class' if classes == 1 else f'any of {classes:,} classes'} cost more than "
        "promised, and the ledger has each released slot once"
    )

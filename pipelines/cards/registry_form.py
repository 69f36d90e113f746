"""The card in the words and fields of the public registry of deployments of differential privacy.

The fields are those that its tiers 2 and 3 ask for. What a run cannot know, such as who publishes
and for what, is left to whoever registers: its part `basic`.

Source: Nanayakkara, Ghazi and Vadhan, "Practitioners' Perspectives on a Differential Privacy
Deployment Registry", arXiv 2509.13509, and the registry's schema of deployments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamveil.engine.guarantees import INFINITE, LOCAL_EVENTS, PER_RECORD, USER, WINDOWS
from streamveil.mechanisms.core.number_text import number_of

Record = dict[str, Any]
_MOST_CLASSES = 8


@dataclass(frozen=True)
class Words:
    """A guarantee in words; `{slot}` is the length of a slot, `{how}` what neighbours do."""

    unit: str
    neighbours: str
    over_time: str
    composition: str = (
        "Sequential, per requirement: a filter adds up in whole units of 2^-40 what the slots of "
        "every window cost, and refuses a release that would exceed a requirement."
    )
    variant: str = "Pure DP"


_STREAMS = "Streams of events that differ in one user: {how}"
_IN_WINDOWS = Words(
    "User-window: a user's events in any window of slots of {slot}",
    f"{_STREAMS}; w is the window of that user's requirement.",
    "Budgets hold over any window, and are available again once it has passed: over longer times "
    "losses add up. Runs over the same slots that do not share a state add up as well.",
)
_FOREVER = Words(
    "User: all of a user's events, for ever",
    f"{_STREAMS}.",
    "One budget for all slots there will ever be.",
)
WORDS = {
    WINDOWS: _IN_WINDOWS,
    LOCAL_EVENTS: _IN_WINDOWS,
    INFINITE: _FOREVER,
    USER: _FOREVER,
    PER_RECORD: Words(
        "Record",
        "Inputs that differ in one record, which one has and the other lacks.",
        "A record pays once, whatever is released of it in one run; runs add up.",
        "Sequential, per record: all that is released of a record costs it its budget.",
        "Custom",
    ),
}
_WHERE = {
    WINDOWS: "within w consecutive slots",
    LOCAL_EVENTS: "within w consecutive slots",
    INFINITE: "in any or all slots of the stream",
    USER: "in the whole stream",
    PER_RECORD: "",
}
_HOW = {
    "add_remove": "all of that user's events {where} are in one of them and none in the other",
    "replace": "any of that user's events {where} are replaced by others, added or removed",
    "any": "what that user did {where} is anything else, or nothing",
}
_MODEL = {
    "central": {
        "model_name": "Central",
        "model_name_details": "Whoever runs the pipeline sees the events; a reader sees what was "
        "released.",
        "actors": "Users; whoever runs the pipeline, whom they trust with their events; readers of "
        "what is released, whom nobody need trust.",
    },
    "local": {
        "model_name": "Local",
        "model_name_details": "Each user's device perturbs what it reports, and keeps a filter of "
        "its own. Where `streamveil collect` plays the devices, whoever runs it sees the events.",
        "actors": "Users, whose devices trust nobody; whoever runs the pipeline, who gets what "
        "devices report; readers of what is released.",
    },
}
_DISCOVERED = (
    " Keys were discovered with a part of the budget, which counts in every window, and with "
    "delta; a filter of its own adds up both."
)
_RANGE = {
    "events": "The first and the last slot are those of the first and the last event.",
    "stream": "The first slot was given, or is that of the first event; the times of events, or "
    "the clock of what they come from, say which are over.",
    "clock": "The first slot was given, and the clock says which are over.",
    "options": "The range of slots was given as well.",
}


def deployment_of(card: Mapping[str, Any]) -> Record:
    """What the registry asks for of a card, in words."""
    promise, data = card["promise"], card["data"]
    guarantee = promise["guarantee"]
    words, slot = WORDS[guarantee], data.get("slot")
    how = _HOW[promise["adjacency"]].format(where=_WHERE[guarantee])
    return {
        "dp_variant": {
            "variant_name": "Approximate DP" if promise["delta"] else words.variant,
            "data_domain": _domain(data, guarantee == PER_RECORD),
            "unprotected_quantities": _unprotected(data, guarantee == PER_RECORD),
        },
        "privacy_loss": {
            "privacy_unit": words.unit.format(slot=slot),
            "privacy_unit_details": words.neighbours.format(how=how),
            "privacy_parameters": {
                "epsilon": largest_epsilon(promise),
                "delta": promise["delta"],
            },
            "privacy_parameters_details": "; ".join(promised(promise)),
        },
        "deployment_model": {
            **_MODEL[promise["setting"]],
            "release_type": "Many releases" if slot else "One release",
            "release_type_details": words.over_time,
            "data_source_type": "Dynamic" if slot else "Static",
            "data_source_type_details": _source(data),
            "access_type": "Non-interactive",
            "access_type_details": "What is released follows from options that were given before "
            "any event was read; nobody asks the data anything else.",
        },
        "accounting": {
            "post_processing": "All that is computed from noisy figures: forecasts, shrinkage, "
            "rounding, sums over groups and longer times, standard errors, revisions.",
            "composition": words.composition + (_DISCOVERED if promise["delta"] else ""),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _preprocessing(data),
            "mechanisms": _mechanisms(card),
        },
    }


def largest_epsilon(promise: Mapping[str, Any]) -> float:
    """What bounds the loss of everybody, each over their own unit."""
    if "classes" not in promise:
        return float(promise["epsilon_max"])
    listed = [one["epsilon"] for one in promise["classes"]]
    listed += [max(one["epsilon_backward"], one["epsilon_forward"]) for one in _changed(promise)]
    return float(max(listed) * (1 + promise.get("granted_again", 0)))


def _changed(promise: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in promise.get("in_force", ()) if "window_backward" in one]


def promised(promise: Mapping[str, Any]) -> list[str]:
    """Who was promised what: a few words for each class, and for what limits it."""
    if "classes" not in promise:
        return _promised_to_records(promise)
    lines = [_class(one) for one in promise["classes"][:_MOST_CLASSES]]
    more = len(promise["classes"]) - _MOST_CLASSES
    if more > 0:
        lines.append(f"and {more:,} other requirements")
    if promise.get("requirements_change"):
        lines.append(
            "requirements change: from the slot on in which one is asked for it holds for the "
            "slots ahead, and looking back unless earlier slots had spent more"
        )
    for one in _changed(promise)[:_MOST_CLASSES]:
        lines.append(
            f"in force: epsilon {one['epsilon_backward']:g} over {_slots(one['window_backward'])} "
            f"back and {one['epsilon_forward']:g} over {_slots(one['window_forward'])} ahead"
        )
    granted = promise.get("granted_again", 0)
    if granted:
        lines.append(f"the budget was granted again {granted} times: each adds as much")
    return lines


def _class(one: Mapping[str, Any]) -> str:
    over = "for ever" if one["window"] is None else f"over any {_slots(one['window'])}"
    users = number_of(one["users"], "user") if one["users"] else "users, how many is not known"
    delta = f", delta {one['delta']:g}" if "delta" in one else ""
    return f"epsilon {one['epsilon']:g} {over}{delta}: {users}{_limited(one.get('limits', ()))}"


def _limited(limits: Sequence[Mapping[str, Any]]) -> str:
    """In how many slots users count, of each query."""
    if not limits:
        return ""
    if (life := limits[0]["in_life"]) is not None:
        whose = "their lives" if limits[0]["query"] is None else "each query"
        return f", who count in the first {_slots(life)} of {whose}"
    listed = "; ".join(
        f"{_of_query(one)}in {_slots_of_part(one['max_slots'])} of each of {one['blocks']} parts"
        for one in limits
        if one["max_slots"] not in (None, [None])
    )
    return f", who count {listed} of a window" if listed else ", who count in every slot"


def _of_query(limit: Mapping[str, Any]) -> str:
    return "" if limit["query"] is None else f"for {limit['query']} "


def _slots_of_part(most: int | list[int | None]) -> str:
    """In how many slots of a part of a window users count, of a choice in any of some."""
    listed = [most] if isinstance(most, int) else most
    return " or ".join("every slot" if one is None else _slots(one) for one in listed)


def _slots(number: int) -> str:
    return number_of(number, "slot")


def _promised_to_records(promise: Mapping[str, Any]) -> list[str]:
    budget = promise["budget"]
    figures = {k: v for k, v in budget.items() if k not in ("columns", "function", "table")}
    details = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    shared = promise["max_records_per_user"]
    lines = [
        f"a record loses the budget that is the function {budget['function']} of "
        f"{', '.join(budget['columns'])}{f' ({details})' if details else ''}, at most "
        f"{promise['epsilon_max']:g}"
    ]
    if shared > 1:
        lines.append(f"divided by {shared}, for a person has at most so many records")
    return lines


def _domain(data: Mapping[str, Any], by_record: bool) -> str:
    if by_record:
        return f"Tables of records with the columns {', '.join(data['columns'].values())}."
    columns = data["columns"]
    return (
        f"Streams of events of any users, each with a user ({columns['user']}), values "
        f"({', '.join(columns['value'])}) and a time ({columns['time']})."
    )


def _unprotected(data: Mapping[str, Any], by_record: bool) -> str:
    if by_record:
        return "Options, names and types of columns, keys, and the range of time: all given."
    return (
        "The requirements table, the number of users with each requirement, bins, slots, columns, "
        f"options and the ledger: none depends on events{_KEYS if _discovers(data) else ''}. "
        f"{_RANGE[data['range']]}"
    )


_KEYS = ", except discovered keys, which are released privately"


def _discovers(data: Mapping[str, Any]) -> bool:
    return any("discovered" in one["domain"] for one in data.get("queries", ()))


def _source(data: Mapping[str, Any]) -> str:
    if not data.get("slot"):
        return "One table of records, read once."
    if data.get("range") == "stream":
        return f"Events as they come, without an end, in slots of {data['slot']}."
    return f"Events in files, in slots of {data['slot']}."


def _preprocessing(data: Mapping[str, Any]) -> str:
    if "statistic" in data:
        return "A record that cannot be read, or is outside the stated bounds, counts nowhere."
    if "queries" in data:
        return "A user counts in a slot of a query at most as often as that query says."
    most = number_of(data["max_contributions"], "time")
    return (
        f"A user counts at most {most} in a slot ({data['keep']} of "
        "more events). What a run chose by its events, it paid for."
    )


def _mechanisms(card: Mapping[str, Any]) -> str:
    queries = card["data"].get("queries", ())
    names = card["mechanism"] or ", ".join(f"{q['name']}: {q['mechanism']}" for q in queries)
    versions = ", ".join(dict.fromkeys(run["streamveil"] or "unknown" for run in card["runs"]))
    return (
        f"{names}, of streamveil {versions}. Noise is sampled exactly, in integers, from a keyed "
        "cryptographic stream, so the low bits of floating point give nothing away."
    )

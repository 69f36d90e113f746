"""The card in the words and fields of the public registry of deployments of differential privacy.

The fields are those that its tiers 2 and 3 ask for. What a run cannot know, such as who publishes
and for what, is left to whoever registers: its part `basic`.

Source: Nanayakkara, Ghazi and Vadhan, "Practitioners' Perspectives on a Differential Privacy
Deployment Registry", arXiv 2509.13509, and the registry's schema of deployments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.guarantees import INFINITE, USER

Record = dict[str, Any]
_MOST_CLASSES = 8

_ADDED = "all of that user's events {there} are in one of them and none in the other"
_REPLACED = "any of that user's events {there} are replaced by others, added or removed"
_OTHERS = "what that user did {there} is anything else, or nothing"


def deployment_of(card: Mapping[str, Any]) -> Record:
    """What the registry asks for of a card, in words."""
    promise, data = card["promise"], card["data"]
    local = promise["setting"] == "local"
    by_record = "classes" not in promise
    return {
        "dp_variant": {
            "variant_name": "Custom" if by_record else "Pure DP",
            "data_domain": _domain(data, by_record),
            "unprotected_quantities": _unprotected(data, promise),
        },
        "privacy_loss": {
            "privacy_unit": _unit(promise, data),
            "privacy_unit_details": _neighbours(promise),
            "privacy_parameters": {"epsilon": largest_epsilon(promise), "delta": 0},
            "privacy_parameters_details": "; ".join(promised(promise)),
        },
        "deployment_model": {
            "model_name": "Local" if local else "Central",
            "model_name_details": _model(local),
            "actors": _actors(local),
            "release_type": "Many releases" if data.get("slot") else "One release",
            "release_type_details": _over_time(promise),
            "data_source_type": "Dynamic" if data.get("slot") else "Static",
            "data_source_type_details": _source(data),
            "access_type": "Non-interactive",
            "access_type_details": "What is released follows from options that were given before "
            "any event was read; nobody asks the data anything else.",
        },
        "accounting": {
            "post_processing": "All that is computed from noisy figures: forecasts, shrinkage, "
            "rounding, sums over groups and longer times, standard errors, revisions.",
            "composition": _composition(promise),
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
    users = number_of(one["users"], "user") if one["users"] else "everybody"
    return f"epsilon {one['epsilon']:g} {over}: {users}{_limit(one.get('limit'))}"


def _limit(limit: Mapping[str, Any] | None) -> str:
    if limit is None:
        return ""
    if limit["in_life"] is not None:
        return f", who count in the first {_slots(limit['in_life'])} of their lives"
    most = limit["max_slots"]
    if most is None:
        return ", who count in every slot"
    listed = [most] if isinstance(most, int) else most
    text = " or ".join("every slot" if one is None else _slots(one) for one in listed)
    if listed == [None]:
        return ", who count in every slot"
    return f", who count in {text} of each of {limit['blocks']} parts of a window"


def _slots(number: int) -> str:
    return number_of(number, "slot")


def _promised_to_records(promise: Mapping[str, Any]) -> list[str]:
    budget = promise["budget"]
    figures = {k: v for k, v in budget.items() if k not in ("columns", "function", "table")}
    told = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    shared = promise["max_records_per_user"]
    lines = [
        f"a record loses the budget that is the function {budget['function']} of "
        f"{', '.join(budget['columns'])}{f' ({told})' if told else ''}, at most "
        f"{promise['epsilon_max']:g}"
    ]
    if shared > 1:
        lines.append(f"divided by {shared}, for a person has at most so many records")
    return lines


def _unit(promise: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    guarantee = promise["guarantee"]
    if guarantee in (INFINITE, USER):
        return "User: all of a user's events, for ever"
    if "classes" not in promise:
        return "Record"
    return f"User-window: a user's events in any window of slots of {data['slot']}"


def _neighbours(promise: Mapping[str, Any]) -> str:
    if "classes" not in promise:
        return "Inputs that differ in one record, which one has and the other lacks."
    forever = promise["guarantee"] in (INFINITE, USER)
    where = "in the whole stream" if forever else "within w consecutive slots"
    if promise["guarantee"] == INFINITE:
        where = "in any or all slots of the stream"
    kind = {"add_remove": _ADDED, "replace": _REPLACED}.get(promise["adjacency"], _OTHERS)
    told = f"Streams of events that differ in one user: {kind.format(there=where)}"
    return f"{told}." if forever else f"{told}; w is the window of that user's requirement."


def _domain(data: Mapping[str, Any], by_record: bool) -> str:
    if by_record:
        return f"Tables of records with the columns {', '.join(data['columns'].values())}."
    columns = data["columns"]
    return (
        f"Streams of events of any users, each with a user ({columns['user']}), values "
        f"({', '.join(columns['value'])}) and a time ({columns['time']})."
    )


def _unprotected(data: Mapping[str, Any], promise: Mapping[str, Any]) -> str:
    if "classes" not in promise:
        return "Options, names and types of columns, keys, and the range of time: all given."
    known = (
        "Who is in the table of requirements and asks for what, the number of users of each "
        "requirement, bins, slots, columns and options, and the ledger: none depends on events"
    )
    if data["range"] == "events":
        return f"{known}. The first and the last slot are those of the first and the last event."
    if data["range"] == "stream":
        return (
            f"{known}. The first slot was given, or is that of the first event; the times of "
            "events, or the clock of what they come from, say which are over."
        )
    if data["range"] == "clock":
        return f"{known}. The first slot was given, and the clock says which are over."
    return f"{known}. The range of slots was given as well."


def _model(local: bool) -> str:
    if local:
        return (
            "Each user's device perturbs what it reports, and keeps a filter of its own. Where "
            "`streamveil collect` plays the devices, whoever runs it sees the events."
        )
    return "Whoever runs the pipeline sees the events; a reader sees what was released."


def _actors(local: bool) -> str:
    if local:
        return (
            "Users, whose devices trust nobody; whoever runs the pipeline, who gets what devices "
            "report; readers of what is released."
        )
    return (
        "Users; whoever runs the pipeline, whom they trust with their events; readers of what is "
        "released, whom nobody need trust."
    )


def _source(data: Mapping[str, Any]) -> str:
    if not data.get("slot"):
        return "One table of records, read once."
    if data.get("range") == "stream":
        return f"Events as they come, without an end, in slots of {data['slot']}."
    return f"Events in files, in slots of {data['slot']}."


def _over_time(promise: Mapping[str, Any]) -> str:
    guarantee = promise["guarantee"]
    if guarantee in (INFINITE, USER):
        return "One budget for all slots there will ever be."
    if "classes" not in promise:
        return "A record pays once, whatever is released of it in one run; runs add up."
    return (
        "Budgets hold over any window, and are available again once it has passed: over longer "
        "times losses add up. Runs over the same slots that do not share a state add up as well."
    )


def _composition(promise: Mapping[str, Any]) -> str:
    if "classes" not in promise:
        return "Sequential, per record: all that is released of a record costs it its budget."
    return (
        "Sequential, per requirement: a filter adds up in whole units of 2^-40 what the slots of "
        "every window cost, and refuses a release that would exceed a requirement."
    )


def _preprocessing(data: Mapping[str, Any]) -> str:
    if "statistic" in data:
        return "A record that cannot be read, or is outside the stated bounds, counts nowhere."
    if "questions" in data:
        return "A user counts in a slot of a question at most as often as that question says."
    return (
        f"A user counts at most {data['max_contributions']} times in a slot ({data['keep']} of "
        "more events). What a run chose by its events, it paid for."
    )


def _mechanisms(card: Mapping[str, Any]) -> str:
    questions = card["data"].get("questions", ())
    names = card["mechanism"] or ", ".join(f"{q['name']}: {q['mechanism']}" for q in questions)
    versions = ", ".join(dict.fromkeys(run["streamveil"] or "unknown" for run in card["runs"]))
    return (
        f"{names}, of streamveil {versions}. Noise is sampled exactly, in integers, from a keyed "
        "cryptographic stream, so the low bits of floating point give nothing away."
    )

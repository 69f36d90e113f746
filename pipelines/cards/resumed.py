"""A stream that is launched again goes on under the card of its first launch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.files import Record, card_text
from streamveil.pipelines.cards.registry_form import deployment_of

_STATED = ("format", "command", "data", "mechanism")
_LEARNT = ("in_force", "classes")
"""Parts of a promise of which a run that has ended may know more."""


def resumed(path: str, before: Mapping[str, Any], card: Record) -> Record:
    """The card of a stream that was launched before, with one more run.

    A run that is like the last one but for how far it came takes its place.

    Args:
        path: where the card is.
        before: what is there.
        card: of the run that goes on.

    Raises:
        ConfigurationError: where the two are not of one stream: another promise, other data, slots
            or mechanism, or another noise key for slots that may have been released.
    """
    now = json.loads(card_text(card))
    for part in _STATED:
        if before.get(part) != now[part]:
            raise _another(path, part, before.get(part), now[part])
    _refuse_other_promise(path, before["promise"], now["promise"])
    _refuse_other_keys(path, before["noise_key"]["keys"], now["noise_key"]["keys"])
    runs = [*before["runs"], *now["runs"]]
    if _alike(runs[-2]) == _alike(runs[-1]):
        del runs[-2]
    made = {**card, "runs": runs}
    return {**made, "deployment": deployment_of(made)}


def _refuse_other_promise(path: str, before: Record, now: Record) -> None:
    for part in sorted({*before, *now} - {*_LEARNT}):
        if before.get(part) != now.get(part):
            raise _another(path, f"promise.{part}", before.get(part), now.get(part))
    listed = [[_asked(one) for one in card.get("classes", ())] for card in (before, now)]
    if listed[0] != listed[1]:
        raise _another(path, "promise.classes", *listed)


def _asked(one: Mapping[str, Any]) -> Record:
    """A class without the limits that a run chose for it, which are not known at a launch."""
    limits = [_without_choice(limit) for limit in one.get("limits", ())]
    return {**one, "limits": limits}


def _without_choice(limit: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**limit, "max_slots": None} if limit["chosen"] else limit


def _refuse_other_keys(path: str, before: list[Record], now: list[Record]) -> None:
    if now[: len(before)] != before:
        raise ConfigurationError(
            f"{path} is the card of a stream under another noise key, so this run is not that "
            f"stream: give the key that it was launched with ({opt.noise_key}), which may be "
            "followed by others; or, for a new stream, which spends the users' budgets once "
            f"more, name another file ({opt.card}), or remove this one if its launch failed and "
            "released nothing"
        )


def _another(path: str, part: str, before: Any, now: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is the card of another stream: it says {_short(before)} as {part}, and this run "
        f"{_short(now)}: use what the card says; or, for a new stream, which spends the "
        f"users' budgets once more, name another file ({opt.card})"
    )


def _short(value: Any, most: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}..."


def _alike(run: Mapping[str, Any]) -> Any:
    """What must be the same in two runs of which one takes the place of the other."""
    return run["streamveil"], run.get("streams"), sorted(run["files"]), run.get("first_slot")

"""The card of a run at its launch: the promise, of which nothing is released so far.

It is all that a stream has while it goes on, and it is what a job has that is handed over to a
service. Once the run has ended, its card takes the place of this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamveil.io import is_stream
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.cards.facts import card_of, run_of
from streamveil.pipelines.cards.files import card_text, name_of
from streamveil.pipelines.cards.promises import Record, possible_limits
from streamveil.pipelines.cards.registry_form import deployment_of

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan


_STATED = ("format", "command", "data", "mechanism")
_LEARNT = ("in_force", "classes")
"""Parts of a promise of which a run that has ended may know more."""


def card_at_launch(
    command: str,
    plan: Plan,
    places: Mapping[str, str],
    *,
    decided_by: str | None = None,
    drawn: bool | None = None,
    changes: bool = False,
) -> Record:
    """The card of a run that begins.

    Args:
        command: that is run.
        plan: that it applies.
        places: where what may be published goes, files and streams, by what it is.
        decided_by: see :func:`card_of`.
        drawn: the same.
        changes: whether requirements may change.
    """
    files = {kind: {"name": name_of(path)} for kind, path in files_of(places).items()}
    streams = streams_of(places)
    run = run_of(
        plan,
        plan.first_slot,
        plan.last_slot,
        files,
        **({"streams": streams} if streams else {}),
        open=True,
    )
    return card_of(
        command,
        plan,
        [run],
        drawn=drawn,
        decided_by=decided_by,
        changes=changes,
        chosen=possible_limits(plan),
    )


def files_of(places: Mapping[str, str]) -> dict[str, str]:
    """Those that are files."""
    return {kind: place for kind, place in places.items() if not is_stream(place)}


def streams_of(places: Mapping[str, str]) -> dict[str, str]:
    """Of those that are streams the kind of the place, such as `kafka`."""
    return {kind: p.partition(":")[0] for kind, p in places.items() if is_stream(p)}


def gone_on(path: str, before: Mapping[str, Any], card: Record) -> Record:
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
    listed = [[_asked(one) for one in told.get("classes", ())] for told in (before, now)]
    if listed[0] != listed[1]:
        raise _another(path, "promise.classes", *listed)


def _asked(one: Mapping[str, Any]) -> Record:
    """A class without the limit that a run chose for it, which is not known at a launch."""
    limit = one.get("limit")
    if limit is None or not limit["chosen"]:
        return dict(one)
    return {**one, "limit": {**limit, "max_slots": None}}


def _refuse_other_keys(path: str, before: list[Record], now: list[Record]) -> None:
    if now[: len(before)] != before:
        raise ConfigurationError(
            f"{path} is the card of a stream under another noise key, so this run is not that "
            "stream: give the key that it was launched with (--noise_key), after which others may "
            "come; or for a stream of its own, which spends the users' budgets once more, name "
            "another file (--card), or remove this one if its launch failed and released nothing"
        )


def _another(path: str, part: str, before: Any, now: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is the card of another stream: it says {_short(before)} as {part}, and this run "
        f"{_short(now)}: go on with what that says, or for a stream of its own, which spends the "
        "users' budgets once more, name another file (--card)"
    )


def _short(value: Any, most: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}..."


def _alike(run: Mapping[str, Any]) -> Any:
    """What must be the same in two runs of which one takes the place of the other."""
    return run["streamveil"], run.get("streams"), sorted(run["files"]), run.get("first_slot")

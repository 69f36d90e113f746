"""What plans of streams have in common is brought to its own types, or refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from streamveil.mechanisms.core.arguments import (
    domain_of,
    is_true,
    refuse,
    registry_of,
    slot_number,
    slots_of,
    text_of,
)
from streamveil.mechanisms.core.records import NOT_PRIVATE, ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto

_LOGGER = logging.getLogger("streamveil")


def take_public(plan: Any) -> None:
    """Bring the public arguments of a plan of histograms to their own types.

    Raises ConfigurationError for what cannot be taken.
    """
    plan.registry = ignoring_deltas(registry_of(plan.registry))
    plan.domain = domain_of(plan.domain)
    take_options(plan)
    plan.slots = slots_of(plan.slots)
    text_of(plan.mechanism, "mechanism", "give the name of a mechanism")


def ignoring_deltas(registry: Registry) -> Registry:
    """The table without deltas, which only apply to keys that are discovered. Says so."""
    if registry.deltas:
        _LOGGER.warning(
            "the requirements give a delta, which is ignored: no keys are discovered, so all "
            "results have delta 0"
        )
    return registry.without_deltas()


def check_limit(limit: Any, forever: bool) -> None:
    """Refuse what says of nobody in how many slots they count. Raises ConfigurationError."""
    several = isinstance(limit, Sequence) and all(isinstance(one, Limit) for one in limit)
    if not (limit is None or several or isinstance(limit, (Limit, Auto))):
        refuse("limit", limit, "give Limit(3), Auto(), or a list with a Limit for each class")
    if forever and isinstance(limit, Auto):
        raise ConfigurationError(
            "limit is Auto, which chooses by windows: for a lifetime budget, give the number of "
            "slots to which each user contributes, such as Limit(None, in_life=5)"
        )


def check_moving(registry: Registry, limit: Any) -> None:
    """Refuse participation limits that users cannot have whose requirements change.

    Raises ConfigurationError.
    """
    if any(registry.max_slots):
        raise ConfigurationError(
            "if requirements change, all users have the same participation limit: leave out the "
            f"column max_slots of the table of requirements, and give {opt.max_slots}"
        )
    if isinstance(limit, Auto):
        raise ConfigurationError(
            "max_slots=auto is for requirements that never change: where they do, give the "
            f"number of slots to which each user contributes, such as {opt.max_slots}=2, or "
            "leave out the changes"
        )
    if limit is not None and (
        not isinstance(limit, Limit) or limit.max_slots is None or limit.in_life
    ):
        raise ConfigurationError(
            "if requirements change, all users have the same participation limit, in the slots of "
            "a block: give one Limit, without in_life"
        )


def check_first_slot(first_slot: int | None) -> None:
    """Refuse changes from no slot on that is known. Raises ConfigurationError."""
    if first_slot is None:
        raise ConfigurationError(
            f"requirements change ({opt.requirement_changes}), so the slot from which on they do "
            f"must be known: give {opt.start}"
        )


def check_last_slot(last_slot: int | None) -> None:
    """Refuse a bounded input of users who move, up to no slot. Raises ConfigurationError."""
    if last_slot is None:
        raise ConfigurationError(
            f"requirements change ({opt.requirement_changes}), and shards follow them slot by "
            f"slot, so the last slot must be known: give {opt.end}"
        )


def refuse_limits(registry: Registry) -> None:
    """Refuse participation limits where devices answer. Raises ConfigurationError."""
    if registry.max_slots:
        raise ConfigurationError(
            "the table of requirements has participation limits (max_slots), which devices "
            "cannot keep: leave the column out in local mode"
        )


def take_options(plan: Any) -> None:
    """The same for the arguments that all plans of streams have."""
    for name in ("first_slot", "last_slot"):
        setattr(plan, name, slot_number(getattr(plan, name), name))
    for name in ("may_be_empty", "changing", "keeps"):
        if hasattr(plan, name):
            setattr(plan, name, is_true(getattr(plan, name), name))
    if not isinstance(resume := getattr(plan, "resume", None), (bytes, type(None))):
        raise ConfigurationError(  # which shows no state: it is private
            f"resume is of type {type(resume).__name__}: give the bytes of a state, the second of "
            "what io.read_state gives"
        )


def check_test_mode(plan: Any) -> None:
    """Say that nothing is private in test mode, and refuse what has no meaning there.

    Raises ConfigurationError.
    """
    plan.test_mode = is_true(plan.test_mode, "test_mode")
    if not plan.test_mode:
        return
    if plan.resume is not None:
        raise ConfigurationError(
            "test_mode=True resumes from the state of a stream, whose results are private"
            ": leave resume out, and begin a test with its first slot"
        )
    if getattr(plan, "revise", 0):
        raise ConfigurationError(
            f"revise={plan.revise} ({opt.revise}) with test_mode ({opt.test_mode}): exact counts "
            f"are not revised, leave one of them out"
        )
    _LOGGER.warning("%s", NOT_PRIVATE)


def check_look(
    windows: Iterable[int], slots: int | None, ends: bool, slots_per_pass: int | None
) -> None:
    """Refuse a range that is too short to look at users in, to choose participation limits by.

    So may be what one pass releases at most.

    Args:
        windows: slots of each window that is looked at, one at least.
        slots: of the range, None where that is not given.
        ends: whether the stream ends with the range.
        slots_per_pass: the most that one pass releases, None where there are no passes.

    Raises ConfigurationError.
    """
    shortest = min(windows)
    longer = f"begin with {shortest} slots or more ({opt.start}, {opt.end})"
    if slots is not None and slots < shortest and not ends:
        longer = f"wait until {shortest} slots have closed"
    elif slots_per_pass is not None and slots_per_pass < min(shortest, slots or shortest):
        slots, longer = slots_per_pass, f"give {opt.slots_per_pass}={shortest} or more"
    if slots is None or slots >= shortest:
        return
    raise ConfigurationError(
        f"max_slots=auto estimates participation over a window, and there are {slots} slots and no "
        f"window shorter than {shortest}: {longer}, or say max_slots, or auto and the share of "
        "the slots in which users are there, such as auto:0.05"
    )


def refuse_endless_look() -> NoReturn:
    """Refuse a look at users of an input that has no end. Raises ConfigurationError."""
    raise ConfigurationError(
        "max_slots=auto estimates participation before the first release, so the input must be "
        f"bounded: release it pass by pass ({opt.state}), or say max_slots, or auto and the "
        "share of the slots in which users are there, such as auto:0.05"
    )


def check_resume(following: int | None, first_slot: int | None) -> None:
    """Refuse to go on elsewhere than a state says. Raises ConfigurationError."""
    if following != first_slot:
        raise ConfigurationError(
            f"the run starts at slot {first_slot}, but the state that it resumes from continues "
            f"with slot {following}: start there"
        )


def check_shards(written: int, each: int, shards: int) -> None:
    """Refuse to go on from a state of other shards, which keep who counted in which slots.

    Args:
        written: shards of the state.
        each: shards of a run for every one that is asked for.
        shards: as many are asked for.

    Raises ConfigurationError.
    """
    if written != each * shards:
        raise ConfigurationError(
            f"this state is of a stream with {opt.shards}={written // each}, and this run has "
            f"{shards}: use the number that it started with"
        )

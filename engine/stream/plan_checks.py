"""What plans of streams have in common is brought to its own types, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamveil.mechanisms.core.arguments import (
    domain_of,
    is_true,
    refuse,
    registry_of,
    slot_number,
    slots_of,
    text_of,
)
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto


def take_public(plan: Any) -> None:
    """Bring the public arguments of a plan of histograms to their own types.

    Raises ConfigurationError for what cannot be taken.
    """
    plan.registry = registry_of(plan.registry)
    plan.domain = domain_of(plan.domain)
    take_options(plan)
    plan.slots = slots_of(plan.slots)
    text_of(plan.mechanism, "mechanism", "give the name of a mechanism")


def check_limit(limit: Any, forever: bool) -> None:
    """Refuse what says of nobody in how many slots they count. Raises ConfigurationError."""
    several = isinstance(limit, Sequence) and all(isinstance(one, Limit) for one in limit)
    if not (limit is None or several or isinstance(limit, (Limit, Auto))):
        refuse("limit", limit, "give Limit(3), Auto(), or a list with a Limit for each class")
    if forever and isinstance(limit, Auto):
        raise ConfigurationError(
            "limit is Auto, which chooses by windows: with one budget forever say in how many "
            "slots of their lives users count, such as Limit(None, in_life=5)"
        )


def refuse_limits(registry: Registry) -> None:
    """Refuse limits on presence where devices answer. Raises ConfigurationError."""
    if registry.max_slots:
        raise ConfigurationError(
            "the table of requirements has limits on presence (max_slots), which are for events "
            "that are counted in one place: leave the column out where devices answer"
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


def check_resume(following: int | None, first_slot: int | None) -> None:
    """Refuse to go on elsewhere than a state says. Raises ConfigurationError."""
    if following != first_slot:
        raise ConfigurationError(
            f"the run starts at slot {first_slot}, but slot {following} comes next after the state "
            "that it goes on from: start there"
        )

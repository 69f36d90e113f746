"""What is checked of the places of a job before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from streamveil.io import is_stream
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

if TYPE_CHECKING:
    import apache_beam as beam


def refuse_streams(places: Mapping[str, str | None], pubsub: Collection[str] = ()) -> None:
    """Refuse streams where a run keeps its state, but for Pub/Sub under these names of places.

    Raises ConfigurationError.
    """
    for name, place in places.items():
        if not place or not is_stream(place) or (name in pubsub and place.startswith("pubsub:")):
            continue
        raise ConfigurationError(
            f"{name} {place} is not files, and {opt.state} makes passes over files: give a glob or "
            f"a file, pubsub: for {opt.input} and for releases and revisions, or leave {opt.state} "
            f"to a runner that keeps checkpoints"
        )


def check_streams(sinks: Sequence[beam.PTransform | None]) -> None:
    """Ask the services of sinks whether they take what they are for, before anything runs.

    Raises ConfigurationError.
    """
    streams = [sink for sink in sinks if sink is not None]
    if streams:
        from streamveil.io import check_sinks

        check_sinks(streams)


def check_card_apart(card: str | None, places: Sequence[str | None]) -> None:
    """Refuse another output where the card goes. Raises ConfigurationError."""
    if card in places and card is not None:
        raise ConfigurationError(f"{card} is the file of the releases' card: choose another name")

"""The decision whether a bounded input is whole enough to be released, as steps of a pipeline.

It is made of tallies that go through the pipeline as data, before the release stage sees any count:
counters would come too late, and not from every runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import apache_beam as beam
from apache_beam.typehints import KV

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.mechanisms.core.event_tallies import EventTally, sum_bytes
from streamveil.transforms.on_beam import Message


def added_up(
    tallies: Sequence[beam.PCollection[bytes]],
    none: bytes,
    total: Callable[[Iterable[bytes]], bytes],
) -> beam.PCollection[bytes]:
    """The total of tallies, that of `none` where there are none.

    If the steps that add up fail, there is no total: an empty one would pass for the whole.
    """
    begin = tallies[0].pipeline | "NoTally" >> beam.Create([none], reshuffle=False)
    return (
        (*tallies, begin)
        | "AllTallies" >> beam.Flatten()
        | "AddUp" >> beam.CombineGlobally(total).without_defaults()
    )


def refuse_loss(
    tallies: Sequence[beam.PCollection[bytes]], limit: LossLimit, stream: str
) -> beam.PCollection[tuple[str, Message]]:
    """Fail where a bounded input lost too much; gives the word that it is whole, for the stream.

    Without that word nothing is released: some runners go on for a while when a step has failed,
    as if what it was given had never been. The word says how many messages there must be, so that
    none of them is missed that a step on the way lost by failing.
    """
    return added_up(tallies, EventTally().to_bytes(), sum_bytes) | "RefuseLoss" >> beam.Map(
        limit.check, stream
    ).with_output_types(KV[str, Message])

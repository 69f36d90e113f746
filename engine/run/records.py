"""Statistics of a bounded input that protect each record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from streamveil.engine.messages import (
    Kind,
    Message,
    Output,
    array_to_bytes,
)
from streamveil.engine.per_record.mapper import PaneKey
from streamveil.engine.per_record.plan import Plan, added
from streamveil.engine.run.gathered import Batches
from streamveil.engine.stream.release_slots import release_at_end


def release_records(plan: Plan, records: Batches) -> Iterator[Output]:
    """Release a statistic that protects each record, of each key and pane of a bounded input.

    Args:
        plan: what is released of which records. The guarantee is that of
            :class:`streamveil.transforms.PerRecordCount` and its like.
        records: batches with the columns of the plan; read once.

    Yields:
        A `PerRecordRow` for each window of each key.
    """
    source, statistic = plan.source, plan.statistic()
    panes: dict[PaneKey, bytes] = {}
    for batch in records:
        if batch.num_rows:  # or it may have no columns
            for key, part in source.parts(batch, statistic, None):
                panes[key] = added(statistic, (panes.get(key, b""), array_to_bytes(part)))
    by_key: dict[int, list[Message]] = defaultdict(list)
    for (position, pane), payload in panes.items():
        by_key[position].append(Message(Kind.COUNTS, pane, payload=payload))
    config = plan.release_config()
    for position in range(source.number):
        messages = by_key.pop(position, [])
        word = Message(Kind.WHOLE, payload=b"%d" % len(messages))
        messages += [Message(Kind.OPEN, plan.first_pane), word]
        for output in release_at_end(config, position, messages):
            if output.tag is None:
                yield output

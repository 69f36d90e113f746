"""Statistics under per-record privacy, one transform each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from streamveil.engine.per_record.budgets import types_of
from streamveil.engine.per_record.records_plan import (
    CountPlan,
    DistinctPlan,
    MaxPlan,
    RecordsPlan,
    RunningTotalPlan,
    SumPlan,
)
from streamveil.engine.slot_clock import SlotClock
from streamveil.mechanisms.core.records import ConfigurationError, PerRecordRow
from streamveil.mechanisms.core.wording import opt
from streamveil.transforms.per_record.pipeline import release_at_end, release_in_time
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.stream_options import StreamOptions


@beam.typehints.with_output_types(PerRecordRow)
@dataclass(eq=False)
class PerRecord(StreamOptions, RecordsPlan, beam.PTransform):
    """What all have in common: a statistic of every window and public key, empty or not, each once.

    Input: a PCollection of records with the columns that are named here, bounded or not, in the
    global window: Arrow record batches (pyarrow.RecordBatch), rows with a schema or dictionaries,
    as `PrivateHistograms` takes them; a cell of a wrong type is null. Output: `PerRecordRow`, in
    order for each key; the order among keys is the runner's, which may depend on records: sort rows
    before showing it.

    Guarantee: E-per-record differential privacy, where E is `budget`: when a record r is added or
    removed, the probability of any set of outputs, over all windows and keys and forever, changes
    by at most a factor exp(E(r)). The unit is the record: a user with several records loses the
    sum of their budgets, unless `max_records_per_user` is stated and kept. This holds for one run;
    runs over the same records add up.

    Public are the options, the names and types of columns, and which windows and keys there are.
    A bad record (no budget, one below `epsilon_min`, a value outside its bounds, no time, no public
    key, or one that comes late) counts nowhere; no output, counter or log shows that it came.
    counter or log.

    Raises:
        ConfigurationError: at construction for options that do not fit; when applied, for fields
            of rows that are missing or of a wrong type; when the pipeline runs, for such columns
            of record batches.
        ValueError: when applied to a windowed or triggered input, which cannot be accounted for.
    """

    def expand(self, records: beam.PCollection[Any]) -> beam.PCollection[PerRecordRow]:
        """Build the pipeline: records -> batches -> parts -> parts of panes -> rows."""
        plan = self.plan()
        batches = as_batches(
            records,
            plan.source.names,
            lambda: plan.source,
            what="records",
            types=types_of(self.budget),
        )
        if not batches.is_bounded:
            if self.slots is None:
                raise ConfigurationError(
                    "the input is unbounded, so a window of all times would never close: give the "
                    f"length of panes ({opt.slot})"
                )
            clock = SlotClock(self.slots, int(self.allowed_lateness))
            return release_in_time(batches, plan, clock, self.heartbeat, self.settle)
        if self.slots is not None and None in (self.first_slot, self.last_slot):
            raise ConfigurationError(
                "the range of panes of a bounded input is public, because a range taken from the "
                f"records would reveal a single record: give it ({opt.start} and {opt.end})"
            )
        return release_at_end(batches, plan)


class PerRecordCount(CountPlan, PerRecord):
    """Count records. Each record has its own privacy budget.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """


class PerRecordSum(SumPlan, PerRecord):
    """Add up the numbers in a column. Each record has its own privacy budget.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """


class PerRecordMax(MaxPlan, PerRecord):
    """Estimate the largest number in a column. Each record has its own privacy budget.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """


class PerRecordDistinctCount(DistinctPlan, PerRecord):
    """Count the distinct numbers in a column. Each record has its own privacy budget.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """


class PerRecordRunningTotal(RunningTotalPlan, PerRecord):
    """After every window, release the total so far, which is a count of records or a sum.

    The argument `first_slot` is required. The page docs/explanation/per-record.md states the
    guarantee and gives examples.
    """

"""The local setting: devices randomise their own records, and only what they report is gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, cast

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder

from streamveil.engine.encode.dead_letters import column_of, naming_source
from streamveil.engine.messages import array_from_bytes, array_to_bytes
from streamveil.engine.per_record.budgets import Budget, types_of
from streamveil.engine.per_record.plan import COUNT, SUM, bounds_of, mechanism_of, take_records
from streamveil.engine.per_record.record_columns import numbers_of
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import ConfigurationError, PerRecordRow
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.per_record.analyzer import Analyzer
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import PerRecordRelease
from streamveil.mechanisms.per_record.randomizer import Randomizer
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.mechanisms.registry import statistic
from streamveil.transforms.checks import refuse_windows
from streamveil.transforms.row_batches import as_batches

REPORT = "report"


@beam.typehints.with_output_types(PerRecordRow)
@dataclass(eq=False)
class CollectPerRecord(beam.PTransform):
    """What both have in common: devices report their records, one row is made of all reports.

    Input: a bounded PCollection in the global window, a row for every device, as `PerRecordCount`
    takes records. Output: one `PerRecordRow`. :class:`Randomize` plays the devices,
    :class:`Analyze` sees their reports alone.

    Guarantee: E-per-record local privacy, where E is `budget`. A report is at most exp(E(r)) times
    as likely for a record r as for the dummy record, or less than exp(-E(r)) times; a device with a
    bad record reports as one with the dummy. How many devices there are is public, and so are the
    options and the names and types of columns.

    Raises ConfigurationError at construction for options that do not fit, and for columns that are
    missing or of a wrong type when the pipeline runs.
    """

    budget: Budget
    """How much each record may lose, as a function of its columns."""
    value: str | None = None
    """Column of numbers to sum up; none for counts."""
    _: KW_ONLY
    device: str
    """Column of who reports: the noise of a device is its own."""
    value_max: float | None = None
    """As for `PerRecordSum`."""
    mechanism: str | None = None
    """One of `PER_RECORD_MECHANISMS` that adds up totals by node; the default one when None."""
    beta: float | None = None
    """How probably a `dropped_bound` may fail; the mechanism's own default when None."""
    thresholds: str | None = None
    """How the first node is chosen: one of `analyzer.THRESHOLDS`, or as the mechanism does."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """32 secret bytes of the devices, or a picklable way to get them; fresh ones when None."""

    kind: ClassVar[str]
    """Of statistic, as in `PER_RECORD_MECHANISMS`."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        take_records(self)
        if (self.value is None) != (self.kind == COUNT):
            raise ConfigurationError(
                f"a {self.kind} {'has no' if self.kind == COUNT else 'needs a'} column of values "
                f"({opt.value_column}), which is {self.value!r}"
            )
        mechanism = mechanism_of(self.kind, self.mechanism, self.beta)
        made = statistic(self.kind, mechanism, bounds_of(self.budget, self.value, self.value_max))
        if not isinstance(made, NodeTotals):
            raise ConfigurationError(
                f"mechanism {mechanism!r} needs all records in one place ({opt.mechanism}): choose "
                f"hat or prdp in the local setting"
            )
        self._statistic = made
        self._analyzer = Analyzer(made, self.thresholds)
        self._key = SameKey.of(self.noise_key)
        self._key.refuse_later("devices report once, not by slot")

    def expand(self, records: beam.PCollection[Any]) -> beam.PCollection[PerRecordRow]:
        """Build the pipeline: records -> batches -> reports -> row."""
        devices = Randomize(
            Randomizer(self._statistic), self.budget, self.value, self.device, self._key
        )
        batches = as_batches(
            records, devices.names, lambda: devices, what="records", types=types_of(self.budget)
        )
        return batches | "Randomize" >> devices | "Analyze" >> Analyze(self._analyzer, self.kind)


class CollectPerRecordCount(CollectPerRecord):
    """Count the devices that hold a record, under local differential privacy.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """

    kind = COUNT


class CollectPerRecordSum(CollectPerRecord):
    """Add up the numbers in a column of records on devices, under local differential privacy.

    The page docs/explanation/per-record.md states the guarantee and gives examples.
    """

    kind = SUM


@beam.typehints.with_input_types(pa.RecordBatch)
@beam.typehints.with_output_types(pa.RecordBatch)
@dataclass(eq=False)
class Randomize(beam.PTransform):
    """Plays the devices: a batch of records becomes one of reports, a row for every row.

    The noise of a batch is a function of the key and of all that its reports are made of, devices
    included: a bundle that runs again reports the same.
    """

    randomizer: Randomizer
    budget: Budget
    value: str | None
    device: str
    noise_key: Callable[[], bytes | NoiseKeys] = field(repr=False)

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        some = dict.fromkeys((*self.budget.columns, self.value or "", self.device))
        return tuple(name for name in some if name)

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column or one of a type that cannot be read."""
        column_of(batch, self.device, "records")
        self.budget.budgets(batch)
        if self.value is not None:
            numbers_of(batch, self.value)

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[pa.RecordBatch]:
        """Build the step."""
        refuse_windows(batches, "records")
        return batches | "Report" >> beam.ParDo(_ReportFn(self)).with_output_types(pa.RecordBatch)


@beam.typehints.with_input_types(pa.RecordBatch)
@beam.typehints.with_output_types(PerRecordRow)
@dataclass(eq=False)
class Analyze(beam.PTransform):
    """Makes one row of all reports of a bounded input: the server's side."""

    analyzer: Analyzer
    kind: str
    """Of statistic, for the row."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, reports: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[PerRecordRow]:
        """Build the steps. Raises ConfigurationError for an unbounded input."""
        refuse_windows(reports, "reports")
        if not reports.is_bounded:
            raise ConfigurationError("the reports are unbounded: collect those of some devices")
        return (
            reports
            | "AddUp"
            >> beam.CombineGlobally(_AddReportsFn(len(self.analyzer.statistic.nodes.rates)))
            | "Estimate" >> beam.Map(self._row).with_output_types(PerRecordRow)
        )

    def _row(self, added: bytes) -> PerRecordRow:
        devices, *totals = array_from_bytes(added).tolist()
        chosen = self.analyzer.statistic
        found = PerRecordRelease(0.0, 0.0, chosen.bounds.epsilon_min, 0.0)  # of no device at all
        if devices:
            found = self.analyzer.estimate(np.array(totals, np.int64), devices)
        return PerRecordRow(None, None, None, self.kind, chosen.name, **vars(found))


class _ReportFn(beam.DoFn):
    """Record batches to batches of reports."""

    def __init__(self, devices: Randomize) -> None:
        self._devices = devices

    def setup(self) -> None:
        devices = self._devices
        self._names = list(devices.names)
        facts = (devices.randomizer, devices.budget, devices.value, devices.device)
        keys = NoiseKeys.of(devices.noise_key()).derived("per record devices")
        self._source = NoiseSource(keys, f"per record devices {digest(encoded(facts)).hex()}")

    def process(self, element: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        devices = self._devices
        with naming_source(element):
            arrays = [column_of(element, name, "records") for name in self._names]
            budgets = devices.budget.budgets(element)
            values = np.zeros(len(budgets))
            if devices.value is not None:
                values = numbers_of(element, devices.value)
        rows = pa.RecordBatch.from_arrays(arrays, self._names)
        words = self._source.slot(0, digest(rows.serialize().to_pybytes())).words("reports")
        for reports in devices.randomizer.reports(values, budgets, words):
            width = reports.shape[1]
            column = pa.FixedSizeListArray.from_arrays(pa.array(reports.ravel()), width)
            yield pa.RecordBatch.from_arrays([column], [REPORT])


class _AddReportsFn(beam.CombineFn):
    """How many reports there are, then their sum: int64, shape (1 + nodes,), as bytes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def create_accumulator(self) -> bytes:
        return array_to_bytes(np.zeros(1 + self._nodes, np.int64))

    def add_input(self, accumulator: bytes, element: pa.RecordBatch) -> bytes:
        flat = element.column(REPORT).flatten().to_numpy(zero_copy_only=False)
        reports = cast(Integers, flat.reshape(-1, self._nodes))
        return self.merge_accumulators(
            [accumulator, array_to_bytes(np.append(len(reports), reports.sum(axis=0)))]
        )

    def merge_accumulators(self, accumulators: Iterable[bytes]) -> bytes:
        return array_to_bytes(np.sum([array_from_bytes(one) for one in accumulators], axis=0))

    def extract_output(self, accumulator: bytes) -> bytes:
        return accumulator

    def get_accumulator_coder(self) -> BytesCoder:
        return BytesCoder()

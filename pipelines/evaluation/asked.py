"""Events that a portfolio is scored on: read once, counted for each question, kept in a file.

Nothing here is private: it is for data that whoever scores may see.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.engine.stream.unprotected_queries import exact_answers
from streamveil.io import CsvDialect, check_events, read_events
from streamveil.io.places import name_of
from streamveil.mechanisms.core.records import ConfigurationError, InputLost
from streamveil.mechanisms.portfolio.bounds import are_known
from streamveil.mechanisms.randomness.noise import KEY_BYTES
from streamveil.pipelines.commands import COMMANDS
from streamveil.pipelines.evaluation.data import Letters
from streamveil.pipelines.evaluation.portfolio import AskedEvents
from streamveil.pipelines.query_plans import query_plan_of
from streamveil.pipelines.values import dialect_of


@dataclass(frozen=True)
class AskedData:
    """Events, and what is asked about them."""

    name: str
    """What they are called in tables."""
    files: str
    """A path or glob."""
    transform: QueryPlan
    dialect: CsvDialect | None = None
    """How CSV files are written, where that is said."""

    @classmethod
    def of(cls, given: Any, name: str = "") -> AskedData:
        """As the options say, called so or as its files. Raises ConfigurationError."""
        usual = vars(COMMANDS["release"].strict().parse_args([]))
        same_draws = bytes(KEY_BYTES).hex().encode()
        transform = query_plan_of(
            Namespace(**{**usual, **vars(given), "noise_key": same_draws}), QueryPlan
        )
        if not are_known(transform.portfolio):
            raise ConfigurationError(
                "bounds: auto chooses other bounds in every run: write lower and upper to score or "
                "audit the question (--questions)"
            )
        dialect = dialect_of(given)
        check_events(given.input, transform.columns.names, dialect=dialect)
        name = name or name_of(given.input)
        return cls(name, given.input, transform, dialect)

    def count(self, folder: Path, letters: Letters) -> AskedEvents:
        """Count all events for all questions into a file.

        Args:
            folder: where the file goes; it must outlive what is returned.
            letters: takes what cannot be counted.

        Raises:
            ConfigurationError: for events that cannot be read, or none that counts.
        """
        transform, path = self.transform, folder / "questions.npz"
        try:
            first, exact = exact_answers(transform, self._batches(letters), letters.add)
        except InputLost:
            listed = ", ".join(f"{reason} {n:,}" for reason, n in sorted(letters.reasons.items()))
            raise ConfigurationError(
                f"{self.files}: no event counts for any question; rejected: {listed or 'none'}. "
                "Mend the events or the options, or give the range (--start and --end)"
            ) from None
        arrays: dict[str, Any] = {}
        for q, one in enumerate(exact):
            arrays[f"counts{q}"], arrays[f"figures{q}"] = one.counts, one.figures
            arrays |= {f"longer{q}_{t}": figures for t, figures in enumerate(one.longer)}
        np.savez(path, **arrays)
        known = transform.registry
        return AskedEvents(
            self.name,
            transform.portfolio,
            known.classes,
            known.sizes,
            transform.adjacency,
            transform.units,
            first,
            str(path),
            guessed=known.guessed,
        )

    def _batches(self, letters: Letters) -> Iterator[pa.RecordBatch]:
        names = self.transform.columns.names
        for batch, rejected in read_events(self.files, names, dialect=self.dialect):
            if rejected is not None:
                letters.add(rejected)
            if batch.num_rows:
                yield batch

"""Events that a query set is scored on: read once, counted for each query, kept in a file.

Nothing here is private: it is for data that whoever scores may see.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamveil.engine.capabilities import OF_DISCOVERED
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.engine.stream.unprotected_queries import TrueKeys, exact_answers, true_keys
from streamveil.io import CsvDialect, check_events
from streamveil.io.places import name_of
from streamveil.mechanisms.core.records import ConfigurationError, InputLost
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.bounds import are_known
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.randomness.noise import KEY_BYTES
from streamveil.pipelines.evaluation.data import Letters
from streamveil.pipelines.evaluation.queries import AskedEvents
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.parsers import dialect_of
from streamveil.pipelines.plans.user_plans import query_plan_of


def refuse_discovered(query_set: QuerySet) -> None:
    """Refuse queries that discover their keys, because releases of the same keys are compared.

    Raises ConfigurationError.
    """
    for query in discovering(query_set):
        raise ConfigurationError(f"query {query.name!r}: {OF_DISCOVERED['audit']}")


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
        usual = COMMANDS["release"].defaults
        same_draws = bytes(KEY_BYTES).hex().encode()
        transform = query_plan_of(
            Namespace(**{**usual, **vars(given), "noise_key": same_draws}), QueryPlan
        )
        if not are_known(transform.query_set):
            raise ConfigurationError(
                "bounds: auto chooses other bounds in every run: write bounds: [LOW, HIGH] to "
                f"score or audit the query ({opt.queries})"
            )
        dialect = dialect_of(given)
        check_events(given.input, transform.columns.names, dialect=dialect)
        name = name or name_of(given.input)
        return cls(name, given.input, transform, dialect)

    def count(self, folder: Path, letters: Letters) -> AskedEvents:
        """Count all events for all queries into a file.

        Args:
            folder: where the file goes; it must outlive what is returned.
            letters: collects the dead letters.

        Raises:
            ConfigurationError: for events that cannot be read, or none that counts.
        """
        transform, path = self.transform, folder / "queries.npz"
        try:
            batches = letters.counted(self.files, transform.columns.names, self.dialect)
            first, exact = exact_answers(transform, batches, letters.add)
        except InputLost:
            none = "no event counts for any query"
            raise letters.none_left(self.files, none, "the range") from None
        arrays: dict[str, Any] = {}
        for q, one in enumerate(exact):
            arrays[f"counts{q}"], arrays[f"figures{q}"] = one.counts, one.figures
            arrays |= {f"longer{q}_{t}": figures for t, figures in enumerate(one.longer)}
        np.savez(path, **arrays)
        return self.events(transform, first, str(path))

    def events(self, plan: QueryPlan, first: int, path: str = "") -> AskedEvents:
        """The events of a plan whose first base slot is known, with the file of its counts."""
        known = plan.registry
        return AskedEvents(
            self.name,
            plan.query_set,
            known.classes,
            known.sizes,
            plan.adjacency,
            plan.units,
            first,
            path,
            guessed=known.guessed,
        )

    def true_keys(self, letters: Letters) -> dict[str, TrueKeys]:
        """The true keys of all queries that discover keys, by the name of the query.

        Args:
            letters: collects the dead letters.

        Raises:
            ConfigurationError: for events that cannot be read.
        """
        batches = letters.counted(self.files, self.transform.columns.names, self.dialect)
        return true_keys(self.transform, batches, letters.add)

"""Beam YAML: the transforms on rows, configured by the options of the commands.

`python -m streamveil.pipelines.yaml` prints the listing of them that a pipeline includes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import apache_beam as beam

from streamveil.io import (
    ANSWERS_SCHEMA,
    LEDGER_SCHEMA,
    PER_RECORD_SCHEMA,
    REJECTED_SCHEMA,
    RESULT_SCHEMA,
    answers_batch,
    release_schema,
)
from streamveil.io.jsonlines import json_rows
from streamveil.io.ledgers import (
    DYNAMIC_LEDGER_SCHEMA,
    dynamic_ledger_to_batch,
    ledger_to_batch,
)
from streamveil.io.per_record import per_record_object
from streamveil.io.releases import release_row
from streamveil.io.tidy import (
    revised_answers_schema,
    revised_schema,
    tidy_batch,
    tidy_revision_batch,
)
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import spelled
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.declarations import reasons, saying
from streamveil.pipelines.options.option import COLLECT, PER_RECORD, QUERIES, RELEASE, YAML, refuse
from streamveil.pipelines.options.parsers import check_revisions
from streamveil.pipelines.plans.beam_transforms import STATISTICS
from streamveil.pipelines.plans.record_plans import records_plan_of
from streamveil.pipelines.plans.user_plans import histogram_plan_of, local_plan_of, query_plan_of
from streamveil.pipelines.yaml_rows import Objects, OnRows, Output
from streamveil.transforms import CollectHistograms
from streamveil.transforms.release_plan import PrivateAnswers, PrivateHistograms

# Options here alone: the type and the meaning of each.
_OUTPUTS: Mapping[str, tuple[Any, str]] = {
    "rows": (
        str | None,
        "name of an output with the results as rows with times, for SQL and sinks",
    ),
    "details": (str | None, "name of an output with the results and their diagnostics"),
    "ledger": (str | None, "name of an output for what every slot cost every class of users"),
    "revisions": (str | None, "with revise: name of an output for the revised rows"),
    "error_handling": (Mapping[str, str] | None, "as of Beam's own transforms, for dead letters"),
}
_WITH_QUERIES: Mapping[str, tuple[Any, str]] = {
    "queries": (
        Any,
        "what is released: slot and queries, or the name of a file of these; in place of "
        "value_column, domain and slot",
    ),
    **_OUTPUTS,
}

Configured = Callable[..., OnRows]


def _configured_by(
    command: str, taken: Mapping[str, tuple[Any, str]] = _OUTPUTS
) -> Callable[[Configured], Configured]:
    """Have the options of a command taken by keyword, as YAML gives them.

    The function takes those of `taken` too, as they are.
    """
    options = COMMANDS[command].options
    known = {name: option for name, option in options.items() if YAML in option.fronts}

    def decorate(make: Configured) -> Configured:
        def configured(**config: Any) -> OnRows:
            for name in config:
                if name not in known and name not in taken:
                    there = ", ".join((*known, *taken))
                    raise ConfigurationError(f"there is no {name!r} here; there are: {there}")
            kept = {name: config.pop(name) for name in taken if name in config}
            with spelled(str):
                return make(COMMANDS[command].take(config), **kept)

        described = {
            **{name: (one.kind | None, one.meaning(command)) for name, one in known.items()},
            **taken,
        }
        configured.__doc__ = f"{make.__doc__}\n\nArgs:" + "".join(
            f"\n    {name}: {text}" for name, (_, text) in described.items()
        )
        configured.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
                )
                for name, (kind, _) in described.items()
            ]
        )
        return configured

    return decorate


@_configured_by(RELEASE, _WITH_QUERIES)
def private_queries(given: Any, queries: Any = None, **named: Any) -> OnRows:
    """Rows of events to private statistics of every slot, as `streamveil release`."""
    if queries is not None:
        return _query_set(given, queries, named)
    transform = histogram_plan_of(given, PrivateHistograms, allowed_lateness=given.allowed_lateness)
    given.revisions = named.get("revisions")
    check_revisions(given, transform.mechanism)
    shares = transform.population.requirements.forever
    dynamic = only_dynamic(transform.mechanism)
    outputs = partial(_counts, transform, named, shares=shares, dynamic=dynamic)
    return OnRows(transform, outputs)


def _query_set(given: Any, queries: Any, named: Mapping[str, Any]) -> OnRows:
    refuse(given, COMMANDS[RELEASE].defaults, reasons(QUERIES), saying(QUERIES))
    given.revisions = named.get("revisions")
    check_revisions(given, None)
    given.queries = queries
    transform = query_plan_of(given, PrivateAnswers, allowed_lateness=given.allowed_lateness)
    return OnRows(transform, partial(_answers, named))


@_configured_by(COLLECT)
def collect_histograms(given: Any, **named: Any) -> OnRows:
    """Rows of events to one histogram a slot in the local model, as `streamveil collect`."""
    transform = local_plan_of(given, CollectHistograms, allowed_lateness=given.allowed_lateness)
    given.revisions = named.get("revisions")
    check_revisions(given, transform.mechanism, local=True)
    return OnRows(transform, partial(_counts, transform, named))


@_configured_by(PER_RECORD, {})
def per_record_statistic(given: Any) -> OnRows:
    """Rows of records to a statistic that protects each, as `streamveil per-record`."""
    transform = records_plan_of(given, STATISTICS, allowed_lateness=given.allowed_lateness)
    return OnRows(
        transform,
        lambda rows: {"statistics": Output(rows, _per_record, PER_RECORD_SCHEMA)},
    )


def _counts(
    transform: PrivateHistograms | CollectHistograms,
    named: Mapping[str, Any],
    made: Any,
    *,
    shares: bool = False,
    dynamic: bool = False,
) -> dict[str, Output | beam.PCollection[beam.Row]]:
    """The outputs of a count: `named` says which there are besides the results."""
    tidy = partial(_tidy, transform.domain.labels, zone_of(transform.slots))
    outputs: dict[str, Output | beam.PCollection[beam.Row]] = {
        "results": Output(made.results, tidy, RESULT_SCHEMA)
    }
    if dynamic:
        costs = Output(made.ledger, _dynamic_ledger, DYNAMIC_LEDGER_SCHEMA)
    else:
        costs = Output(made.ledger, _ledger, LEDGER_SCHEMA)
    details = Output(made.results, _release, release_schema(shares=shares))
    tidy_revision = partial(_tidy_revision, transform.domain.labels, zone_of(transform.slots))
    revised = partial(Output, objects=tidy_revision, schema=revised_schema())
    return _with(outputs, named, made, details, costs, revised)


def _answers(named: Mapping[str, Any], made: Any) -> dict[str, Output | beam.PCollection[beam.Row]]:
    """The same of a query set."""
    outputs: dict[str, Output | beam.PCollection[beam.Row]] = {
        "results": Output(made.results, _answer, RESULT_SCHEMA)
    }
    costs = Output(made.ledger, _ledger, LEDGER_SCHEMA)
    details = Output(made.results, _detail, ANSWERS_SCHEMA)
    revised = partial(Output, objects=_revised_answer, schema=revised_answers_schema())
    return _with(outputs, named, made, details, costs, revised)


def _with(
    outputs: dict[str, Any],
    named: Mapping[str, Any],
    made: Any,
    details: Output,
    costs: Output,
    revised: Callable[[Any], Output],
) -> dict[str, Any]:
    """The outputs with those that a configuration names."""
    if named.get("rows"):
        _add(outputs, named["rows"], made.rows)
    if named.get("details"):
        _add(outputs, named["details"], details)
    if named.get("ledger"):
        _add(outputs, named["ledger"], costs)
    if named.get("revisions"):
        _add(outputs, named["revisions"], revised(made.revisions))
    if named.get("error_handling"):
        bad = Output(made.rejected, json_rows, REJECTED_SCHEMA)
        _add(outputs, named["error_handling"].get("output"), bad)
    return outputs


def _add(outputs: dict[str, Any], name: Any, output: Any) -> None:
    """Add an output under a name of its own. Raises ConfigurationError."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"an output is called {name!r}: give it a name, such as error_handling: {{output: bad}}"
        )
    if name in outputs:
        raise ConfigurationError(f"two outputs are called {name!r}: give them different names")
    outputs[name] = output


def _tidy(labels: Sequence[str], zone: str | None, made: Any) -> Objects:
    return json_rows(tidy_batch([made], labels, zone=zone))


def _tidy_revision(labels: Sequence[str], zone: str | None, made: Any) -> Objects:
    return json_rows(tidy_revision_batch([made], labels, zone=zone))


def _answer(made: Any) -> Objects:
    return json_rows(answers_batch([made], RESULT_SCHEMA))


def _detail(made: Any) -> Objects:
    return json_rows(answers_batch([made], ANSWERS_SCHEMA))


def _revised_answer(made: Any) -> Objects:
    return json_rows(answers_batch([made], revised_answers_schema()))


def _release(made: Any) -> Objects:
    return [release_row(made)]


def _per_record(row: Any) -> Objects:
    return [per_record_object(row)]


def _ledger(entry: Any) -> Objects:
    return json_rows(ledger_to_batch([entry]))


def _dynamic_ledger(entry: Any) -> Objects:
    return json_rows(dynamic_ledger_to_batch([entry]))


if __name__ == "__main__":
    print(files("streamveil.pipelines").joinpath("yaml_providers.yaml").read_text(), end="")

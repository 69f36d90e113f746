"""Beam YAML: the transforms on rows, configured by the options of the commands.

`python -m streamveil.pipelines.yaml` prints the listing of them that a pipeline includes.
"""

from __future__ import annotations

import argparse
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
    PORTFOLIO_LEDGER_SCHEMA,
    REJECTED_SCHEMA,
    answers_batch,
    release_schema,
)
from streamveil.io.answers import portfolio_ledger_batch
from streamveil.io.jsonlines import json_rows
from streamveil.io.per_record import per_record_object
from streamveil.io.releases import (
    DYNAMIC_LEDGER_SCHEMA,
    dynamic_ledger_to_batch,
    ledger_to_batch,
    release_row,
)
from streamveil.io.revisions import revision_row, revision_schema
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.commands import AddOptions
from streamveil.pipelines.flags import StrictParser
from streamveil.pipelines.foreign import NOT_LOCAL, NOT_LOCAL_RELEASE, NOT_QUESTIONS
from streamveil.pipelines.graphs import STATISTICS
from streamveil.pipelines.options import (
    CHANGE_OPTIONS,
    FOLLOW_OPTIONS,
    QUESTION_OPTIONS,
    add_job_options,
    add_per_record_options,
    add_release_options,
    add_shared_options,
)
from streamveil.pipelines.parameters import meaning_of, parameters_of
from streamveil.pipelines.plans import histogram_plan_of, local_plan_of
from streamveil.pipelines.query_plans import query_plan_of
from streamveil.pipelines.record_plans import records_plan_of
from streamveil.pipelines.rows import Objects, OnRows, Output
from streamveil.pipelines.values import check_revisions
from streamveil.transforms import CollectHistograms, PrivateAnswers, PrivateHistograms

_RELEASE = (add_shared_options, add_job_options, add_release_options)
# Where rows come from and go to is said by the pipeline.
_PLACES = (
    "input",
    "output",
    "revisions",
    "rejected",
    "ledger",
    "summary",
    "card",
    "layout",
    "delimiter",
    "columns",
    "sql",
)
# Options here alone: the type and the meaning of each.
_OUTPUTS: Mapping[str, tuple[Any, str]] = {
    "rows": (str | None, "name of an output with a row for each slot and bin"),
    "ledger": (str | None, "name of an output for what every slot cost every class of users"),
    "error_handling": (Mapping[str, str] | None, "as of Beam's own transforms, for dead letters"),
}
_WITH_REVISIONS: Mapping[str, tuple[Any, str]] = {
    **_OUTPUTS,
    "revisions": (str | None, "with revise: name of an output for the revised rows"),
}

_WITH_QUESTIONS: Mapping[str, tuple[Any, str]] = {
    "questions": (Any, "what is asked: base_slot and questions, or the name of a file of these"),
    "ledger": (str | None, "name of an output for what every answer cost every class of users"),
    "error_handling": _OUTPUTS["error_handling"],
}

Configured = Callable[..., OnRows]


def _configured_by(
    options: Sequence[AddOptions],
    without: Sequence[str],
    taken: Mapping[str, tuple[Any, str]] = _OUTPUTS,
) -> Callable[[Configured], Configured]:
    """Have the options of a command taken by keyword, as YAML gives them, and parsed.

    The function takes those of `taken` too, as they are.
    """
    known = parameters_of(options, (*_PLACES, *without))

    def decorate(make: Configured) -> Configured:
        def configured(**config: Any) -> OnRows:
            for name in config:
                if name not in known and name not in taken:
                    there = ", ".join((*known, *taken))
                    raise ConfigurationError(f"there is no {name!r} here; there are: {there}")
            kept = {name: config.pop(name) for name in taken if name in config}
            return make(_parsed(options, config), **kept)

        described = {**{name: _described(action) for name, action in known.items()}, **taken}
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


def _described(action: argparse.Action) -> tuple[Any, str]:
    """The type of an option, and what it means."""
    kind: Any = action.type or str
    return kind | None, meaning_of(action)


def _parsed(options: Sequence[AddOptions], config: Mapping[str, Any]) -> argparse.Namespace:
    parser = StrictParser(add_help=False, allow_abbrev=False)
    for add in options:
        add(parser)
    return parser.parse_args(
        [f"--{name}={_text(name, value)}" for name, value in config.items() if value is not None]
    )


def _text(name: str, value: Any) -> str:
    between = "\n" if name == "time_format" else ","  # in which there may be commas
    return between.join(map(str, value)) if isinstance(value, list) else str(value)


@_configured_by(
    _RELEASE,
    (*CHANGE_OPTIONS, *FOLLOW_OPTIONS, *QUESTION_OPTIONS),
    _WITH_REVISIONS,
)
def private_histograms(
    given: Any,
    rows: str | None = None,
    ledger: str | None = None,
    revisions: str | None = None,
    error_handling: Mapping[str, str] | None = None,
) -> OnRows:
    """Rows of events to one private histogram a slot, as `streamveil release`."""
    transform = histogram_plan_of(given, PrivateHistograms, allowed_lateness=given.allowed_lateness)
    given.revisions = revisions
    check_revisions(given, transform.mechanism)
    return OnRows(
        transform,
        partial(
            _histograms,
            rows=rows,
            ledger=ledger,
            revisions=revisions,
            error_handling=error_handling,
            shares=transform.population.requirements.forever,
            dynamic=only_dynamic(transform.mechanism),
        ),
    )


@_configured_by(
    _RELEASE,
    (*NOT_LOCAL, *NOT_LOCAL_RELEASE, *CHANGE_OPTIONS, *FOLLOW_OPTIONS),
    _WITH_REVISIONS,
)
def collect_histograms(
    given: Any,
    rows: str | None = None,
    ledger: str | None = None,
    revisions: str | None = None,
    error_handling: Mapping[str, str] | None = None,
) -> OnRows:
    """Rows of events to one histogram a slot in the local setting, as `streamveil collect`."""
    transform = local_plan_of(given, CollectHistograms, allowed_lateness=given.allowed_lateness)
    given.revisions = revisions
    check_revisions(given, transform.mechanism, local=True)
    outputs = partial(
        _histograms, rows=rows, ledger=ledger, revisions=revisions, error_handling=error_handling
    )
    return OnRows(transform, outputs)


@_configured_by(
    _RELEASE,
    (*NOT_QUESTIONS, *FOLLOW_OPTIONS, *QUESTION_OPTIONS),
    _WITH_QUESTIONS,
)
def private_answers(
    given: Any,
    questions: Any = None,
    ledger: str | None = None,
    error_handling: Mapping[str, str] | None = None,
) -> OnRows:
    """Rows of events to answers to many questions, as `streamveil release --questions`."""
    if questions is None:
        raise ConfigurationError("questions are missing: give base_slot and questions, or a file")
    given.questions = questions
    transform = query_plan_of(given, PrivateAnswers, allowed_lateness=given.allowed_lateness)
    return OnRows(transform, partial(_answers, ledger=ledger, error_handling=error_handling))


@_configured_by((add_per_record_options, add_shared_options), (), {})
def per_record_statistic(given: Any) -> OnRows:
    """Rows of records to a statistic that protects each, as `streamveil per-record`."""
    transform = records_plan_of(given, STATISTICS, allowed_lateness=given.allowed_lateness)
    return OnRows(
        transform,
        lambda rows: {"statistics": Output(rows, _per_record, PER_RECORD_SCHEMA)},
    )


def _histograms(
    made: Any,
    rows: str | None,
    ledger: str | None,
    error_handling: Mapping[str, str] | None,
    shares: bool = False,
    dynamic: bool = False,
    revisions: str | None = None,
) -> dict[str, Output | beam.PCollection[beam.Row]]:
    outputs: dict[str, Output | beam.PCollection[beam.Row]] = {
        "releases": Output(made.releases, _release, release_schema(shares=shares))
    }
    if rows:
        _add(outputs, rows, made.rows)
    if ledger:
        schema = DYNAMIC_LEDGER_SCHEMA if dynamic else LEDGER_SCHEMA
        told = Output(made.ledger, _dynamic_ledger if dynamic else _ledger, schema)
        _add(outputs, ledger, told)
    if revisions:
        _add(outputs, revisions, Output(made.revisions, _revision, revision_schema()))
    if error_handling:
        bad = Output(made.rejected, json_rows, REJECTED_SCHEMA)
        _add(outputs, error_handling.get("output"), bad)
    return outputs


def _answers(
    made: Any, ledger: str | None, error_handling: Mapping[str, str] | None
) -> dict[str, Output | beam.PCollection[beam.Row]]:
    outputs: dict[str, Output | beam.PCollection[beam.Row]] = {
        "answers": Output(made.answers, _answer, ANSWERS_SCHEMA)
    }
    if ledger:
        told = Output(made.ledger, _portfolio_ledger, PORTFOLIO_LEDGER_SCHEMA)
        _add(outputs, ledger, told)
    if error_handling:
        bad = Output(made.rejected, json_rows, REJECTED_SCHEMA)
        _add(outputs, error_handling.get("output"), bad)
    return outputs


def _add(outputs: dict[str, Any], name: Any, output: Any) -> None:
    """Add an output under a name of its own. Raises ConfigurationError."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"an output is called {name!r}: give it a name, such as error_handling: {{output: bad}}"
        )
    if name in outputs:
        raise ConfigurationError(f"two outputs are called {name!r}: name them apart")
    outputs[name] = output


def _answer(made: Any) -> Objects:
    return json_rows(answers_batch([made], ANSWERS_SCHEMA))


def _portfolio_ledger(entry: Any) -> Objects:
    return json_rows(portfolio_ledger_batch([entry]))


def _release(made: Any) -> Objects:
    return [release_row(made)]


def _revision(made: Any) -> Objects:
    return [revision_row(made)]


def _per_record(row: Any) -> Objects:
    return [per_record_object(row)]


def _ledger(entry: Any) -> Objects:
    return json_rows(ledger_to_batch([entry]))


def _dynamic_ledger(entry: Any) -> Objects:
    return json_rows(dynamic_ledger_to_batch([entry]))


if __name__ == "__main__":
    print(files("streamveil.pipelines").joinpath("yaml_providers.yaml").read_text(), end="")

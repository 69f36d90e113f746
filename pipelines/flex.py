"""Dataflow Flex templates: the command that each runs, and its parameters as Dataflow wants them.

`python -m streamveil.pipelines.flex templates` writes the metadata of each to that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamveil.pipelines import main as command_line
from streamveil.pipelines.commands import AddOptions
from streamveil.pipelines.foreign import NOT_LOCAL, NOT_LOCAL_RELEASE, NOT_QUESTIONS
from streamveil.pipelines.guarantees import INFINITE, USER
from streamveil.pipelines.options import (
    CHANGE_OPTIONS,
    FOLLOW_OPTIONS,
    LIMIT_OPTIONS,
    QUESTION_OPTIONS,
    REQUIRED,
    REVISE_OPTIONS,
    TABLE_OPTIONS,
    add_job_options,
    add_per_record_options,
    add_release_options,
    add_shared_options,
)
from streamveil.pipelines.parameters import meaning_of, parameters_of

NAME_VARIABLE, IMAGE_VARIABLE = "STREAMVEIL_TEMPLATE", "STREAMVEIL_IMAGE"

# Patterns that a whole value must match, in the syntax that Python, Java and RE2 share.
_FILE = r"[a-z][a-z0-9]*://.+"
_KAFKA = r"kafka:[^/?]+:[0-9]+/.+"
_STREAM = rf"pubsub:projects/[^/]+/(subscriptions|topics)/.+|{_KAFKA}|watch:{_FILE}"
_TABLE = "bigquery:[^.]+[.][^.]+[.][^.]+"
_SINK = rf"{_TABLE}|pubsub:projects/[^/]+/topics/.+|{_KAFKA}|folder:{_FILE}"
_NUMBER = r"[0-9]*[.]?[0-9]+([eE][+-]?[0-9]+)?"
_LENGTH = r"[0-9]+(ms|s|m|h|d|w)"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?([zZ]|[+-][0-9:]+)?"
_SECRET = r"secret:projects/[^/,@]+/secrets/[^/,@]+/versions/[0-9]+"
_REGEXES = {
    "input": f"{_FILE}|{_STREAM}|bigquery:.+",
    "output": f"{_FILE}|{_SINK}",
    "requirements": _FILE,
    "requirement_changes": f"{_FILE}|{_STREAM}",
    "revisions": f"{_FILE}|{_SINK}",
    "ledger": f"{_FILE}|{_TABLE}",
    "rejected": _FILE,
    "card": _FILE,
    "default_requirement": rf"[0-9]+,{_NUMBER}(,[0-9]+)?",
    "mechanism": r"[a-z][a-z+-]*(:.+)?",
    "noise_key": rf"{_SECRET}(,{_SECRET}@[^,@]+)*",
    "allowed_lateness": _LENGTH,
    "slot": _LENGTH,
    "origin": _TIME,
    "start": _TIME,
    "end": _TIME,
    "epsilon": _NUMBER,
    "max_slots": r"([0-9]+|auto(:0?\.[0-9]+)?)(,[0-9]+)?",
    "budget": rf"(inverse|sqrt|log):{_NUMBER}(:{_NUMBER})?|table:{_FILE}",
}
_REGEXES_OF_TYPES: Mapping[Any, str] = {int: "[0-9]+", float: _NUMBER, None: ".+"}


@dataclass(frozen=True)
class Template:
    """A command, with some of its options as parameters."""

    name: str
    command: str
    description: str
    options: Sequence[AddOptions]
    required: Sequence[str]
    without: Sequence[str] = ()
    """Options that are no parameters."""
    fixed: Sequence[str] = ()
    """Flags that are always given."""
    streaming: bool = False
    """Whether inputs may have no end."""
    regexes: Mapping[str, str] = field(default_factory=dict)
    """What is narrower than for other templates."""

    def metadata(self) -> dict[str, Any]:
        """What Dataflow's TemplateMetadata says, as its JSON."""
        once = {"supportsExactlyOnce": True, "supportsAtLeastOnce": False}
        return {
            "name": f"streamveil {self.name}",
            "description": self.description,
            "streaming": self.streaming,
            **(once if self.streaming else {}),
            "parameters": [
                self._parameter(name, action)
                for name, action in parameters_of(self.options, (*self.without, *_LACKING)).items()
            ],
        }

    def _parameter(self, name: str, action: argparse.Action) -> dict[str, Any]:
        default = {} if action.default is None else {"defaultValue": str(action.default)}
        return {
            "name": name,
            "label": name.replace("_", " ").capitalize(),
            "helpText": meaning_of(action),
            "isOptional": name not in self.required,
            "regexes": [f"^({self._regex(name, action)})$"],
            **default,
        }

    def _regex(self, name: str, action: argparse.Action) -> str:
        known = {**_REGEXES, **self.regexes}
        if name in known:
            return known[name]
        return "|".join(action.choices) if action.choices else _REGEXES_OF_TYPES[action.type]


_LACKING = ("sql",)  # DuckDB is not in the image
_RELEASE = (add_shared_options, add_job_options, add_release_options)
_LOCAL = ("summary", "page")  # files of the machine that launches, where nobody would find them

_ALL = (
    Template(
        "release-batch",
        "release",
        "Private histograms of events in files, one per slot, under every user's own requirement.",
        _RELEASE,
        ("input", "output", *REQUIRED),
        (*FOLLOW_OPTIONS, *QUESTION_OPTIONS, *_LOCAL, "guarantee", "epsilon"),
        regexes=dict.fromkeys(("input", "requirement_changes"), _FILE),
    ),
    Template(
        "release-streaming",
        "release",
        "Private histograms of a stream of events, one per slot as it closes, under every user's "
        "own requirement.",
        _RELEASE,
        # An update launches again, and must not change the key.
        ("input", "output", "noise_key", *REQUIRED),
        (
            *FOLLOW_OPTIONS,
            *QUESTION_OPTIONS,
            *_LOCAL,
            *("guarantee", "epsilon", "ledger", "rejected", "layout"),
        ),
        streaming=True,
        regexes={
            **dict.fromkeys(("input", "requirement_changes"), _STREAM),
            **dict.fromkeys(("output", "revisions"), _SINK),
        },
    ),
    Template(
        "questions",
        "release",
        "Answers to many questions about events in files, from one budget, under every user's own "
        "requirement.",
        _RELEASE,
        ("input", "output", "questions", "user_column", "time_column"),
        (*NOT_QUESTIONS, *FOLLOW_OPTIONS, *_LOCAL),
        regexes={"input": _FILE, "output": _FILE, "questions": _FILE},
    ),
    Template(
        "collect",
        "collect",
        "Histograms in the local setting, played through: users' devices perturb what they report.",
        _RELEASE,
        ("input", "output", "requirements", *REQUIRED),
        (*NOT_LOCAL, *NOT_LOCAL_RELEASE, *CHANGE_OPTIONS, *FOLLOW_OPTIONS, *_LOCAL),
        streaming=True,
    ),
    Template(
        "per-record",
        "per-record",
        "Counts, sums and maxima that protect each record by a budget of its own.",
        (add_per_record_options, add_shared_options),
        ("input", "output", "statistic", "budget"),
        streaming=True,
    ),
    Template(
        "infinite",
        "release",
        "Private histograms, one per slot, that together cost each user one budget forever.",
        _RELEASE,
        ("input", "output", "epsilon", *REQUIRED),
        (
            *FOLLOW_OPTIONS,
            *CHANGE_OPTIONS,
            *REVISE_OPTIONS,
            *LIMIT_OPTIONS,
            *QUESTION_OPTIONS,
            *_LOCAL,
            "guarantee",
            *TABLE_OPTIONS,
        ),
        fixed=(f"--guarantee={INFINITE}",),
        streaming=True,
    ),
    Template(
        "user",
        "release",
        "Private histograms, one per slot, that together cost each user one budget forever; users "
        "count in the first slots of their lives.",
        _RELEASE,
        # As above; and another key would know nobody who has counted.
        ("input", "output", "noise_key", "epsilon", "max_slots", *REQUIRED),
        (
            *FOLLOW_OPTIONS,
            *CHANGE_OPTIONS,
            *QUESTION_OPTIONS,
            *_LOCAL,
            "guarantee",
            *TABLE_OPTIONS,
        ),
        fixed=(f"--guarantee={USER}",),
        streaming=True,
        regexes={"max_slots": "[0-9]+"},
    ),
)
TEMPLATES: Mapping[str, Template] = {template.name: template for template in _ALL}


def launch(argv: Sequence[str]) -> int:
    """Run the template that the image is of, as Dataflow's launcher asks; returns the exit code.

    The workers run the image that launches, which its build is told.
    """
    template = TEMPLATES[os.environ[NAME_VARIABLE]]
    worker = f"--sdk_container_image={os.environ[IMAGE_VARIABLE]}"
    return command_line.main([template.command, *template.fixed, worker, *argv])


def write_metadata(folder: Path) -> None:
    """Write the metadata of all templates."""
    for name, template in TEMPLATES.items():
        path = folder / name / "metadata.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(template.metadata(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_metadata(Path(sys.argv[1]))

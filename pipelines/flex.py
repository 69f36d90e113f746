"""Dataflow Flex templates: the command that each runs, and its parameters as Dataflow wants them.

`python -m streamveil.pipelines.flex templates` writes the metadata of each to that folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamveil.pipelines import main as command_line
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.declarations import (
    FILE,
    NUMBER,
    REQUIRED,
    SINK,
    STREAM,
    TABLE_OPTIONS,
    reasons,
)
from streamveil.pipelines.options.guarantees import INFINITE, USER
from streamveil.pipelines.options.option import FLEX, QUERIES, Option

NAME_VARIABLE, IMAGE_VARIABLE = "STREAMVEIL_TEMPLATE", "STREAMVEIL_IMAGE"

_PATTERNS_OF_KINDS: Mapping[type, str] = {int: "[0-9]+", float: NUMBER, str: ".+"}


@dataclass(frozen=True)
class Template:
    """A command, with some of its options as parameters."""

    name: str
    command: str
    description: str
    required: Sequence[str]
    without: Sequence[str] = ()
    """Options that are no parameters."""
    fixed: Sequence[str] = ()
    """Flags that are always given."""
    streaming: bool = False
    """Whether inputs may have no end."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """What is narrower than for other templates."""

    @property
    def parameters(self) -> dict[str, Option]:
        """The options that are parameters, by name, required ones first."""
        options = COMMANDS[self.command].options
        return {
            name: options[name]
            for name in dict.fromkeys((*self.required, *options))
            if FLEX in options[name].fronts and name not in self.without
        }

    def metadata(self) -> dict[str, Any]:
        """What Dataflow's TemplateMetadata says, as its JSON."""
        once = {"supportsExactlyOnce": True, "supportsAtLeastOnce": False}
        return {
            "name": f"streamveil {self.name}",
            "description": self.description,
            "streaming": self.streaming,
            **(once if self.streaming else {}),
            "parameters": [self._parameter(option) for option in self.parameters.values()],
        }

    def _parameter(self, option: Option) -> dict[str, Any]:
        default = {} if option.default is None else {"defaultValue": str(option.default).lower()}
        return {
            "name": option.name,
            "label": option.name.replace("_", " ").capitalize(),
            "helpText": option.meaning(self.command),
            "isOptional": option.name not in self.required,
            "regexes": [f"^({self._pattern(option)})$"],
            **default,
        }

    def _pattern(self, option: Option) -> str:
        known = self.patterns.get(option.name) or option.pattern or "|".join(option.choices)
        return known or _PATTERNS_OF_KINDS[option.kind]


_CHANGES = ("requirement_changes", "longest_window")
_NOT_OF_LIFETIMES = (*_CHANGES, *TABLE_OPTIONS, "queries", "guarantee", "budget", "delta")

_ALL = (
    Template(
        "release-batch",
        "release",
        "Private histograms of events in files, one per slot, under every user's own requirement.",
        ("input", "output", *REQUIRED),
        ("queries", "guarantee", "epsilon", "delta"),
        patterns=dict.fromkeys(("input", "requirement_changes"), FILE),
    ),
    Template(
        "release-streaming",
        "release",
        "Private histograms of a stream of events, one per slot as it closes, under every user's "
        "own requirement.",
        # An update launches again, and must not change the key.
        ("input", "output", "noise_key", *REQUIRED),
        ("queries", "guarantee", "epsilon", "delta", "ledger", "rejected"),
        streaming=True,
        patterns={
            **dict.fromkeys(("input", "requirement_changes"), STREAM),
            **dict.fromkeys(("output", "revisions"), SINK),
        },
    ),
    Template(
        "queries",
        "release",
        "Answers to many queries about events in files, from one budget, under every user's own "
        "requirement.",
        ("input", "output", "queries", "user_column", "time_column"),
        tuple(reasons(QUERIES)),
        patterns=dict.fromkeys(("input", "output", "queries", "requirement_changes"), FILE),
    ),
    Template(
        "collect",
        "collect",
        "Histograms in the local setting, played through: users' devices perturb what they report.",
        ("input", "output", "requirements", *REQUIRED),
        _CHANGES,
        streaming=True,
    ),
    Template(
        "per-record",
        "per-record",
        "Counts, sums and maxima that protect each record by a budget of its own.",
        ("input", "output", "statistic", "budget"),
        streaming=True,
    ),
    Template(
        "infinite",
        "release",
        "Private histograms, one per slot, that together cost each user one lifetime budget.",
        ("input", "output", "epsilon", *REQUIRED),
        ("revise", "revisions", "max_slots", *_NOT_OF_LIFETIMES),
        fixed=(f"--guarantee={INFINITE}",),
        streaming=True,
    ),
    Template(
        "user",
        "release",
        "Private histograms, one per slot, that together cost each user one lifetime budget; users "
        "count in the first slots of their lives.",
        # As above; and another key would know nobody who has counted.
        ("input", "output", "noise_key", "epsilon", "max_slots", *REQUIRED),
        _NOT_OF_LIFETIMES,
        fixed=(f"--guarantee={USER}",),
        streaming=True,
        patterns={"max_slots": "[0-9]+"},
    ),
)
TEMPLATES: Mapping[str, Template] = {template.name: template for template in _ALL}


def launch(argv: Sequence[str]) -> int:
    """Run the template that the image is of, as Dataflow's launcher asks; returns the exit code.

    The workers run the image that launches, whose name is set when it is built.
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

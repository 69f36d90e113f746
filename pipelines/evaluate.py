"""`streamveil evaluate`: mechanisms side by side on the same streams, and which one to choose."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from streamveil.io import (
    REJECTED_SCHEMA,
    check_events,
    check_output,
    check_place,
    write_table,
    write_text,
)
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.pipelines.evaluation.bounds import bound_advice
from streamveil.pipelines.evaluation.choose import advice
from streamveil.pipelines.evaluation.compare import run_all, tasks
from streamveil.pipelines.evaluation.data import Data, Letters
from streamveil.pipelines.evaluation.infinite import DEFAULT_MECHANISMS as INFINITE_MECHANISMS
from streamveil.pipelines.evaluation.infinite_command import OPTIONS as INFINITE_OPTIONS
from streamveil.pipelines.evaluation.infinite_command import compare as compare_infinite
from streamveil.pipelines.evaluation.options import (
    DEFAULT_EPSILON,
    DEFAULT_MECHANISMS,
    DEFAULT_SLOTS,
    DEFAULT_USERS,
    DEFAULT_WINDOW,
)
from streamveil.pipelines.evaluation.per_record_command import (
    OPTIONS as PER_RECORD_OPTIONS,
)
from streamveil.pipelines.evaluation.per_record_command import compare
from streamveil.pipelines.evaluation.presets import preset
from streamveil.pipelines.evaluation.real import real_stream
from streamveil.pipelines.evaluation.sources import Counted, Source, Synthetic
from streamveil.pipelines.evaluation.streams import REAL, STREAMS
from streamveil.pipelines.evaluation.tables import SCHEMA, markdown, rows_of, write_rows
from streamveil.pipelines.flags import numbers
from streamveil.pipelines.guarantees import INFINITE, is_infinite
from streamveil.pipelines.inputs import Inputs, registry_of
from streamveil.pipelines.options import REQUIRED, add_event_options, add_histogram_options
from streamveil.pipelines.progress import progress, steps
from streamveil.pipelines.values import dialect_of


def main(given: argparse.Namespace, command: str) -> int:
    """Run the command, which was given as in `command`; returns the exit code."""
    if given.per_record:
        return _compare_per_record(given, command)
    for name in PER_RECORD_OPTIONS:
        if getattr(given, name) is not None:
            raise ConfigurationError(f"--{name} is for statistics of records: give --per_record")
    if is_infinite(given):
        return _compare_infinite(given, command)
    for name in INFINITE_OPTIONS:
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"--{name} is for one budget for ever: give --guarantee={INFINITE}"
            )
    mechanisms = _names("mechanisms", given.mechanisms or ",".join(DEFAULT_MECHANISMS))
    seeds = _at_least_one("seeds", given.seeds)
    processes = _at_least_one("processes", given.processes or os.cpu_count() or 1)
    streams, users, slots = _streams(given)
    data = _data(given)
    if not streams and data is None:
        raise ConfigurationError(
            "--streams is missing: name synthetic streams, or give events of your own as --input"
        )
    _check_outputs(given)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        asked = _requirements(given, None)
        made = {name: Synthetic(name, users, slots) for name in streams if name not in REAL}
        # Wrong names show before anything is counted.
        examples = list(made.values()) or [Synthetic("sin", DEFAULT_USERS, 1)]
        tasks([(one, asked) for one in examples], mechanisms, seeds)
        sources: list[tuple[Source, list[tuple[float, int]]]] = []
        for name in streams:
            if name in REAL:
                with progress(f"streamveil evaluate, counting {name}"):
                    real = real_stream(name, Path(folder))
                sources.append((real, _requirements(given, real)))
            else:
                sources.append((made[name], asked))
        if data is not None:
            counted = _count(data, Path(folder), given)
            table = counted if data.registry else None
            sources.append((counted, _requirements(given, table)))
        todo = tasks(sources, mechanisms, seeds)
        total = len(todo) * len(mechanisms)
        with steps("streamveil evaluate", total, "runs") as done:
            runs = run_all(todo, processes, done)
    rows = rows_of(runs)
    print(markdown(rows))
    print(advice(runs))
    bounds = bound_advice([source for source, _ in sources], runs)
    print(*bounds, sep="\n", end="\n" if bounds else "")
    if given.output:
        write_rows(given.output, rows, SCHEMA, markdown(rows))
    if given.page:
        from streamveil.pipelines.evaluation.page import page_of

        write_text(given.page, page_of(runs, command, bounds))
    for path in (given.output, given.page, given.rejected):
        if path:
            print(f"wrote {path}")
    return 0


def _compare_per_record(given: argparse.Namespace, command: str) -> int:
    histograms = argparse.ArgumentParser()
    add_histogram_options(histograms)
    unset = {
        **dict.fromkeys(
            ("streams", "epsilons", "windows", "users", "slots", "processes", "format")
        ),
        **dict.fromkeys(("guarantee", "epsilon", *INFINITE_OPTIONS)),
        **dict.fromkeys(("time_column", "slot", "start", "end")),
        **vars(histograms.parse_args([])),
    }
    for name, default in unset.items():
        if getattr(given, name) != default:
            raise ConfigurationError(
                f"--{name} is about streams of histograms: leave it out with --per_record="
                f"{given.per_record}"
            )
    _at_least_one("seeds", given.seeds)
    _check_outputs(given)
    data = _names("per_record", given.per_record)
    mechanisms = _names("mechanisms", given.mechanisms) if given.mechanisms else []
    for path in compare(given, data, mechanisms, command):
        print(f"wrote {path}")
    return 0


def _compare_infinite(given: argparse.Namespace, command: str) -> int:
    mechanisms = _names("mechanisms", given.mechanisms or ",".join(INFINITE_MECHANISMS))
    _at_least_one("seeds", given.seeds)
    processes = _at_least_one("processes", given.processes or os.cpu_count() or 1)
    data = _data(given)
    _check_outputs(given)

    def count(folder: Path) -> Counted:
        assert data is not None
        return _count(data, folder, given)

    own = None if data is None else count
    for path in compare_infinite(given, mechanisms, processes, own, command):
        print(f"wrote {path}")
    return 0


def _streams(given: argparse.Namespace) -> tuple[list[str], int, int]:
    """Names of streams, and the users and slots of the synthetic ones."""
    names = [] if given.streams is None else _names("streams", given.streams)
    for name in names:
        if name not in {**STREAMS, **REAL}:
            raise ConfigurationError(
                f"--streams: {name!r} is unknown: choose of {', '.join([*STREAMS, *REAL])}"
            )
    if set(names) <= set(REAL):
        for size in ("users", "slots"):
            if getattr(given, size) is not None:
                raise ConfigurationError(
                    f"--{size} is for synthetic streams: give --streams, or leave it out"
                )
    users = _at_least_one("users", DEFAULT_USERS if given.users is None else given.users)
    slots = _at_least_one("slots", DEFAULT_SLOTS if given.slots is None else given.slots)
    return names, users, slots


def _data(given: argparse.Namespace) -> Data | None:
    """The events that the options name, checked as far as can be before they are read."""
    if not given.input:
        defaults = argparse.ArgumentParser()
        add_event_options(defaults)
        add_histogram_options(defaults)
        unset = {"format": None, "name": None, **vars(defaults.parse_args([]))}
        for name, default in unset.items():
            if getattr(given, name) != default:
                meant = " (or did you mean --slots?)" if name == "slot" else ""
                raise ConfigurationError(f"--{name} is for events: give --input{meant}")
        return None
    known = preset(given.format, given.input).options if given.format else {}
    for name, value in known.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    for name in REQUIRED:
        if not getattr(given, name):
            raise ConfigurationError(f"--{name} is missing: see streamveil evaluate --help")
    inputs = Inputs.of(given)
    if not given.format:
        check_events(given.input, inputs.columns.names, dialect=dialect_of(given))
    name = given.name or given.format or Path(given.input).name.split(".")[0]
    return Data(name, given.input, given.format, inputs, registry_of(given), dialect_of(given))


def _count(data: Data, folder: Path, given: argparse.Namespace) -> Counted:
    letters = Letters(keep=bool(given.rejected))
    counted = data.count(folder, letters)
    if letters.reasons:
        listed = ", ".join(f"{reason} {n:,}" for reason, n in sorted(letters.reasons.items()))
        where = "" if given.rejected else " (give --rejected=FILE to keep them)"
        print(f"rejected: {listed}{where}")
    if given.rejected:
        write_table(given.rejected, REJECTED_SCHEMA, letters.batches, private=True)
    return counted


def _requirements(given: argparse.Namespace, table: Counted | None) -> list[tuple[float, int]]:
    """All pairs (E, w) asked for; what is not given comes from the table, if there is one."""
    epsilons: list[float] = []
    windows: list[int] = []
    if given.epsilons is not None:
        epsilons = numbers("epsilons", given.epsilons, float, lambda e: Requirement(1, e))
    if given.windows is not None:
        windows = numbers("windows", given.windows, int, lambda w: Requirement(w, 1.0))
    longest = preset(given.format, given.input).window if given.format else DEFAULT_WINDOW
    epsilons = epsilons or [table.epsilon if table else DEFAULT_EPSILON]
    windows = windows or [table.window if table else longest]
    return [(epsilon, window) for epsilon in epsilons for window in windows]


def _check_outputs(given: argparse.Namespace) -> None:
    """Refuse, before anything runs, what could not be written."""
    wanted = {"output": (".csv", ".md"), "page": (".html",)}
    for name, endings in wanted.items():
        path = getattr(given, name)
        if path and not path.endswith(endings):
            raise ConfigurationError(f"--{name}={path}: end the name in {' or '.join(endings)}")
        if path:
            check_place(path)
    if given.rejected:
        check_output(given.rejected)
        if given.rejected == given.output:
            raise ConfigurationError(f"two outputs are named {given.output}: name them apart")
    if given.page and not all(map(find_spec, ("jinja2", "matplotlib"))):
        raise ConfigurationError(
            "--page needs jinja2 and matplotlib: pip install 'streamveil[demo]'"
        )


def _names(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise ConfigurationError(f"--{option}={text} has an empty name: write A,B,C")
    return list(dict.fromkeys(names))


def _at_least_one(option: str, number: int) -> int:
    if number < 1:
        raise ConfigurationError(f"--{option}={number}: give 1 or more")
    return number

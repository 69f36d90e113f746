"""`streamveil audit`: lower bounds of what a configuration tells of users, beside its claims."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.extras import install_line
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import EVERYBODY, Limit, limits_of
from streamveil.mechanisms.registry import (
    DEFAULT,
    INFINITE_DEFAULT,
    LOCAL_DEFAULT,
    MECHANISMS,
    only_dynamic,
)
from streamveil.pipelines.audit.devices.options import DEFAULT_BINS_OF_DEVICES, of_devices
from streamveil.pipelines.audit.findings import Check, Findings, named
from streamveil.pipelines.audit.options import (
    DEFAULT_BINS,
    DEFAULT_BINS_OF_QUESTIONS,
    DEFAULT_SECONDS,
)
from streamveil.pipelines.audit.records.options import of_records
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.guarantees import INFINITE, USER
from streamveil.pipelines.inputs import Inputs, registry_of
from streamveil.pipelines.progress import progress, steps
from streamveil.pipelines.values import budget_for_ever, dialect_of, life_limit_of, limit_of

if TYPE_CHECKING:
    from streamveil.mechanisms.portfolio.questions import Portfolio
    from streamveil.pipelines.evaluation.sources import Counted

_LOGGER = logging.getLogger("streamveil")
_TITLE = "streamveil audit"
LONG = 10_000
"""Slots of a window from which on a minute may be too short for guesses."""
FAILED, CONVICTED = 1, 4
"""The exit codes of an audit that found nothing out, and of a violation; 2 is of one that was
refused."""


def main(given: argparse.Namespace, command: str, began: float) -> int:
    """Run the command, which was given as in `command`; returns the exit code.

    Its seconds began at a moment by `time.monotonic`.
    """
    _check_outputs(given)
    findings = audited_as(given, began)
    for line in _lines(findings):
        print(line)
    if given.json:
        from streamveil.pipelines.audit.report import json_of

        Path(given.json).write_text(json_of(findings, command))
    if given.page:
        from streamveil.pipelines.audit.report import page_of

        Path(given.page).write_text(page_of(findings, command))
    for path in (given.page, given.json, given.rejected):
        if path:
            print(f"wrote {path}")
    if findings.convicted:
        return CONVICTED
    return 0 if findings.covered else FAILED


def audited_as(given: argparse.Namespace, began: float) -> Findings:
    """Audit as the options say. Raises ConfigurationError for anything wrong."""
    extent = Extent(given.runs, _seconds(given), given.seed, given.confidence, began=began)
    if of_records(given):
        return _audited_records(given, extent)
    if given.guarantee == INFINITE:
        return _audited_for_ever(given, extent)
    if given.guarantee == USER:
        everybody = Registry.of(default=(budget_for_ever(given), EVERYBODY))
        return _audited_presence(given, extent, everybody, (life_limit_of(given.max_slots),))
    registry = registry_of(given)
    assert registry is not None  # the options were checked
    if given.questions and any(registry.max_slots):
        raise ConfigurationError(
            f"--requirements={given.requirements} limits the slots in which users count "
            "(max_slots), and users of --questions count in every slot: leave the column out"
        )
    _warn_of_long_runs(registry)
    if of_devices(given):
        return _audited_devices(given, extent, registry)
    if given.questions:
        return _audited_questions(given, extent, registry)
    if given.requirement_changes is not None:
        return _audited_changes(given, extent, registry)
    limit = None if given.max_slots is None else limit_of(given.max_slots)
    assert not isinstance(limit, Auto)  # the options were checked
    limits = limits_of(limit, registry.max_slots, registry.classes, given.adjacency)
    if limits is not None:
        return _audited_presence(given, extent, registry, limits)
    return _audited_windows(given, extent, registry)


def _audited_windows(given: argparse.Namespace, extent: Extent, registry: Registry) -> Findings:
    from streamveil.pipelines.audit.auditing import audited

    bins = _bins(given)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        requirements, sizes, counts = _classes(given, registry, Path(folder))
        with _with_progress(extent) as shown:
            return audited(
                requirements,
                mechanism=given.mechanism or DEFAULT,
                sizes=sizes,
                guessed=registry.guessed,
                bins=bins,
                sensitivity=_sensitivity(given),
                adjacency=given.adjacency,
                counts=counts,
                extent=shown,
            )


def _audited_for_ever(given: argparse.Namespace, extent: Extent) -> Findings:
    from streamveil.pipelines.audit.for_ever import audited_for_ever

    counts = None
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        if given.input:  # all users are alike
            counts = _counted(given, None, Path(folder))[2].sum(axis=1)
        with _with_progress(extent) as shown:
            return audited_for_ever(
                budget_for_ever(given).epsilon,
                mechanism=given.mechanism or INFINITE_DEFAULT,
                bins=_bins(given),
                sensitivity=_sensitivity(given),
                adjacency=given.adjacency,
                counts=counts,
                extent=shown,
            )


def _audited_presence(
    given: argparse.Namespace, extent: Extent, registry: Registry, limits: Sequence[Limit]
) -> Findings:
    from streamveil.pipelines.audit.presence import audited_presence

    if given.mechanism and only_dynamic(given.mechanism):
        raise ConfigurationError(
            f"mechanism {given.mechanism!r} is for requirements that change, and not for limits on "
            f"the slots in which users count: choose one of {', '.join(MECHANISMS)}"
        )
    bins = _bins(given)
    visits: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int] | None = None
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        if given.input:
            visits, bins = _visits(given, registry, Path(folder))
        with _with_progress(extent) as shown:
            return audited_presence(
                registry.classes,
                limits,
                mechanism=given.mechanism or DEFAULT,
                sizes=registry.sizes,
                # Of a life nothing was guessed: these are as many as there may ever be.
                guessed=None if registry.classes.forever else registry.guessed,
                bins=bins,
                sensitivity=_sensitivity(given),
                adjacency=given.adjacency,
                visits=visits,
                extent=shown,
            )


def _audited_changes(given: argparse.Namespace, extent: Extent, registry: Registry) -> Findings:
    from streamveil.pipelines.audit.changes import audited_changes, later_requirements

    if any(registry.max_slots):
        raise ConfigurationError(
            f"--requirements={given.requirements} limits the slots in which users count "
            "(max_slots): that is not audited with --requirement_changes; leave the column out"
        )
    changes = later_requirements(given.requirement_changes, registry.classes)
    with _with_progress(extent) as shown:
        return audited_changes(
            registry.classes,
            changes=changes,
            mechanism=given.mechanism or DEFAULT,
            sizes=registry.sizes,
            guessed=registry.guessed,
            bins=_bins(given),
            sensitivity=_sensitivity(given),
            adjacency=given.adjacency,
            longest_window=given.longest_window,
            extent=shown,
        )


def _visits(
    given: argparse.Namespace, registry: Registry, folder: Path
) -> tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int], int]:
    """The user's events by who sent them, as `audited_presence` takes them, and how many bins."""
    alike = registry.classes.forever
    counted = _counted_file(given, None if alike else registry, folder, by_user=True)
    assert counted.visits_path is not None
    slots, bins = counted.shape
    with np.load(counted.visits_path) as file:
        class_of = file["class_of"].astype(np.int64)
        return (file["rows"], 0 * class_of if alike else class_of, slots), bins


def _sensitivity(given: argparse.Namespace) -> int:
    """By how much one user can change a slot."""
    each: int = given.max_contributions
    return each * (2 if given.adjacency == REPLACE else 1)


def _warn_of_long_runs(registry: Registry) -> None:
    """Say that time may be over before there are guesses."""
    window = max(one.window for one in registry.classes)
    if window > LONG:
        _LOGGER.warning(
            "a run is longer than the longest window, of %s slots: there may be no time for "
            "guesses about it; give more --seconds, or audit the same budget over a shorter window",
            f"{window:,}",
        )


def _audited_records(given: argparse.Namespace, extent: Extent) -> Findings:
    from streamveil.pipelines.audit.records.auditing import audited_records
    from streamveil.pipelines.audit.records.input import asked_of

    asked = asked_of(given)
    with _with_progress(extent) as shown:
        return audited_records(asked.records, asked.canaries, own=asked.own, extent=shown)


def _audited_devices(given: argparse.Namespace, extent: Extent, registry: Registry) -> Findings:
    from streamveil.pipelines.audit.devices.auditing import audited_devices

    if any(registry.max_slots):
        raise ConfigurationError(
            f"--requirements={given.requirements} limits the slots in which users count "
            "(max_slots), and devices count by themselves: leave the column out"
        )
    bins = DEFAULT_BINS_OF_DEVICES if given.bins is None else whole("bins", given.bins)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        requirements, sizes, counts = _classes(given, registry, Path(folder))
        with _with_progress(extent) as shown:
            return audited_devices(
                requirements,
                mechanism=given.mechanism or LOCAL_DEFAULT,
                sizes=sizes,
                bins=bins,
                counts=counts,
                extent=shown,
            )


def _audited_questions(given: argparse.Namespace, extent: Extent, registry: Registry) -> Findings:
    from streamveil.pipelines.audit.questions import audited_questions

    bins = DEFAULT_BINS_OF_QUESTIONS if given.bins is None else whole("bins", given.bins)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        if given.input:
            portfolio, counts, first = _counted_questions(given, Path(folder))
        else:
            portfolio, counts, first = _known_questions(given.questions), None, 0
        with _with_progress(extent) as shown:
            return audited_questions(
                portfolio,
                registry.classes,
                name=f"the portfolio of {Path(given.questions).name}",
                sizes=registry.sizes,
                guessed=registry.guessed,
                bins=bins,
                adjacency=given.adjacency,
                counts=counts,
                first_slot=first,
                extent=shown,
            )


def _known_questions(path: str) -> Portfolio:
    """Those of a file. Raises ConfigurationError where bounds are to be chosen."""
    from streamveil.io import read_questions
    from streamveil.mechanisms.portfolio.bounds import is_known

    portfolio = read_questions(path)
    unknown = next((one.name for one in portfolio if not is_known(one)), None)
    if unknown is not None:
        raise ConfigurationError(
            f"question {unknown!r} has bounds: auto, which other events choose otherwise: audit it "
            "with lower and upper"
        )
    return portfolio


def _counted_questions(
    given: argparse.Namespace, folder: Path
) -> tuple[Portfolio, dict[str, npt.NDArray[np.int64]], int]:
    """The questions, what the user's events are for each of them, and the first base slot."""
    from streamveil.pipelines.evaluation.asked import AskedData
    from streamveil.pipelines.evaluation.data import Letters, told_of

    data, letters = AskedData.of(given), Letters(keep=bool(given.rejected))
    with progress(f"{_TITLE}, counting"):
        counted = data.count(folder, letters)
    for note in told_of(letters, given):
        print(note)
    with np.load(counted.path) as file:
        counts = {one.name: file[f"counts{q}"] for q, one in enumerate(counted.portfolio)}
    return counted.portfolio, counts, counted.first_slot


def _seconds(given: argparse.Namespace) -> float | None:
    if given.runs is None and given.seconds is None:
        return DEFAULT_SECONDS
    seconds: float | None = given.seconds
    return seconds


def _bins(given: argparse.Namespace) -> int:
    """Bins of worst cases."""
    return whole("bins", DEFAULT_BINS if given.bins is None else given.bins)


def _classes(
    given: argparse.Namespace, registry: Registry, folder: Path
) -> tuple[Sequence[Requirement], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Requirements and sizes of the classes; and counts (T, K, d) of an input, if there is one."""
    if not given.input:
        return registry.classes, registry.sizes, None
    return _counted(given, registry, folder)


def _counted(
    given: argparse.Namespace, registry: Registry | None, folder: Path
) -> tuple[Sequence[Requirement], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Requirements and sizes of the classes, and their counts (T, K, d) of the user's events."""
    counted = _counted_file(given, registry, folder)
    counts = np.load(counted.path, mmap_mode="r").astype(np.int64)
    return counted.requirements, counted.sizes, counts


def _counted_file(
    given: argparse.Namespace, registry: Registry | None, folder: Path, by_user: bool = False
) -> Counted:
    """The user's events, counted; also by user if that is asked."""
    from streamveil.pipelines.evaluation.data import Data, Letters, told_of

    inputs = Inputs.of(given)
    name = Path(given.input).name
    data = Data(
        *(name, given.input, None, inputs, registry, dialect_of(given)),
        by_user=by_user,
        command="audit",
    )
    letters = Letters(keep=bool(given.rejected))
    counted = data.count(folder, letters)
    for note in told_of(letters, given):
        print(note)
    return counted


@contextmanager
def _with_progress(extent: Extent) -> Iterator[Extent]:
    """The same with progress shown: by seconds where these end the audit, by runs otherwise."""
    started, told, seconds = time.monotonic(), 0, extent.seconds
    unit, total = ("rounds", extent.runs or 0) if seconds is None else ("seconds", round(seconds))
    with steps(_TITLE, total, unit) as more:

        def done(rounds: int) -> None:
            nonlocal told
            now = rounds if seconds is None else round(time.monotonic() - started)
            more(now - told)
            told = now

        yield replace(extent, done=done)


def _lines(findings: Findings) -> Iterator[str]:
    """What is told, line by line."""
    yield from findings.notes
    shown, sure = (f"{one:.6g}" for one in (findings.confidence, findings.verdict_confidence))
    yield (
        f"| class | part | claim | claimed | at least | times the claim, at {shown} | at {sure} "
        "| guesses | seen from |"
    )
    yield "| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: |"
    for one in findings.checks:
        yield _row(one)
    yield ""
    yield findings.coverage
    if findings.replayed is not None:
        yield findings.replayed.sentence
    yield findings.sentence


def _row(one: Check) -> str:
    seen = "none" if one.visible == float("inf") else f"{one.visible:.2f}"
    return (
        f"| {named(one)} | {one.part} | {one.claim} | {one.claimed:.3g} "
        f"| {one.epsilon:.3g} | {one.times:.2f} | {one.surely:.2f} "
        f"| {one.right:,} of {one.guesses:,} | {seen} |"
    )


def _check_outputs(given: argparse.Namespace) -> None:
    """Refuse, before anything runs, what could not be written."""
    for name, ending in (("page", ".html"), ("json", ".json")):
        path = getattr(given, name)
        if path and not path.endswith(ending):
            raise ConfigurationError(f"--{name}={path}: end the name in {ending}")
        if path:
            from streamveil.io import check_place

            check_place(path)
    if given.input:
        from streamveil.pipelines.overlaps import refuse_in_input

        refuse_in_input([given.input], [given.page, given.json, given.rejected])
    if not find_spec("scipy"):
        raise ConfigurationError(f"an audit needs scipy: {install_line('audit')}")
    if given.page and not all(map(find_spec, ("jinja2", "matplotlib"))):
        raise ConfigurationError(f"--page needs jinja2 and matplotlib: {install_line('audit')}")

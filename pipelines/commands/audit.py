"""`streamveil audit`: lower bounds of what a configuration tells of users, beside its claims."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamveil.engine.stream.plan_checks import ignoring_deltas
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import EVERYBODY, Limit, limits_of
from streamveil.mechanisms.registry import MECHANISMS, only_dynamic
from streamveil.pipelines.audit.findings import Check, Findings, named
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.console.progress import progress, steps
from streamveil.pipelines.options.audit_options import (
    CHANGES,
    DEFAULT_BINS,
    DEFAULT_BINS_OF_DEVICES,
    DEFAULT_BINS_OF_QUERIES,
    DEFAULT_SECONDS,
    DEVICES,
    LIMITED_LIVES,
    LIVES,
    QUERIES,
    RECORDS,
    kind_of,
    mechanism_of,
)
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.guarantees import WINDOWS
from streamveil.pipelines.options.parsers import (
    budget_for_ever,
    dialect_of,
    life_limit_of,
    limit_of,
)
from streamveil.pipelines.plans.inputs import Inputs, registry_of
from streamveil.pipelines.plans.overlaps import check_reports

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.queries import QuerySet
    from streamveil.pipelines.evaluation.sources import Counted

_LOGGER = logging.getLogger("streamveil")
_TITLE = "streamveil audit"
LONG = 10_000
"""Slots of a window from which on a minute may be too short for guesses."""
FAILED, VIOLATED = 1, 4
"""The exit codes of an audit that found nothing out, and of a violation; 2 is of one that was
refused."""


def main(given: argparse.Namespace, execution: Execution) -> int:
    """Run the command; returns the exit code."""
    check_reports(given, {"page": (".html",), "json": (".json",)}, "audit")
    findings = audited_as(given, execution.began)
    for line in _lines(findings):
        print(line)
    if given.json:
        from streamveil.pipelines.audit.page import json_of

        Path(given.json).write_text(json_of(findings, execution.line))
    if given.page:
        from streamveil.pipelines.audit.page import page_of

        Path(given.page).write_text(page_of(findings, execution.line))
    for path in (given.page, given.json, given.rejected):
        if path:
            print(f"wrote {path}")
    if findings.violated:
        return VIOLATED
    return 0 if findings.covered else FAILED


def audited_as(given: argparse.Namespace, began: float) -> Findings:
    """Audit as the options say. Raises ConfigurationError for anything wrong."""
    extent = Extent(given.runs, _seconds(given), given.seed, given.confidence, began=began)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        audit = _audit_of(given, Path(folder))
        with _with_progress(extent) as shown:
            return audit(extent=shown)


def _audit_of(given: argparse.Namespace, folder: Path) -> Callable[..., Findings]:
    """What audits as the options say, for an `extent`; inputs are counted in a folder."""
    kind = kind_of(given)
    if kind == RECORDS:
        from streamveil.pipelines.audit.records.auditing import audited_records
        from streamveil.pipelines.audit.records.input import asked_of

        asked = asked_of(given)
        return partial(audited_records, asked.records, asked.canaries, own=asked.own)
    if kind == LIVES:
        from streamveil.pipelines.audit.lifetime import audited_for_ever

        counts = _counts(given, None, folder)
        epsilon = budget_for_ever(given).epsilon
        counts = None if counts is None else counts.sum(axis=1)  # all users are alike
        return partial(audited_for_ever, epsilon, counts=counts, **_facts(given, kind))
    if kind == LIMITED_LIVES:
        everybody = Registry.of(default=(budget_for_ever(given), EVERYBODY))
        return _of_limits(given, folder, everybody, (life_limit_of(given.max_slots),))
    registry = registry_of(given)
    assert registry is not None  # the options were checked
    registry = ignoring_deltas(registry)
    _check_table(given, kind, registry)
    _warn_of_long_runs(registry)
    of: dict[str, Any] = {"requirements": registry.classes, "sizes": registry.sizes}
    if kind == DEVICES:
        from streamveil.pipelines.audit.devices.auditing import audited_devices

        mechanism, counts = mechanism_of(given, kind), _counts(given, registry, folder)
        bins = _bins(given, DEFAULT_BINS_OF_DEVICES)
        return partial(audited_devices, **of, mechanism=mechanism, bins=bins, counts=counts)
    of["guessed"] = registry.guessed
    if kind == QUERIES:
        return partial(_audited_queries(given, folder), **of, adjacency=given.adjacency)
    of |= _facts(given, kind)
    if kind == CHANGES:
        from streamveil.pipelines.audit.changes import audited_changes, later_requirements

        changes = later_requirements(given.requirement_changes, registry.classes)
        longest = given.longest_window
        return partial(audited_changes, **of, changes=changes, longest_window=longest)
    limit = None if given.max_slots is None else limit_of(given.max_slots)
    assert not isinstance(limit, Auto)  # the options were checked
    limits = limits_of(limit, registry.max_slots, registry.classes, given.adjacency)
    if limits is not None:
        return _of_limits(given, folder, registry, limits)
    from streamveil.pipelines.audit.auditing import audited

    return partial(audited, **of, counts=_counts(given, registry, folder))


def _facts(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Those of a stream of counts that options alone say, as of `facts.Facts`."""
    return {
        "mechanism": mechanism_of(given, kind),
        "bins": _bins(given, DEFAULT_BINS),
        # By how much one user can change a slot.
        "sensitivity": given.max_contributions * (2 if given.adjacency == REPLACE else 1),
        "adjacency": given.adjacency,
    }


def _bins(given: argparse.Namespace, usual: int) -> int:
    return usual if given.bins is None else whole("bins", given.bins)


def _of_limits(
    given: argparse.Namespace, folder: Path, registry: Registry, limits: Sequence[Limit]
) -> Callable[..., Findings]:
    from streamveil.pipelines.audit.presence import audited_presence

    facts = _facts(given, WINDOWS)
    if only_dynamic(facts["mechanism"]):
        raise ConfigurationError(
            f"mechanism {given.mechanism!r} is for requirements that change, and does not "
            f"support participation limits: choose one of {', '.join(MECHANISMS)}"
        )
    if given.input:
        facts["visits"], facts["bins"] = _visits(given, registry, folder)
    # Of a life nothing was guessed: these are as many as there may ever be.
    facts["guessed"] = None if registry.classes.forever else registry.guessed
    return partial(audited_presence, registry.classes, limits, sizes=registry.sizes, **facts)


def _audited_queries(given: argparse.Namespace, folder: Path) -> Callable[..., Findings]:
    from streamveil.pipelines.audit.auditing import audited_queries

    more: dict[str, Any] = {"bins": _bins(given, DEFAULT_BINS_OF_QUERIES)}
    if given.input:
        query_set, more["counts"], more["first_slot"] = _counted_queries(given, folder)
    else:
        query_set = _known_queries(given.queries)
    return partial(
        audited_queries, query_set, name=f"the query set of {Path(given.queries).name}", **more
    )


def _check_table(given: argparse.Namespace, kind: str, registry: Registry) -> None:
    """Refuse limits of a table where these are not audited."""
    why = {
        DEVICES: ", and devices count by themselves:",
        QUERIES: f", and users of {opt.queries} count in every slot:",
        CHANGES: f": that is not audited with {opt.requirement_changes};",
    }.get(kind)
    if why and any(registry.max_slots):
        raise ConfigurationError(
            f"{opt.requirements}={given.requirements} limits the slots in which users count "
            f"(max_slots){why} leave the column out"
        )


def _visits(
    given: argparse.Namespace, registry: Registry, folder: Path
) -> tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int], int]:
    """The user's events by who sent them, as `audited_presence` takes them, and how many bins."""
    alike = registry.classes.forever
    counted = _counted(given, None if alike else registry, folder, by_user=True)
    assert counted.visits_path is not None
    slots, bins = counted.shape
    with np.load(counted.visits_path) as file:
        class_of = file["class_of"].astype(np.int64)
        return (file["rows"], 0 * class_of if alike else class_of, slots), bins


def _warn_of_long_runs(registry: Registry) -> None:
    """Say that time may be over before there are guesses."""
    window = max(one.window for one in registry.classes)
    if window > LONG:
        _LOGGER.warning(
            "a run is longer than the longest window, of %s slots: there may be no time for "
            f"guesses about it; give more {opt.seconds}, or audit the same budget over a shorter "
            f"window",
            f"{window:,}",
        )


def _known_queries(path: str) -> QuerySet:
    """Those of a file. Raises ConfigurationError where bounds are to be chosen."""
    from streamveil.io import read_queries
    from streamveil.mechanisms.queries.bounds import is_known
    from streamveil.pipelines.evaluation.query_data import refuse_discovered

    query_set = read_queries(path)
    refuse_discovered(query_set)
    unknown = next((one.name for one in query_set if not is_known(one)), None)
    if unknown is not None:
        raise ConfigurationError(
            f"query {unknown!r} has bounds: auto, which depend on the events: audit it with"
            " bounds: [LOW, HIGH]"
        )
    return query_set


def _counted_queries(
    given: argparse.Namespace, folder: Path
) -> tuple[QuerySet, dict[str, npt.NDArray[np.int64]], int]:
    """The queries, what the user's events are for each of them, and the first base slot."""
    from streamveil.pipelines.evaluation.data import counted_with_notes
    from streamveil.pipelines.evaluation.query_data import AskedData

    data = AskedData.of(given)
    with progress(f"{_TITLE}, counting"):
        counted, notes = counted_with_notes(partial(data.count, folder), given)
    for note in notes:
        print(note)
    with np.load(counted.path) as file:
        counts = {one.name: file[f"counts{q}"] for q, one in enumerate(counted.query_set)}
    return counted.query_set, counts, counted.first_slot


def _seconds(given: argparse.Namespace) -> float | None:
    if given.runs is None and given.seconds is None:
        return DEFAULT_SECONDS
    seconds: float | None = given.seconds
    return seconds


def _counts(
    given: argparse.Namespace, registry: Registry | None, folder: Path
) -> npt.NDArray[np.int64] | None:
    """The user's events, counted by slot, class and bin, (T, K, d); None where there are none."""
    if not given.input:
        return None
    found = np.load(_counted(given, registry, folder).path, mmap_mode="r")
    return np.asarray(found, np.int64)


def _counted(
    given: argparse.Namespace, registry: Registry | None, folder: Path, by_user: bool = False
) -> Counted:
    """The user's events, counted; also by user if that is asked."""
    from streamveil.pipelines.evaluation.data import Data, counted_with_notes

    inputs = Inputs.of(given)
    name = Path(given.input).name
    data = Data(
        *(name, given.input, None, inputs, registry, dialect_of(given)),
        by_user=by_user,
        command="audit",
    )
    counted, notes = counted_with_notes(partial(data.count, folder), given)
    for note in notes:
        print(note)
    return counted


@contextmanager
def _with_progress(extent: Extent) -> Iterator[Extent]:
    """The same with progress shown: by seconds where these end the audit, by runs otherwise."""
    started, reported, seconds = time.monotonic(), 0, extent.seconds
    unit, total = ("rounds", extent.runs or 0) if seconds is None else ("seconds", round(seconds))
    with steps(_TITLE, total, unit) as more:

        def done(rounds: int) -> None:
            nonlocal reported
            now = rounds if seconds is None else round(time.monotonic() - started)
            more(now - reported)
            reported = now

        yield replace(extent, done=done)


def _lines(findings: Findings) -> Iterator[str]:
    """The lines that are printed."""
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

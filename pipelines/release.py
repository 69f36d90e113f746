"""`streamveil release`: events from files or a stream, private releases to a file or a stream."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import is_endless, is_stream, requirement_changes_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import block_length
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT, mechanism, only_dynamic
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.guarantees import INFINITE, USER, WINDOWS, promise_of
from streamveil.pipelines.inputs import Inputs
from streamveil.pipelines.jobs import (
    EventOptions,
    Job,
    JobOptions,
    following_of,
    given_by,
    in_time,
    required_registry,
    run_and_tell,
)
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.logs import tell
from streamveil.pipelines.options import REQUIRED, add_release_options
from streamveil.pipelines.values import (
    budget_for_ever,
    check_required,
    check_revisions,
    dialect_of,
    life_limit_of,
    limit_of,
)
from streamveil.transforms import PrivateHistograms


class ReleaseOptions(PipelineOptions):
    """What only this command can, beside `JobOptions`: no option may be in two classes."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_release_options(parser)


@dataclass(frozen=True)
class ReleaseJob(Job[PrivateHistograms]):
    """One run of the main job: what to read, how to count, where to write."""

    requirement_changes: str | None = None

    @classmethod
    def of(cls, options: PipelineOptions) -> ReleaseJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        given = given_by(options, EventOptions, JobOptions)
        own = options.view_as(ReleaseOptions)
        check_required("release", given)
        transform = transform_of(given, own)
        check_revisions(own, transform.mechanism)
        job = cls(
            given.input,
            given.output,
            transform,
            given.ledger,
            given.rejected,
            given.summary,
            dialect_of(given),
            given.layout,
            own.revisions,
            given.card,
            bool(own.state),
            own.requirement_changes,
        )
        job.check()
        if not is_true("resume", own.resume):  # which goes on with what was chosen
            transform.check_look()
        return in_time(job, options)

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        super().check()

    def _check_changes(self, location: str) -> None:
        requirement_changes_of(location)
        if is_stream(location) and not is_endless(self.input):
            raise ConfigurationError(
                f"--requirement_changes={location} does not end, but --input={self.input} does: "
                "give both from files or both from streams"
            )

    @property
    def _inputs(self) -> list[str | None]:
        return [self.input, self.requirement_changes]

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sinks."""
        if not self.requirement_changes:
            super().build(pipeline)
            return
        events = pipeline | "ReadEvents" >> self._source()
        changes = pipeline | "ReadRequirementChanges" >> requirement_changes_of(
            self.requirement_changes
        )
        outputs = (events.batches, changes.batches) | "PrivateHistograms" >> self.transform
        self._write(outputs, [events.rejected, changes.rejected])

    @property
    def _changes_requirements(self) -> bool:
        return self.requirement_changes is not None

    @property
    def _shares(self) -> bool:
        return self.transform.population.requirements.forever

    @property
    def _dynamic(self) -> bool:
        return is_dynamic(self.transform, self.requirement_changes)


def transform_of(given: Any, own: Any) -> PrivateHistograms:
    """The transform that these options ask for, whatever is read and written.

    Raises ConfigurationError.
    """
    promise = promise_of(own)
    if promise == WINDOWS:
        registry, default = required_registry("release", given), DEFAULT
    else:
        registry = _one_class(given, own)
        default = DEFAULT if promise == USER else INFINITE_DEFAULT
    if own.longest_window is not None and own.requirement_changes is None and not own.state:
        raise ConfigurationError(
            f"--longest_window={own.longest_window} is about changes: give "
            "--requirement_changes or --state as well, or leave it out"
        )
    inputs = Inputs.of(given)
    limit: Limit | Auto | None = None
    if promise == USER:
        limit = life_limit_of(own.max_slots)
    elif own.max_slots is not None:
        limit = limit_of(own.max_slots)
        if promise == INFINITE:
            raise ConfigurationError(
                f"--max_slots={own.max_slots} is about windows: leave it out with "
                f"--guarantee={INFINITE}, or choose --guarantee={USER}"
            )
    return inputs.transform(
        registry,
        default if given.mechanism is None else given.mechanism,
        noise_key(given.noise_key, inputs.slots),
        given.shards,
        own.longest_window,
        given.allowed_lateness,
        given.max_rejected,
        own.revise or 0,
        limit,
        changing=limit is not None and own.requirement_changes is not None,
        keeps=bool(own.state),
    )


def _one_class(given: Any, own: Any) -> Registry:
    """Everybody, with one budget forever."""
    check_required("release", given, REQUIRED)
    return Registry.of(default=(budget_for_ever(given, own), 0))


def about_least_total(transform: PrivateHistograms) -> tuple[str, int] | None:
    """Of how many events a slot must be to be worth measuring, and how grave that is.

    It follows from what is public. Where a public total is smaller, all is in vain. None where
    every slot is worth it.
    """
    if not transform.population.requirements.forever:
        return None
    from streamveil.mechanisms.infinite.gated import Gated

    gated = mechanism(transform.mechanism, transform.population)
    if not isinstance(gated, Gated):
        return None
    least, total = gated.least_total, gated.public_total
    told = f"slots need about {least:,} events or more for anything to be measured"
    if not total or total >= least:
        return told, logging.INFO
    return (
        f"warning: {told}, and the public total is {total:,}: every slot will be unmeasured; "
        "give longer slots, fewer bins or a larger --epsilon, or choose --guarantee=w-event",
        logging.WARNING,
    )


def about_limits(transform: PrivateHistograms) -> str | None:
    """For whom a limit on presence is left out, because it does not pay for them.

    With a public rate, what was chosen by it. None where there is nothing to say before the run.
    """
    limit, registry = transform.limit, transform.registry
    if isinstance(limit, Auto):
        return _about_choice(transform, limit)
    if not isinstance(limit, Limit) or transform.limits is None:
        return None
    left = [k for k, one in enumerate(transform.limits) if one.is_none]
    if not left:
        return None
    users, longest = registry.sizes[left].sum(), registry.classes.windows[left].max()
    return (
        f"max_slots={limit.max_slots} does not pay over windows of {number_of(longest, 'slot')}"
        f" or less: {users:,} of {number_of(registry.sizes.sum(), 'user')} count in every slot"
    )


def _about_choice(transform: PrivateHistograms, auto: Auto) -> str | None:
    registry, limits = transform.registry, transform.limits
    asked = "max_slots=auto" if auto.rate is None else f"max_slots=auto:{auto.rate:g}"
    if limits is None:
        longest = number_of(registry.classes.longest, "slot")
        return (
            f"{asked}: over windows of {longest} or less, in {number_of(auto.blocks, 'block')}, no "
            "limit is worth it, so users count in every slot"
        )
    if auto.rate is None:  # a run tells what it chose
        return None
    users: Counter[str] = Counter()
    own = registry.max_slots or (None,) * len(limits)
    for k, (limit, said) in enumerate(zip(limits, own, strict=True)):
        if said is None:
            length = block_length(registry.classes[k].window, limit.blocks)
            some = f"the first {limit.max_slots} of {length} slots"
            users["every slot" if limit.is_none else some] += int(registry.sizes[k])
    found = ", ".join(f"{number_of(n, 'user')} in {where}" for where, n in users.items())
    return f"{asked}: users count as chosen, {found}" if found else None


def tell_before(transform: PrivateHistograms) -> None:
    """Say what follows from public facts, before anything is read."""
    told = about_least_total(transform)
    if told is not None:
        tell(*told)
    tell_limits(transform)


def tell_limits(transform: PrivateHistograms) -> None:
    """Say how presence is limited, where that is not what was asked for."""
    told = about_limits(transform)
    if told is not None:
        tell(told)


def is_dynamic(transform: PrivateHistograms, changes: object) -> bool:
    """Whether rows of the ledger are about requirements that change."""
    by_ledger = changes is not None and transform.limits is None
    return by_ledger or only_dynamic(transform.mechanism)


# What only some runs need is imported by them: a run begins sooner.
def main(options: PipelineOptions, dry: str = "false") -> int:
    """Run the command, or if `dry` only tell what it would do; returns the exit code."""
    given = given_by(options, EventOptions, JobOptions)
    own = options.view_as(ReleaseOptions)
    following = following_of(given, own)
    if own.questions:
        from streamveil.pipelines import questions

        given.questions, given.page = own.questions, own.page
        return questions.main(given, options, dry, following)
    if is_true("dry_run", dry):
        from streamveil.pipelines.dry_run import preview

        job = ReleaseJob.of(options)
        tell_limits(job.transform)
        card = job.card.plan if own.state is None else ()
        preview(job.input, job.transform, job.places, job.dialect, own.state, card)
        return 0
    if following is not None:
        from streamveil.pipelines.follow import follow

        check_required("release", given)
        transform = transform_of(given, own)
        if not following.resume:
            transform.check_look(following.most_slots)
        tell_before(transform)
        follow(
            "release",
            given,
            transform,
            following,
            options,
            own.requirement_changes,
            own.revisions,
        )
        return 0
    job = ReleaseJob.of(options)
    tell_before(job.transform)
    run_and_tell(job, options, "streamveil release")
    return 0

"""Inputs that do not end, and what runs them."""

from __future__ import annotations

from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt


def ways_to_stream(job: Any) -> str:
    """What to give for an input that does not end."""
    if not job.input.startswith("pubsub:"):
        return (
            "give --runner, such as FlinkRunner or DataflowRunner, or to try it on this machine "
            "PrismRunner for Kafka, which forgets what was spent when it ends"
        )
    kept = f"give {opt.state}=FOLDER and {opt.follow}=10s, or " if job.can_keep_state else ""
    return (
        f"{kept}give --runner=DataflowRunner, or to try it on this machine "
        "BundleBasedDirectRunner, which forgets what was spent when it ends"
    )


def never_ends(job: Any) -> ConfigurationError:
    """Says of a job whose input does not end that it cannot run in this process."""
    return ConfigurationError(
        f"{opt.input}={job.input} is unbounded, and without --runner the pipeline runs in this "
        f"process, which waits for its end: {ways_to_stream(job)}"
    )

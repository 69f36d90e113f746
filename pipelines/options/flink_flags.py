"""Flags of Beam's Flink runner, which Beam asks of the job server when it runs: too late here.

What else passes through is in Beam's own classes.
"""

from __future__ import annotations

import argparse

_NUMBERS = {
    "checkpointing_interval": "milliseconds between checkpoints; without it there are none",
    "checkpoint_timeout_millis": "milliseconds after which a checkpoint is given up",
    "min_pause_between_checkpoints": "milliseconds from one checkpoint to the next at least",
    "num_concurrent_checkpoints": "checkpoints at the same time: 1 for a stream",
    "number_of_execution_retries": "restarts of a failed job, in place of the cluster's strategy",
    "execution_retry_delay": "milliseconds before a restart",
    "max_bundle_size": "elements of a bundle",
    "max_bundle_time_mills": "milliseconds of a bundle",
    "auto_watermark_interval": "milliseconds between watermarks",
    "shutdown_sources_after_idle_ms": "milliseconds after which a source that is done ends",
}
_TEXTS = {
    "checkpointing_mode": "EXACTLY_ONCE or AT_LEAST_ONCE",
    "savepoint_path": "savepoint or checkpoint to start from",
    "state_backend": "where state is kept: filesystem (in memory until a checkpoint) or rocksdb",
    "state_backend_storage_path": "folder of the checkpoints, which goes with state_backend",
}
_SWITCHES = {
    "externalized_checkpoints_enabled": "keep a checkpoint of a failed job",
    "retain_externalized_checkpoints_on_cancellation": "keep it when the job is cancelled, too",
    "fail_on_checkpointing_errors": "fail with a checkpoint that fails",
    "finish_bundle_before_checkpointing": "end bundles before a checkpoint, not with it",
    "unaligned_checkpoint_enabled": "checkpoints that overtake what is under way",
    "allow_non_restored_state": "start from a savepoint with more state than there is use for",
}


def add_flink_options(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    for name, meaning in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=_whole, help=f"of Flink: {meaning}")
    for name, meaning in _TEXTS.items():
        parser.add_argument(f"--{name}", help=f"of Flink: {meaning}")
    for name, meaning in _SWITCHES.items():
        parser.add_argument(
            f"--{name}", nargs="?", const=True, type=_switch, help=f"of Flink: {meaning}"
        )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"{text!r} is not a whole number: write one, such as 2"
        raise argparse.ArgumentTypeError(message) from None


def _switch(text: str) -> bool:
    """Beam's own switches take no value; templates give every option one."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"

"""Running a pipeline for a person: progress, a summary, errors in plain words."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    CrossLanguageOptions,
    DebugOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineRunner, PipelineState
from apache_beam.utils.subprocess_server import JavaJarServer, SubprocessServer

from streamveil.engine import metrics
from streamveil.engine.stream_step import StateWentBack
from streamveil.io import AlreadyReleasedError
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    InputLost,
    MachineFault,
    NothingChosen,
)
from streamveil.mechanisms.discovery.key_draw import TooManyPairs
from streamveil.pipelines.console.errors import in_one_line, without_step
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.reports.summary import Summary
from streamveil.pipelines.runners.job_servers import followed, started
from streamveil.transforms.checks import follow_to_the_end

# Errors of ours that a worker raised, inside the text that a runner reports.
_KINDS = {
    kind.__name__: kind
    for kind in (
        *(ConfigurationError, BudgetExceeded, StateWentBack, InputLost, NothingChosen),
        *(MachineFault, TooManyPairs),
    )
}
_OURS = re.compile(rf"(?:\w+[.])*({'|'.join(_KINDS)}): (.+?)(?:\\n|\n|$)")


def run(build: Callable[[beam.Pipeline], None], options: PipelineOptions, title: str) -> Summary:
    """Run a pipeline to its end, or hand it over, and sum up its counters.

    Where no flag chooses a runner it runs on FnApiRunner, in this process: Beam's own default would
    first try to download one.

    Raises ConfigurationError, InputLost or BudgetExceeded with the text of what a worker raised,
    as :func:`started` and :func:`followed`, and RuntimeError for a pipeline that ended otherwise
    than done.
    """
    chosen = options.view_as(StandardOptions).runner
    try:
        pipeline = beam.Pipeline(runner=None if chosen else _local_runner(), options=options)
    except ValueError as error:
        raise ConfigurationError(f"the pipeline cannot be set up: {error}") from error
    _send_bundles_whole()
    _skip_package_listing(pipeline.options)
    follow_to_the_end(pipeline)
    with progress(title), _plain_errors(quiet=not chosen), _services(options):
        build(pipeline)
        result = started(pipeline)
        if not getattr(result, "has_job", True):
            return Summary(handed_over=True)
        state = followed(result, options)
    if state not in (None, PipelineState.DONE):
        raise RuntimeError(f"the pipeline ended {state}: see the runner's log")
    return _summary(result)


def _send_bundles_whole() -> None:
    """Let FnApiRunner send worker processes the data of a bundle in one message.

    Beam 2.77.0 sends what there is every second, and what is added while that waits for a worker is
    lost: in docs/reference/runners.md. A whole bundle arrives, or fails the job if it is of more
    than 2 GB.
    """
    from apache_beam.runners.portability.fn_api_runner import worker_handlers

    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0


def _skip_package_listing(options: PipelineOptions) -> None:
    """Skip Beam's `pip freeze`, which takes a second, when workers run in this process.

    Its result is compared with the packages of the workers.
    """
    if options.view_as(PortableOptions).environment_type == "LOOPBACK":
        options.view_as(DebugOptions).add_experiment("disable_logging_submission_environment")


def _local_runner() -> PipelineRunner:
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    return FnApiRunner()


@contextmanager
def _services(options: PipelineOptions) -> Iterator[None]:
    """Keep what Beam starts beside a pipeline, such as connectors in Java, until the end.

    Workers may run in it. `--beam_services` names others that run already.
    """
    running = options.view_as(CrossLanguageOptions).beam_services
    with JavaJarServer.beam_services(running), SubprocessServer.cache_subprocesses():
        yield


def _summary(result: Any) -> Summary:
    try:
        query = result.metrics().query(
            beam.metrics.MetricsFilter().with_namespace(metrics.METRICS_NAMESPACE)
        )
    except (AttributeError, NotImplementedError):
        return Summary()
    except Exception as error:  # of the service that keeps them; what was released stays
        why = in_one_line(str(getattr(error, "message", error)))
        tell(f"warning: what the job counted is not known: {why}", logging.WARNING)
        return Summary()
    counters: dict[str, int] = {}
    for counter in query["counters"]:
        name = counter.key.metric.name
        counters[name] = counters.get(name, 0) + (counter.committed or counter.attempted or 0)
    uses = [
        found.result.max
        for found in query["distributions"]
        if found.key.metric.name == metrics.WINDOW_USE and found.result is not None
    ]
    return Summary.of_metrics(counters, uses)


@contextmanager
def _plain_errors(quiet: bool) -> Iterator[None]:
    """Raise what a worker of ours raised, not the runner's report around it.

    If `quiet`, Beam's own log of the error is held back: it is raised here all the same.
    """
    logger = logging.getLogger("apache_beam")
    level = logger.level
    if quiet:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    except (ConfigurationError, BudgetExceeded, MachineFault, AlreadyReleasedError) as error:
        raise type(error)(without_step(str(error))) from error
    except Exception as error:
        found = _OURS.findall(without_step(str(error)))
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from error
        if not found:
            raise
        name, text = found[-1]
        raise _KINDS[name](text) from error
    finally:
        logger.setLevel(level)

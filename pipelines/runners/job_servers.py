"""Jobs on servers, such as those of Prism, Flink, Spark and Dataflow: started and followed.

What these servers, or the way to them, fail is said in one line, with the place and the remedy.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.portable_runner import PipelineResult, PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.runner import PipelineState

from streamveil.io.faults import fault_of_service, is_absent
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault
from streamveil.pipelines.console.errors import JobFailed
from streamveil.pipelines.console.logs import tell_aside
from streamveil.pipelines.console.signals import before_ending

BATCH_ONLY = (
    "Beam's Spark runner runs bounded inputs only in Python "
    "(https://github.com/apache/beam/issues/20396)"
)
_JAR_OPTIONS = {"FlinkRunner": "flink_job_server_jar", "SparkRunner": "spark_job_server_jar"}
_LONGEST = 300
_SILENT_SECONDS = 5
# Between looks whether a job server still answers, and for which it is asked to cancel a job.
_SECONDS_BETWEEN_LOOKS, _SECONDS_TO_CANCEL = 5, 5
_GOING_ON = (beam_job_api_pb2.JobState.STARTING, beam_job_api_pb2.JobState.RUNNING)
# An option that only Spark's job server knows.
_OF_SPARK = "spark_master"
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_DATAFLOW = "apache_beam.runners.dataflow."
_ENDED = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.*)", re.DOTALL)
# An error of ours that a worker raised, which is reported as it is.
_OURS = re.compile(r"\bstreamveil(?:\.\w+)+: ")
_BAD_REQUEST, _CONFLICT, _SERVER_ERROR = 400, 409, 500
_WORKERS = {
    "DOCKER": "have Docker run there, and name an image with streamveil by --environment_config",
    "PROCESS": "name a command of that machine by --environment_config",
}
# What Java says of a command that it cannot run, and Beam of one of Docker that failed.
_NOT_STARTED = re.compile(
    r"java\.io\.IOException: ((?:Received exit code|Cannot run program|error=\d+).+)", re.DOTALL
)
# Prefixes of the names of the worker threads that raise an error when a job server closes their
# connections, as it does when their job has ended.
_THREADS = ("run_worker_", "read_grpc_client_inputs", "read_state")
_WORKER_LOG = logging.getLogger("apache_beam.runners.worker.data_plane")
_MAY_RUN = "The job may still run there: see that it has ended before you start it again"


def started(pipeline: beam.Pipeline) -> Any:
    """Start a pipeline; runners in this process come back when it has ended.

    Raises ConfigurationError where a server cannot be started, or refuses the pipeline,
    MachineFault where it does not answer, JobFailed where it is lost meanwhile.
    """
    runner, options = pipeline.runner, pipeline.options
    if type(runner).__module__.startswith(_DATAFLOW):
        return _on_dataflow(pipeline, options.view_as(GoogleCloudOptions))
    if not isinstance(runner, PortableRunner):
        return pipeline.run()
    name = type(runner).__name__
    endpoint = options.view_as(PortableOptions).job_endpoint
    try:  # this only hands it over
        if endpoint and endpoint != "embed":
            seconds = options.view_as(PortableOptions).job_server_timeout
            streams = options.view_as(StandardOptions).streaming
            _look_at(endpoint, seconds, streams and not isinstance(runner, PrismRunner))
        return pipeline.run()
    except grpc.FutureTimeoutError as error:
        seconds = options.view_as(PortableOptions).job_server_timeout
        raise MachineFault(
            f"--job_endpoint={endpoint}: no job server of Beam answers there within {seconds} "
            "seconds (--job_server_timeout): start it, or correct the address, and run it again"
        ) from error
    except grpc.RpcError as error:
        if error.code() in _GONE:
            raise JobFailed(_lost(error.details(), endpoint)) from error
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # of a call before the job is run
            seconds = options.view_as(PortableOptions).job_server_timeout
            raise MachineFault(
                f"the job server {endpoint or 'that Beam started'} did not take the job within "
                f"{seconds} seconds (--job_server_timeout): look whether it and the way to it are "
                "up, and run it again"
            ) from error
        if error.code() is grpc.StatusCode.UNKNOWN and not error.details():
            raise MachineFault(
                f"the job server {endpoint or 'that Beam started'} failed when it took the job, "
                "and does not say why: look at its log and at its folder of artifacts "
                "(--artifacts-dir), and run it again"
            ) from error
        server = "Prism" if isinstance(runner, PrismRunner) else f"the job server {endpoint or ''}"
        raise ConfigurationError(
            f"--runner={name}: {server.strip()} refuses the pipeline: {error.details()}. Choose "
            "another --runner"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        if endpoint:
            raise
        raise ConfigurationError(_not_started(runner, name, error)) from error


def _on_dataflow(pipeline: beam.Pipeline, google: GoogleCloudOptions) -> Any:
    """Create a job of Dataflow, or its template.

    Raises ConfigurationError and MachineFault for what cannot be staged, or is refused.
    """
    missing = [f"--{name}" for name in ("project", "temp_location") if not getattr(google, name)]
    if missing:
        raise ConfigurationError(f"--runner=DataflowRunner needs {' and '.join(missing)} too")
    for name in ("staging_location", "temp_location", "template_location"):
        _refuse_missing_bucket(name, getattr(google, name))
    try:
        return pipeline.run()
    except Exception as error:
        if type(error).__name__ == "DataflowJobAlreadyExistsError":
            raise ConfigurationError(str(error)) from error
        if getattr(error, "code", None) in (_BAD_REQUEST, _CONFLICT):
            why = getattr(error, "message", error)
            raise ConfigurationError(f"Dataflow refuses the job: {why}: correct that") from error
        of_bucket = "gs://" in str(error) or "/storage/" in str(error)
        fault = fault_of_service(error, "gs://" if of_bucket else "dataflow://")
        if fault is None:
            raise
        known = of_bucket or _BAD_REQUEST <= getattr(error, "code", _SERVER_ERROR) < _SERVER_ERROR
        if known:
            raise MachineFault(f"the job was not handed to Dataflow: {fault}") from error
        raise JobFailed(
            f"whether Dataflow has the job {google.job_name} is not known: {fault}. {_MAY_RUN}"
        ) from error


def _refuse_missing_bucket(name: str, place: str | None) -> None:
    """Refuse a bucket that is not there, which Beam would try again for ten minutes."""
    if not (place or "").startswith("gs://"):
        return
    try:
        FileSystems.match([f"{str(place).rstrip('/')}/*"], limits=[1])
    except Exception as error:
        if is_absent(error):
            raise ConfigurationError(
                f"--{name}={place}: there is no such bucket: make it, or name another"
            ) from error


def _look_at(endpoint: str, seconds: int, streams: bool) -> None:
    """Wait for a job server, and refuse one of Spark for a stream: there it would fail late.

    Raises ConfigurationError, FutureTimeoutError and RpcError.
    """
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        known = _options_of(service, endpoint, seconds)
    if not streams:
        return
    if any(option.name == _OF_SPARK for option in known.options):
        raise ConfigurationError(
            f"--job_endpoint={endpoint} is a job server of Spark, and the input is unbounded: "
            f"{BATCH_ONLY}. Give a job server of Flink, or files"
        )


def _options_of(service: Any, endpoint: str, seconds: int) -> Any:
    """The options that a job server knows, for which it is waited so long.

    Raises ConfigurationError where something else answers, FutureTimeoutError and RpcError.
    """
    request = beam_job_api_pb2.DescribePipelineOptionsRequest()
    begun, limit = time.monotonic(), min(seconds, _SILENT_SECONDS)
    while True:
        left = max(begun + limit - time.monotonic(), 0)
        try:
            return service.DescribePipelineOptions(request, timeout=left, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigurationError(
                    f"--job_endpoint={endpoint}: the server there is not a Beam job server: "
                    "correct the address"
                ) from error
            if error.code() not in _AWAY:
                raise
        if time.monotonic() - begun < limit:
            time.sleep(0.1)
        elif limit >= seconds:
            raise grpc.FutureTimeoutError
        else:
            limit = seconds
            tell_aside(
                f"waiting for the job server {endpoint}, which does not answer, for up to "
                f"{seconds} seconds (--job_server_timeout)"
            )


def _not_started(runner: PortableRunner, name: str, error: Exception) -> str:
    """Why the server that Beam would start for a job does not start, and the remedy."""
    if isinstance(runner, PrismRunner):
        return (
            f"--runner=PrismRunner: Prism does not start: {error}. Give the whole path of its "
            "binary, --prism_location=/FOLDER/prism, or leave out --runner to run in this process"
        )
    why = " ".join(str(error).split()).rstrip(".")
    why = why if len(why) <= _LONGEST else f"{why[:_LONGEST]}..."
    jar = _JAR_OPTIONS.get(name)
    own = f"--{jar}=FILE and Java 11 or 17 (--job_server_java_launcher), or " if jar else ""
    return (
        f"--runner={name}: Beam's job server does not start: {why}. Give {own}--job_endpoint="
        "HOST:PORT of one that runs"
    )


class _SubmittedJob:
    """A job on a server of its own, whose input ends."""

    def __init__(self, result: Any, options: PipelineOptions):
        portable = options.view_as(PortableOptions)
        self.result, self.seconds = result, portable.job_server_timeout
        self.endpoint, self.environment = portable.job_endpoint, portable.environment_type

    def wait(self) -> Any:
        """The state in which it ends.

        Raises what following it raises, and JobFailed where its server does not answer any more.
        """
        ended: Future[Any] = Future()
        threading.Thread(target=self._follow, args=(ended,), daemon=True).start()
        while not wait([ended], _SECONDS_BETWEEN_LOOKS).done:
            try:
                self._state(self.seconds)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    why = f"no answer within {self.seconds} seconds (--job_server_timeout)"
                    raise JobFailed(_lost(why, self.endpoint)) from error
        return ended.result()

    def _follow(self, ended: Future[Any]) -> None:
        try:
            ended.set_result(self.result.wait_until_finish())
        except BaseException as error:
            ended.set_exception(error)

    def _state(self, seconds: float) -> Any:
        request = beam_job_api_pb2.GetJobStateRequest(job_id=self.result._job_id)
        return self.result._job_service.GetState(request, timeout=seconds).state

    def is_done(self) -> bool:
        """Whether it ended well, as far as its server answers."""
        with suppress(grpc.RpcError):
            return bool(self._state(_SECONDS_TO_CANCEL) == beam_job_api_pb2.JobState.DONE)
        return False

    @property
    def needs_us(self) -> bool:
        """Whether it cannot go on without this process, in which its workers are."""
        return bool(self.environment == "LOOPBACK")

    def cancel(self) -> bool:
        """Have it cancelled, and say whether that was done."""
        request = beam_job_api_pb2.CancelJobRequest(job_id=self.result._job_id)
        end = time.monotonic() + _SECONDS_TO_CANCEL
        with suppress(grpc.RpcError):
            state = self.result._job_service.Cancel(request, timeout=_SECONDS_TO_CANCEL).state
            while state in _GOING_ON and time.monotonic() < end:  # some servers cancel later
                time.sleep(0.1)
                state = self._state(_SECONDS_TO_CANCEL)
            return state in (
                beam_job_api_pb2.JobState.CANCELLED,
                beam_job_api_pb2.JobState.CANCELLING,
            )
        return False

    def stop(self) -> None:
        """Have it cancelled, since the user ends the run, or say that it may go on."""
        if not self.cancel() and not self.is_done():
            tell_aside(
                f"warning: the job was not cancelled at the job server {self.endpoint}. {_MAY_RUN}",
                logging.WARNING,
            )


@contextmanager
def _cancelled_at_an_interrupt(job: _SubmittedJob) -> Iterator[None]:
    """Let no job go on, and release something, after the run that the user ended."""
    try:
        with before_ending(job.stop):
            yield
    except KeyboardInterrupt:
        job.stop()
        raise


@contextmanager
def _workers_ending_quietly() -> Iterator[None]:
    """Suppress tracebacks of workers in this process when their job has ended, well or badly.

    Beam 2.77.0 logs an error when the job server closes their connections, even after a job that
    succeeded: a connection of data is cancelled as "Multiplexer hanging up", one of state as
    "Stream removed".
    """

    def is_closing(error: BaseException | None) -> bool:
        return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED

    def is_unexpected(record: logging.LogRecord) -> bool:
        return not (record.exc_info and is_closing(record.exc_info[1]))

    def report(failed: threading.ExceptHookArgs) -> None:
        if not is_closing(failed.exc_value):
            usual(failed)

    usual, threading.excepthook = threading.excepthook, report
    _WORKER_LOG.addFilter(is_unexpected)
    try:
        yield
        for thread in threading.enumerate():
            if thread.name.startswith(_THREADS):
                thread.join(1.0)
    finally:
        threading.excepthook = usual
        _WORKER_LOG.removeFilter(is_unexpected)


def followed(result: Any, options: PipelineOptions) -> Any:
    """The state in which a job ends.

    Raises JobFailed where it ends badly or is lost, MachineFault where Spark is lost to the job
    server, ConfigurationError where its workers do not start.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    portable = isinstance(result, PipelineResult)
    streams = options.view_as(StandardOptions).streaming
    job = None
    if portable and endpoint not in (None, "embed") and not streams:
        job = _SubmittedJob(result, options)
    try:
        with _workers_ending_quietly() if portable else nullcontext():
            if job is None:
                return result.wait_until_finish()
            with _cancelled_at_an_interrupt(job):
                return job.wait()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            seconds = options.view_as(PortableOptions).job_server_timeout
            raise JobFailed(
                f"--job_server_timeout={seconds}: Beam follows a job on this server for no longer, "
                f"so give more seconds than the job may run. {_MAY_RUN}"
            ) from error
        if job is not None and job.is_done():
            return PipelineState.DONE
        if job is not None and job.needs_us and job.cancel():
            raise JobFailed(
                f"the connection to the job server {endpoint} was lost ({error.details()}), and "
                "the job was cancelled there: run it again"
            ) from error
        raise JobFailed(_lost(error.details(), endpoint)) from error
    except RuntimeError as error:
        server = f"the job server {endpoint or 'that Beam started'}"
        if "INVALID_DRIVER_MEMORY" in str(error):
            reason = str(error).partition("[INVALID_DRIVER_MEMORY] ")[2].partition(". ")[0]
            raise ConfigurationError(
                f"{server} has too little memory for Spark ({reason}): start it with more, such as "
                "java -Xmx2g, or --job_server_jvm_properties=-Xmx2g where Beam starts it"
            ) from error
        if "SparkContext" in str(error) or "SparkException" in str(error):
            raise MachineFault(
                f"{server} {_fault_of_spark(str(error))}, and run it again"
            ) from error
        if "failed in state CANCELLED" in str(error):
            raise JobFailed(
                f"the job was cancelled at {server}: see what it has released before "
                "you start it again"
            ) from error
        environment = options.view_as(PortableOptions).environment_type
        if why := _without_workers(str(error), environment):
            raise ConfigurationError(f"{server} {why}") from error
        return _end_on_dataflow(result, options, error)
    except Exception as error:  # of Google's clients, while the job runs
        return _end_on_dataflow(result, options, error)


def _without_workers(text: str, environment: str | None) -> str | None:
    """What a job server says of workers that do not start, and the remedy."""
    match = _NOT_STARTED.search(text)
    if environment not in _WORKERS or match is None or "Traceback" in text:
        return None
    why = " ".join(match[1].split()).rstrip(".")
    why = why if len(why) <= _LONGEST else f"{why[:_LONGEST]}..."
    return f"starts no workers by --environment_type={environment}: {why}: {_WORKERS[environment]}"


def _end_on_dataflow(result: Any, options: PipelineOptions, error: Exception) -> str:
    """The state of a job of Dataflow that was ended on purpose, with what it has done.

    Raises JobFailed where it ended otherwise or is lost from sight, and the error where a worker
    raised one of ours, or another runner did.
    """
    if not type(result).__module__.startswith(_DATAFLOW) or _OURS.search(str(error)):
        raise error
    google = options.view_as(GoogleCloudOptions)
    job = f"the job {result.job_id()} of Dataflow in {google.region}, project {google.project},"
    match = _ENDED.search(str(error))
    if match is None:
        raise JobFailed(f"{job} is lost from sight, for Dataflow does not answer. {_MAY_RUN}")
    state, said = match[1], [line for line in match[2].splitlines() if line.strip()]
    if state in ("DRAINED", "UPDATED"):
        return PipelineState.DONE
    if state == "CANCELLED":
        raise JobFailed(
            f"{job} was cancelled there: see what it has released before you start it again"
        )
    why = said[-1 if "Traceback" in match[2] else 0].strip() if said else "None"
    why = "Dataflow does not say why" if why == "None" else why
    raise JobFailed(f"{job} ended {state}: {why}: see its log there, fix that, and run it again")


def _fault_of_spark(text: str) -> str:
    """What Spark said of a job that it did not end well, and the remedy."""
    if "Only one SparkContext" in text:
        return (
            "runs one job at a time, and has another: wait until that has ended, or start it again "
            "where the run of that job was killed"
        )
    match = re.search(r"(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ([^\n]+)", text)
    why = match[1].rstrip(".: ") if match else text.splitlines()[0]
    return (
        f"says that Spark ended the job: {why}: look whether its master (--spark-master-url) and "
        "the workers are up"
    )


def _lost(why: str, endpoint: str | None) -> str:
    where = f" {endpoint}" if endpoint else ""
    return f"the server of the job{where} is lost ({why}). {_MAY_RUN}"

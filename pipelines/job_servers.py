"""Jobs on servers, such as those of Prism, Flink, Spark and Dataflow: started and followed.

What these servers, or the way to them, fail is said in one line, with the place and the remedy.
"""

from __future__ import annotations

import re
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
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.runner import PipelineState

from streamveil.io.faults import fault_of_service, is_absent
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault
from streamveil.pipelines.errors import JobFailed
from streamveil.pipelines.logs import tell_aside

BATCH_ONLY = (
    "Beam's Spark runner runs bounded inputs only in Python "
    "(https://github.com/apache/beam/issues/20396)"
)
_JAR_OPTIONS = {"FlinkRunner": "flink_job_server_jar", "SparkRunner": "spark_job_server_jar"}
_LONGEST = 300
_SILENT_SECONDS = 5
# An option that only Spark's job server knows.
_OF_SPARK = "spark_master"
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_DATAFLOW = "apache_beam.runners.dataflow."
_ENDED = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.*)", re.DOTALL)
# An error of ours that a worker raised, which is reported as it is.
_OURS = re.compile(r"\bstreamveil(?:\.\w+)+: ")
_BAD_REQUEST, _CONFLICT, _SERVER_ERROR = 400, 409, 500
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
            raise JobFailed(_lost(error, endpoint)) from error
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
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=min(seconds, _SILENT_SECONDS))
        except grpc.FutureTimeoutError:
            if seconds <= _SILENT_SECONDS:
                raise
            tell_aside(
                f"waiting for the job server {endpoint}, which does not answer, for up to "
                f"{seconds} seconds (--job_server_timeout)"
            )
            ready.result(timeout=seconds - _SILENT_SECONDS)
        if not streams:
            return
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        known = service.DescribePipelineOptions(beam_job_api_pb2.DescribePipelineOptionsRequest())
    if any(option.name == _OF_SPARK for option in known.options):
        raise ConfigurationError(
            f"--job_endpoint={endpoint} is a job server of Spark, and the input does not end: "
            f"{BATCH_ONLY}. Give a job server of Flink, or files"
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


def followed(result: Any, options: PipelineOptions) -> Any:
    """The state in which a job ends.

    Raises JobFailed where it ends badly or is lost, MachineFault where Spark is lost to the job
    server.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    try:
        return result.wait_until_finish()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            seconds = options.view_as(PortableOptions).job_server_timeout
            raise JobFailed(
                f"--job_server_timeout={seconds}: Beam follows a job on this server for no longer, "
                f"so give more seconds than the job may run. {_MAY_RUN}"
            ) from error
        raise JobFailed(_lost(error, endpoint)) from error
    except RuntimeError as error:
        if "SparkContext" in str(error) or "SparkException" in str(error):
            why = _fault_of_spark(str(error))
            raise MachineFault(
                f"the job server {endpoint or 'that Beam started'} {why}, and run it again"
            ) from error
        return _end_on_dataflow(result, options, error)
    except Exception as error:  # of Google's clients, while the job runs
        return _end_on_dataflow(result, options, error)


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
    raise JobFailed(f"{job} ended {state}: {why}: see its log there, mend that, and run it again")


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


def _lost(error: grpc.RpcError, endpoint: str | None) -> str:
    where = f" {endpoint}" if endpoint else ""
    return f"the server of the job{where} is lost ({error.details()}). {_MAY_RUN}"

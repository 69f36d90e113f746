"""Jobs on servers, such as those of Prism, Flink, Spark and Dataflow: started and followed.

What these servers, or the way to them, fail is said in one line, with the place and the remedy.
"""

from __future__ import annotations

import re
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from streamveil.mechanisms.core.records import ConfigurationError, MachineFault
from streamveil.pipelines.errors import JobFailed

BATCH_ONLY = (
    "Beam's Spark runner runs bounded inputs only in Python "
    "(https://github.com/apache/beam/issues/20396)"
)
_JAR_OPTIONS = {"FlinkRunner": "flink_job_server_jar", "SparkRunner": "spark_job_server_jar"}
_LONGEST = 300
# An option that only Spark's job server knows.
_OF_SPARK = "spark_master"
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_MAY_RUN = "The job may still run there: see that it has ended before you start it again"


def started(pipeline: beam.Pipeline) -> Any:
    """Start a pipeline; runners in this process come back when it has ended.

    Raises ConfigurationError where a server cannot be started, or refuses the pipeline,
    MachineFault where it does not answer, JobFailed where it is lost meanwhile.
    """
    runner, options = pipeline.runner, pipeline.options
    if not isinstance(runner, PortableRunner):
        return pipeline.run()
    name = type(runner).__name__
    endpoint = options.view_as(PortableOptions).job_endpoint
    try:  # this only hands it over
        if endpoint and options.view_as(StandardOptions).streaming:
            _refuse_spark(endpoint, options.view_as(PortableOptions).job_server_timeout)
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


def _refuse_spark(endpoint: str, seconds: int) -> None:
    """Refuse a stream on a job server of Spark: it would be refused late, or never end.

    Raises ConfigurationError, FutureTimeoutError and RpcError.
    """
    with grpc.insecure_channel(endpoint) as channel:
        grpc.channel_ready_future(channel).result(timeout=seconds)
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
        raise


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

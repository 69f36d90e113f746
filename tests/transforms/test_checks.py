"""Beam follows a job on Prism to its end; tests/clusters/test_kafka.py does so on a real one."""

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from streamveil.mechanisms import Registry
from streamveil.transforms.checks import TEN_YEARS


@pytest.mark.parametrize(
    ("flag", "seconds"),
    [("--job_server_timeout=10", TEN_YEARS), ("--job_endpoint=localhost:1", 300)],
)
def test_a_stream_is_followed_for_as_long_as_it_runs(kit, flag, seconds):
    """But for a server of the user's, which may be none."""
    pipeline = beam.Pipeline(options=PipelineOptions([flag, "--streaming"]))
    line = kit.timeline(kit.histograms(Registry.of({"u": (1, 1.0)}), first_slot=0)).advance(1)
    _ = pipeline | line | line.transform
    assert pipeline.options.view_as(PortableOptions).job_server_timeout == seconds

"""How long Beam follows a job that it has started."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import PortableOptions

TEN_YEARS = 10 * 365 * 86_400  # seconds; Beam takes no None here


def follow_to_the_end(pipeline: beam.Pipeline) -> None:
    """Let Beam follow the job for as long as it runs, on a server that it starts itself.

    On Prism Beam 2.77.0 gives up after `job_server_timeout`, 300 seconds, and Prism ends with it.
    A `job_endpoint` of the user's may be that of a server that never answers, so there the limit
    stays as it was given.
    """
    options = pipeline.options.view_as(PortableOptions)
    if not options.job_endpoint:
        options.job_server_timeout = TEN_YEARS

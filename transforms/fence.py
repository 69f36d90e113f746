"""State that goes back in time is a ledger that forgets: it is kept from happening, and noticed."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions

# Read by Prism from the options of a job, also of one that comes by --job_endpoint; other runners
# do not know it.
NO_SPLITS = "prism_disable_sdf_split"


def keep_keys_whole(pipeline: beam.Pipeline) -> None:
    """Let Prism not split bundles: it then runs two bundles of one key at once.

    Both begin with the same state, and what one of them writes is lost. See docs/runners.md.
    """
    pipeline.options.view_as(DebugOptions).add_experiment(NO_SPLITS)

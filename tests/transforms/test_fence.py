"""State that goes back in time is kept from happening, and noticed by every stage."""

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions

from streamveil.mechanisms import Registry
from streamveil.transforms.fence import NO_SPLITS

REGISTRY = Registry.of({"ann": (2, 1.0), "bob": (2, 1.0)})


def test_a_pipeline_over_an_input_without_end_forbids_prism_to_split_bundles(kit):
    """Whoever builds it; beside other experiments, and once."""
    options = PipelineOptions(["--experiments=another", "--streaming"])
    pipeline = beam.Pipeline(options=options)
    for label in ("one", "two"):
        transform = kit.histograms(REGISTRY, first_slot=0)
        line = kit.timeline(transform).advance(1)
        _ = pipeline | label >> line | f"{label} histograms" >> line.transform
    assert pipeline.options.view_as(DebugOptions).experiments == ["another", NO_SPLITS]

"""What FnApiRunner loses on the way to a worker process, and that our setting keeps it.

python benchmarks/lost_bundles.py

A plain pipeline of Beam: megabytes that one step makes go to the next one through the runner.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.pipelines.runners import launch

ELEMENT = 8 << 20  # bytes
WAIT = 0.05  # seconds that a worker takes for each


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--elements", type=int, default=230, help="of 8 MB each")
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    sys.argv = sys.argv[:1]  # Beam reads it too
    for way, prepare in (("Beam", lambda: None), ("streamveil", launch._send_bundles_whole)):
        prepare()
        for _ in range(given.repeats):
            sent = given.elements * ELEMENT + 1
            print(f"{way}: {sent:,} bytes sent, {arrived(given.elements):,} arrived", flush=True)


def arrived(elements: int) -> int:
    """Bytes that a worker got of so many elements and of one of a byte."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrived"
        options = PipelineOptions(direct_running_mode="multi_processing", direct_num_workers=1)
        with beam.Pipeline(FnApiRunner(), options=options) as pipeline:
            made = pipeline | beam.Create([elements]) | beam.Reshuffle() | beam.ParDo(_Make())
            one = pipeline | "One" >> beam.Create([b"x"])
            total = (made, one) | beam.Flatten() | beam.Map(_slowly) | beam.CombineGlobally(sum)
            total | beam.Map(lambda found: path.write_text(str(found)))
        return int(path.read_text())


def _slowly(element: bytes) -> int:
    time.sleep(WAIT)
    return len(element)


class _Make(beam.DoFn):
    def process(self, elements):
        for _ in range(elements):
            yield bytes(ELEMENT)


if __name__ == "__main__":
    main()

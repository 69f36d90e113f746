"""Does Prism lose updates of one key's state when it splits a bundle? A counter says so.

    python benchmarks/prism_split.py --prism=/FOLDER/prism [--split]

Plain Beam, nothing of streamveil: elements of one key, each of which takes longer than Prism waits
for progress before it splits a bundle, add 1 to the key's state. Without splitting the numbers are
1, 2, 3 and so on. With it (`--split`) two bundles of the key run at once from the same state, so
numbers come twice.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

ELEMENTS = 8
SECONDS = 0.4  # of an element; Prism looks each 0.1 s, and splits a bundle that stands still


class _CountFn(beam.DoFn):
    """Writes each number that the counter of the key takes down in a file."""

    COUNTED = ReadModifyWriteStateSpec("counted", VarIntCoder())

    def __init__(self, path: Path) -> None:
        self._path = path

    def process(
        self, element: tuple[str, int], counted: Any = beam.DoFn.StateParam(COUNTED)
    ) -> Iterator[int]:
        number = (counted.read() or 0) + 1
        counted.write(number)
        time.sleep(SECONDS)
        with self._path.open("a") as file:
            file.write(f"{number}\n")
        yield number


def numbers(prism: str, *, split: bool) -> list[int]:
    """What the counter of one key counted, in ascending order."""
    flags = ["--runner=PrismRunner", f"--prism_location={prism}"]
    if not split:
        flags.append("--experiments=prism_disable_sdf_split")
    with TemporaryDirectory() as folder:
        path = Path(folder, "numbers")
        with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
            elements = [("key", i) for i in range(ELEMENTS)]
            _ = (
                pipeline
                | beam.Create(elements, reshuffle=False).with_output_types(tuple[str, int])
                | beam.ParDo(_CountFn(path))
            )
        return sorted(map(int, path.read_text().split()))


def main() -> None:
    """Run it once and say what came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prism", required=True, help="the prism binary")
    parser.add_argument("--split", action="store_true", help="let Prism split bundles")
    given = parser.parse_args()
    found = numbers(given.prism, split=given.split)
    lost = ELEMENTS - len(set(found))
    print(f"{ELEMENTS} updates of one key counted {found}: {lost} lost")


if __name__ == "__main__":
    main()

"""What Prism does with the state of a key when it splits bundles, and with several partitions."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.prism, pytest.mark.slow]


@pytest.mark.parametrize("split", [False, True])
def test_two_bundles_of_one_key_lose_updates_of_its_state(script, request, split):
    """If the second case fails, Prism was mended: `keep_keys_whole` may go."""
    prism_split = script("prism_split")
    prism = Path(request.config.getoption("--prism_location")).resolve()
    found = prism_split.numbers(str(prism), split=split)
    every = list(range(1, prism_split.ELEMENTS + 1))
    assert (found == every) is not split
    assert len(found) == len(every)


@pytest.mark.parametrize("partitions", [1, 2])
def test_one_partition_moves_the_watermark_past_another(script, flags_of, partitions):
    """If the second case fails, Prism was mended, and docs/reference/kafka.md may say so."""
    prism_partitions = script("prism_partitions")
    found = prism_partitions.read_in_time(partitions, flags_of("prism"))
    assert (found == prism_partitions.RECORDS) is (partitions == 1)

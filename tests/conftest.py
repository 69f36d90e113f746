"""What every test shares."""

import apache_beam.runners.portability.fn_api_runner.worker_handlers as worker_handlers
import pytest

# The local runner's state cache measures the deep size of every state write: 0.6 ms each.
worker_handlers.STATE_CACHE_SIZE_MB = 0

# What tests need that a user may not have: the option that says where it is, by marker.
CLUSTERS = {
    "prism": ("--prism_location", "the prism binary"),
    "flink": ("--flink_home", "the folder that `tests/clusters/flink.sh install` filled"),
    "kafka": ("--kafka_home", "the folder that `tests/clusters/kafka.sh install` filled"),
}


def pytest_addoption(parser):
    for option, what in CLUSTERS.values():
        parser.addoption(option, help=what)


def pytest_collection_modifyitems(config, items):
    """Skip what needs something that was not given, and say how to get it."""
    for marker, (option, what) in CLUSTERS.items():
        if config.getoption(option):
            continue
        reason = (
            f"needs {option}=PLACE, {what}: run tests/clusters/{marker}.sh install PLACE, which "
            "needs Java or Go"
        )
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))

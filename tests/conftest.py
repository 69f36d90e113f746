"""What every test shares: the runners, and what needs one that a user may not have."""

import importlib
import sys
from functools import partial
from pathlib import Path

import apache_beam as beam
import apache_beam.runners.portability.fn_api_runner.worker_handlers as worker_handlers
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import settings

# The local runner's state cache measures the deep size of every state write: 0.6 ms each.
worker_handlers.STATE_CACHE_SIZE_MB = 0

# A slow machine is no fault, and a fault shows again.
settings.register_profile("streamveil", deadline=None, derandomize=True)
settings.load_profile("streamveil")

# What tests need that a user may not have: the option that says where it is, by marker.
CLUSTERS = {
    "prism": ("--prism_location", "the prism binary"),
    "flink": ("--flink_home", "the folder that `tests/clusters/flink.sh install` filled"),
    "kafka": ("--kafka_home", "the folder that `tests/clusters/kafka.sh install` filled"),
    "prometheus": ("--prometheus_home", "the folder of `tests/clusters/prometheus.sh install`"),
}
# Where the tests of the mathematics and of the readers are.
QUICK_ROOMS = {"mechanisms", "io"}
# Of these rooms, tests of long streams and of every file operation.
LONG = {"test_adaptive_streams", "test_dynamic_stream", "test_snapshot"}
RUNNERS = {"runner", "usual_runner"}
HERE = Path(__file__).parent
FN_API, BUNDLE_BASED, PRISM = "fn_api", "bundle_based", "prism"


def pytest_addoption(parser):
    for option, what in CLUSTERS.values():
        parser.addoption(option, help=what)


def pytest_generate_tests(metafunc):
    """Run on Prism as well, where it is given, what runs on any runner or on the usual one."""
    given = metafunc.config.getoption("--prism_location")
    prism = [pytest.param(PRISM, marks=pytest.mark.prism)] if given else []
    if "runner" in metafunc.fixturenames:
        metafunc.parametrize("runner", [FN_API, BUNDLE_BASED, *prism], indirect=True)
    elif "usual_runner" in metafunc.fixturenames:
        metafunc.parametrize("usual_runner", [FN_API, *prism], indirect=True)


def is_quick(item):
    """Whether a test runs no pipeline, draws no examples and takes no samples for an audit."""
    room = item.path.relative_to(HERE).parts[0]
    takes_long = item.get_closest_marker("slow") or RUNNERS.intersection(item.fixturenames)
    draws = getattr(item.obj, "is_hypothesis_test", False) or "audit" in item.nodeid
    return room in QUICK_ROOMS and item.path.stem not in LONG and not takes_long and not draws


def pytest_collection_modifyitems(config, items):
    """Mark what is quick; skip what needs something that was not given, and say how to get it."""
    for item in items:
        if is_quick(item):
            item.add_marker(pytest.mark.quick)
    for marker, (option, what) in CLUSTERS.items():
        if config.getoption(option):
            continue
        reason = (
            f"needs {option}=PLACE, {what}: run tests/clusters/{marker}.sh install PLACE, which "
            "needs Java, Go or Debian"
        )
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def runner(request):
    """Name of a runner: a test that takes this runs on each of them."""
    return request.param


@pytest.fixture(scope="session")
def usual_runner(request):
    """Name of the runner of a test to which one is as good as another."""
    return getattr(request, "param", FN_API)


@pytest.fixture(scope="session")
def flags_of(request):
    """The flags that choose a runner, by its name."""
    location = request.config.getoption("--prism_location")
    flags = {
        FN_API: ["--runner=FnApiRunner"],
        BUNDLE_BASED: ["--runner=BundleBasedDirectRunner"],
        PRISM: ["--runner=PrismRunner", f"--prism_location={location}"],
    }
    return flags.__getitem__


@pytest.fixture(scope="session")
def pipeline_on(flags_of):
    """An empty pipeline on a runner, by its name, with flags of Beam."""

    def pipeline_on(runner, *flags):
        return beam.Pipeline(options=PipelineOptions([*flags_of(runner), *flags]))

    return pipeline_on


@pytest.fixture(scope="session")
def new_pipeline(pipeline_on, usual_runner):
    """An empty pipeline on the usual runner, with flags of Beam."""
    return partial(pipeline_on, usual_runner)


@pytest.fixture(scope="session")
def script():
    """A script of benchmarks/ as a module, by its name."""
    sys.path.insert(0, str(HERE.parent / "benchmarks"))  # as if it were run
    return importlib.import_module


@pytest.fixture(scope="session")
def flink_drill(script):
    return script("flink_drill")


@pytest.fixture(scope="session")
def live_drill(script):
    return script("live_drill")


@pytest.fixture(scope="session")
def flink_soak(script):
    return script("flink_soak")
